"""Folders that get their name at one instant: swaps, locks, what a kill leaves."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from stack import folders
from stack.errors import Exit, StackError
from stack.folders import hold_target, whole_folder


def fill(folder: Path, text: str) -> None:
    (folder / "deep").mkdir()
    (folder / "deep/text").write_text(text)


def text_of(folder: Path) -> str:
    return (folder / "deep/text").read_text()


@pytest.fixture
def standing(tmp_path: Path) -> Path:
    target = tmp_path / "out"
    with whole_folder(target) as folder:
        fill(folder, "old")
    return target


@pytest.fixture(params=["exchange", "two renames"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "two renames":
        monkeypatch.setattr(folders, "_exchange", lambda a, b: False)
    return str(request.param)


def test_a_replaced_folder_is_swapped_and_nothing_is_left(standing: Path, way: str) -> None:
    with whole_folder(standing, replace=True) as folder:
        fill(folder, "new")
        assert text_of(standing) == "old"
    assert text_of(standing) == "new"
    assert [p.name for p in standing.parent.iterdir()] == ["out"]


WRITES_ON = """
import itertools, sys
from pathlib import Path
folder = Path(sys.argv[1])
try:
    for n in itertools.count():
        (folder / f"{n:08d}").write_text("x")
        if n == 50:
            print("writing", flush=True)
except FileNotFoundError:
    print("gone", flush=True)
"""


def test_a_writer_that_outlives_the_error_brings_nothing_back(tmp_path: Path) -> None:
    """As a worker on another machine does, which nobody can stop in the middle of a file."""
    for round in range(5):
        with pytest.raises(ZeroDivisionError), whole_folder(tmp_path / "out", resume_key="key") as folder:
            command = [sys.executable, "-c", WRITES_ON, str(folder)]
            writer = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
            assert writer.stdout is not None and writer.stdout.readline() == "writing\n"
            raise ZeroDivisionError
        assert writer.communicate(timeout=60)[0] == "gone\n"
        assert list(tmp_path.iterdir()) == [], f"round {round}"


def test_a_failure_keeps_the_old_folder(standing: Path, way: str) -> None:
    with pytest.raises(ZeroDivisionError), whole_folder(standing, replace=True) as folder:
        fill(folder, "half")
        raise ZeroDivisionError
    assert text_of(standing) == "old"
    assert [p.name for p in standing.parent.iterdir()] == ["out"]


def test_a_swap_never_shows_a_reader_less_than_a_whole_folder(standing: Path) -> None:
    """With the exchange there is no instant without a target."""
    seen: list[str] = []
    missing: list[str] = []
    is_over = threading.Event()

    def watch() -> None:
        while not is_over.is_set():
            try:
                handle = os.open(standing, os.O_RDONLY)
                with open(os.open("deep/text", os.O_RDONLY, dir_fd=handle)) as file:
                    seen.append(file.read())
                os.close(handle)
            except FileNotFoundError as error:
                missing.append(str(error.filename))

    if not folders._exchange(standing, _other(standing)):
        pytest.skip("this file system cannot exchange names")
    watcher = threading.Thread(target=watch)
    watcher.start()
    for number in range(8):
        with whole_folder(standing, replace=True) as folder:
            fill(folder, f"new {number}")
    is_over.set()
    watcher.join()
    # The reader may hold a folder that is just being removed; the name itself was always there.
    assert str(standing) not in missing
    assert len(set(seen)) > 3
    assert text_of(standing) == "new 7"


def _other(standing: Path) -> Path:
    other = standing.with_name("other")
    other.mkdir()
    fill(other, "other")
    return other


def test_a_kill_between_the_two_renames_is_mended(standing: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folders, "_exchange", lambda a, b: False)
    rename, calls = os.rename, []

    def killed(a, b):
        calls.append(a)
        if len(calls) > 1:
            raise KeyboardInterrupt
        rename(a, b)

    monkeypatch.setattr(os, "rename", killed)
    with pytest.raises(KeyboardInterrupt), whole_folder(standing, replace=True) as folder:
        fill(folder, "new")
    assert not standing.exists()
    monkeypatch.setattr(os, "rename", rename)
    # Without --replace: the old folder is back, and it is not written over.
    with pytest.raises(StackError) as caught, whole_folder(standing):
        raise AssertionError("the body must not run")
    assert caught.value.id == "target-exists"
    assert text_of(standing) == "old"


@pytest.mark.parametrize("at_once", [True, False])
def test_all_is_on_the_disk_before_the_name_is(
    at_once: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[tuple[str, str]] = []
    fsync, rename = os.fsync, os.rename

    def record_sync(handle: int) -> None:
        events.append(("sync", os.readlink(f"/proc/self/fd/{handle}")))
        fsync(handle)

    def record_rename(a, b) -> None:
        events.append(("rename", str(b)))
        rename(a, b)

    flush = folders._sync_file_system

    def record_flush(folder: Path) -> bool:
        if not at_once or not flush(folder):
            return False
        events.extend(("sync", str(path)) for path in (folder, *folder.rglob("*")))
        return True

    monkeypatch.setattr(folders, "_sync_file_system", record_flush)
    monkeypatch.setattr(os, "fsync", record_sync)
    monkeypatch.setattr(os, "rename", record_rename)
    with whole_folder(tmp_path / "new") as folder:
        fill(folder, "new")
        partial = str(folder)
    at = events.index(("rename", str(tmp_path / "new")))
    before = {path for kind, path in events[:at] if kind == "sync"}
    assert before >= {partial, f"{partial}/deep", f"{partial}/deep/text"}
    assert ("sync", str(tmp_path)) in events[at:]


HOLD = """
import sys, time
from pathlib import Path
from stack.folders import hold_target, whole_folder
with whole_folder(Path(sys.argv[1]), resume_key=sys.argv[2] or None) as folder:
    (folder / "half").write_text("half")
    print("holding", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def hold(tmp_path: Path):
    """Start a process that works at a target until it is killed."""
    started: list[subprocess.Popen] = []

    def start(target: Path, key: str = "") -> subprocess.Popen:
        process = subprocess.Popen(
            [sys.executable, "-c", HOLD, str(target), key], stdout=subprocess.PIPE, text=True
        )
        started.append(process)
        assert process.stdout is not None and process.stdout.readline() == "holding\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()


def test_another_process_at_the_same_target_is_refused(hold, tmp_path: Path) -> None:
    process = hold(tmp_path / "out", "abc")
    before = sorted(tmp_path.rglob("*"))
    for key in ("abc", "other", None):
        with pytest.raises(StackError) as caught, whole_folder(tmp_path / "out", resume_key=key):
            raise AssertionError("the body must not run")
        assert (caught.value.id, caught.value.exit) == ("target-busy", Exit.NOT_ABLE)
        assert f"process {process.pid} on " in caught.value.what
    assert sorted(tmp_path.rglob("*")) == before
    with whole_folder(tmp_path / "beside") as folder:
        fill(folder, "another target is free")


@pytest.mark.parametrize(("second", "kept"), [("abc", True), ("other", False), (None, False)])
def test_a_kill_frees_the_target_and_only_the_same_work_goes_on(
    hold, tmp_path: Path, second: str | None, kept: bool
) -> None:
    process = hold(tmp_path / "out", "abc")
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (tmp_path / "out").exists()
    with whole_folder(tmp_path / "out", resume_key=second) as folder:
        assert (folder / "half").exists() == kept
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


def test_an_interrupt_keeps_work_that_can_be_resumed_and_an_error_does_not(tmp_path: Path) -> None:
    for error, left in ((KeyboardInterrupt, 1), (ValueError, 0)):
        with pytest.raises(error), whole_folder(tmp_path / "out", resume_key="abc") as folder:
            (folder / "half").write_text("half")
            raise error
        assert len(list(tmp_path.iterdir())) == left


def test_a_link_to_a_folder_stays_a_link(standing: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(standing)
    with whole_folder(link, replace=True) as folder:
        fill(folder, "new")
    assert link.is_symlink() and text_of(standing) == "new"


def test_a_file_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("mine")
    with pytest.raises(StackError) as caught, whole_folder(tmp_path / "out", replace=True):
        raise AssertionError("the body must not run")
    assert caught.value.id == "target-not-folder" and (tmp_path / "out").read_text() == "mine"


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(StackError) as caught, whole_folder(tmp_path / "file/out"):
        raise AssertionError("the body must not run")
    assert (caught.value.id, caught.value.exit) == ("folder-not-writable", Exit.NOT_ABLE)
    assert caught.value.do


def test_trouble_of_the_disk_is_told_from_other_errors(tmp_path: Path) -> None:
    try:
        try:
            raise OSError(errno.ENOSPC, "No space left on device")
        except OSError as error:
            raise RuntimeError("writing failed") from error
    except RuntimeError as error:
        told = folders.disk_error(error, tmp_path / "out" / "a")
    assert told is not None and "the disk is full" in told.what and str(tmp_path) in told.what
    assert folders.disk_error(OSError(errno.ENOENT, "no such file"), tmp_path) is None


def test_a_kill_in_the_middle_leaves_a_whole_folder(tmp_path: Path) -> None:
    """Swapping over and over, killed at any moment: the target is one of the whole ones."""
    script = """
import sys
from pathlib import Path
from stack.folders import hold_target, whole_folder
for number in range(100000):
    with whole_folder(Path(sys.argv[1]), replace=True) as folder:
        for name in "abcdef":
            (folder / name).write_text(str(number))
    print(number, flush=True)
"""
    target = tmp_path / "out"
    for pause_s in (0.0, 0.011, 0.023, 0.037, 0.051):
        process = subprocess.Popen([sys.executable, "-c", script, str(target)], stdout=subprocess.PIPE)
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(pause_s)
        process.kill()
        process.wait()
        process.stdout.close()
        assert len({file.read_text() for file in target.iterdir()}) == 1
        assert sorted(file.name for file in target.iterdir()) == list("abcdef")


def test_a_target_that_is_held_early_is_held_against_others_only(hold, tmp_path: Path) -> None:
    out = tmp_path / "out"
    script = "import sys; from pathlib import Path; from stack.folders import whole_folder\n"
    script += "with whole_folder(Path(sys.argv[1])): pass"
    with hold_target(out), hold_target(out):
        with whole_folder(out) as folder:
            fill(folder, "mine")
        other = subprocess.run([sys.executable, "-c", script, str(out)], capture_output=True, text=True)
        assert "target-exists" in other.stderr
        (out / "deep/text").unlink()
        (out / "deep").rmdir()
        other = subprocess.run([sys.executable, "-c", script, str(out)], capture_output=True, text=True)
        assert "is at work at this target" in other.stderr
    assert [p.name for p in tmp_path.iterdir()] == ["out"]
    process = hold(tmp_path / "theirs")
    with pytest.raises(StackError) as caught, hold_target(tmp_path / "theirs"):
        raise AssertionError("the body must not run")
    assert caught.value.id == "target-busy" and str(process.pid) in caught.value.what
