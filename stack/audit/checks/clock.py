"""What kind of clock the timestamps come from, where they are not frame_index / fps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stack.audit.kinds import Case, check, kind
from stack.audit.rows import Span
from stack.faults import Fault, Place

GLOBAL = kind(
    "timestamps-global",
    "warning",
    "time",
    title="timestamps run on over all episodes instead of starting at 0 in each",
    consequence="v2.x loaders look for the picture far behind the video's end",
    mend="in the dataset manifest under the source: `decide: {timestamps: restamp}`",
)
MIXED = kind(
    "time-bases-mixed",
    "warning",
    "time",
    title="timestamps of several time bases stand side by side",
    consequence="seconds beside milliseconds or dates: no rule over all rows is right, and whoever subtracts "
    "two of them gets years",
    mend="bring them to seconds from the start of each episode; where each video has one frame a row: "
    "`decide: {timestamps: restamp}`",
)
DRIFT = kind(
    "clock-drift",
    "warning",
    "time",
    title="the clock of the rows drifts away from frame_index / fps by a frame or more",
    consequence="early frames find their picture, late ones another: the error grows with its length",
    mend="where each video has one frame a row: `decide: {timestamps: restamp}`; else correct fps",
)
DATE_FROM_S = 1e8  # three years: no episode lasts so long, so this is a date
UNITS = ((1.0, "seconds"), (1e3, "milliseconds"), (1e6, "microseconds"), (1e9, "nanoseconds"))
NEAR = 2.0  # steps within a factor of 2 of a unit's frame period are of that unit


@dataclass(frozen=True)
class _Clock:
    """One episode's timestamps: `base` in words, and per frame where the base changes in it."""

    span: Span
    times: NDArray[np.float64]
    base: str | None
    breaks_at: int | None


@check("what clock the timestamps show", GLOBAL, MIXED, DRIFT)
def clocks(case: Case) -> Iterator[Fault]:
    evidence, rows = case.evidence, case.evidence.rows
    column = rows.columns.get("timestamp")
    if column is None or column.values is None or column.width != 1 or evidence.fps is None:
        return
    fps = evidence.fps
    times = column.values[:, 0].astype(np.float64)
    read = []
    for span in rows.spans:
        own = times[span.start : span.start + span.count]
        if span.count > 1 and np.isfinite(own).all():
            base, breaks_at = _base(own, fps)
            read.append(_Clock(span, own, base, breaks_at))
    yield from _mixed(read)
    for clock in read:
        if clock.base == "seconds" and clock.breaks_at is None:
            yield from _global(clock, fps)
            yield from _drift(clock, fps)


def _base(own: NDArray[np.float64], fps: float) -> tuple[str | None, int | None]:
    """The time base in words, None where unknown, and the frame at which another one begins."""
    steps = np.diff(own)
    period = float(np.median(np.abs(steps))) * fps
    unit = next(((f, name) for f, name in UNITS if f / NEAR <= period <= f * NEAR), None)
    if unit is None:
        return None, None
    factor, name = unit
    jumps = np.flatnonzero(np.abs(steps) > DATE_FROM_S * factor)
    if not len(jumps):
        # A change of unit inside an episode shows in the steps themselves.
        odd = (np.abs(steps) > 100 * period / fps) | (np.abs(steps) < period / fps / 100)
        changes = np.flatnonzero(odd != odd[0])
        jumps = changes[:1] if odd.sum() > max(1, len(steps) // 20) else jumps
    dated = own[0] > DATE_FROM_S * factor
    return f"{name} since 1970" if dated else name, int(jumps[0]) + 1 if len(jumps) else None


def _mixed(read: list[_Clock]) -> Iterator[Fault]:
    for clock in read:
        if clock.breaks_at is not None:
            at = clock.breaks_at
            yield MIXED.fault(
                f"episode {clock.span.episode} goes from {clock.times[at - 1]:.6g} to {clock.times[at]:.6g}"
                f" at frame {at}: two time bases in one episode",
                where=Place(clock.span.file, clock.span.episode, at, "timestamp"),
            )
    bases: dict[str, list[_Clock]] = {}
    for clock in read:
        if clock.base is not None and clock.breaks_at is None:
            bases.setdefault(clock.base, []).append(clock)
    if len(bases) < 2:
        return
    common = max(bases, key=lambda base: len(bases[base]))
    for base, clocks in bases.items():
        for clock in clocks if base != common else ():
            yield MIXED.fault(
                f"episode {clock.span.episode} counts in {base}, {len(bases[common])} others in {common}",
                where=Place(clock.span.file, clock.span.episode, 0, "timestamp"),
            )


def _global(clock: _Clock, fps: float) -> Iterator[Fault]:
    start, first = clock.span.start, float(clock.times[0])
    if start and first * fps > 1.5 and abs(first - start / fps) * fps < max(1.5, 0.01 * start):
        yield GLOBAL.fault(
            f"episode {clock.span.episode} starts at {first:.4f} s; {start} rows before it take"
            f" {start / fps:.4f} s",
            where=Place(clock.span.file, clock.span.episode, 0, "timestamp"),
        )


def _drift(clock: _Clock, fps: float) -> Iterator[Fault]:
    last = len(clock.times) - 1
    off = float(clock.times[-1] - clock.times[0]) * fps - last
    if abs(off) >= 1:
        own = last / float(clock.times[-1] - clock.times[0])
        yield DRIFT.fault(
            f"after {last} frames of episode {clock.span.episode} the clock is {off:+.1f} frames off:"
            f" {own:.4g} frames a second, not {fps:g}",
            where=Place(clock.span.file, clock.span.episode, last, "timestamp"),
            data={"off_frames": off, "measured_fps": own},
        )
