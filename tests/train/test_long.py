"""Memory over ten thousand steps, and learning over a thousand: STACK_LONG=1 runs them, in minutes."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from stack.manifests.run import ToyDims
from stack.train import train

pytestmark = [
    pytest.mark.lerobot,
    pytest.mark.skipif(not os.environ.get("STACK_LONG"), reason="takes minutes: STACK_LONG=1 runs it"),
]

SMALLEST = ToyDims(
    width=16,
    depth=1,
    mlp_dim=16,
    head_dim=4,
    expert_width=16,
    expert_mlp_dim=16,
    vision_hidden=8,
    vision_layers=1,
    vision_heads=1,
    vision_mlp_dim=8,
    image_size=28,
)
STEPS = int(os.environ.get("STACK_LONG_STEPS", "10000"))


def test_memory_stays_level(toys: Any, world: Any, tmp_path: Path) -> None:
    """Resident size of the trainer against the steps, after a fifth of them: the median of all slopes.

    A leak is in every slope. One rise is not: Python 3.11 once rebuilds its table of interned strings, which
    pathlib goes through for every frame's file, at twice the size (3.8 MB; seen with tracemalloc). All growth
    together, that rise included, has its own bound.
    """
    import numpy

    from stack.demo.models import write_models

    write_models(tmp_path / "mirror", dims=SMALLEST)
    models = toys.models_manifest(tmp_path / "mirror", world.golden_ids)
    policy = {
        "toy": SMALLEST.model_dump(),
        "image_size": 28,
        "action_horizon": 4,
        "tokenizer_max_length": 48,
    }
    settings = {"steps": STEPS, "batch_per_device": 1, "global_batch": 1, "log_every": STEPS // 100}
    result = train(
        toys.run_manifest(policy=policy, train={**settings, "save_every": STEPS // 10, "workers": 0}),
        dataset=world.dataset,
        mirror=tmp_path / "mirror",
        models=models,
        out=tmp_path / "out",
        log=lambda _: None,
    )
    assert result.outcome == "finished", result.message
    events = [json.loads(line) for line in (tmp_path / "out" / "events.jsonl").read_text().splitlines()]
    windows = [event for event in events if event["kind"] == "window"][20:]
    steps = numpy.array([event["step"] for event in windows])
    sizes = numpy.array([event["memory_bytes"] for event in windows])
    first, second = numpy.triu_indices(len(steps), 1)
    slopes = (sizes[second] - sizes[first]) / (steps[second] - steps[first])
    slope, growth = float(numpy.median(slopes)), int(sizes[-1] - sizes[0])
    print(
        f"resident {sizes.mean() / 1e6:.1f} MB, slope {slope:.1f} bytes a step, {growth / 1e6:.2f} MB in all"
    )
    # What is kept of a step: its loss, in a list and twice in the guard, and two times, 72 bytes.
    assert slope < 250
    assert growth < 0.01 * sizes.mean()


def test_a_thousand_steps_learn(toys: Any, world: Any, tmp_path: Path) -> None:
    """The mean loss of the last fifth is below half of the first fifth's."""
    settings = {"steps": 1000, "log_every": 100, "save_every": 1000, "warmup_steps": 20}
    result = train(
        toys.run_manifest(train=settings),
        dataset=world.dataset,
        mirror=world.mirror,
        models=world.models,
        out=tmp_path / "out",
        log=lambda _: None,
    )
    assert result.outcome == "finished" and result.last_to_first_fifth is not None
    print(f"last over first fifth: {result.last_to_first_fifth:.3f}")
    assert result.last_to_first_fifth < 0.5
