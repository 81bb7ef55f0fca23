"""Progress of long work: how much of how much, at what rate, and how long it still takes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Literal

Log = Callable[[str], None]
Unit = Literal["frames", "bytes"]

EVERY_S = 5.0  # often enough to see that it lives, seldom enough to read


class Progress:
    """Logs at most one line in `EVERY_S` seconds, and one at the end.

    Args:
        what: what is counted, such as `video files`.
        items: how many of them there are.
        total: the amount of work in `unit`; an estimate will do.
    """

    def __init__(
        self,
        log: Log,
        what: str,
        *,
        items: int,
        total: float,
        unit: Unit,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._log, self._what, self._unit, self._clock = log, what, unit, clock
        self._items, self._total = items, total
        self._done_items, self._done = 0, 0.0
        self._reused, self._reused_items = 0.0, 0
        self._started_s = self._told_s = clock()

    def step(self, amount: float, *, is_reused: bool = False) -> None:
        """One item of this amount is done; what an earlier call did counts as done, not for the rate."""
        self._done_items += 1
        self._done += amount
        self._reused += amount if is_reused else 0.0
        self._reused_items += is_reused
        now_s = self._clock()
        if self._done_items < self._items and now_s - self._told_s >= EVERY_S:
            self._told_s = now_s
            self._log(self._line(now_s - self._started_s))

    def end(self) -> None:
        if not self._items:
            return
        spent_s = self._clock() - self._started_s
        reused = f", {self._reused_items} of them finished by an earlier call" if self._reused_items else ""
        self._log(f"{self._what}: {self._items}, {self._amount(self._done)} in {spent_s:.1f} s{reused}")

    def _line(self, spent_s: float) -> str:
        text = (
            f"{self._what}: {self._done_items} of {self._items}, "
            f"{self._amount(self._done)} of {self._amount(self._total)}"
        )
        rate = (self._done - self._reused) / spent_s if spent_s > 0 else 0.0
        if rate <= 0:
            return text
        left_s = max(0.0, self._total - self._done) / rate
        return f"{text}, {self._amount(rate)}/s, about {duration(left_s)} left"

    def _amount(self, amount: float) -> str:
        return byte_count(amount) if self._unit == "bytes" else f"{amount:,.0f} frames"


def byte_count(size_bytes: float) -> str:
    """Decimal units, three digits: 950 B, 4.21 kB, 38.4 MB."""
    for unit in ("B", "kB", "MB", "GB"):
        if size_bytes < 999.5:
            return f"{size_bytes:.0f} B" if unit == "B" else f"{size_bytes:.3g} {unit}"
        size_bytes /= 1000
    return f"{size_bytes:,.4g} TB"


def duration(seconds: float) -> str:
    """33 s, 4 min 10 s, 2 h 5 min."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"
