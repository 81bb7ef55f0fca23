"""The doors for library callers: a reader that takes its process down leaves the caller and the report whole.

No bytes are known that crash this release of a reader for certain, so the crash is made: `sitecustomize`,
which every new Python reads, makes the reader of parquet or the demuxer end its process at a certain file.
The test's own process is not touched.
"""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

import stack
from stack.audit import AuditReport, PolicyNeeds, apart, audit, audit_several
from stack.audit.html import render
from stack.audit.mend import mend
from stack.errors import BadRequest, WorkFailed

BREAK = """
import builtins, os, signal, sys, time
how, name, least_s = os.environ.get("BREAK", "no x 120").split()
real = builtins.__import__

def breaks(file):
    if str(file).endswith(name):
        if how in ("SIGSEGV", "SIGKILL"):
            os.kill(os.getpid(), getattr(signal, how))
        time.sleep(600)

def imported(*args, **kwargs):
    module = real(*args, **kwargs)
    shelter = sys.modules.get("stack.audit.shelter")
    if shelter is not None and hasattr(shelter, "READ_LEAST_S"):
        shelter.READ_LEAST_S = float(least_s)
    parquet = sys.modules.get("pyarrow.parquet")
    if parquet is not None and hasattr(parquet, "ParquetFile") and not hasattr(parquet, "broken"):
        parquet.broken = True
        class Breaking(parquet.ParquetFile):
            def __init__(self, source, *args, **kwargs):
                breaks(source)
                super().__init__(source, *args, **kwargs)
        parquet.ParquetFile = Breaking
    video = sys.modules.get("stack.dataset.video")
    if video is not None and hasattr(video, "probe") and not hasattr(video, "broken"):
        video.broken = True
        probe = video.probe
        def breaking(file):
            breaks(file)
            return probe(file)
        video.probe = breaking
    return module

if how != "no":
    builtins.__import__ = imported
"""
ROWS = "data/chunk-000/episode_000002.parquet"
VIDEO = "videos/chunk-000/observation.images.hand/episode_000001.mp4"


@pytest.fixture
def broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Makes readers of processes that begin from now on break at a file."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site/sitecustomize.py").write_text(BREAK)
    paths = [str(tmp_path / "site"), str(Path(stack.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]

    def at(how: str, file: str, *, least_s: float = 120) -> None:
        apart.let_go()
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))
        monkeypatch.setenv("BREAK", f"{how} {file} {least_s}")

    yield at
    apart.let_go()


@pytest.mark.parametrize(
    ("how", "file", "code"),
    [
        ("SIGSEGV", ROWS, "unchecked-rows"),
        ("SIGSEGV", VIDEO, "unchecked-video"),
        ("hang", VIDEO, "unchecked-video"),
    ],
)
def test_a_library_callers_report_survives_its_reader(
    how: str, file: str, code: str, broken: Callable[..., None], copy_good: Callable[[str], Path]
) -> None:
    root = copy_good("v2.1")
    broken(how, file if how == "SIGSEGV" else file.rpartition("/")[2], least_s=120 if how == "SIGSEGV" else 2)
    said: list[str] = []
    report = audit(root, log=said.append)
    (fault,) = report.of("file-unreadable")
    assert file in {place.file for place in fault.places}
    assert ("crashed on it (signal 11)" if how == "SIGSEGV" else "did not come back") in fault.message
    assert code in {f.code for f in report.faults}
    assert "audit: totals and splits" in said
    assert not report.of("unchecked-check")
    assert report.facts.episodes >= 2
    assert isinstance(render(report, root), str)


def test_nobody_is_blamed_for_a_kill(broken: Callable[..., None], copy_good: Callable[[str], Path]) -> None:
    root = copy_good("v2.1")
    broken("SIGKILL", ROWS)
    with pytest.raises(WorkFailed, match="memory"):
        audit(root)


def test_what_comes_back_is_what_the_function_gives(
    good: dict[str, Path], copy_good: Callable[[str], Path], tmp_path: Path
) -> None:
    def same(report: AuditReport) -> AuditReport:
        ran = tuple(dataclasses.replace(one, seconds=0.0) for one in report.ran)
        return dataclasses.replace(report, seconds=0.0, ran=ran)

    there = audit(good["v3.0"], policy=PolicyNeeds())
    with apart.here():
        here = audit(good["v3.0"], policy=PolicyNeeds())
    assert same(there) == same(here)
    several = audit_several([good["v2.1"], good["v3.0"]])
    assert list(several.reports) == ["v2.1", "v3.0"]
    root = copy_good("v2.1")
    info = (root / "meta/info.json").read_text()
    (root / "meta/info.json").write_text(info.replace('"total_episodes": ', '"total_episodes": 1'))
    done = mend(root, tmp_path / "mended")
    assert done.ok and "totals-lie" in done.gone


def test_errors_and_relative_paths_are_the_callers(
    good: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(good["v2.1"].parent)
    assert audit(Path("v2.1")).ok
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadRequest, match="no such folder"):
        audit(Path("v2.1"))

    def refuses(_: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        audit(good["v2.1"], log=refuses)
    assert apart._worker is None
    assert audit(good["v2.1"]).ok


def test_threads_may_call_together(good: dict[str, Path]) -> None:
    found: list[bool] = []
    threads = [
        threading.Thread(target=lambda root=root: found.append(audit(root).ok)) for root in good.values()
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [True, True]


def test_the_processes_end_with_the_caller(good: dict[str, Path]) -> None:
    """Also where it is killed in the middle of a call."""
    script = (
        "import sys, time; from pathlib import Path; from stack.audit import audit\n"
        "def log(line):\n"
        "    if line.endswith('totals and splits'): print('busy', flush=True); time.sleep(600)\n"
        "audit(Path(sys.argv[1]), log=log)\n"
    )
    paths = {"PYTHONPATH": str(Path(stack.__file__).parents[1])}
    caller = subprocess.Popen(
        [sys.executable, "-c", script, str(good["v2.1"])],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **paths},
    )
    assert caller.stdout is not None and caller.stdout.readline() == "busy\n"
    theirs = psutil.Process(caller.pid).children(recursive=True)
    assert len(theirs) >= 2
    caller.send_signal(signal.SIGKILL)
    caller.wait()
    caller.stdout.close()
    assert psutil.wait_procs(theirs, timeout=60)[1] == []


def test_an_idle_worker_leaves(good: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Its memory is not held while the caller trains; the next call starts another."""
    apart.let_go()
    monkeypatch.setattr(
        apart,
        "MAIN",
        apart.MAIN.replace("from stack", "import stack.audit.apart as a; a.IDLE_S = 0.2; from stack"),
    )
    assert audit(good["v2.1"]).ok
    assert apart._worker is not None
    left = apart._worker._process
    until = time.monotonic() + 60
    while left.poll() is None and time.monotonic() < until:
        time.sleep(0.05)
    assert left.returncode == 0
    assert audit(good["v2.1"]).ok
    apart.let_go()
