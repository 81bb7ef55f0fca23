"""Which points of a run's curves a server is sent.

The page draws at most 2,500 points of a curve. The first 500 of each go as they are; of the next 500 every
second, of the next 1,000 every fourth, of the next 2,000 every eighth, and so on: a curve of n points shows
500 + 250 log2(n / 500) of them, 2,411 of 100,000, closest together where a loss moves most. The last point of
a curve always goes when the run has ended. Which points go depends on nothing but their number in the
journal, so that replaying sends the same ones. The whole curve stays in the journal; `stack report` draws it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

DENSE = 500
OF_THIS_ATTEMPT = ("final_", "host/", "npu/", "cuda/")
"""Values whose step is none of the training; an attempt does not take them over from the one before."""


class Point(NamedTuple):
    """One metric value; `t_ms` is milliseconds since the epoch."""

    key: str
    value: float
    t_ms: int
    step: int


def is_shown(number: int) -> bool:
    """Whether the point of this number, from 0, of a curve is sent."""
    if number < DENSE:
        return True
    level = (number // DENSE).bit_length()
    return number % (1 << level) == 0


@dataclass
class _Curve:
    count: int = 0
    last: tuple[str, float, int, int] | None = None
    shown: list[tuple[int, Point]] = field(default_factory=list)

    @property
    def is_whole(self) -> bool:
        return len(self.shown) == self.count


class Curves:
    """The curves of one attempt, made point by point."""

    def __init__(self) -> None:
        self._now: dict[str, _Curve] = {}
        self._before: dict[str, _Curve] = {}

    def take(self, key: str, value: float, t_ms: int, step: int) -> Point | None:
        """Add a point; it is returned if it is to be sent."""
        curve = self._now.get(key)
        if curve is None:
            curve = self._now[key] = _Curve()
        number = curve.count
        curve.count = number + 1
        curve.last = (key, value, t_ms, step)
        if not is_shown(number):
            return None
        point = Point(*curve.last)
        curve.shown.append((number, point))
        return point

    def next_attempt(self) -> None:
        self._before, self._now = self._now, {}

    def resume(self, step: int) -> list[Point]:
        """Go on from the attempt before after `step`; the points of its that are sent for this one too."""
        taken = []
        for key, before in self._before.items():
            shown = [(number, point) for number, point in before.shown if point.step <= step]
            if not shown or key.startswith(OF_THIS_ATTEMPT):
                continue
            self._now[key] = _Curve(shown[-1][0] + 1, shown[-1][1], shown)
            taken += [point for _, point in shown]
        self._before = {}
        return taken

    def tail(self) -> list[Point]:
        """The last point of each curve, where it was not sent yet."""
        return [Point(*c.last) for c in self._now.values() if c.last and c.shown[-1][1] != c.last]

    def thinned(self) -> str | None:
        """What is left out, in words; None where nothing is."""
        cut = {key: curve for key, curve in self._now.items() if not curve.is_whole}
        if not cut:
            return None
        key, curve = next(iter(cut.items()))
        more = f", and {len(cut) - 1} more curves" if len(cut) > 1 else ""
        return f"{key}: {len(curve.shown)} of {curve.count} points{more}; all are in the journal"
