"""A reader that crashes or hangs on one file: the report comes all the same and says what it did not see.

No bytes are known that crash this release of pyarrow or PyAV for certain, so the crash is made: the audit
runs as a command of its own, in which the reader ends the process when it is given a certain file.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

import stack

BREAK = """
import builtins, os, signal, sys, time
import stack.audit.shelter as shelter
from stack.cli import main

how, name, least_s = sys.argv[1:4]
del sys.argv[1:4]
shelter.READ_LEAST_S = float(least_s)
real = builtins.__import__

def breaks(file):
    if str(file).endswith(name):
        if how == "crash":
            os.kill(os.getpid(), signal.SIGSEGV)
        if how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(600)

def imported(*args, **kwargs):
    module = real(*args, **kwargs)
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

builtins.__import__ = imported
main()
"""
PATHS = {"PYTHONPATH": str(Path(stack.__file__).parents[1]), "OMP_NUM_THREADS": "1"}


def start(script: Path, *arguments: str) -> subprocess.Popen[str]:
    script.write_text(BREAK)
    return subprocess.Popen(
        [sys.executable, str(script), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **PATHS},
    )


@pytest.mark.parametrize(
    ("how", "version", "file", "codes"),
    [
        ("crash", "v2.1", "data/chunk-000/episode_000002.parquet", {"file-unreadable", "unchecked-rows"}),
        ("crash", "v3.0", "meta/tasks.parquet", {"file-unreadable", "task-missing"}),
        (
            "crash",
            "v2.1",
            "videos/chunk-000/observation.images.hand/episode_000001.mp4",
            {"file-unreadable", "unchecked-video"},
        ),
        ("hang", "v2.1", "data/chunk-000/episode_000002.parquet", {"file-unreadable", "unchecked-rows"}),
    ],
)
def test_the_report_survives_its_reader(
    how: str, version: str, file: str, codes: set[str], copy_good: Callable[[str], Path], tmp_path: Path
) -> None:
    root = copy_good(version)
    said, page = tmp_path / "report.json", tmp_path / "report.html"
    last = file.rpartition("/")[2] if "videos" not in file else file
    asked = ["audit", str(root), "--json", str(said), "--html", str(page)]
    done = start(tmp_path / "break.py", how, last, "1" if how == "hang" else "60", *asked)
    out, err = done.communicate(timeout=300)
    assert done.returncode == 1, (out, err)
    report = json.loads(said.read_text())
    found = {fault["code"]: fault for fault in report["faults"] if fault["severity"] == "error"}
    assert codes <= set(found), found
    assert found["file-unreadable"]["where"]["file"] == file
    assert "crashed on it (signal 11)" in found["file-unreadable"]["message"] or how == "hang"
    # All else was checked.
    assert report["facts"]["episodes"] >= 2
    assert all("not asked" in item["why"] or "no policy" in item["why"] for item in report["not_run"])
    assert "crashed on it" in page.read_text() or how == "hang"
    assert "Traceback" not in out + err


def test_a_kill_is_no_crash_of_a_reader(copy_good: Callable[[str], Path], tmp_path: Path) -> None:
    """Memory may have run out: no file is to blame, and nothing is tried again."""
    root = copy_good("v2.1")
    done = start(tmp_path / "break.py", "kill", "episode_000002.parquet", "60", "audit", str(root))
    out, err = done.communicate(timeout=300)
    assert done.returncode == 4, (out, err)
    assert "error[audit-died]" in err and "memory" in err
    assert "Traceback" not in out + err


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_an_end_asked_for_ends_both_processes(
    number: signal.Signals, code: int, copy_good: Callable[[str], Path], tmp_path: Path
) -> None:
    root = copy_good("v2.1")
    done = start(tmp_path / "break.py", "hang", "episode_000002.parquet", "60", "audit", str(root))
    parent = psutil.Process(done.pid)
    until = time.monotonic() + 120
    while not (children := parent.children()) and time.monotonic() < until:
        time.sleep(0.05)
    assert done.stderr is not None
    done.stderr.readline()  # the audit has begun
    time.sleep(0.5)
    for process in children if number == signal.SIGINT else []:
        process.send_signal(number)  # a terminal sends it to both
    done.send_signal(number)
    assert done.wait(timeout=120) == code
    assert psutil.wait_procs(children, timeout=60)[1] == []
    done.communicate()
