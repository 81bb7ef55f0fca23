"""The guard on numbers, and what it says of a batch."""

from __future__ import annotations

import math
import types
from typing import Any

import pytest

from stack.train.guard import Guard, describe, find_culprits


def test_good_losses_pass() -> None:
    guard = Guard(50)
    for step, loss in enumerate([2.4, 1.9, 2.6, 1.2, 0.9, 30.0, 0.8], start=1):
        assert guard.loss(step, loss) is None
        assert guard.gradient(step, 1.0 + loss) is None


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_the_first_value_that_is_not_finite(value: float) -> None:
    guard = Guard(50)
    assert guard.loss(1, 2.0) is None
    trip = guard.loss(2, value)
    assert trip is not None and (trip.outcome, trip.step) == ("nonfinite", 2)
    trip = guard.gradient(2, value)
    assert trip is not None and trip.outcome == "nonfinite"


def test_the_storys_explosion() -> None:
    """1.7 at step 20, 813,270 at step 40: stopped at the first step that is beyond 50 medians."""
    guard = Guard(50)
    for step in range(1, 21):
        assert guard.loss(step, 1.7) is None
    assert guard.loss(21, 1.7 * 49) is None
    trip = guard.loss(22, 813_270.0)
    assert trip is not None and trip.outcome == "exploded"
    assert "813270" in trip.message and "1.7" in trip.message and "50" in trip.message


def test_the_median_is_not_moved_by_one_spike() -> None:
    guard = Guard(10)
    for step, loss in enumerate([1.0, 9.0, 1.0, 1.0], start=1):
        assert guard.loss(step, loss) is None
    assert guard.loss(5, 9.9) is None
    assert guard.loss(6, 10.1) is not None


def test_a_first_step_has_a_limit_too() -> None:
    """Noise minus actions within +-1 cannot average beyond 2; 50 times that is no start."""
    assert Guard(50).loss(1, 99.0) is None
    trip = Guard(50).loss(1, 101.0)
    assert trip is not None and trip.outcome == "exploded"


def test_a_resumed_run_knows_the_losses_before() -> None:
    assert Guard(50, [0.03] * 100).loss(101, 2.0) is not None
    assert Guard(50).loss(1, 2.0) is None


@pytest.fixture
def batch(torch_module: Any) -> Any:
    """Three samples of two steps; sample 1 is near its episode's end."""
    torch = torch_module
    raw = {"observation.state": torch.zeros(3, 2), "action": torch.zeros(3, 2, 4)}
    inputs = {key: value.clone() for key, value in raw.items()}
    inputs["action_is_pad"] = torch.tensor([[False, False], [False, True], [False, False]])
    places = {"episode_index": torch.tensor([4, 5, 6]), "frame_index": torch.tensor([10, 20, 30])}
    return types.SimpleNamespace(raw=raw, inputs=inputs, places=places)


NAMES = {"observation.state": ["s0", "s1"], "action": ["a0", "a1", "a2", "a3"]}


def test_an_ordinary_batch_names_nobody(batch: Any) -> None:
    batch.inputs["action"][:] = 1.4
    batch.inputs["observation.state"][:] = -3.0
    assert find_culprits(batch, NAMES, [0.1, 0.2, 0.3, 0.4]) == []


def test_channels_are_named_with_value_place_and_share(batch: Any) -> None:
    batch.inputs["action"][2, 1, 3], batch.raw["action"][2, 1, 3] = -400.0, -2900.0
    batch.inputs["action"][0, 0, 1], batch.raw["action"][0, 0, 1] = 20.0, 3.5
    batch.inputs["observation.state"][1, 0], batch.raw["observation.state"][1, 0] = 77.0, 900.0
    found = find_culprits(batch, NAMES, [0.0, 1.0, 0.0, 399.0])
    said = [(c.feature, c.channel, c.value, c.normalised, c.episode, c.frame) for c in found]
    assert said == [
        ("action", "a3", -2900.0, -400.0, 6, 31),
        ("action", "a1", 3.5, 20.0, 4, 10),
        ("observation.state", "s0", 900.0, 77.0, 5, 20),
    ]
    assert [c.loss_frac for c in found] == [pytest.approx(0.9975), pytest.approx(0.0025), None]


def test_a_padded_action_is_the_last_frame(batch: Any) -> None:
    batch.inputs["action"][1, 1, 0] = 50.0
    assert find_culprits(batch, NAMES, None)[0].frame == 20


def test_what_is_not_finite_comes_first(batch: Any) -> None:
    batch.inputs["action"][0, 1, 2] = math.nan
    batch.inputs["action"][1, 0, 0] = 5000.0
    found = find_culprits(batch, NAMES, [math.nan] * 4)
    assert [c.channel for c in found] == ["a2", "a0"]
    assert found[0].to_json()["normalised"] == "nan"


def test_the_message_names_frames_and_channels(batch: Any) -> None:
    batch.inputs["action"][2, 1, 3] = -400.0
    trip = Guard(50).loss(1, 1e6)
    assert trip is not None
    text = describe(trip, find_culprits(batch, NAMES, [0, 0, 0, 1.0]), [(4, 10), (5, 20), (6, 30)])
    assert "episode 6 frame 30" in text and "action 'a3'" in text and "100% of the loss" in text
    assert "no input of this batch" in describe(trip, [], [(4, 10)])
