"""The same take twice: rows that agree to rounding, also where one copy was cut at its ends.

A row becomes three numbers: its channels, squashed so that currents in the thousands weigh no more than
joints in radians, on three fixed random directions. Four rows a window apart, each number rounded, are a
window's code; windows without motion have none, for robots rest in the same pose. Two episodes that share
codes at one distance are candidates, and are compared over their whole overlap.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from stack.audit.exact import exact_stats

if TYPE_CHECKING:
    from stack.audit.evidence import Evidence

VECTORS = ("observation.state", "action")
DIRECTIONS = 3
SQUASH = 0.1  # about where a value counts as small: radians, metres, shares of a stroke
STEP = 0.03  # of the first number, for codes
OFFSETS = (0, 10, 20, 40)  # frames
MOVES = 3 * STEP  # a window's first number must span this
CROWD = 40  # a code that more windows share is a common pose
SHARED_LEAST, SHARED_FRAC = 5, 0.05  # codes that candidates share, at least and of the shorter one's windows
NEAR, NEAR_FRAC = 2 * STEP, 0.98  # how near the numbers must be, in which share of the overlap
OVERLAP_FRAC = 0.5  # of the shorter episode
ROUNDED_FRAC = 2e-3  # of a channel's range: how far rounding moves a value
CHANNELS_FRAC = 0.9  # of the moving channels: one of a small range may be rounded more


@dataclass(frozen=True)
class Takes:
    """Every episode's numbers.

    Attributes:
        episodes: (E,) their indices.
        starts: (E + 1,) where each one's rows begin in `numbers`.
        numbers: (N, 3) float32.
        columns: feature -> width of what the numbers were made of; others cannot be compared.
    """

    episodes: tuple[int, ...]
    starts: NDArray[np.int64]
    numbers: NDArray[np.float32]
    columns: tuple[tuple[str, int], ...]

    def of(self, at: int) -> NDArray[np.float32]:
        return self.numbers[self.starts[at] : self.starts[at + 1]]


@dataclass(frozen=True)
class Repeat:
    """`later` has the rows of `earlier` from frame `lag` of it on (below 0: it begins before it).

    Attributes:
        frames: how many rows they share.
    """

    earlier: int
    later: int
    lag: int
    frames: int


def takes_of(evidence: Evidence) -> Takes:
    """Of all episodes whose vectors are whole; rows with NaN agree with nothing."""
    rows = evidence.rows
    columns = [(name, rows.columns[name]) for name in VECTORS if name in rows.columns]
    used = [(name, c.values) for name, c in columns if c.values is not None and c.width]
    starts, episodes, pieces = [0], [], []
    for span in rows.spans if used else ():
        parts = [values[span.start : span.start + span.count] for _, values in used]
        episodes.append(span.episode)
        pieces.append(_numbers(parts))
        starts.append(starts[-1] + span.count)
    numbers = np.concatenate(pieces) if pieces else np.zeros((0, DIRECTIONS), np.float32)
    widths = tuple((name, int(values.shape[1])) for name, values in used)
    return Takes(tuple(episodes), np.asarray(starts, np.int64), numbers, widths)


def _numbers(parts: Sequence[NDArray[np.floating]]) -> NDArray[np.float32]:
    with np.errstate(over="ignore"):
        table = np.concatenate([part.astype(np.float32) for part in parts], axis=1)
    directions = np.random.default_rng(0).normal(size=(table.shape[1], DIRECTIONS)).astype(np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        squashed = np.sign(table) * np.log1p(np.abs(table) / np.float32(SQUASH))
        return np.asarray(squashed @ directions, np.float32)


def repeats(a: Takes, b: Takes | None = None) -> list[Repeat]:
    """Pairs of episodes with the same rows: of one dataset, or `earlier` of `a` and `later` of `b`."""
    if b is not None and a.columns != b.columns:
        return []
    first, second = _codes(a), _codes(b) if b is not None else None
    found = []
    for i, j, lag in _candidates(first, second, a, b or a):
        if (repeat := _compare(a, i, b or a, j, lag)) is not None:
            found.append(repeat)
    return found


def _codes(takes: Takes) -> tuple[NDArray[np.uint64], NDArray[np.int64], NDArray[np.int64]]:
    """(code, episode's position, frame) of every window that moves."""
    codes, owners, frames = [], [], []
    for at in range(len(takes.episodes)):
        own = takes.of(at)[:, 0]
        count = len(own) - OFFSETS[-1]
        if count <= 0:
            continue
        windows = np.stack([own[offset : offset + count] for offset in OFFSETS], axis=1)
        finite = np.asarray(np.isfinite(windows).all(axis=1))
        moves = np.flatnonzero(finite & (np.ptp(np.where(finite[:, None], windows, 0), axis=1) > MOVES))
        steps = np.floor(windows[moves] / STEP).astype(np.int64).astype(np.uint64)
        code = np.zeros(len(moves), np.uint64)
        for column in steps.T:  # FNV-1a over the steps
            code = (code ^ column) * np.uint64(0x100000001B3) + np.uint64(0x9E3779B97F4A7C15)
        codes.append(code)
        owners.append(np.full(len(moves), at))
        frames.append(moves)
    if not codes:
        return np.zeros(0, np.uint64), np.zeros(0, np.int64), np.zeros(0, np.int64)
    return np.concatenate(codes), np.concatenate(owners), np.concatenate(frames)


_Codes = tuple[NDArray[np.uint64], NDArray[np.int64], NDArray[np.int64]]


def _candidates(first: _Codes, second: _Codes | None, a: Takes, b: Takes) -> Iterator[tuple[int, int, int]]:
    """(position in a, position in b, frames that b's is later) of pairs that share codes at one distance."""
    sides: NDArray[np.int64] = np.zeros(len(first[0]), np.int64)
    code, owner, frame = first
    if second is not None:
        sides = np.concatenate([sides, np.ones(len(second[0]), np.int64)])
        code = np.concatenate([code, second[0]])
        owner, frame = np.concatenate([owner, second[1]]), np.concatenate([frame, second[2]])
    order = np.argsort(code, kind="stable")
    cuts = np.flatnonzero(np.diff(code[order])) + 1
    shared: dict[tuple[int, int, int], int] = {}
    for group in np.split(order, cuts) if len(order) else ():
        if not 2 <= len(group) <= CROWD:
            continue
        for m, n in itertools.combinations(group.tolist(), 2):
            if second is not None and sides[m] == sides[n]:
                continue
            if second is None and owner[m] == owner[n]:
                continue
            x, y = (m, n) if (sides[m], owner[m]) < (sides[n], owner[n]) else (n, m)
            key = (int(owner[x]), int(owner[y]), int(frame[x] - frame[y]))
            shared[key] = shared.get(key, 0) + 1
    best: dict[tuple[int, int], tuple[int, int]] = {}
    for (i, j, lag), count in shared.items():
        best[i, j] = max(best.get((i, j), (0, 0)), (count, lag))
    for (i, j), (count, lag) in sorted(best.items()):
        shorter = min(len(a.of(i)), len(b.of(j))) - OFFSETS[-1]
        if count >= max(SHARED_LEAST, SHARED_FRAC * shorter):
            yield i, j, lag


def _compare(a: Takes, i: int, b: Takes, j: int, lag: int) -> Repeat | None:
    """The pair, where their numbers agree over the overlap; frame f of b's is frame f + lag of a's."""
    left, right = a.of(i), b.of(j)
    start, stop = max(0, -lag), min(len(right), len(left) - lag)
    overlap = stop - start
    if overlap < OVERLAP_FRAC * min(len(left), len(right)):
        return None
    apart = np.abs(left[start + lag : stop + lag] - right[start:stop]).max(axis=1)
    if not (apart <= NEAR).mean() >= NEAR_FRAC:
        return None
    return Repeat(a.episodes[i], b.episodes[j], lag, overlap)


def agree(evidence: Evidence, repeat: Repeat) -> bool:
    """Whether nearly every channel that moves agrees to rounding over the overlap."""
    spans = {span.episode: span for span in reversed(evidence.rows.spans)}
    early, late = spans[repeat.earlier], spans[repeat.later]
    first = max(0, -repeat.lag)
    agreeing: list[NDArray[np.bool_]] = []
    for name in VECTORS:
        column, exact = evidence.rows.columns.get(name), exact_stats(evidence, name)
        if column is None or column.values is None or exact is None:
            continue
        start = early.start + first + repeat.lag
        left = column.values[start : start + repeat.frames].astype(np.float64)
        right = column.values[late.start + first : late.start + first + repeat.frames].astype(np.float64)
        ranges = (exact.max - exact.min).reshape(-1)
        near = np.abs(left - right) <= ROUNDED_FRAC * ranges
        agreeing.append((near.mean(axis=0) >= NEAR_FRAC)[ranges > 0])
    every = np.concatenate(agreeing) if agreeing else np.zeros(0, np.bool_)
    return bool(len(every)) and bool(every.mean() >= CHANNELS_FRAC)
