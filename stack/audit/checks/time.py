"""Timestamps against frame numbers."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from stack.audit.kinds import Case, check, kind
from stack.audit.rows import in_episode
from stack.faults import Fault, Place

TOLERANCE_S = 1e-4  # lerobot's tolerance_s
TIMESTAMPS_OFF = kind(
    "timestamps-off",
    "error",
    "time",
    title="timestamps are not frame_index / fps",
    consequence="pictures are looked up by time: the loader stops, or takes another frame's picture silently",
    mend="where each video has one frame a row (no video-length-differs here), in the dataset manifest under "
    "the source: `decide: {timestamps: restamp}`",
)
NOT_RISING = kind(
    "timestamps-not-rising",
    "error",
    "time",
    title="timestamps stand still or run backwards",
    consequence="two rows ask for the same picture; the order of the frames is in doubt",
    mend="look at the recorder's clock; if the rows are in order: `decide: {timestamps: restamp}`",
)


@check("timestamps", TIMESTAMPS_OFF, NOT_RISING)
def timestamps(case: Case) -> Iterator[Fault]:
    evidence, rows = case.evidence, case.evidence.rows
    column = rows.columns.get("timestamp")
    fps = evidence.fps
    if column is None or column.values is None or column.width != 1:
        return
    times = column.values[:, 0].astype(np.float64)
    off_faults: list[Fault] = []
    single = column.values.dtype == np.float32
    for span, offset in in_episode(rows.spans):
        own = times[span.start : span.start + span.count]
        finite = np.isfinite(own)
        if not finite.any():
            continue
        back = np.flatnonzero(np.diff(own) <= 0)
        if len(back):
            row = int(back[0]) + 1
            yield NOT_RISING.fault(
                f"{len(back)} timestamps of episode {span.episode} do not rise; first: frame {offset + row}"
                f" has {own[row]:.4f} s after {own[row - 1]:.4f} s",
                where=Place(span.file, span.episode, offset + row, "timestamp"),
                count=len(back),
            )
        if fps is None:
            continue
        right = np.arange(offset, offset + span.count) / fps
        off = np.where(finite, np.abs(own - right), 0.0)
        # float32 cannot hold late times to 1e-4 s; half a unit in the last place is not the writer's doing.
        allowed = TOLERANCE_S + (np.spacing(right.astype(np.float32)) if single else 0.0)
        wrong = np.flatnonzero(off > allowed)
        if len(wrong):
            worst = int(off.argmax())
            fault = TIMESTAMPS_OFF.fault(
                f"{len(wrong)} of {span.count} timestamps of episode {span.episode} are off, at worst by"
                f" {off[worst]:.4f} s ({off[worst] * fps:.1f} frames) at frame {offset + worst}:"
                f" {own[worst]:.4f} s, not {right[worst]:.4f} s{_pattern(own, right, span.start, fps)}",
                where=Place(span.file, span.episode, offset + worst, "timestamp"),
                count=len(wrong),
                data={"worst_s": float(off[worst]), "frame": offset + worst},
            )
            off_faults.append(fault)
    # Folding keeps the first message: the worst episode's.
    yield from sorted(off_faults, key=lambda fault: -float(fault.data["worst_s"]))


UNITS = {"milliseconds": 1e3, "microseconds": 1e6, "nanoseconds": 1e9}
UNIT_OFF_FRAC = 0.2


def _pattern(own: NDArray[np.float64], right: NDArray[np.float64], start: int, fps: float) -> str:
    """What kind of mistake it is, where that can be told."""
    difference = own - right
    if np.ptp(difference) < TOLERANCE_S:
        if start and abs(difference[0] - start / fps) < 1.5 / fps:
            return "; they run on over all episodes instead of starting at 0"
        return f"; all are shifted by {difference[0]:.4f} s"
    steps = np.diff(own)
    for unit, many in UNITS.items() if len(steps) else ():
        if abs(float(np.median(steps)) / many * fps - 1) < UNIT_OFF_FRAC:
            return f"; the steps are those of {unit}, where seconds belong"
    if len(steps) and np.ptp(steps) < 2 * TOLERANCE_S and steps[0] > 0:
        return f"; the steps are those of {1 / steps.mean():.2f} frames a second"
    return ""
