"""The moving average against one taken by brute force, and where its weights go."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy
import pytest

pytestmark = pytest.mark.lerobot

DECAY, STEPS = 0.8, 4


def test_the_average_is_that_of_all_steps(
    toys: Any, world: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every step's weights are written down; their average in float64 is what the checkpoint holds."""
    from safetensors.torch import load_file

    from stack.train import average

    seen: list[dict[str, Any]] = []
    update = average.Average.update

    def watched(self: average.Average) -> None:
        seen.append({n: p.detach().double().numpy().copy() for n, p in self._named.items()})
        update(self)

    monkeypatch.setattr(average.Average, "update", watched)
    train = {"steps": STEPS, "save_every": STEPS, "ema_decay": DECAY}
    job = toys.make_job(world, tmp_path, train=train)
    session, run = toys.run_here(job)
    assert len(seen) == STEPS
    start = load_file(world.mirror / "toy-pi05" / "model.safetensors")
    folder = job.checkpoints / f"{STEPS:06d}"
    held = load_file(folder / "training_state" / "average.safetensors")
    raw = load_file(folder / "training_state" / "trained.safetensors")
    policy = load_file(folder / "pretrained_model" / "model.safetensors")
    compared = 0
    for name, value in held.items():
        first = start.get(name.removeprefix("model."))
        if first is None:
            continue
        want = first.double().numpy()
        for weights in seen:
            want = DECAY * want + (1 - DECAY) * weights[name]
        numpy.testing.assert_allclose(value.numpy(), want, rtol=1e-5, atol=1e-7)
        numpy.testing.assert_array_equal(raw[name].double().numpy(), seen[-1][name])
        # What one uses is the average; what is trained goes on from the raw weights.
        assert policy[name].equal(value)
        compared += 1
    assert compared >= 90
    name = "model.action_out_proj.weight"
    assert not held[name].equal(raw[name])
    assert session.policy.state_dict()[name].equal(raw[name])
    # The average is not fed back: the losses are those of a training without one.
    _, plain = toys.run_here(toys.make_job(world, tmp_path / "plain", train={"steps": STEPS}))
    assert run.losses == plain.losses


def test_a_bfloat16_policy_has_a_float32_average(toys: Any, world: Any, tmp_path: Path) -> None:
    """At a decay of 0.999 a bfloat16 average would stand still."""
    import torch
    from safetensors.torch import load_file

    train = {"steps": 2, "save_every": 2, "ema_decay": 0.999, "master_weights": False}
    job = toys.make_job(world, tmp_path, policy={"dtype": "bfloat16"}, train=train)
    toys.run_here(job)
    held = load_file(job.checkpoints / "000002" / "training_state" / "average.safetensors")
    policy = load_file(job.checkpoints / "000002" / "pretrained_model" / "model.safetensors")
    name = "model.paligemma_with_expert.gemma_expert.model.layers.0.mlp.up_proj.weight"
    assert held[name].dtype == torch.float32 and policy[name].dtype == torch.bfloat16
    assert policy[name].equal(held[name].to(torch.bfloat16))


@pytest.mark.parametrize(("is_master", "moves"), [(True, True), (False, False)])
def test_master_weights_keep_small_updates(
    toys: Any, world: Any, tmp_path: Path, is_master: bool, moves: bool
) -> None:
    """A learning rate far below a bfloat16's last digit: without master weights, large weights stay put."""
    import torch

    train = {"steps": 3, "learning_rate": 1e-6, "warmup_steps": 0, "master_weights": is_master}
    job = toys.make_job(world, tmp_path, policy={"dtype": "bfloat16"}, train=train)
    session, run = toys.run_here(job)
    name = "model.paligemma_with_expert.gemma_expert.model.layers.0.mlp.up_proj.weight"
    weight = dict(session.policy.named_parameters())[name]
    assert weight.dtype == (torch.float32 if is_master else torch.bfloat16)
    from safetensors.torch import load_file

    start = load_file(world.mirror / "toy-pi05" / "model.safetensors")[name.removeprefix("model.")]
    large = start.abs() > 0.01
    moved = (weight.detach()[large] != start.to(weight.dtype)[large]).float().mean()
    assert (moved > 0.9) if moves else (moved < 0.01)
    _, exact = toys.run_here(toys.make_job(world, tmp_path / "f", train={**train, "master_weights": None}))
    assert run.losses == pytest.approx(exact.losses, rel=2e-2) and run.losses != exact.losses
