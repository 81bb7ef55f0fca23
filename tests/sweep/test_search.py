"""The search over made-up machines: what it finds is what trying every batch would find, in few points."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stack.sweep.memory_model import fit
from stack.sweep.search import Measured, Proposal, bounds, fits, propose

CAPACITY = 64 << 30


def search(
    demand: Callable[[int], int],
    *,
    margin: float,
    most: int,
    start: int = 1,
    speed: Callable[[int], float] = lambda batch: batch / (1 + batch),
    fails_at: Callable[[int], bool] = lambda batch: False,
) -> tuple[list[Measured], list[Proposal]]:
    """Run the search against a machine that runs out of memory above CAPACITY."""
    points: list[Measured] = []
    past: list[Proposal] = []
    while (following := propose(points, start=start, most=most, margin_frac=margin, past=past)) is not None:
        batch = following.batch
        assert batch not in {p.batch for p in points}, "no batch is measured twice"
        assert 1 <= batch <= most
        past.append(following)
        ran = demand(batch) <= CAPACITY and not fails_at(batch)
        points.append(
            Measured(batch, ran, demand(batch) if ran else None, CAPACITY, speed(batch) if ran else None)
        )
        assert len(points) <= 64
    return points, past


def by_trying_all(demand: Callable[[int], int], margin: float, most: int) -> int | None:
    """The largest batch below the first that does not leave the margin."""
    largest = None
    for batch in range(1, most + 1):
        if demand(batch) > CAPACITY * (1 - margin):
            break
        largest = batch
    return largest


@settings(max_examples=150, deadline=None)
@given(
    fixed=st.floats(0, 1.05),
    slope=st.floats(0.0005, 0.3),
    bend=st.floats(-0.002, 0.01),
    margin=st.sampled_from([0.0, 0.08, 0.25]),
    most=st.sampled_from([1, 8, 100, 1024]),
    start=st.sampled_from([1, 2, 16]),
)
def test_it_finds_what_trying_all_would_find(
    fixed: float, slope: float, bend: float, margin: float, most: int, start: int
) -> None:
    """Memory that rises with the batch, on a line or bent, in whole pages."""

    def demand(batch: int) -> int:
        return int((fixed + slope * batch * max(0.2, 1 + bend * batch)) * CAPACITY) >> 21 << 21

    points, _ = search(demand, margin=margin, most=most, start=min(start, most))
    known = bounds(points, margin)
    assert known.fits == by_trying_all(demand, margin, most)
    assert known.is_closed(1, most)
    assert known.fails is None or known.fails == (known.fits or 0) + 1


def test_few_points_are_enough() -> None:
    """300 machines whose memory is on a line to 1 %: nine of ten need at most seven points."""
    draw, needed = random.Random(5), []
    for number in range(300):
        fixed, slope = draw.uniform(0, 0.85), draw.choice([0.1, 0.03, 0.01, 0.003]) * draw.uniform(0.5, 1.5)

        def demand(batch: int, fixed: float = fixed, slope: float = slope, number: int = number) -> int:
            noise = random.Random(batch * 1009 + number).uniform(-0.01, 0.01)
            return int((fixed + slope * batch) * (1 + noise) * CAPACITY)

        points, past = search(demand, margin=0.08, most=1024)
        known = bounds(points, 0.08)
        least, most = (0 if known.fits is None else known.fits), known.fails
        assert most is not None and most - least == 1
        needed.append(sum(proposal.reason != "speed" for proposal in past))
    needed.sort()
    assert needed[150] <= 5 and needed[270] <= 7 and needed[-1] <= 14


def test_the_story() -> None:
    """One card of the field project: 38.4 GB at 2, 47.5 at 4, 62.8 at 8 where it crashed, out of it at 16."""
    known = {1: 33.9, 2: 38.4, 3: 43.0, 4: 47.5, 5: 51.3, 6: 55.2, 7: 59.0, 8: 62.8}

    def demand(batch: int) -> int:
        return int(known.get(batch, 62.8 + 4 * (batch - 8)) * 1e9)

    points, past = search(demand, margin=0.15, most=64, fails_at=lambda batch: batch >= 8)
    assert (bounds(points, 0.15).fits, bounds(points, 0.15).fails) == (6, 7)
    assert len(past) <= 6
    predicted = {proposal.batch: proposal.predicted_bytes for proposal in past}
    assert predicted[1] is None and predicted[2] is None
    assert all(abs(size / demand(batch) - 1) < 0.05 for batch, size in predicted.items() if size is not None)


def test_a_crash_bounds_the_search_like_memory_does() -> None:
    points, _ = search(lambda batch: batch << 20, margin=0.1, most=256, fails_at=lambda batch: batch >= 20)
    assert (bounds(points, 0.1).fits, bounds(points, 0.1).fails) == (19, 20)


def test_the_fastest_need_not_be_the_largest() -> None:
    """Speed peaks at 12 and falls again; of the fastest so far half is tried too, for it may be faster."""
    points, past = search(
        lambda batch: batch << 30, margin=0.0, most=64, speed=lambda batch: 1 / (1 + abs(batch - 12))
    )
    tried = {p.batch: p.samples_per_s for p in points if fits(p, 0.0)}
    best = max(tried, key=lambda batch: tried[batch] or 0.0)
    assert best == 16 and [p.batch for p in past if p.reason == "speed"] == [8]
    assert bounds(points, 0.0).fits == 64


def test_listed_points_are_used() -> None:
    """What the manifest lists is known already: the search begins from there."""
    points = [Measured(b, True, (10 + 4 * b) << 30, CAPACITY, 1.0) for b in (2, 4)]
    following = propose(points, start=1, most=64, margin_frac=0.0)
    assert following is not None and (following.batch, following.reason) == (13, "prediction")
    assert following.predicted_bytes == (10 + 4 * 13) << 30


@pytest.mark.parametrize("demand", [None, 10])
def test_without_a_capacity_nothing_is_proven(demand: int | None) -> None:
    assert not fits(Measured(1, True, demand, None), 0.0)


def test_the_line_is_least_squares() -> None:
    measured = [(1, 39_100_000_000), (2, 38_400_000_000), (4, 47_500_000_000), (8, 62_800_000_000)]
    model = fit(measured)
    assert model is not None
    slope, fixed = numpy.polyfit([b for b, _ in measured], [s for _, s in measured], 1)
    assert (model.sample_bytes, model.fixed_bytes) == pytest.approx((slope, fixed))
    assert model.error_bytes == pytest.approx(max(abs(slope * b + fixed - s) for b, s in measured))
    assert fit(measured[:1]) is None and fit([(3, 1), (3, 2)]) is None
    room = 60_000_000_000
    largest = model.largest(room)
    assert largest is not None and model.predict(largest) <= room < model.predict(largest + 1)
