"""Exit codes and messages of the program as a user runs it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest


def stack(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "stack", *arguments], capture_output=True, text=True, cwd=cwd, timeout=120
    )


def test_an_unknown_command_names_the_closest(tmp_path: Path) -> None:
    done = stack("prepair")
    assert done.returncode == 2 and "did you mean 'prepare'" in done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("prepare", "missing.yaml", "--out", "x"),
        ("reproduce", "missing.yaml"),
        ("train", "missing.yaml"),
        ("sweep", "missing.yaml"),
        ("audit", "missing"),
        ("mirror", "get", "missing.yaml", "--to", "x"),
        ("mirror", "verify", "missing.yaml", "--to", "x"),
        ("track", "ship", "missing"),
    ],
)
def test_a_path_that_is_not_there_is_a_wrong_request(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    done = stack(*arguments, cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert "missing" in done.stderr and "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_manifest_with_a_typo_is_answered_with_its_place(tmp_path: Path) -> None:
    file = tmp_path / "d.yaml"
    file.write_text("schema: stack/dataset/1\nname: d\nsource:\n  - path: x\n")
    done = stack("prepare", str(file), "--out", str(tmp_path / "o"))
    assert done.returncode == 2
    assert "did you mean 'sources'" in done.stderr and f"{file}:3:1" in done.stderr


def test_json_on_stdout_stands_alone() -> None:
    done = stack("doctor", "--json", "-")
    assert json.loads(done.stdout)["host"]["cpu_count"] >= 1


def test_a_device_that_is_not_there_is_an_environment_that_is_not_able() -> None:
    done = stack("doctor", "--device", "npu", "--count", "8")
    assert done.returncode == 3 and "doctor-devices" in done.stdout


def test_a_bug_of_ours_leaves_its_traceback_in_a_file() -> None:
    code = (
        "import sys, stack.cli as c; sys.argv = ['stack', 'doctor'];"
        "c.cli.commands['doctor'].callback = lambda **k: 1 / 0; c.main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 70 and "Traceback" not in done.stderr
    file = Path(done.stderr.rsplit(" ", 1)[-1].strip())
    assert "ZeroDivisionError" in file.read_text()
    file.unlink()


def test_an_interrupt_exits_130_and_names_the_command(tmp_path: Path) -> None:
    child = subprocess.Popen(
        [sys.executable, "-m", "stack", "demo", str(tmp_path / "demo")],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    deadline = time.monotonic() + 60
    while not list(tmp_path.glob(".demo.partial-*")) and time.monotonic() < deadline:
        time.sleep(0.05)  # it is at work once its partial folder is there
    child.send_signal(signal.SIGINT)
    _, err = child.communicate(timeout=60)
    assert child.returncode == 130 and f"stack demo {tmp_path / 'demo'}" in err
    assert not (tmp_path / "demo").exists()


LOST = """
import os, signal, sys
from stack.demo import deliveries

before = deliveries._write_delivery

def swallows(*given):
    try:
        os.kill(os.getpid(), signal.SIGINT)
    except KeyboardInterrupt:
        pass  # as modules do that Cython made, while they start
    return before(*given)

deliveries._write_delivery = swallows
sys.argv = ["stack", "demo", sys.argv[1]]
from stack.cli import main
main()
"""


def test_an_interrupt_that_a_library_swallows_is_not_lost(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOST, str(tmp_path / "demo")], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 130 and "interrupted; go on with the same command" in done.stderr, done.stderr
    assert not (tmp_path / "demo").exists()


@pytest.mark.parametrize("place", ["file/page.html", "loop/page.html", f"{'x' * 300}.html"])
def test_a_place_that_cannot_be_written_is_no_bug_of_ours(tmp_path: Path, place: str) -> None:
    from stack.tracking import Journal

    Journal(tmp_path / "run", name="run", experiment="stack/train").close()
    (tmp_path / "file").write_text("a file, where a folder is asked for")
    (tmp_path / "loop").symlink_to("loop")
    done = stack("report", "run", "--html", place, cwd=tmp_path)
    assert done.returncode in (2, 3), done.stderr
    assert "error[bug]" not in done.stderr and place.split("/")[0] in done.stderr


def test_another_thread_does_not_die_of_a_lost_interrupt(monkeypatch: pytest.MonkeyPatch) -> None:
    from stack.cli import interrupts

    monkeypatch.setattr(interrupts, "_asked", True)
    ended = []

    def work() -> None:
        interrupts.raise_lost_interrupt()
        ended.append("well")

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert ended == ["well"]
    with pytest.raises(KeyboardInterrupt):
        interrupts.raise_lost_interrupt()
