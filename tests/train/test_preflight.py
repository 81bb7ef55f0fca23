"""What an earlier run left behind: found, named, and waited for where it leaves by itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from stack.errors import NotAble
from stack.tracking.liveness import this_process
from stack.train import preflight
from stack.train.child import LAUNCHER_ENV
from stack.train.preflight import leftovers

Left = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def left() -> Iterator[Left]:
    """Starts a process that looks like a trainer of a folder, by a launcher that is gone, or by this one."""
    started: list[subprocess.Popen[bytes]] = []

    def start(folder: Path, *, is_orphan: bool, seconds: float = 600) -> subprocess.Popen[bytes]:
        launcher = this_process()
        if is_orphan:
            gone = subprocess.Popen([sys.executable, "-c", ""])
            gone.wait()
            launcher = {**launcher, "pid": gone.pid, "started": 1}
        words = ["-m", "stack.train.worker", str(folder / "job.json")]
        child = subprocess.Popen(
            [sys.executable, "-c", f"import time; time.sleep({seconds})", *words],
            env={**os.environ, LAUNCHER_ENV: json.dumps(launcher)},
        )
        started.append(child)
        while not any(found.pid == child.pid for found in leftovers()):
            assert child.poll() is None
        return child

    yield start
    for child in started:
        child.kill()
        child.wait()


def test_orphans_are_told_from_trainers_that_have_a_launcher(left: Left, tmp_path: Path) -> None:
    orphan = left(tmp_path / "a", is_orphan=True)
    looked_after = left(tmp_path / "b", is_orphan=False)
    found = {leftover.pid: leftover for leftover in leftovers()}
    assert found[orphan.pid].is_orphan and found[orphan.pid].folder == tmp_path / "a"
    assert not found[looked_after.pid].is_orphan


def test_an_orphan_of_another_folder_is_named(left: Left, tmp_path: Path) -> None:
    orphan = left(tmp_path / "other", is_orphan=True)
    said: list[str] = []
    preflight._check_leftovers(tmp_path / "here", said.append)
    mine = [line for line in said if str(tmp_path) in line]
    assert len(mine) == 1 and f"kill {orphan.pid}" in mine[0] and "has lost its launcher" in mine[0]


def test_an_orphan_that_is_leaving_is_waited_for(left: Left, tmp_path: Path) -> None:
    child = left(tmp_path, is_orphan=True, seconds=1.5)
    said: list[str] = []

    def log(line: str) -> None:
        said.append(line)

    # Its parent, this test, has to take its end, or it would stay as a zombie.
    import threading

    threading.Thread(target=child.wait).start()
    preflight._check_leftovers(tmp_path, log)
    assert child.poll() is not None
    assert sum(f"waiting for process {child.pid}" in line for line in said) == 1


def test_one_that_stays_is_refused(left: Left, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "LEAVE_S", 0.0)
    child = left(tmp_path, is_orphan=True)
    with pytest.raises(NotAble, match=f"process {child.pid} of an earlier start") as caught:
        preflight._check_leftovers(tmp_path, lambda _: None)
    assert f"kill {child.pid}" in caught.value.do


@pytest.mark.parametrize(("is_gone", "asked"), [(True, True), (False, False)])
def test_a_trainer_leaves_when_its_launcher_is_gone(
    monkeypatch: pytest.MonkeyPatch, is_gone: bool, asked: bool
) -> None:
    """Also below the elastic launcher, which lives on."""
    import signal

    from stack.train.worker import Stop

    def ignore(*_: Any) -> None:
        return None

    monkeypatch.setattr(signal, "signal", ignore)
    launcher = this_process()
    if is_gone:
        launcher = {**launcher, "started": 1}
    monkeypatch.setenv(LAUNCHER_ENV, json.dumps(launcher))
    assert Stop()() is asked
