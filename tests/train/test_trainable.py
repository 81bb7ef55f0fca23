"""What is trained and what is not: counted, and the frozen tensors equal bit by bit after some steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy
import pytest

from stack.errors import BadRequest, WorkFailed
from stack.files import read_json

pytestmark = pytest.mark.lerobot

VISION = "paligemma.model.vision_tower"
EXPERT = ("gemma_expert", "action_in_proj", "action_out_proj", "time_mlp")
LORA = {"rank": 4, "alpha": 8.0}


def weights(folder: Path) -> dict[str, Any]:
    from safetensors.torch import load_file

    return {k.removeprefix("model."): v for k, v in load_file(folder / "model.safetensors").items()}


@pytest.fixture(scope="module")
def trained(toys: Any, world: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Three steps of a training of each kind: name -> (job, session, run)."""
    made: dict[str, Any] = {}

    def get(name: str, **train: Any) -> Any:
        if name not in made:
            changes = {"steps": 3, "save_every": 3, **train}
            job = toys.make_job(world, tmp_path_factory.mktemp(name), train=changes)
            made[name] = (job, *toys.run_here(job))
        return made[name]

    return get


@pytest.mark.parametrize(
    ("name", "settings", "is_frozen"),
    [
        ("expert", {"trains": "expert"}, lambda name: not any(part in name for part in EXPERT)),
        ("vision", {"freeze_vision": True}, lambda name: VISION in name),
    ],
)
def test_what_is_frozen_is_equal_bit_by_bit(
    trained: Any, world: Any, name: str, settings: dict[str, Any], is_frozen: Any
) -> None:
    job, session, _ = trained(name, **settings)
    before = weights(world.mirror / "toy-pi05")
    after = weights(job.checkpoints / "000003" / "pretrained_model")
    frozen = {key for key in before if is_frozen(key)}
    assert frozen and before.keys() - frozen
    for key in frozen:
        assert before[key].equal(after[key]), key
    moved = {key for key in before.keys() - frozen if not before[key].equal(after[key])}
    # The output heads and the language model's last layer feed nothing; all else has moved.
    assert len(moved) > 0.7 * len(before.keys() - frozen)
    counted = sum(p.numel() for n, p in session.policy.named_parameters() if not is_frozen(n))
    assert session.trainable.trained == counted < session.trainable.total
    stamp = read_json(job.checkpoints / "000003" / "pretrained_model" / "stack.json")
    assert stamp["trainable"]["trained"] == counted
    assert f"training {counted:,} of {session.trainable.total:,} parameters" in session.trainable.said


def test_a_frozen_tensor_that_moves_is_an_error(trained: Any) -> None:
    import torch

    _, session, _ = trained("vision", freeze_vision=True)
    session.trainable.prove_frozen()
    name, tensor = next((n, p) for n, p in session.policy.named_parameters() if VISION in n)
    with torch.no_grad():
        was = tensor.flatten()[0].item()
        tensor.view(-1)[0] += 1e-3
    with pytest.raises(WorkFailed, match="tensors that are not trained have changed"):
        session.trainable.prove_frozen()
    with torch.no_grad():
        tensor.view(-1)[0] = was
    session.trainable.prove_frozen()
    assert name


def test_adapters_are_few_and_the_base_stays(trained: Any) -> None:
    _, session, run = trained("lora", lora=LORA)
    names = list(session.trainable.named)
    assert all("lora_" in name for name in names)
    # Two layers of queries and values, and four projections, A and B each.
    assert len(names) == 2 * (2 * 2 + 4)
    by_hand = sum(
        LORA["rank"] * sum(module.get_base_layer().weight.shape)
        for module in session.policy.modules()
        if hasattr(module, "get_base_layer")
    )
    assert session.trainable.trained == by_hand
    session.trainable.prove_frozen()
    assert all(0 < loss < 10 for loss in run.losses)


def test_the_merged_weights_are_base_plus_product_by_hand(trained: Any, world: Any) -> None:
    """W + alpha / rank * B A in float64, from the adapters' own file."""
    from safetensors.torch import load_file

    job, _, _ = trained("lora", lora=LORA)
    folder = job.checkpoints / "000003"
    before, merged = weights(world.mirror / "toy-pi05"), weights(folder / "pretrained_model")
    assert merged.keys() >= before.keys()
    adapters = load_file(folder / "adapter" / "adapter_model.safetensors")
    changed, moved = set(), set()
    for name, a in adapters.items():
        if ".lora_A." not in name:
            continue
        layer = name.removeprefix("base_model.model.model.").replace(".lora_A.weight", ".weight")
        b = adapters[name.replace("lora_A", "lora_B")].double().numpy()
        want = before[layer].double().numpy() + 2.0 * (b @ a.double().numpy())
        numpy.testing.assert_allclose(merged[layer].double().numpy(), want, rtol=1e-6, atol=1e-7)
        changed.add(layer)
        if numpy.abs(b).max() > 0:
            moved.add(layer)
    # The toy's adaptive norms start at zero, so that nothing reaches the time's projections.
    assert len(changed) == 8 and changed - moved == {f"time_mlp_{end}.weight" for end in ("in", "out")}
    for name in before.keys() - changed:
        assert before[name].equal(merged[name]), name


def test_peft_loads_the_adapters_and_lerobot_the_merged_policy(trained: Any, world: Any) -> None:
    """Base and adapters by peft, the merged file by lerobot, and the policy that was trained: one chunk."""
    import peft
    import torch

    from stack.train import checkpoint, lines
    from stack.train.data import Collate
    from stack.train.policy import make_config
    from stack.train.weights import load_weights

    job, session, _ = trained("lora", lora=LORA)
    folder = job.checkpoints / "000003"
    config = make_config(job.run.policy, job.run.train)
    config.input_features = session.policy.config.input_features
    config.output_features = session.policy.config.output_features
    base = lines.modeling().PI05Policy(config)
    load_weights(base, world.mirror / "toy-pi05")
    adapted = peft.PeftModel.from_pretrained(base, folder / "adapter").base_model.model
    merged, processors = checkpoint.load_policy(folder / "pretrained_model")
    collate = Collate(processors.before, session.dataset.meta.camera_keys, (56, 56))
    inputs = collate([session.dataset[frame] for frame in (7, 40)]).inputs

    def chunk(policy: Any) -> Any:
        policy.eval()
        torch.manual_seed(2)
        return policy.predict_action_chunk(inputs)

    want = chunk(session.policy)
    assert torch.equal(chunk(adapted), want)
    torch.testing.assert_close(chunk(merged), want, rtol=1e-4, atol=1e-4)
    with torch.no_grad():
        base_only = lines.modeling().PI05Policy(config)
        load_weights(base_only, world.mirror / "toy-pi05")
        assert not torch.allclose(chunk(base_only), want, rtol=1e-4, atol=1e-4)
    said = read_json(folder / "adapter" / "adapter_config.json")
    assert (said["base_model_name_or_path"], said["r"], said["lora_alpha"]) == ("toy-pi05", 4, 8.0)


@pytest.mark.parametrize(
    "settings",
    [{"lora": {**LORA, "dropout": 0.1}}, {"trains": "expert", "ema_decay": 0.9}],
    ids=["lora", "expert with a moving average"],
)
def test_a_resume_is_exact_for_each_kind(
    toys: Any, world: Any, tmp_path: Path, settings: dict[str, Any]
) -> None:
    import shutil

    train = {"steps": 4, "save_every": 2, **settings}
    straight = toys.make_job(world, tmp_path / "a", train=train)
    _, run = toys.run_here(straight)
    shutil.copytree(straight.checkpoints / "000002", tmp_path / "b" / "checkpoints" / "000002")
    again = toys.make_job(world, tmp_path / "b", is_resume=True, train=train)
    session, resumed = toys.run_here(again)
    assert session.start.step == 2 and resumed.losses == run.losses
    for name in ("pretrained_model/model.safetensors", "training_state/trained.safetensors"):
        one, two = (job.checkpoints / "000004" / name for job in (straight, again))
        assert one.read_bytes() == two.read_bytes(), name


def test_targets_that_match_nothing(toys: Any, world: Any, tmp_path: Path) -> None:
    with pytest.raises(
        BadRequest, match=r"train\.lora\.targets matches no layer of the policy: \('q_poj',\)"
    ):
        toys.run_here(toys.make_job(world, tmp_path, train={"lora": {"targets": ["q_poj"]}}))


def test_other_base_weights_at_a_resume(toys: Any, world: Any, trained: Any, tmp_path: Path) -> None:
    """Adapters belong to the weights that they were trained on."""
    import shutil

    from safetensors.torch import load_file, save_file

    job, _, _ = trained("lora", lora=LORA)
    shutil.copytree(job.checkpoints, tmp_path / "out" / "checkpoints", symlinks=True)
    shutil.copytree(world.mirror, tmp_path / "mirror")
    file = tmp_path / "mirror" / "toy-pi05" / "model.safetensors"
    tensors = load_file(file)
    tensors["paligemma_with_expert.gemma_expert.model.layers.0.mlp.up_proj.weight"][0, 0] += 1
    save_file(tensors, file)
    other = toys.World(world.dataset, tmp_path / "mirror", world.models, world.golden_ids)
    changes = {"steps": 3, "save_every": 3, "lora": LORA}
    with pytest.raises(BadRequest, match="the tensors that are not trained are not those of the start"):
        toys.run_here(toys.make_job(other, tmp_path / "out", is_resume=True, train=changes))
