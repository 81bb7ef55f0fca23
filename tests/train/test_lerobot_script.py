"""Against lerobot's own training script: the same losses, the same schedule, on either line."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from stack.files import read_json, write_json
from stack.manifests.run import ToyDims

pytestmark = pytest.mark.lerobot

STEPS = 10


@pytest.fixture(scope="module")
def start(toys: Any, world: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The policy before its first step, as lerobot-train starts from it."""
    sys.path.insert(0, str(Path(__file__).parents[2]))  # bench is no part of the installed package
    from bench.train_rival import write_start

    job = toys.make_job(world, tmp_path_factory.mktemp("start"))
    job.write(job.out / "job.json")
    write_start(job.out / "job.json", job.out / "pretrained_model")
    return job.out / "pretrained_model"


def lerobot_train(spec: dict[str, Any], folder: Path, checkout: Path) -> dict[str, Any]:
    folder.mkdir(exist_ok=True)
    write_json(folder / "spec.json", {**spec, "out": str(folder / "out"), "report": str(folder / "r.json")})
    command = [sys.executable, "-m", "bench.train_rival", str(folder / "spec.json")]
    env = {**os.environ, "PYTHONPATH": str(checkout), "ACCELERATE_USE_CPU": "true"}
    done = subprocess.run(command, capture_output=True, text=True, env=env, cwd=folder)
    assert done.returncode == 0, done.stderr[-3000:]
    report: dict[str, Any] = read_json(folder / "r.json")
    return report


def test_ten_losses_are_lerobots(toys: Any, world: Any, start: Path, tmp_path: Path, checkout: Path) -> None:
    """lerobot-train from the same weights over the same frames; masked, they would be others."""
    settings = {"steps": STEPS, "batch": 4, "seed": 1000, "workers": 0, "learning_rate": 3e-3}
    spec = {
        "start": str(start),
        "dataset": str(world.dataset),
        "toy": ToyDims().model_dump(),
        "settings": {**settings, "warmup_steps": 1, "frames": toys.EPISODES * toys.LENGTH},
    }
    theirs = lerobot_train(spec, tmp_path / "theirs", checkout)
    train = {"steps": STEPS, "padded_actions": "trained"}
    _, ours = toys.run_here(toys.make_job(world, tmp_path / "ours", train=train))
    assert len(theirs["losses"]) == len(ours.losses) == STEPS
    assert ours.losses == pytest.approx(theirs["losses"], abs=1e-5)
    assert ours.losses[9] < ours.losses[0]
    _, masked = toys.run_here(toys.make_job(world, tmp_path / "masked", train={"steps": STEPS}))
    assert masked.losses != pytest.approx(theirs["losses"], abs=1e-3)


def test_the_schedule_is_pi05s_preset_at_every_step(toys: Any) -> None:
    """Ours for the field project's 30,000 steps, against an untouched PI05Config's own scheduler."""
    import torch
    from lerobot.policies.pi05.configuration_pi05 import PI05Config

    from stack.train.policy import make_config

    steps = 30_000
    train = {"steps": steps, "learning_rate": 2.5e-5, "warmup_steps": 1000}
    run = toys.run_manifest(train=train).manifest

    def rates(config: Any) -> list[float]:
        optimizer = config.get_optimizer_preset().build([torch.nn.Parameter(torch.zeros(1))])
        scheduler = config.get_scheduler_preset().build(optimizer, steps)
        found = []
        for _ in range(steps):
            found.append(scheduler.get_last_lr()[0])
            optimizer.step()
            scheduler.step()
        return found

    ours, theirs = rates(make_config(run.policy, run.train)), rates(PI05Config(device="cpu"))
    assert ours == theirs
    assert 2.49e-5 < max(ours) < 2.5e-5 and ours[-1] == pytest.approx(2.5e-6, rel=1e-3)
