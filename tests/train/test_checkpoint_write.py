"""Checkpoints beside the training: the step goes on, what fails is told, and what was good stays good."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stack.errors import NotAble
from stack.files import sha256_file
from stack.train import checkpoint
from stack.train.checkpoint import MODEL

pytestmark = pytest.mark.lerobot

WEIGHTS = f"{MODEL}/model.safetensors"


def digest(job: Any, step: str) -> str:
    return sha256_file(job.checkpoints / step / WEIGHTS)


def run_told(job: Any, at_step: Callable[[int], None] = lambda _: None) -> tuple[Any, list[dict[str, Any]]]:
    """The child's work in this process, and its events; `at_step` is called as each step begins."""
    from stack.devices import open_device
    from stack.train.loop import train_loop
    from stack.train.ranks import Ranks
    from stack.train.session import open_session

    events: list[dict[str, Any]] = []
    steps = iter(range(1, 1000))

    def emit(kind: str, **details: Any) -> None:
        events.append({"kind": kind, **details})

    def should_stop() -> bool:
        at_step(next(steps))
        return False

    session = open_session(job, open_device("cpu"), Ranks(), emit)
    return train_loop(session, emit, should_stop), events


def test_the_copy_is_of_its_step_while_the_training_goes_on(
    toys: Any, world: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Writing waits until two more steps are done; the files are those of the step they have the name of."""
    from stack.train import checkpoint_write

    plain = toys.make_job(world, tmp_path / "plain", train={"steps": 6, "save_every": 3})
    toys.run_here(plain)
    went_on, original = threading.Event(), checkpoint_write._write_folder

    def late(*given: Any) -> None:
        assert went_on.wait(60)
        original(*given)

    monkeypatch.setattr(checkpoint_write, "_write_folder", late)
    job = toys.make_job(world, tmp_path / "late", train={"steps": 6, "save_every": 3})
    run, events = run_told(job, lambda step: went_on.set() if step == 6 else None)
    assert len(run.losses) == 6
    kinds = [(event["kind"], event["step"]) for event in events if event["kind"] == "checkpoint"]
    assert kinds == [("checkpoint", 3), ("checkpoint", 6)]
    for step in ("000003", "000006"):
        assert sha256_file(job.checkpoints / step / WEIGHTS) == sha256_file(
            plain.checkpoints / step / WEIGHTS
        )
    first = next(event for event in events if event["kind"] == "checkpoint")
    assert 0 < first["stopped_s"] < first["write_s"]


def limit_file_bytes(limit: int) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))


@pytest.fixture
def file_limit() -> Any:
    """The kernel's own refusal to write, as a full disk's: nothing is mocked."""
    soft, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield limit_file_bytes
    limit_file_bytes(soft)


def test_a_checkpoint_that_does_not_fit_is_told_and_the_next_is_tried(
    toys: Any, world: Any, tmp_path: Path, file_limit: Any
) -> None:
    plain = toys.make_job(world, tmp_path / "plain", train={"steps": 6, "save_every": 2})
    _, whole = toys.run_here(plain)
    soft = resource.getrlimit(resource.RLIMIT_FSIZE)[0]

    def at_step(step: int) -> None:
        # The writing of the checkpoint before must be over: the limit is this process's.
        for thread in threading.enumerate():
            if thread.name.startswith("checkpoint-"):
                thread.join()
        if step == 4:
            file_limit(300_000)
        if step == 6:
            file_limit(soft)

    job = toys.make_job(world, tmp_path / "out", train={"steps": 6, "save_every": 2})
    run, events = run_told(job, at_step)
    assert run.losses == whole.losses
    lost = [event for event in events if event["kind"] == "checkpoint-failed"]
    assert [event["step"] for event in lost] == [4]
    assert "checkpoint of step 4" in lost[0]["message"] and "the one before stays" in lost[0]["message"]
    assert sorted(p.name for p in job.checkpoints.iterdir()) == ["000002", "000006", "last"]
    for step in ("000002", "000006"):
        assert sha256_file(job.checkpoints / step / WEIGHTS) == sha256_file(
            plain.checkpoints / step / WEIGHTS
        )


def test_an_end_that_cannot_be_saved_is_an_error(
    toys: Any, world: Any, tmp_path: Path, file_limit: Any
) -> None:
    job = toys.make_job(world, tmp_path, train={"steps": 4, "save_every": 2})

    def at_step(step: int) -> None:
        if step == 4:
            time.sleep(0.5)
            file_limit(300_000)

    with pytest.raises(NotAble, match=r"checkpoint of step 4 .* could not be written"):
        run_told(job, at_step)
    found = checkpoint.last(job.checkpoints)
    assert found is not None and found.name == "000002"


def test_room_is_asked_for_before_a_byte_is_written(
    toys: Any, world: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from stack.train import checkpoint_write

    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(checkpoint_write.shutil, "disk_usage", lambda _: usage._replace(free=1_000_000))
    with pytest.raises(NotAble, match=r"needs 0\.02\d GB, and 0\.001 GB are free; the one before stays"):
        run_told(toys.make_job(world, tmp_path, train={"steps": 2}))
    assert not (tmp_path / "checkpoints").exists()


def test_a_kill_in_the_middle_of_a_write_leaves_the_one_before(toys: Any, world: Any, tmp_path: Path) -> None:
    """The second checkpoint is half on disk when SIGKILL comes; a resume goes on from the first, exactly."""
    train = {"steps": 6, "save_every": 2}
    plain = toys.make_job(world, tmp_path / "plain", train=train)
    _, whole = toys.run_here(plain)
    job = toys.make_job(world, tmp_path / "out", train=train)
    job.write(job.out / "job.json")
    code = f"""
    import sys, time
    from pathlib import Path
    from stack.train import checkpoint_write, worker
    written = checkpoint_write._save_with_lerobot
    def half(folder, job, snapshot):
        written(folder, job, snapshot)
        if snapshot.step == 4:
            Path({str(tmp_path / "half")!r}).touch()
            time.sleep(600)
    checkpoint_write._save_with_lerobot = half
    sys.exit(worker.main(Path({str(job.out / "job.json")!r})))
    """
    child = subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)], stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while not (tmp_path / "half").exists():
        assert child.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    there = sorted(p.name for p in job.checkpoints.iterdir())
    assert there[0].startswith(".000004.partial-") and there[-2:] == ["000002", "last"]
    again = toys.make_job(world, tmp_path / "out", is_resume=True, train=train)
    session, resumed = toys.run_here(again)
    assert session.start.step == 2 and resumed.losses == whole.losses
    assert sorted(p.name for p in job.checkpoints.iterdir()) == ["000002", "000004", "000006", "last"]
    for step in ("000002", "000004", "000006"):
        assert sha256_file(job.checkpoints / step / WEIGHTS) == sha256_file(
            plain.checkpoints / step / WEIGHTS
        )


def test_memory_for_copies_is_taken_once(toys: Any, world: Any, tmp_path: Path) -> None:
    import torch

    from stack.train.checkpoint_snapshot import Buffers

    buffers, tensor = Buffers(), torch.arange(6.0)
    tied = {"a": tensor, "b": tensor, "c": tensor[:3].clone()}
    first = buffers.copy("x", tied)
    assert first["a"].data_ptr() == first["b"].data_ptr() != tensor.data_ptr()
    places = {name: value.data_ptr() for name, value in first.items()}
    tensor += 1
    second = buffers.copy("x", tied)
    assert {name: value.data_ptr() for name, value in second.items()} == places
    assert second["a"].tolist() == [1, 2, 3, 4, 5, 6] and second["c"].tolist() == [0, 1, 2]
