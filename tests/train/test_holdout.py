"""Held-out episodes: never trained on, and evaluated with numbers that can be taken by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy
import pytest

from stack.errors import BadRequest
from stack.files import read_json

pytestmark = pytest.mark.lerobot

HELD = {"episodes": [1, 3], "every": 2, "frames": 6}


@pytest.fixture(scope="module")
def evaluated(toys: Any, world: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    train = {"steps": 4, "save_every": 4, "holdout": HELD}
    job = toys.make_job(world, tmp_path_factory.mktemp("holdout"), train=train)
    return job, *toys.run_here(job)


def test_no_held_out_frame_is_ever_trained_on(evaluated: Any, toys: Any) -> None:
    _, session, _ = evaluated
    length = toys.LENGTH
    seen = {index for batch in session.order.batches(0, 40) for index in batch}
    assert {index // length for index in seen} == {0, 2, 4}
    # An epoch is complete: each frame that is left, once.
    stream = [index for batch in session.order.batches(0, 18) for index in batch]
    assert sorted(stream) == [i for e in (0, 2, 4) for i in range(e * length, (e + 1) * length)]
    assert {index // length for index in session.held.frames} == {1, 3}
    assert len(session.held.frames) == 6


def test_the_loss_and_the_errors_by_hand(evaluated: Any, toys: Any) -> None:
    """Frame by frame, with lerobot's own model: squared velocity errors, and absolute errors."""
    import torch

    from stack.train.holdout import _draw, evaluate
    from stack.train.policy import batch_of_one

    _, session, run = evaluated
    found = evaluate(session)
    assert found == evaluate(session)
    assert (run.evaluations.keys(), found.frames) == ({2, 4}, 6)
    assert run.evaluations[4] == found
    squares, errors, count = 0.0, numpy.zeros(toys.WIDTH), 0
    policy = session.policy.eval()
    for frame in session.held.frames:
        episode, at = divmod(frame, toys.LENGTH)
        left = min(10, toys.LENGTH - at)
        batch = session.processors.before(batch_of_one(session.dataset[frame]))
        noise, start, time = _draw(policy.config, [frame], session.device)
        images, masks = policy._preprocess_images(batch)
        words = batch["observation.language.tokens"], batch["observation.language.attention_mask"]
        with torch.no_grad():
            target = policy.prepare_action(batch)
            losses = policy.model.forward(images, masks, *words, target, noise, time)
            chunk = policy.model.sample_actions(images, masks, *words, noise=start)
        squares += float(losses[0, :left, : toys.WIDTH].double().sum())
        actions = session.processors.after(chunk[:, :, : toys.WIDTH])[0].numpy()
        for ahead in range(left):
            errors += numpy.abs(actions[ahead] - toys.state_at(episode, at + ahead))
        count += left
    assert found.loss == pytest.approx(squares / (count * toys.WIDTH), rel=1e-4)
    assert list(found.errors) == toys.STATE_NAMES
    assert list(found.errors.values()) == pytest.approx((errors / count).tolist(), rel=1e-3)


def test_an_evaluation_leaves_the_training_as_it_was(
    evaluated: Any, toys: Any, world: Any, tmp_path: Path
) -> None:
    """The same losses, evaluated at every step or never again."""
    _, _, run = evaluated
    train = {"steps": 4, "save_every": 100, "holdout": {**HELD, "every": 1}}
    _, often = toys.run_here(toys.make_job(world, tmp_path, train=train))
    assert often.losses == run.losses and list(often.evaluations) == [1, 2, 3, 4]


def test_the_moving_average_is_what_is_evaluated(toys: Any, world: Any, tmp_path: Path) -> None:
    from stack.train.holdout import evaluate

    train = {"steps": 3, "holdout": HELD, "ema_decay": 0.99}
    session, run = toys.run_here(toys.make_job(world, tmp_path, train=train))
    with session.average.applied():
        average, session.average = session.average, None
        want = evaluate(session)
    assert run.evaluations[3] == want
    raw = evaluate(session)
    session.average = average
    assert raw.loss != want.loss


def test_the_best_checkpoint_is_kept(
    toys: Any, world: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from stack.train import loop
    from stack.train.holdout import Evaluation

    scores = iter([0.9, 0.4, 0.5, 0.6, 0.7, 0.8])
    monkeypatch.setattr(loop, "evaluate", lambda session: Evaluation(next(scores), {}, 1))
    train = {"steps": 6, "save_every": 1, "keep_checkpoints": 2, "keep_every": 3, "keep_best": True}
    job = toys.make_job(world, tmp_path, train={**train, "holdout": HELD})
    toys.run_here(job)
    there = sorted(path.name for path in job.checkpoints.iterdir())
    assert there == ["000002", "000003", "000005", "000006", "best", "last"]
    assert (job.checkpoints / "best").resolve().name == "000002"
    assert read_json(job.checkpoints / "best" / "pretrained_model" / "stack.json")["holdout_loss"] == 0.4


def test_a_fraction_is_drawn_by_the_seed(toys: Any, world: Any, tmp_path: Path) -> None:
    from stack.train.data import open_dataset
    from stack.train.holdout import hold_out

    meta = open_dataset(world.dataset, 10).meta

    def episodes(seed: int) -> tuple[int, ...]:
        train = {"seed": seed, "holdout": {"fraction": 0.4, "every": 5}}
        held, left = hold_out(meta, toys.run_manifest(train=train).manifest.train)
        assert held is not None and len(left) == 3 * toys.LENGTH
        return held.episodes

    drawn = {seed: episodes(seed) for seed in range(8)}
    assert all(len(set(e)) == 2 for e in drawn.values()) and len(set(drawn.values())) > 2
    assert drawn == {seed: episodes(seed) for seed in range(8)}


@pytest.mark.parametrize(
    ("holdout", "said"),
    [
        ({"episodes": [7], "every": 1}, "names episode 7; the dataset has episodes 0 to 4"),
        ({"episodes": [0, 1, 2, 3, 4], "every": 1}, "all 5 episodes are held out"),
    ],
)
def test_what_cannot_be_held_out(
    toys: Any, world: Any, tmp_path: Path, holdout: dict[str, Any], said: str
) -> None:
    with pytest.raises(BadRequest, match=said):
        toys.run_here(toys.make_job(world, tmp_path, train={"holdout": holdout}))


@pytest.mark.parametrize(
    ("train", "said"),
    [
        ({"holdout": {"every": 1}}, "either episodes or a fraction"),
        ({"holdout": {"every": 1, "episodes": [1], "fraction": 0.1}}, "either episodes or a fraction"),
        ({"holdout": {"every": 1, "episodes": [1, 1]}}, "names an episode twice"),
        ({"keep_best": True}, "chooses by the loss on train.holdout"),
        ({"keep_every": 150}, "keep_every 150 is no multiple of save_every 100"),
        ({"lora": {}, "trains": "expert"}, "train.lora freezes all weights"),
        ({"master_weights": True}, "policy.dtype is float32"),
        (
            {"global_batch": 8},
            r"global_batch is 8, but batch_per_device 4 x device.count 1 x accumulation 1 = 4",
        ),
    ],
)
def test_manifests_that_contradict_themselves(toys: Any, train: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        toys.run_manifest(train=train)


def test_bfloat16_says_which_weights_it_keeps(toys: Any) -> None:
    with pytest.raises(ValueError, match=r"say whether float32 master weights are kept"):
        toys.run_manifest(policy={"dtype": "bfloat16"})
