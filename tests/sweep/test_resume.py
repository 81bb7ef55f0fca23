"""A sweep that is killed goes on where it was; a point that a person kills is a crash, and is tried again."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stack.errors import BadRequest
from stack.files import read_json
from stack.sweep import sweep
from stack.sweep.judge import STEPS
from stack.sweep.runner import Runner
from stack.tracking.journal import read_journal
from stack.train.preflight import leftovers

SECTION = {
    "groups": [{"devices": 1, "batches": [1, 2]}],
    "warmup_steps": 1,
    "timed_steps": 60,
    "pictures": False,
}


def run(toys: Any, world: Any, out: Path, *, resume: bool, log: Callable[[str], None] = print) -> Any:
    return sweep(
        toys.run_manifest(sweep=SECTION),
        dataset=world.dataset,
        mirror=world.mirror,
        models=world.models,
        out=out,
        resume=resume,
        log=log,
    )


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def steps_of(folder: Path) -> bool:
    return (folder / STEPS).exists() and '"step"' in (folder / STEPS).read_text()


def pids_in(folder: Path) -> list[int]:
    return [left.pid for left in leftovers() if left.folder == folder]


@pytest.mark.lerobot
def test_killed_and_gone_on_with(toys: Any, world: Any, tmp_path: Path) -> None:
    out = tmp_path / "out"
    first, second = out / "points" / "d1-b1", out / "points" / "d1-b2"
    starter = multiprocessing.get_context("fork").Process(
        target=run, args=(toys, world, out), kwargs={"resume": False}
    )
    starter.start()
    wait_for(lambda: (first / "point.json").exists() and steps_of(second))
    assert starter.pid is not None
    os.kill(starter.pid, signal.SIGKILL)
    starter.join()
    wait_for(lambda: not pids_in(second))  # its point sees that it is alone, and leaves
    kept = (first / "point.json").stat()
    with pytest.raises(BadRequest, match="holds points of a sweep already"):
        run(toys, world, out, resume=False)

    def kill_the_point() -> None:
        wait_for(lambda: bool(pids_in(second)) and steps_of(second))
        os.kill(pids_in(second)[0], signal.SIGKILL)

    (second / STEPS).unlink(missing_ok=True)
    person = threading.Thread(target=kill_the_point)
    person.start()
    said: list[str] = []
    result = run(toys, world, out, resume=True, log=said.append)
    person.join()
    one, two = result.points
    assert one.status == "ok" and any("d1-b1" in line and "kept from before" in line for line in said)
    assert (first / "point.json").stat().st_mtime_ns == kept.st_mtime_ns
    assert two.status == "error", two.message
    assert "killed by signal 9 (SIGKILL) from outside" in two.message
    assert "the kernel ended no process(es)" in two.message and two.evidence["steps"] >= 1
    starts = [line["kind"] for line in read_journal(out / "journal.jsonl")]
    assert starts.count("attempt") == 1

    loaded = toys.run_manifest(sweep=SECTION)
    job = toys.make_job(world, out, sweep=SECTION)
    runner = Runner(job, loaded.manifest.sweep, "parent", True, print)
    (group,) = loaded.manifest.sweep.groups
    assert runner._kept(first, group) == one
    assert runner._kept(second, group) is None  # a crash is tried again
    changed = toys.make_job(world, out, sweep=SECTION, train={"learning_rate": 1e-3})
    assert Runner(changed, loaded.manifest.sweep, "parent", True, print)._kept(first, group) is None
    assert read_json(first / "point.json", what="point")["point"]["status"] == "ok"


def test_a_point_without_its_sweep_leaves(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import json
    import types

    from stack.sweep.point import _run
    from stack.tracking.liveness import this_process
    from stack.train.child import LAUNCHER_ENV

    taken: list[Any] = []

    class Take:
        device = types.SimpleNamespace(synchronise=lambda: None)

        def __call__(self, inputs: Any) -> None:
            taken.append(inputs)

    settings: Any = types.SimpleNamespace(warmup_steps=1, timed_steps=3)
    batches = [types.SimpleNamespace(inputs=n) for n in range(4)]
    monkeypatch.setenv(LAUNCHER_ENV, json.dumps(this_process()))
    steps_s, waits_s = _run(Take(), iter(batches), settings, lambda **_: None)  # type: ignore[arg-type]
    assert len(steps_s) == len(waits_s) == 3 and taken == [0, 1, 2, 3]
    gone = {**this_process(), "started": 1}
    monkeypatch.setenv(LAUNCHER_ENV, json.dumps(gone))
    with pytest.raises(SystemExit, match="gone"):
        _run(Take(), iter(batches), settings, lambda **_: None)  # type: ignore[arg-type]
    assert taken == [0, 1, 2, 3]
