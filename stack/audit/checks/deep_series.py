"""What the pictures of one file say one after another: still, repeated, and cut elsewhere than clips are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

SAME_LEVELS = 2.0  # of 255: two pictures whose blocks all agree within this are near-identical
MOTION_LEVELS = 8.0  # a repeated run must hold motion of its own, or any still scene would repeat itself
LAG_MAX_FRAMES = 10_000
VARIED_BLOCKS = 16
PIECE_FRAMES = 64
CUT_LEVELS = 3.0  # mean change over all blocks between the pictures of two scenes
CUT_RATIO = 3.0
CUT_WINDOW_FRAMES = 3
Blocks = NDArray[np.floating[Any]]
Clip = tuple[int, int, int]  # episode, first frame in the file, frames


@dataclass(frozen=True)
class Job:
    """A file to scan, with its clips in ascending order.

    Attributes:
        stop: where this file appears, the scan breaks off: a process pool cannot end what has begun.
        column: of a row file, where the pictures lie in the rows; None for a video.
    """

    file: Path
    name: str
    fps: float
    clips: tuple[Clip, ...]
    stop: Path | None = None
    column: str | None = None


@dataclass(frozen=True)
class Run:
    """Frames `start` to `stop` (half-open) of the file. `exact`: bit-identical, not only near."""

    start: int
    stop: int
    exact: bool = False


@dataclass(frozen=True)
class Repeat:
    """The pictures of `run` come again `lag` frames later."""

    run: Run
    lag: int


@dataclass(frozen=True)
class Border:
    """The picture changes `off` frames after (below 0: before) where the clip of `episode` begins.

    Attributes:
        change, at_border: mean change over the blocks, at the cut and where the clip begins.
    """

    episode: int
    start: int
    off: int
    change: float
    at_border: float


def runs_of(flags: NDArray[np.bool_]) -> Iterator[tuple[int, int]]:
    """Half-open runs of True."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], flags, [False]]).astype(np.int8)))
    yield from zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True)


def long_runs(flags: NDArray[np.bool_], least: int) -> tuple[Run, ...]:
    return tuple(Run(start, stop) for start, stop in runs_of(flags) if stop - start >= least)


def _clips(job: Job, frames: int) -> Iterator[tuple[int, int]]:
    for _, first, count in job.clips:
        if 0 <= first < min(first + count, frames):
            yield first, min(first + count, frames)


def still(
    blocks: Blocks, digests: NDArray[np.uint64], left_out: NDArray[np.bool_], job: Job, least: int
) -> Iterator[Run]:
    """Runs near-identical to their own first picture: measured from the last one, slow motion would pass."""
    for first, stop in _clips(job, len(blocks)):
        own = blocks[first:stop].astype(np.float32)
        start = first
        while start < stop - 1:
            end = start + 1
            while (
                end < stop
                and not left_out[end]
                and _apart(own[start - first], own[end - first]) <= SAME_LEVELS
            ):
                end += 1
            if end - start > least and not left_out[start]:
                yield Run(start, end, exact=len(set(digests[start:end].tolist())) == 1)
                start = end
            else:
                start += 1


def _apart(a: Blocks, b: Blocks) -> float:
    return float(np.abs(a - b).max())


def repeats(blocks: Blocks, usable: NDArray[np.bool_], job: Job, least: int) -> Iterator[Repeat]:
    for first, stop in _clips(job, len(blocks)):
        own, good = blocks[first:stop].astype(np.float32), usable[first:stop]
        # The blocks that vary most rule out nearly every lag at a hundredth of the cost.
        few = own[:, np.argsort(own.std(axis=0))[-VARIED_BLOCKS:]]
        may_move = _movement(own)
        taken = np.zeros(len(own), np.bool_)
        for lag in range(least, min(len(own) - least, LAG_MAX_FRAMES) + 1):
            near = (np.abs(few[lag:] - few[:-lag]) <= SAME_LEVELS).all(axis=1) & good[lag:] & good[:-lag]
            for start, end in _at_least(near, least):
                if not may_move(start, end):
                    continue
                block = np.abs(own[start + lag : end + lag] - own[start:end]).max(axis=1) <= SAME_LEVELS
                for a, b in _at_least(block, least):
                    run = slice(start + a, start + b)
                    later = slice(run.start + lag, run.stop + lag)
                    moves = np.abs(own[run] - own[run.start]).max() > MOTION_LEVELS
                    if moves and not taken[later].any():
                        taken[later] = True
                        yield Repeat(Run(first + run.start, first + run.stop), lag)


def _movement(own: Blocks) -> Callable[[int, int], bool]:
    """Whether a run may hold motion, from the extremes of pieces that cover it: never wrongly no."""
    pieces = np.arange(0, len(own), PIECE_FRAMES)
    high, low = np.maximum.reduceat(own, pieces, axis=0), np.minimum.reduceat(own, pieces, axis=0)

    def may_move(start: int, end: int) -> bool:
        part = slice(start // PIECE_FRAMES, (end - 1) // PIECE_FRAMES + 1)
        return bool((high[part].max(axis=0) - low[part].min(axis=0)).max() > MOTION_LEVELS)

    return may_move


def _at_least(flags: NDArray[np.bool_], least: int) -> list[tuple[int, int]]:
    return [(start, stop) for start, stop in runs_of(flags) if stop - start >= least]


def borders(blocks: Blocks, known: NDArray[np.bool_], job: Job) -> Iterator[Border]:
    """Clips of a joined file where the scene changes next to the border and not at it."""
    for (_, before, _), (episode, start, count) in pairwise(job.clips):
        low, high = max(before + 1, start - CUT_WINDOW_FRAMES), start + CUT_WINDOW_FRAMES
        high = min(high, start + count - 1, len(blocks) - 1)
        if not low <= start <= high:
            continue
        if not known[low - 1 : high + 1].all():
            continue
        own = blocks[low - 1 : high + 1].astype(np.float32)
        changes = np.abs(np.diff(own, axis=0)).mean(axis=1)
        cut = int(changes.argmax())
        rest = np.delete(changes, cut)
        if low + cut == start or changes[cut] < max(CUT_LEVELS, CUT_RATIO * rest.max(initial=0.0)):
            continue
        yield Border(episode, start, low + cut - start, float(changes[cut]), float(changes[start - low]))
