"""Channels of one name that two datasets count in different units."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from stack.audit import between_kinds as kinds
from stack.audit.between_kinds import between_fault
from stack.audit.profile import Profile, Range
from stack.faults import Fault, Place

FACTOR = 10.0  # ranges this far apart are not the same unit
RADIAN_DEGREES = (40.0, 80.0)  # about 57.3
STILL = 1e-6  # a range below this says nothing about its unit
MOST_FRAC = 0.5
SHOWN = 5


def units_differ(a: Profile, b: Profile) -> Iterator[Fault]:
    for name in sorted(set(a.ranges) & set(b.ranges)):
        pairs = _same_channels(name, a, b)
        if not pairs:
            continue
        left, right = a.ranges[name], b.ranges[name]
        ia, ib = (np.array(side) for side in zip(*[(i, j) for i, j, _ in pairs], strict=True))
        moving, ratio = ratios(
            left.q99[ia] - left.q01[ia], right.q99[ib] - right.q01[ib], _size(left)[ia], _size(right)[ib]
        )
        far = np.flatnonzero(moving & ((ratio >= FACTOR) | (ratio <= 1 / FACTOR)))
        if not len(far):
            continue
        most = len(far) > MOST_FRAC * moving.sum() and np.ptp(np.log(ratio[far])) < np.log(FACTOR)
        factor = float(np.exp(np.median(np.abs(np.log(ratio[far])))))
        guess = ""
        if RADIAN_DEGREES[0] <= factor <= RADIAN_DEGREES[1]:
            degrees = b.name if np.median(ratio[far]) > 1 else a.name
            guess = f"; about 57.3: {degrees} seems to count in degrees, the other in radians"
        worst = far[np.argsort(-np.abs(np.log(ratio[far])))][:SHOWN]
        said = "; ".join(
            f"{pairs[k][2]} {left.q01[ia[k]]:.3g} to {left.q99[ia[k]]:.3g} in {a.name},"
            f" {right.q01[ib[k]]:.3g} to {right.q99[ib[k]]:.3g} in {b.name}"
            for k in worst
        )
        yield between_fault(
            kinds.UNITS,
            f"{len(far)} of {int(moving.sum())} moving channels of {name} differ by a factor of"
            f" about {factor:.3g}{guess}: {said}",
            "refuses",
            Place(b.info, feature=name, channel=pairs[worst[0]][2]),
            severity="error" if most else "warning",
            data={"factor": factor, "channels": [pairs[k][2] for k in far]},
        )


def _size(of: Range) -> NDArray[np.float64]:
    return np.asarray(np.maximum(np.abs(of.q01), np.abs(of.q99)), np.float64)


def ratios(
    a_span: NDArray[np.float64],
    b_span: NDArray[np.float64],
    a_size: NDArray[np.float64],
    b_size: NDArray[np.float64],
) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
    """Which channels move in both, and how much larger b's are than a's.

    Spread and magnitude must both be apart: of the two the ratio nearer to 1 counts. A joint that hardly
    moves in one dataset has a small spread at the same magnitude, and is no other unit.
    """
    moving = (a_span > STILL) & (b_span > STILL)
    with np.errstate(divide="ignore", invalid="ignore"):
        spans = np.where(moving, b_span / np.where(moving, a_span, 1), 1.0)
        sizes = np.where(moving, b_size / np.where(moving, a_size, 1), 1.0)
    same_side = (spans > 1) == (sizes > 1)
    nearer = np.where(np.abs(np.log(spans)) < np.abs(np.log(sizes)), spans, sizes)
    return moving, np.asarray(np.where(same_side, nearer, 1.0), np.float64)


def _same_channels(name: str, a: Profile, b: Profile) -> list[tuple[int, int, str]]:
    """(channel in a, channel in b, name): by name where both have names, else by position."""
    left, right = a.features[name].names, b.features[name].names
    widths = a.ranges[name].q01.size, b.ranges[name].q01.size
    if left and right and (len(left), len(right)) == widths:
        where = {channel: j for j, channel in enumerate(right)}
        return [(i, where[channel], channel) for i, channel in enumerate(left) if channel in where]
    return [(i, i, f"[{i}]") for i in range(widths[0])] if widths[0] == widths[1] else []
