"""The policy and its processors: what does not fit is refused, statistics and tokenizer are proven."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from stack.errors import BadRequest, NotAble, WorkFailed
from stack.manifests.models import Golden
from stack.manifests.run import ToyDims
from stack.train import lines
from stack.train.child import environment

pytestmark = pytest.mark.lerobot


@pytest.fixture(scope="module")
def session(toys: Any, world: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    from stack.devices import open_device
    from stack.train.ranks import Ranks
    from stack.train.session import open_session

    said: list[tuple[str, dict[str, Any]]] = []
    job = toys.make_job(world, tmp_path_factory.mktemp("session"))
    made = open_session(
        job, open_device("cpu"), Ranks(), lambda kind, **details: said.append((kind, details))
    )
    made.said = said
    return made


def test_statistics_that_are_not_the_datasets(session: Any, world: Any, tmp_path: Path) -> None:
    """A changed quantile of one channel of sixteen is seen."""
    from stack.train.policy import prove_statistics

    sample = session.dataset[3]
    prove_statistics(session.processors, world.dataset, sample)
    for key in ("observation.state", "action"):
        for change in (1e-3, 0.5):
            copy = tmp_path / f"{key}-{change}"
            (copy / "meta").mkdir(parents=True)
            stats = json.loads((world.dataset / "meta" / "stats.json").read_text())
            stats[key]["q99"][5] += change
            (copy / "meta" / "stats.json").write_text(json.dumps(stats))
            with pytest.raises(WorkFailed, match=rf"{key} is not normalised with the dataset's own"):
                prove_statistics(session.processors, copy, sample)


def test_golden_ids(session: Any, world: Any, tmp_path: Path) -> None:
    from stack.train.policy import prove_tokenizer

    folder, step = world.mirror / "toy-tokenizer", session.processors.tokenizer_step
    good = Golden(text="Task: pick", ids=tuple(step.input_tokenizer("Task: pick").input_ids))
    assert prove_tokenizer(session.processors, folder, [good, good]) == 2
    changed = good.model_copy(update={"ids": (*good.ids[:2], 3, *good.ids[3:])})
    with pytest.raises(BadRequest, match="id 2 differs"):
        prove_tokenizer(session.processors, folder, [good, changed])
    with pytest.raises(BadRequest, match="no golden encoding"):
        prove_tokenizer(session.processors, folder, [])
    # The folder is right, but the processor holds another tokenizer.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(step, "input_tokenizer", lambda text: {"input_ids": [2, 7]})
        with pytest.raises(WorkFailed, match="another tokenizer"):
            prove_tokenizer(session.processors, folder, [good])
    with pytest.raises(BadRequest, match="folder is not there"):
        prove_tokenizer(session.processors, tmp_path / "nowhere", [good])


def test_the_hard_wired_tokenizer_name_is_not_used(session: Any, world: Any) -> None:
    assert session.processors.tokenizer_step.tokenizer_name == str(world.mirror / "toy-tokenizer")


def test_a_prompt_that_is_cut_is_said(session: Any, toys: Any, world: Any, tmp_path: Path) -> None:
    """The number of tokens against the tokenizer itself; and the warning exactly where they do not fit."""
    from stack.devices import open_device
    from stack.train.ranks import Ranks
    from stack.train.session import open_session

    said: list[str] = []

    def emit(_kind: str, **details: Any) -> None:
        said.append(details.get("text", ""))

    width = 32 if lines.detect_line() == "production" else toys.WIDTH
    for limit in (40, 200):
        said.clear()
        job = toys.make_job(world, tmp_path / str(limit), policy={"tokenizer_max_length": limit})
        made = open_session(job, open_device("cpu"), Ranks(), emit)
        inputs = made.processors.before(
            {
                key: value.unsqueeze(0) if hasattr(value, "unsqueeze") else [value]
                for key, value in made.dataset[0].items()
            }
        )
        tokens = inputs["observation.language.tokens"][0]
        assert tokens.shape == (limit,)
        warned = [text for text in said if "is cut off" in text]
        assert len(warned) == (limit == 40)
        if limit == 200:
            assert made.proofs.prompt_tokens == int(inputs["observation.language.attention_mask"].sum())
            text = made.processors.tokenizer_step.input_tokenizer.decode(tokens, skip_special_tokens=True)
            assert text.rstrip().endswith("Action:")
            assert len(text.split("State: ")[1].split(";")[0].split()) == width


@pytest.mark.parametrize(
    ("key", "limit"), [("observation.state", {"max_state_dim": 12}), ("action", {"max_action_dim": 12})]
)
def test_data_wider_than_the_policy(
    toys: Any, world: Any, tmp_path: Path, key: str, limit: dict[str, int]
) -> None:
    with pytest.raises(BadRequest, match=rf"{key} is 16 wide, and the policy takes 12"):
        toys.run_here(toys.make_job(world, tmp_path, policy=limit))


def test_a_warm_up_longer_than_the_training(toys: Any, world: Any, tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match="warmup_steps is 1000, but the training has 6 steps"):
        toys.run_here(toys.make_job(world, tmp_path, train={"warmup_steps": 1000}))


def test_the_schedule_is_the_manifests(session: Any) -> None:
    """Linear to the peak over the warm-up, then half a cosine to a tenth: by hand at every step."""
    import math

    steps, warmup, peak = 6, 1, 3e-3
    got = []
    optimizer = session.policy.config.get_optimizer_preset().build(session.policy.get_optim_params())
    scheduler = session.policy.config.get_scheduler_preset().build(optimizer, steps)
    for _ in range(steps):
        got.append(scheduler.get_last_lr()[0])
        optimizer.step()
        scheduler.step()
    cosine = [0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * step / steps)) for step in range(steps)]
    want = [peak / (warmup + 1), *(peak * value for value in cosine[1:])]
    assert got == pytest.approx(want)


def test_other_dimensions_in_one_process(session: Any) -> None:
    from stack.train import toy

    with pytest.raises(BadRequest, match="cannot also have"):
        toy.install(lines.modeling(), ToyDims(width=32))
    with pytest.raises(BadRequest, match="cannot also have full size"):
        toy.install(lines.modeling(), None)


@pytest.mark.parametrize(
    ("version", "line"),
    [("0.4.0", "production"), ("0.4.4", "production"), ("0.3.4", "production"), ("0.6.1", "current")],
)
def test_lines(version: str, line: str) -> None:
    assert lines.line_of(version) == line


def test_an_unknown_line() -> None:
    with pytest.raises(NotAble, match=r"lerobot 0\.9\.2 is neither"):
        lines.line_of("0.9.2")


def test_the_adapter_steps_aside_where_the_patch_is(monkeypatch: pytest.MonkeyPatch) -> None:
    import types

    from transformers.models.gemma import modeling_gemma

    from stack.train import shim

    container = types.SimpleNamespace(GemmaForCausalLM=object, PaliGemmaForConditionalGeneration=object)
    monkeypatch.setattr(modeling_gemma, "_gated_residual", lambda x, y, gate: x, raising=False)
    assert shim.install(container) == "patched transformers"
    assert container.GemmaForCausalLM is object
    newer = types.SimpleNamespace(PiGemmaForCausalLM=object)
    assert shim.install(newer) == "lerobot"


def test_the_childs_environment(tmp_path: Path) -> None:
    env = environment(tmp_path, is_cpu=True, ranks=1)
    assert env["HF_HUB_OFFLINE"] == env["TRANSFORMERS_OFFLINE"] == env["HF_DATASETS_OFFLINE"] == "1"
    assert (env["OMP_NUM_THREADS"], env["HF_HOME"]) == ("1", str(tmp_path))
    assert (
        "OMP_NUM_THREADS"
        not in environment(tmp_path, is_cpu=False, ranks=1).keys() - __import__("os").environ.keys()
    )


def test_what_another_launcher_said_of_ranks_is_not_handed_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cluster's pod of one process has these; the trainer would take itself for rank 3. Ascend's stay."""
    for name, value in (("RANK", "3"), ("WORLD_SIZE", "1"), ("MASTER_PORT", "2"), ("RANK_TABLE_FILE", "/t")):
        monkeypatch.setenv(name, value)
    env = environment(tmp_path, is_cpu=False, ranks=1)
    assert not {"RANK", "WORLD_SIZE", "MASTER_PORT"} & env.keys() and env["RANK_TABLE_FILE"] == "/t"


def test_models_that_are_not_there(toys: Any, world: Any, tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match=r"policy\.weights is 'toy-pi0'"):
        toys.make_job(world, tmp_path / "a", policy={"weights": "toy-pi0"})
    half = tmp_path / "mirror"
    shutil.copytree(world.mirror, half)
    (half / "toy-pi05" / "model.safetensors").unlink()
    broken = toys.World(world.dataset, half, world.models, world.golden_ids)
    with pytest.raises(BadRequest, match=r"no model\.safetensors of 'toy-pi05'"):
        toys.make_job(broken, tmp_path / "b")
