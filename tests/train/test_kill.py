"""Kill -9 at random moments, and what comes of it: the same losses, bit for bit, and honest words.

`STACK_LONG=1` runs the long forms: twenty kills with one process, and twenty with two.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from stack.files import sha256_file
from stack.train.child import environment, python_module

pytestmark = pytest.mark.lerobot

IS_LONG = bool(os.environ.get("STACK_LONG"))
long = pytest.mark.skipif(not IS_LONG, reason="takes minutes: STACK_LONG=1 runs it")


def start(job: Any, ranks: int) -> subprocess.Popen[bytes]:
    job.write(job.out / "job.json")
    (job.out / "events.jsonl").unlink(missing_ok=True)
    command = python_module("stack.train.worker", [str(job.out / "job.json")], ranks)
    env = environment(job.out / ".home", is_cpu=True, ranks=ranks)
    with (job.out / "trainer.log").open("ab") as sink:
        return subprocess.Popen(command, env=env, stdout=sink, stderr=sink, start_new_session=True)


def step_reached(job: Any) -> int:
    events = job.out / "events.jsonl"
    if not events.exists():
        return 0
    lines = events.read_bytes().split(b"\n")[:-1]
    return max((json.loads(line).get("step", 0) for line in lines), default=0)


def kill_and_resume(
    toys: Any, world: Any, folder: Path, kills: int, ranks: int, changes: dict[str, Any]
) -> tuple[list[float], Path]:
    """Train with `kills` kills of all processes at random moments; the losses, and the last weights."""
    draw = random.Random(kills * 10 + ranks)
    steps = changes["train"]["steps"]
    moments = sorted(draw.sample(range(2, steps), kills))
    for number in range(kills + 1):
        job = toys.make_job(world, folder, is_resume=number > 0, **changes)
        child = start(job, ranks)
        deadline = time.monotonic() + 240
        while child.poll() is None:
            assert time.monotonic() < deadline, (job.out / "trainer.log").read_text()[-2000:]
            if number < kills and step_reached(job) >= moments[number]:
                time.sleep(draw.uniform(0, 0.1))
                os.killpg(child.pid, signal.SIGKILL)
            time.sleep(0.01)
        child.wait()
    assert child.returncode == 0, (job.out / "trainer.log").read_text()[-2000:]
    found = job.checkpoints / f"{steps:06d}"
    losses = json.loads((found / "training_state" / "losses.json").read_text())["losses"]
    return losses, found / "pretrained_model" / "model.safetensors"


def changed(steps: int, **train: Any) -> dict[str, Any]:
    settings = {"steps": steps, "save_every": 2, "log_every": 1, "workers": 0, **train}
    return {"train": settings}


def test_two_kills_leave_no_trace(toys: Any, world: Any, tmp_path: Path) -> None:
    changes = changed(12)
    losses, weights = kill_and_resume(toys, world, tmp_path / "killed", 2, 1, changes)
    straight = toys.make_job(world, tmp_path / "straight", **changes)
    _, run = toys.run_here(straight)
    assert losses == run.losses
    other = straight.checkpoints / "000012" / "pretrained_model" / "model.safetensors"
    assert sha256_file(weights) == sha256_file(other)


@long
@pytest.mark.parametrize("ranks", [1, 2])
def test_twenty_kills_leave_no_trace(toys: Any, world: Any, tmp_path: Path, ranks: int) -> None:
    changes = {**changed(60, batch_per_device=4 // ranks, workers=1), "device": {"count": ranks}}
    losses, weights = kill_and_resume(toys, world, tmp_path / "killed", 20, ranks, changes)
    whole, other = kill_and_resume(toys, world, tmp_path / "straight", 0, ranks, changes)
    assert losses == whole and len(losses) == 60
    assert sha256_file(weights) == sha256_file(other)


@long
def test_two_ranks_twice_are_equal_bit_by_bit(toys: Any, world: Any, tmp_path: Path) -> None:
    changes = {**changed(10, batch_per_device=2), "device": {"count": 2}}
    one = kill_and_resume(toys, world, tmp_path / "one", 0, 2, changes)
    two = kill_and_resume(toys, world, tmp_path / "two", 0, 2, changes)
    assert one[0] == two[0] and sha256_file(one[1]) == sha256_file(two[1])


def test_two_ranks_are_one_rank_with_accumulation(toys: Any, world: Any, tmp_path: Path) -> None:
    """Frames, noise and times are the same; what is left is the order of a sum."""
    changes = {**changed(6, batch_per_device=2), "device": {"count": 2}}
    losses, _ = kill_and_resume(toys, world, tmp_path / "two", 0, 2, changes)
    train = {"steps": 6, "batch_per_device": 2, "accumulation": 2}
    _, alone = toys.run_here(toys.make_job(world, tmp_path / "one", train=train))
    assert losses == pytest.approx(alone.losses, abs=1e-5)
    assert len(set(losses)) == 6
