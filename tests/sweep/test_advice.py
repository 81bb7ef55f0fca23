"""Batch and accumulation for a global batch, against trying every pair."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stack.sweep.advice import Fitting, advise


def test_the_story() -> None:
    """Eight cards, global batch 32; 4 a card fits and is measured: what the field project trained with."""
    fitting = [Fitting(2, 0.748), Fitting(4, 0.838)]
    eight = advise(fitting, devices=8, global_batch=32)
    assert eight is not None
    assert (eight.batch, eight.accumulation, eight.step_s, eight.is_measured) == (4, 1, 0.838, True)
    assert eight.samples_per_s == pytest.approx(38.2, abs=0.1)
    one = advise([Fitting(2, 0.529), Fitting(4, 0.705)], devices=1, global_batch=32)
    assert one is not None and (one.batch, one.accumulation) == (4, 8)
    assert one.step_s == pytest.approx(8 * 0.705)


@given(
    times=st.dictionaries(st.integers(1, 40), st.floats(0.1, 10), min_size=1, max_size=5),
    devices=st.integers(1, 8),
    global_batch=st.integers(1, 256),
)
def test_no_other_measured_pair_is_faster(times: dict[int, float], devices: int, global_batch: int) -> None:
    found = advise([Fitting(b, s) for b, s in times.items()], devices=devices, global_batch=global_batch)
    pairs = [(b, a, times[b] * a) for b in times for a in range(1, 257) if b * a * devices == global_batch]
    if found is None:
        assert pairs == []
        return
    assert found.batch * found.accumulation * devices == global_batch
    assert found.batch <= max(times)
    assert all(found.step_s <= step_s * 1.0200001 for _, _, step_s in pairs)


def test_a_batch_between_two_is_said_to_be() -> None:
    found = advise([Fitting(4, 1.0), Fitting(8, 1.2)], devices=1, global_batch=6)
    assert found is not None and (found.batch, found.is_measured) == (6, False)
    assert found.step_s == pytest.approx(1.1)


def test_what_cannot_be_made() -> None:
    assert advise([Fitting(4, 1.0)], devices=8, global_batch=12) is None
    assert advise([], devices=1, global_batch=8) is None
    assert advise([Fitting(4, 1.0)], devices=1, global_batch=7) is None  # 1 is not measured, nor between two
