"""Which batch to measure next: first towards the largest that leaves the margin, then towards the fastest.

A batch fits when it ran and left the margin. The memory model proposes; only measurements set the bounds, and
the search ends when the batch above the largest fitting one has been measured and does not fit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from stack.sweep.memory_model import MemoryModel, fit

FARTHEST = 8
"""A proposal is at most so many times the largest batch that ran: an early line may be far off."""


@dataclass(frozen=True)
class Measured:
    """A batch that was tried.

    Attributes:
        ran: all its steps ran; otherwise it is too large, whatever it failed with.
        demand_bytes: memory that it took at most on one device; None: not known.
        capacity_bytes: memory that it could have taken.
        samples_per_s: None where it did not run.
    """

    batch: int
    ran: bool
    demand_bytes: int | None = None
    capacity_bytes: int | None = None
    samples_per_s: float | None = None


@dataclass(frozen=True)
class Proposal:
    """The next batch, why, and the memory that the model expects of it."""

    batch: int
    reason: Literal["first", "line", "prediction", "proof", "middle", "speed"]
    predicted_bytes: int | None = None


@dataclass(frozen=True)
class Bounds:
    """What is known: `fits` fits, `fails` does not; None: no such batch was measured."""

    fits: int | None
    fails: int | None

    def is_closed(self, start: int, most: int) -> bool:
        """Nothing between them is unknown."""
        below = self.fits if self.fits is not None else 0
        return below >= most or (self.fails is not None and self.fails - below <= 1)


def fits(point: Measured, margin_frac: float) -> bool:
    """Whether it ran and left the margin; one whose memory is not known has not shown it."""
    if not point.ran or point.demand_bytes is None or point.capacity_bytes is None:
        return False
    return point.demand_bytes <= point.capacity_bytes * (1 - margin_frac)


def bounds(points: Sequence[Measured], margin_frac: float) -> Bounds:
    """The largest fitting batch below the smallest that does not fit."""
    fails = min((p.batch for p in points if not fits(p, margin_frac)), default=None)
    fitting = [p.batch for p in points if fits(p, margin_frac) and (fails is None or p.batch < fails)]
    return Bounds(max(fitting, default=None), fails)


def model_of(points: Sequence[Measured]) -> MemoryModel | None:
    """The line through all points that ran."""
    return fit([(p.batch, p.demand_bytes) for p in points if p.ran and p.demand_bytes is not None])


def propose(
    points: Sequence[Measured], *, start: int, most: int, margin_frac: float, past: Sequence[Proposal] = ()
) -> Proposal | None:
    """The next batch to measure; None when the largest and the fastest are found.

    Args:
        points: measured so far, in any order.
        past: proposals made before, in their order.
    """
    found = bounds(points, margin_frac)
    model = model_of(points)
    if not found.is_closed(start, most):
        batch, reason = _towards_largest(points, found, model, start, most, margin_frac, past)
        return Proposal(batch, reason, model.predict(batch) if model else None)
    return _towards_fastest(points, found, model, margin_frac)


def _towards_largest(
    points: Sequence[Measured],
    found: Bounds,
    model: MemoryModel | None,
    start: int,
    most: int,
    margin_frac: float,
    past: Sequence[Proposal],
) -> tuple[int, Literal["first", "line", "prediction", "proof", "middle"]]:
    if not points:
        return start, "first"
    low = found.fits if found.fits is not None else 0
    high = found.fails if found.fails is not None else most + 1
    least, last = low + 1, high - 1
    if model is None:
        # A line needs two points; downwards by half where the first was too large already.
        batch = low * 2 if low else high // 2
        return min(max(batch, least), last), "line"
    room = min(p.capacity_bytes for p in points if p.capacity_bytes is not None) * (1 - margin_frac)
    seen = model.largest(int(room))
    if seen is None:
        # Memory does not grow between the points so far: they are too close to each other to tell.
        if found.fails is not None:
            return (low + high) // 2, "middle"
        return min(max(low * FARTHEST, least), last), "line"
    if low and seen <= low:
        # The line says that low is the largest. One step up proves it; steps grow while it is wrong.
        return min(low + 2 ** _in_a_row(past, points, margin_frac, fitting=True), last), "proof"
    if found.fails is not None and seen >= found.fails:
        # The line does not see the failure: down from it, by steps that grow.
        down = high - 2 ** _in_a_row(past, points, margin_frac, fitting=False)
        return max(down, (low + high) // 2, least), "middle"
    farthest = low * FARTHEST if low else last
    return min(max(seen, least), last, max(farthest, least)), "prediction"


def _in_a_row(
    past: Sequence[Proposal], points: Sequence[Measured], margin_frac: float, *, fitting: bool
) -> int:
    """How many of the last proposals, none of them a first one, went the same way: fitted, or did not."""
    ends = {p.batch: fits(p, margin_frac) for p in points}
    count = 0
    for proposal in reversed(past):
        if proposal.reason not in ("proof", "middle") or ends.get(proposal.batch) is not fitting:
            break
        count += 1
    return count


def _towards_fastest(
    points: Sequence[Measured], found: Bounds, model: MemoryModel | None, margin_frac: float
) -> Proposal | None:
    """Half of the fastest so far, until half is slower: speed rises with the batch, and may fall again."""
    fitting = [p for p in points if fits(p, margin_frac) and p.samples_per_s is not None]
    if found.fits is None or not fitting:
        return None
    best = max(fitting, key=lambda p: (p.samples_per_s or 0.0, p.batch))
    half = best.batch // 2
    if half < 1 or any(half == p.batch or 0.4 <= p.batch / best.batch <= 0.6 for p in points):
        return None
    return Proposal(half, "speed", model.predict(half) if model else None)
