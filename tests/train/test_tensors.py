"""The shape table against the published file's counts and against the policy itself."""

from __future__ import annotations

import math
from typing import Any

import pytest

from stack.manifests.run import Policy, ToyDims
from stack.train import expected_tensors


def policy(**changes: Any) -> Policy:
    base = {"type": "pi05", "weights": "w", "tokenizer": "t", "action_horizon": 10, "dtype": "float32"}
    return Policy.model_validate({**base, **changes})


def test_full_size_is_the_published_one() -> None:
    """lerobot/pi05_base: 812 tensors, 3,616,757,520 parameters, 14.5 GB in float32."""
    tensors = expected_tensors(policy())
    assert len(tensors) == 812
    assert sum(math.prod(shape) for shape in tensors.values()) == 3_616_757_520


@pytest.mark.lerobot
@pytest.mark.parametrize("action_dim", [32, 64])
def test_toy_is_what_lerobot_builds(toys: Any, torch_module: Any, action_dim: int) -> None:
    """Every name and shape, on either line; the embedding is the one name that the file does not repeat."""
    pytest.importorskip("lerobot")
    from stack.train import lines, shim, toy
    from stack.train.policy import make_config

    modeling = lines.modeling()
    shim.install(modeling)
    toy.install(modeling, ToyDims())
    run = toys.run_manifest(policy={"max_action_dim": action_dim}).manifest
    built = modeling.PI05Policy(make_config(run.policy, run.train)).state_dict()
    have = {name.removeprefix("model."): tuple(tensor.shape) for name, tensor in built.items()}
    embedding = have.pop("paligemma_with_expert.paligemma.model.language_model.embed_tokens.weight")
    want = expected_tensors(policy(image_size=56, toy=ToyDims().model_dump(), max_action_dim=action_dim))
    assert have == want
    assert embedding == want["paligemma_with_expert.paligemma.lm_head.weight"]
