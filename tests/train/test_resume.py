"""Training in this process: exact resume, accumulation, the guard on real batches, checkpoints."""

from __future__ import annotations

import json
import shutil
import statistics
from pathlib import Path
from typing import Any

import pytest

from stack.errors import BadRequest
from stack.files import read_json, sha256_file, write_json
from stack.train import checkpoint, lines
from stack.train.checkpoint import MODEL, STATE
from stack.train.identity import IDENTITY

pytestmark = pytest.mark.lerobot

LONG = {"steps": 16, "save_every": 8, "log_every": 5}


@pytest.fixture(scope="module")
def straight(toys: Any, world: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    """Sixteen steps in one go, with checkpoints at 8 and 16."""
    job = toys.make_job(world, tmp_path_factory.mktemp("straight"), train=LONG)
    _, run = toys.run_here(job)
    return job, run


def rewind(job: Any, to: Path, steps: str = "000008") -> None:
    """A run folder as a kill after step 8 leaves it."""
    shutil.copytree(job.checkpoints / steps, to / "checkpoints" / steps)


def test_losses_are_real(straight: Any) -> None:
    _, run = straight
    assert len(run.losses) == 16 and all(0.1 < loss < 10 for loss in run.losses)
    assert run.windows == [
        (end, pytest.approx(statistics.fmean(run.losses[start:end])))
        for start, end in ((0, 5), (5, 10), (10, 15), (15, 16))
    ]


@pytest.mark.parametrize("workers", [0, 2])
def test_resume_is_exact(toys: Any, world: Any, straight: Any, tmp_path: Path, workers: int) -> None:
    """8 + resume to 16 = 16: the losses, and every byte of weights, optimiser and schedule."""
    job, run = straight
    rewind(job, tmp_path)
    again = toys.make_job(world, tmp_path, is_resume=True, train={**LONG, "workers": workers})
    session, resumed = toys.run_here(again)
    assert session.start.step == 8
    assert resumed.losses == run.losses
    assert len(resumed.steps_s) == 8
    for name in (
        f"{MODEL}/model.safetensors",
        f"{STATE}/optimizer_state.safetensors",
        f"{STATE}/scheduler_state.json",
        f"{STATE}/losses.json",
    ):
        ours, theirs = again.checkpoints / "000016" / name, job.checkpoints / "000016" / name
        assert ours.read_bytes() == theirs.read_bytes(), name
    assert [(w[0], pytest.approx(w[1])) for w in resumed.windows] == run.windows


def test_noise_belongs_to_its_batch(toys: Any, world: Any, straight: Any, tmp_path: Path) -> None:
    """Whatever is drawn in between, a batch's noise stays; and losses do depend on it."""
    import torch

    _, run = straight

    def disturb() -> bool:
        torch.rand(17)
        return False

    job = toys.make_job(world, tmp_path / "a", train={**LONG, "save_every": 16})
    _, disturbed = toys.run_here(job, disturb)
    assert disturbed.losses == run.losses
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("stack.devices.Device.seed_draws", lambda self, seed: torch.manual_seed(seed + 1))
        _, other = toys.run_here(toys.make_job(world, tmp_path / "b", train={**LONG, "steps": 2}))
    assert other.losses[0] != run.losses[0]


def test_a_stop_saves_and_the_rest_is_exact(toys: Any, world: Any, straight: Any, tmp_path: Path) -> None:
    job, run = straight
    asked = iter([False, False, True])
    _, stopped = toys.run_here(toys.make_job(world, tmp_path, train=LONG), lambda: next(asked))
    assert stopped.is_stopped and stopped.losses == run.losses[:3]
    assert "step 3 of 16" in stopped.message
    again = toys.make_job(world, tmp_path, is_resume=True, train=LONG)
    toys.run_here(again)
    weights = f"000016/{MODEL}/model.safetensors"
    assert sha256_file(again.checkpoints / weights) == sha256_file(job.checkpoints / weights)


def test_accumulation_is_the_larger_batch(
    toys: Any, world: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two batches of 2 do what one of 4 does, to rounding, once noise and time are fixed for each frame."""
    import torch

    from stack.train import lines

    model = lines.modeling().PI05Pytorch
    monkeypatch.setattr(model, "sample_noise", lambda self, shape, device: torch.full(shape, 0.7))
    monkeypatch.setattr(model, "sample_time", lambda self, size, device: torch.full((size,), 0.4))
    halves = {"batch_per_device": 2, "accumulation": 2, "steps": 3}
    _, one = toys.run_here(toys.make_job(world, tmp_path / "one", train={"steps": 3}))
    _, two = toys.run_here(toys.make_job(world, tmp_path / "two", train=halves))
    assert two.losses == pytest.approx(one.losses, rel=1e-4)
    assert one.losses[2] < one.losses[0]


def test_lerobot_loads_the_checkpoint(straight: Any, toys: Any) -> None:
    """lerobot's own loaders take the folder; the weights are those of the run's end, actions come out raw."""
    import torch
    from lerobot.policies.factory import make_pre_post_processors

    job, _ = straight
    folder = job.checkpoints / "last" / MODEL
    policy, processors = checkpoint.load_policy(folder)
    theirs = type(policy).from_pretrained(folder)
    for name, tensor in policy.state_dict().items():
        assert theirs.state_dict()[name].equal(tensor), name
    before, after = make_pre_post_processors(
        theirs.config,
        pretrained_path=str(folder),
        preprocessor_overrides={"tokenizer_processor": {"tokenizer_name": str(folder / "tokenizer")}},
    )
    from stack.train.data import open_dataset

    sample = open_dataset(job.dataset, 10)[30]
    batch = {key: value.unsqueeze(0) if torch.is_tensor(value) else [value] for key, value in sample.items()}
    inputs = before(dict(batch))
    ours = processors.before(dict(batch))
    assert inputs["observation.language.tokens"].equal(ours["observation.language.tokens"])
    torch.manual_seed(0)
    chunk = after(theirs.predict_action_chunk(inputs))
    torch.manual_seed(0)
    assert processors.after(policy.predict_action_chunk(ours)).equal(chunk)
    assert chunk.shape == (1, 10, 16) and bool(chunk.isfinite().all())


def test_the_checkpoint_names_no_folder_of_this_machine(straight: Any) -> None:
    job, _ = straight
    folder = job.checkpoints / "000016" / MODEL
    saved = json.loads((folder / "policy_preprocessor.json").read_text())
    names = [
        s["config"].get("tokenizer_name")
        for s in saved["steps"]
        if s.get("registry_name") == "tokenizer_processor"
    ]
    assert names == ["tokenizer"]
    assert json.loads((folder / "config.json").read_text())["device"] == "cpu"
    assert (folder / "tokenizer" / "tokenizer.json").is_file()
    stamp = read_json(folder / IDENTITY)
    assert (stamp["line"], stamp["step"], stamp["stats_proven"]) == (lines.detect_line(), 16, True)
    assert stamp["weights"]["filled_frac"] == 1.0


def test_old_checkpoints_go_and_last_points_at_the_newest(toys: Any, world: Any, tmp_path: Path) -> None:
    job = toys.make_job(world, tmp_path, train={"steps": 5, "save_every": 1, "keep_checkpoints": 2})
    toys.run_here(job)
    assert sorted(p.name for p in job.checkpoints.iterdir()) == ["000004", "000005", "last"]
    assert (job.checkpoints / "last").resolve().name == "000005"
    found = checkpoint.last(job.checkpoints)
    assert found is not None and found.name == "000005"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            {"line": "current" if lines.detect_line() == "production" else "production"},
            "writ.*the state into the prompt",
        ),
        ({"toy": None}, "full size"),
    ],
)
def test_a_checkpoint_of_another_line_or_size(
    toys: Any, world: Any, straight: Any, tmp_path: Path, change: dict[str, Any], said: str
) -> None:
    rewind(straight[0], tmp_path)
    folder = tmp_path / "checkpoints" / "000008"
    write_json(folder / MODEL / IDENTITY, {**read_json(folder / MODEL / IDENTITY), **change})
    with pytest.raises(BadRequest, match=said):
        toys.run_here(toys.make_job(world, tmp_path, is_resume=True, train=LONG))
    if "line" in change:
        with pytest.raises(BadRequest, match=said):
            checkpoint.load_policy(folder / MODEL)


def test_a_checkpoint_of_an_older_release(toys: Any, world: Any, straight: Any, tmp_path: Path) -> None:
    rewind(straight[0], tmp_path)
    file = tmp_path / "checkpoints" / "000008" / MODEL / IDENTITY
    stamp = read_json(file)
    write_json(file, {key: value for key, value in stamp.items() if key != "trainable"})
    with pytest.raises(BadRequest, match="of an older release"):
        toys.run_here(toys.make_job(world, tmp_path, is_resume=True, train=LONG))


@pytest.mark.parametrize(
    ("section", "change", "said"),
    [
        ("train", {"learning_rate": 1e-3}, "learning_rate 0.003, the run asks for 0.001"),
        ("train", {"seed": 7}, "seed 1000, the run asks for 7"),
        ("train", {"steps": 20}, "steps 16, the run asks for 20"),
        ("policy", {"action_horizon": 8}, "action_horizon 10, the run asks for 8"),
    ],
)
def test_a_resume_with_other_settings(
    toys: Any, world: Any, straight: Any, tmp_path: Path, section: str, change: dict[str, Any], said: str
) -> None:
    rewind(straight[0], tmp_path)
    changes: dict[str, Any] = {"train": LONG}
    changes[section] = {**changes.get(section, {}), **change}
    with pytest.raises(BadRequest, match=said):
        toys.run_here(toys.make_job(world, tmp_path, is_resume=True, **changes))


def test_nothing_to_resume_from_starts(toys: Any, world: Any, straight: Any, tmp_path: Path) -> None:
    session, run = toys.run_here(toys.make_job(world, tmp_path, is_resume=True, train={**LONG, "steps": 16}))
    assert session.start.step == 0 and run.losses == straight[1].losses


def test_an_exploding_channel_is_named(toys: Any, world: Any, tmp_path: Path) -> None:
    """One action channel that rests nearly always and jumps in one frame: hundreds once normalised."""

    def action_of(episode: int, frame: int) -> Any:
        action = toys.state_at(episode, frame)
        action[5] = 1e-3 * action[5]
        if (episode, frame) == (3, 11):
            action[5] = 40.0
        return action

    dataset = toys.record(tmp_path / "spiked", action_of=action_of)
    # The quantiles that the channel has where one frame in a hundred thousand jumps.
    stats = read_json(dataset / "meta" / "stats.json")
    stats["action"]["q01"][5], stats["action"]["q99"][5] = -1e-3, 1e-3
    write_json(dataset / "meta" / "stats.json", stats)
    spiked = toys.World(dataset, world.mirror, world.models, world.golden_ids)
    job = toys.make_job(spiked, tmp_path / "out", train={"steps": 40, "warmup_steps": 2, "save_every": 1})
    _, run = toys.run_here(job)
    assert run.trip is not None and run.trip.outcome == "exploded"
    worst = run.culprits[0]
    assert (worst.feature, worst.channel, worst.value) == ("action", "joint_5", 40.0)
    assert (worst.episode, worst.frame) == (3, 11)
    assert worst.normalised > 1000 and worst.loss_frac is not None and worst.loss_frac > 0.99
    assert "joint_5" in run.message and "episode 3" in run.message
    # The weights were saved after every step before, and the step that exploded has not touched them.
    found = checkpoint.last(job.checkpoints)
    before = run.trip.step - 1
    assert len(run.losses) == before and (found is None if before == 0 else found.name == f"{before:06d}")


def test_a_value_that_is_not_a_number_is_named(
    toys: Any, world: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from stack.train.data import Collate

    original = Collate.__call__

    def poisoned(self: Collate, samples: list[Any]) -> Any:
        for sample in samples:
            if int(sample["index"]) == bad:
                sample["action"][0, 7] = float("nan")
        return original(self, samples)

    from stack.train.data import Order

    total = toys.EPISODES * toys.LENGTH
    bad = next(iter(Order(total, 4, 1000).batches(2, 3)))[1]
    monkeypatch.setattr(Collate, "__call__", poisoned)
    _, run = toys.run_here(toys.make_job(world, tmp_path))
    assert run.trip is not None and (run.trip.outcome, run.trip.step) == ("nonfinite", 3)
    episode, frame = divmod(bad, toys.LENGTH)
    assert [(c.feature, c.channel, c.episode, c.frame) for c in run.culprits] == [
        ("action", "joint_7", episode, frame)
    ]
