"""What the guard does beyond stopping: skip and count, keep the batch, replay it; what stands still."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import pytest

from stack.errors import BadRequest
from stack.train.guard import RANGE_LIMIT, Guard, Trip
from stack.train.kept import read, replay

NAN_STEPS = (3, 5)


@pytest.fixture
def poisoned(toys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps 3 and 5 take a frame whose action 7 is not a number."""
    from stack.train.data import Collate, Order

    total = toys.EPISODES * toys.LENGTH
    bad = {next(iter(Order(total, 4, 1000).batches(step - 1, step)))[1] for step in NAN_STEPS}
    original = Collate.__call__

    def collate(self: Collate, samples: list[Any]) -> Any:
        for sample in samples:
            if int(sample["index"]) in bad:
                sample["action"][0, 7] = float("nan")
        return original(self, samples)

    monkeypatch.setattr(Collate, "__call__", collate)


@pytest.mark.lerobot
def test_bad_steps_are_skipped_counted_and_kept(
    toys: Any, world: Any, tmp_path: Path, poisoned: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    seen: list[float] = []
    original = torch.optim.AdamW.step

    def watched(self: Any, *given: Any, **named: Any) -> Any:
        seen.append(self.param_groups[0]["lr"])
        return original(self, *given, **named)

    monkeypatch.setattr(torch.optim.AdamW, "step", watched)
    train = {"steps": 6, "on_bad_step": "skip", "log_every": 1, "save_every": 6}
    job = toys.make_job(world, tmp_path, train=train)
    _, run = toys.run_here(job)
    assert run.trip is None and [trip.step for trip in run.skipped] == [3, 5]
    assert [loss is None for loss in run.losses] == [False, False, True, False, True, False]
    assert all(math.isfinite(loss) for loss in run.losses if loss is not None)
    # The weights were moved four times; the schedule went on all the same.
    assert len(seen) == 4
    assert [step for step, _ in run.windows] == [1, 2, 4, 6]
    assert sorted(p.name for p in (job.out / "kept").iterdir()) == [
        "step-000003-rank-0.pt",
        "step-000005-rank-0.pt",
    ]
    # A resume knows them.
    again = toys.make_job(world, tmp_path, is_resume=True, train=train)
    _, resumed = toys.run_here(again)
    assert resumed.losses == run.losses


@pytest.mark.lerobot
def test_more_bad_steps_than_allowed_stop(toys: Any, world: Any, tmp_path: Path, poisoned: None) -> None:
    train = {"steps": 6, "on_bad_step": "skip", "max_skipped": 1}
    _, run = toys.run_here(toys.make_job(world, tmp_path, train=train))
    assert [trip.step for trip in run.skipped] == [3]
    assert run.trip is not None and (run.trip.outcome, run.trip.step) == ("nonfinite", 5)
    assert "stack train --replay kept/step-000005-rank-0.pt" in run.message


@pytest.mark.lerobot
def test_a_replay_gives_the_loss_again(toys: Any, world: Any, tmp_path: Path) -> None:
    """An explosion at step 4, made by a tight guard; replayed with the weights of step 3, bit by bit."""
    from stack.train import replay_file

    plain = toys.make_job(world, tmp_path / "plain", train={"steps": 4})
    _, whole = toys.run_here(plain)
    job = toys.make_job(world, tmp_path / "out", train={"steps": 4, "save_every": 1})
    job.write(job.out / "job.json")
    with pytest.MonkeyPatch.context() as patch:
        judge = Guard.loss

        def strict(self: Guard, step: int, loss: float) -> Any:
            self.factor = 1e-3 if step == 4 else 50.0
            return judge(self, step, loss)

        patch.setattr(Guard, "loss", strict)
        _, run = toys.run_here(job)
    assert run.trip is not None and (run.trip.outcome, run.trip.step) == ("exploded", 4)
    said: list[str] = []
    # A stage's folder is renamed when it is whole.
    (tmp_path / "out").rename(tmp_path / "renamed")
    kept = tmp_path / "renamed" / "kept"
    answer = replay_file(kept / "step-000004-rank-0.pt", log=said.append)
    assert (answer["step"], answer["weights_step"], answer["is_exact"]) == (4, 3, True)
    assert answer["loss"] == answer["was"] == whole.losses[3]
    assert answer["grad_norm"] > 0 and answer["culprits"] == []
    assert "with the checkpoint of step 3" in said[0]
    assert not any(p.name.startswith(".") for p in kept.iterdir())


@pytest.mark.lerobot
@pytest.mark.parametrize("on_bad_step", ["stop", "skip"])
def test_an_input_beyond_the_statistics(
    toys: Any, world: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on_bad_step: str
) -> None:
    """One action of one frame is 8 where the channel is within 1; the loss alone would not show it."""
    from stack.train.data import Collate, Order

    original = Collate.__call__
    bad = next(iter(Order(toys.EPISODES * toys.LENGTH, 4, 1000).batches(2, 3)))[1]

    def planted(self: Collate, samples: list[Any]) -> Any:
        for sample in samples:
            if int(sample["index"]) == bad:
                sample["action"][0, 7] = 8.0
        return original(self, samples)

    monkeypatch.setattr(Collate, "__call__", planted)
    train = {"steps": 4, "input_limit": 5, "on_bad_step": on_bad_step}
    session, run = toys.run_here(toys.make_job(world, tmp_path, train=train))
    trip = run.trip if on_bad_step == "stop" else run.skipped[0]
    assert (trip.outcome, trip.step) == ("beyond", 3) and "train.input_limit is 5" in trip.message
    assert (tmp_path / "kept" / "step-000003-rank-0.pt").is_file()
    if on_bad_step == "skip":
        assert run.trip is None and [loss is None for loss in run.losses] == [False, False, True, False]
    else:
        found = run.culprits[0]
        episode, frame = divmod(bad, toys.LENGTH)
        assert (found.channel, found.value, found.episode, found.frame) == ("joint_7", 8.0, episode, frame)
        # A replay names what the training named, below the usual limit of ten times, too.
        kept = read(tmp_path / "kept" / "step-000003-rank-0.pt")
        assert replay(session, kept).culprits[0].channel == "joint_7"
        assert 5 < found.normalised < RANGE_LIMIT


def test_a_file_that_is_no_kept_batch(tmp_path: Path) -> None:
    from stack.train import replay_file

    with pytest.raises(BadRequest, match="no kept batch here"):
        replay_file(tmp_path / "kept" / "step-000001-rank-0.pt")


def test_a_loss_that_does_not_move() -> None:
    def trips(last: float) -> list[Any]:
        guard = Guard(50, stall_steps=50)
        losses = [2.0] * 40 + [last] * 20
        return [t for step, loss in enumerate(losses, 1) if (t := guard.loss(step, loss))]

    assert trips(1.0) == []
    (trip,) = trips(1.95)
    assert (trip.outcome, trip.step) == ("stalled", 50)
    assert "was 2 over the first 10 steps and is 1.95 over the last 10 of 50" in trip.message


def test_a_rank_that_lags() -> None:
    guard = Guard(50, lag_factor=3.0, lag_steps=4)
    even, slow = [0.1, 0.11, 0.1, 0.12], [0.1, 0.11, 0.5, 0.12]
    for step, busy_s in enumerate([even, slow, slow, slow, even, slow, slow, slow], 1):
        assert guard.ranks(step, busy_s) is None
    trip = guard.ranks(9, slow)
    assert trip is not None and trip.outcome == "lagging"
    assert "rank 2 needed 0.5 s for its part of step 9, the others 0.11 s" in trip.message
    assert guard.ranks(1, [9.0]) is None
    two = Guard(50, lag_factor=3.0, lag_steps=1)
    assert two.ranks(1, [0.1, 0.2]) is None
    found = two.ranks(2, [0.1, 0.4])
    assert found is not None and "rank 1" in found.message


@pytest.mark.lerobot
def test_a_training_that_does_not_move_stops(toys: Any, world: Any, tmp_path: Path) -> None:
    """A learning rate of next to nothing: the noise of twenty steps hides no fall."""
    train = {"steps": 30, "learning_rate": 1e-12, "stall_steps": 20, "batch_per_device": 4}
    _, run = toys.run_here(toys.make_job(world, tmp_path, train=train))
    assert run.trip is not None and (run.trip.outcome, run.trip.step) == ("stalled", 20)
    assert "the loss does not move" in run.message and len(run.losses) == 19
    train = {**train, "learning_rate": 3e-3, "steps": 21}
    _, moving = toys.run_here(toys.make_job(world, tmp_path / "moving", train=train))
    assert moving.trip is None


@pytest.mark.lerobot
def test_what_was_trained_before_a_rank_lagged_is_saved(
    toys: Any, world: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The step that is not taken was seeded already; a resume takes it as if nothing had been."""
    train = {"steps": 5}
    _, straight = toys.run_here(toys.make_job(world, tmp_path / "straight", train=train))
    with monkeypatch.context() as patch:
        slow = Trip("lagging", 4, "rank 0 needed 9 s")
        patch.setattr(Guard, "ranks", lambda self, step, busy_s: slow if step == 4 else None)
        job = toys.make_job(world, tmp_path / "out", train=train)
        _, run = toys.run_here(job)
    assert run.trip == slow and "step 3 is saved; go on with --resume" in run.message
    assert [folder.name for folder in job.checkpoints.glob("[0-9]*")] == ["000003"]
    session, resumed = toys.run_here(toys.make_job(world, tmp_path / "out", is_resume=True, train=train))
    assert session.start.step == 3 and resumed.losses == straight.losses


@pytest.mark.lerobot
def test_a_slow_rank_of_two_is_named(
    toys: Any, world: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two processes; the second one's disk takes half a second a frame from its third step on."""
    from stack.train import train

    plant_a_slow_disk(tmp_path / "site", monkeypatch, rank=1, after_reads=4)
    settings = {"steps": 30, "batch_per_device": 2, "lag_factor": 4, "lag_steps": 3, "save_every": 100}
    result = train(
        toys.run_manifest(device={"count": 2}, train=settings),
        dataset=world.dataset,
        mirror=world.mirror,
        models=world.models,
        out=tmp_path / "out",
        log=lambda _: None,
    )
    assert (result.outcome, int(result.exit)) == ("lagging", 4), result.message
    assert "rank 1 needed" in result.message and "look at that device and at the disk" in result.message
    # The third step is the first slow one, and the fifth the third on end; a busy host may add to either.
    assert 2 <= result.steps < 29 and [c["step"] for c in result.checkpoints] == [result.steps]
    assert f"of step {result.steps + 1}, the others" in result.message
    assert sorted(p.name for p in (tmp_path / "out" / "kept").iterdir()) == [
        f"step-{result.steps + 1:06d}-rank-{rank}.pt" for rank in (0, 1)
    ]


def plant_a_slow_disk(site: Path, monkeypatch: pytest.MonkeyPatch, *, rank: int, after_reads: int) -> None:
    site.mkdir()
    (site / "sitecustomize.py").write_text(
        "import os, sys, time\n"
        "if any('stack.train.worker' in word for word in sys.orig_argv) and "
        f"os.environ.get('RANK') == '{rank}':\n"
        "    from stack.train import batches\n"
        "    read, calls = batches.Samples.__getitem__, []\n"
        "    def slow(self, index):\n"
        "        calls.append(index)\n"
        f"        time.sleep(0.5 if len(calls) > {after_reads} else 0.0)\n"
        "        return read(self, index)\n"
        "    batches.Samples.__getitem__ = slow\n"
    )
    monkeypatch.setenv("PYTHONPATH", f"{site}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
