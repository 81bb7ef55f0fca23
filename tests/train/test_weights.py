"""Weights are proven loaded; each way in which they may not be is an error that says so."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stack.errors import BadRequest, WorkFailed
from stack.files import sha256_file
from stack.manifests.run import ToyDims

pytestmark = pytest.mark.lerobot

ACTION_IN = "action_in_proj.weight"


@pytest.fixture(scope="module")
def make_policy(toys: Any, torch_module: Any) -> Callable[..., Any]:
    pytest.importorskip("lerobot")
    from stack.train import lines, shim, toy
    from stack.train.policy import make_config

    modeling = lines.modeling()
    shim.install(modeling)
    toy.install(modeling, ToyDims())

    def make(**changes: Any) -> Any:
        master = False if changes.get("dtype") == "bfloat16" else None
        run = toys.run_manifest(policy=changes, train={"master_weights": master}).manifest
        return modeling.PI05Policy(make_config(run.policy, run.train))

    return make


@pytest.fixture
def edited(world: Any, tmp_path: Path) -> Callable[[Callable[[dict[str, Any]], None]], Path]:
    """A folder with the toy weights after an edit of its tensors."""
    from safetensors.torch import load_file, save_file

    def edit(change: Callable[[dict[str, Any]], None]) -> Path:
        tensors = load_file(world.mirror / "toy-pi05" / "model.safetensors")
        change(tensors)
        save_file(tensors, tmp_path / "model.safetensors")
        return tmp_path

    return edit


def load(policy: Any, folder: Path, *random: str) -> Any:
    from stack.train.weights import load_weights

    return load_weights(policy, folder, random)


def test_every_tensor_arrives(make_policy: Any, world: Any) -> None:
    from safetensors.torch import load_file

    policy = make_policy()
    file = world.mirror / "toy-pi05" / "model.safetensors"
    proof = load(policy, file.parent)
    assert (proof.filled_frac, proof.tensors, proof.random, proof.unused) == (1.0, 92, (), ())
    assert (proof.dtype, proof.file_sha256) == ("float32", sha256_file(file))
    assert proof.parameters == sum(p.numel() for p in policy.parameters())
    state = policy.state_dict()
    for name, tensor in load_file(file).items():
        assert state[f"model.{name}"].equal(tensor), name
    head = state["model.paligemma_with_expert.paligemma.lm_head.weight"]
    assert state["model.paligemma_with_expert.paligemma.model.language_model.embed_tokens.weight"].equal(head)


def test_bfloat16_policy_holds_the_rounded_values(make_policy: Any, world: Any, torch_module: Any) -> None:
    from safetensors.torch import load_file

    policy = make_policy(dtype="bfloat16")
    assert load(policy, world.mirror / "toy-pi05").filled_frac == 1.0
    name = "paligemma_with_expert.gemma_expert.model.layers.0.mlp.up_proj.weight"
    want = load_file(world.mirror / "toy-pi05" / "model.safetensors")[name].to(torch_module.bfloat16)
    assert policy.state_dict()[f"model.{name}"].equal(want)


def test_an_embedding_of_its_own_is_not_the_heads_copy(make_policy: Any, edited: Any) -> None:
    """A checkpoint of the newer line has both, moved apart by training; the older line ties them."""
    from stack.train import lines

    head, embedding = (
        f"paligemma_with_expert.paligemma.{n}.weight"
        for n in ("lm_head", "model.language_model.embed_tokens")
    )
    folder = edited(lambda tensors: tensors.update({embedding: tensors[head] + 1}))
    policy = make_policy()
    if lines.detect_line() == "production":
        with pytest.raises(WorkFailed, match="not the file's"):
            load(policy, folder)
        return
    assert load(policy, folder).filled_frac == 1.0
    state = policy.state_dict()
    assert state[f"model.{embedding}"].equal(state[f"model.{head}"] + 1)


@pytest.mark.parametrize("keep", [8, 5000, -4])
def test_a_cut_file(make_policy: Any, world: Any, tmp_path: Path, keep: int) -> None:
    whole = (world.mirror / "toy-pi05" / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(whole[:keep])
    with pytest.raises(BadRequest, match="cut short or no safetensors") as caught:
        load(make_policy(), tmp_path)
    assert caught.value.id == "weights-broken"


def test_no_file(make_policy: Any, tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match="no weights file"):
        load(make_policy(), tmp_path)


def test_a_missing_tensor_is_named(make_policy: Any, edited: Any) -> None:
    folder = edited(lambda tensors: tensors.pop("time_mlp_in.bias"))
    with pytest.raises(BadRequest, match=r"1 tensors .* time_mlp_in\.bias: not in the file"):
        load(make_policy(), folder)


def test_a_foreign_tensor_is_named(make_policy: Any, edited: Any, torch_module: Any) -> None:
    folder = edited(lambda tensors: tensors.update({"vlm.extra.weight": torch_module.zeros(3)}))
    with pytest.raises(BadRequest, match=r"vlm\.extra\.weight: \(3,\) in the file, no such tensor"):
        load(make_policy(), folder)


def test_a_pi0_file_is_named(make_policy: Any, edited: Any, torch_module: Any) -> None:
    """pi0 has a state projection, which lerobot's mapping drops with a mere log line."""
    folder = edited(lambda tensors: tensors.update({"state_proj.weight": torch_module.zeros(64, 32)}))
    with pytest.raises(BadRequest, match=r"state_proj\.weight: in the file, but of no use"):
        load(make_policy(), folder)


def test_other_widths_are_named_with_both(make_policy: Any, world: Any) -> None:
    with pytest.raises(
        BadRequest, match=r"action_in_proj\.weight: \(64, 32\) in the file, \(64, 48\) in the pol"
    ):
        load(make_policy(max_action_dim=48), world.mirror / "toy-pi05")


def test_random_by_leave_is_stated(make_policy: Any, world: Any) -> None:
    policy = make_policy(max_action_dim=48)
    before = policy.state_dict()[f"model.{ACTION_IN}"].clone()
    proof = load(policy, world.mirror / "toy-pi05", ACTION_IN, "action_out_proj.*")
    assert proof.random == (ACTION_IN, "action_out_proj.bias", "action_out_proj.weight")
    left = 64 * 48 + 48 + 48 * 64
    assert proof.filled_frac == pytest.approx(1 - left / proof.parameters)
    assert policy.state_dict()[f"model.{ACTION_IN}"].equal(before)


def test_leave_does_not_stop_what_fits(make_policy: Any, world: Any) -> None:
    proof = load(make_policy(), world.mirror / "toy-pi05", "action_*")
    assert (proof.filled_frac, proof.random) == (1.0, ())


def test_a_leave_that_matches_nothing(make_policy: Any, world: Any) -> None:
    with pytest.raises(BadRequest, match=r"'action_inproj\.weight', which matches no tensor") as caught:
        load(make_policy(), world.mirror / "toy-pi05", "action_inproj.weight")
    assert ACTION_IN in caught.value.do


def test_a_load_that_loses_a_value(make_policy: Any, world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = make_policy()
    original = policy.load_state_dict

    def lossy(state: Any, strict: bool = True) -> Any:
        result = original(state, strict=strict)
        policy.state_dict()["model.time_mlp_in.bias"][3] += 1e-3
        return result

    monkeypatch.setattr(policy, "load_state_dict", lossy)
    with pytest.raises(WorkFailed, match="not the file's"):
        load(policy, world.mirror / "toy-pi05")


def test_lerobots_own_loader_would_have_been_silent(make_policy: Any, world: Any, tmp_path: Path) -> None:
    """The reason for all this: a cut file, and from_pretrained returns a policy all the same."""
    shutil.copytree(world.mirror / "toy-pi05", tmp_path / "cut")
    file = tmp_path / "cut" / "model.safetensors"
    file.write_bytes(file.read_bytes()[:5000])
    policy = make_policy()
    assert type(policy).from_pretrained(tmp_path / "cut", config=policy.config) is not None
