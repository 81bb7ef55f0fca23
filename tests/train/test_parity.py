"""Both lines compute the same from the same weights: the adapter against lerobot's own trunk.

The numbers were taken from lerobot 0.6.1 on stock transformers 5.5.4, which needs no adapter, with the toy
weights of `stack demo` and the inputs below. The production line must meet them through the adapter.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stack.manifests.run import ToyDims

pytestmark = pytest.mark.lerobot

LOSS, GRAD_NORM, CHUNK_SUM = 2.44008207321167, 1.9057192735761306, 724.1622314453125
CHUNK_START = [-1.1597930192947388, -2.3400204181671143, -0.16826672852039337]
LOSS_BF16, GRAD_NORM_BF16 = 2.4399867057800293, 1.9063019223931439
CHUNK_SUM_BF16, CHUNK_START_BF16 = 724.155517578125, [-1.16412448, -2.34052610, -0.16551645]


@pytest.fixture(scope="module")
def inputs(torch_module: Any) -> dict[str, Any]:
    """Two samples, two cameras, one prompt cut short by its mask; from numpy's frozen generator."""
    import numpy

    torch = torch_module
    draw = numpy.random.RandomState(7)

    def uniform(*shape: int) -> Any:
        return torch.from_numpy(draw.uniform(-1, 1, shape).astype(numpy.float32))

    images = [uniform(2, 3, 56, 56), uniform(2, 3, 56, 56)]
    tokens = torch.from_numpy(draw.randint(4, 380, (2, 32)))
    mask = torch.ones(2, 32, dtype=torch.bool)
    mask[1, 20:] = False
    actions, noise = uniform(2, 10, 32), uniform(2, 10, 32) * 1.7
    return {
        "images": images,
        "img_masks": [torch.ones(2, dtype=torch.bool)] * 2,
        "tokens": tokens,
        "masks": mask,
        "actions": actions,
        "noise": noise,
        "time": torch.tensor([0.25, 0.8]),
    }


def build(toys: Any, weights: Path, dtype: str) -> Any:
    from stack.train import lines, shim, toy
    from stack.train.policy import make_config
    from stack.train.weights import load_weights

    modeling = lines.modeling()
    trunk = shim.install(modeling)
    assert trunk == {"production": "adapter", "current": "lerobot"}[lines.detect_line()]
    toy.install(modeling, ToyDims())
    master = None if dtype == "float32" else False
    run = toys.run_manifest(policy={"dtype": dtype}, train={"master_weights": master}).manifest
    policy = modeling.PI05Policy(make_config(run.policy, run.train))
    load_weights(policy, weights)
    return policy


def loss_and_norm(policy: Any, inputs: dict[str, Any]) -> tuple[float, float]:
    policy.train()
    policy.zero_grad()
    loss = policy.model.forward(**inputs).mean()
    loss.backward()
    squares = [(p.grad.double() ** 2).sum().item() for p in policy.parameters() if p.grad is not None]
    return loss.item(), sum(squares) ** 0.5


def sampled(policy: Any, inputs: dict[str, Any]) -> Any:
    """A chunk of actions in five steps: float32 (2, 10, 32)."""
    policy.eval()
    given = {key: inputs[key] for key in ("images", "img_masks", "tokens", "masks", "noise")}
    return policy.model.sample_actions(**given, num_steps=5)


def test_float32(toys: Any, world: Any, inputs: dict[str, Any]) -> None:
    policy = build(toys, world.mirror / "toy-pi05", "float32")
    loss, norm = loss_and_norm(policy, inputs)
    assert loss == pytest.approx(LOSS, abs=1e-5)
    assert norm == pytest.approx(GRAD_NORM, rel=1e-5)
    chunk = sampled(policy, inputs)
    assert chunk.abs().sum().item() == pytest.approx(CHUNK_SUM, rel=1e-5)
    assert chunk[0, 0, :3].tolist() == pytest.approx(CHUNK_START, abs=1e-4)


def test_bfloat16(toys: Any, world: Any, inputs: dict[str, Any]) -> None:
    """The older line also casts the vision tower, hence the wider band."""
    policy = build(toys, world.mirror / "toy-pi05", "bfloat16")
    loss, norm = loss_and_norm(policy, inputs)
    assert loss == pytest.approx(LOSS_BF16, abs=2e-3)
    assert norm == pytest.approx(GRAD_NORM_BF16, rel=2e-3)
    chunk = sampled(policy, inputs)
    assert chunk.abs().sum().item() == pytest.approx(CHUNK_SUM_BF16, rel=1e-4)
    assert chunk[0, 0, :3].tolist() == pytest.approx(CHUNK_START_BF16, abs=0.02)


def test_the_prompt_is_seen(toys: Any, world: Any, inputs: dict[str, Any]) -> None:
    """Parity of constants would mean nothing if inputs did not matter."""
    policy = build(toys, world.mirror / "toy-pi05", "float32")
    changed = {**inputs, "tokens": inputs["tokens"].flip(1)}
    assert loss_and_norm(policy, changed)[0] != pytest.approx(LOSS, abs=1e-4)
