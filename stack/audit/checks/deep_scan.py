"""One video file decoded whole: what its pictures say, small enough to cross a process border.

A picture is reduced to block means (levels 0 to 255): brightness in at most 32 x 32 blocks, each of the two
colour planes in 16 x 16. Two pictures of one camera differ by the block that differs most: a gripper's edge
that moves by one pixel changes a block of 20 x 20 by several levels, while a still picture that was encoded
again stays within two.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stack.audit.shelter import DECODE_BYTES_A_SECOND, reading
from stack.errors import StackError

BLOCKS, COLOUR_BLOCKS = 32, 16  # along each side, at most
COARSE_BLOCKS = 4
BLOCK_LEAST_PIXELS = 8  # smaller ones follow the encoder's noise
SAME_LEVELS = 2.0  # of 255: two pictures whose blocks all agree within this are near-identical
BLACK_LEVEL = 24  # of 255; limited-range black with noise stays below
FLAT_LEVELS = 2.0
BLACK_FRAMES = 3
LEAST_S = 0.5
LEAST_FRAMES = 5
MOTION_LEVELS = 8.0  # a repeated run must hold motion of its own, or any still scene would repeat itself
LAG_MAX_FRAMES = 10_000
VARIED_BLOCKS = 16
PIECE_FRAMES = 64
CUT_LEVELS = 3.0  # mean change over all blocks between the pictures of two scenes
CUT_RATIO = 3.0
CUT_WINDOW_FRAMES = 3
LOOKS_EVERY = 16

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


@dataclass(frozen=True)
class Scan:
    """What one file's pictures say.

    Attributes:
        decoded: pictures that could be decoded, of `frames`.
        lost: frames that could not be.
        resized: frames of another size than the first picture: (frame, height, width); compared with nothing.
        digests: (frames,) uint64 of each picture's planes; 0 where lost, black or of one colour.
        coarse: (frames, n) uint8: what is left of each picture in 4 x 4 blocks of brightness; 0 where lost.
    """

    name: str
    frames: int
    decoded: int
    lost: tuple[int, ...]
    why_lost: str
    resized: tuple[tuple[int, int, int], ...]
    black: tuple[Run, ...]
    flat: tuple[Run, ...]
    still: tuple[Run, ...]
    repeats: tuple[Repeat, ...]
    borders: tuple[Border, ...]
    digests: NDArray[np.uint64]
    coarse: NDArray[np.uint8]


def scan(job: Job) -> Scan:
    """Decode every picture of a file; what cannot be decoded is listed, never raised."""
    try:
        with reading(job.file, bytes_a_second=DECODE_BYTES_A_SECOND):
            frames, why, pictures, resized = _pictures(job.file, job.stop, job.column)
    except StackError as error:
        frames, why, pictures, resized = 0, error.what, {}, {}
    except OSError as error:
        frames, why, pictures, resized = 0, str(error), {}, {}
    digests = np.zeros(frames, np.uint64)
    known = np.zeros(frames, np.bool_)
    width = len(next(iter(pictures.values())).blocks) if pictures else 1
    blocks = np.zeros((frames, width), np.float16)
    coarse = np.zeros((frames, COARSE_BLOCKS**2), np.uint8)
    black, flat = np.zeros(frames, np.bool_), np.zeros(frames, np.bool_)
    for frame, own in pictures.items():
        blocks[frame], digests[frame], known[frame] = own.blocks, own.digest, True
        coarse[frame, : len(own.coarse)] = own.coarse
        black[frame], flat[frame] = own.is_black, own.is_flat and not own.is_black
    digests[black | flat] = 0
    least = max(LEAST_FRAMES, round(LEAST_S * job.fps))
    return Scan(
        name=job.name,
        frames=frames,
        decoded=len(pictures) + len(resized),
        lost=tuple(frame for frame in np.flatnonzero(~known).tolist() if frame not in resized),
        why_lost=why,
        resized=tuple((frame, *size) for frame, size in sorted(resized.items())),
        black=_long(black, BLACK_FRAMES),
        flat=_long(flat, BLACK_FRAMES),
        still=tuple(_still(blocks, digests, black | flat | ~known, job, least)),
        repeats=tuple(_repeats(blocks, known & ~black & ~flat, job, least)),
        borders=tuple(_borders(blocks, known, job)),
        digests=digests,
        coarse=coarse,
    )


@dataclass(frozen=True)
class _Picture:
    blocks: Blocks
    coarse: Blocks
    digest: int
    is_black: bool
    is_flat: bool


Sizes = dict[int, tuple[int, int]]  # frame -> height, width


def _pictures(
    file: Path, stop: Path | None, column: str | None
) -> tuple[int, str, dict[int, _Picture], Sizes]:
    """(frames in the file, why some are lost, picture by presentation number, those of another size)."""
    from stack.audit.checks.deep_rows import count_rows, row_planes
    from stack.dataset.video_decode import decode_planes
    from stack.dataset.video_index import index_video

    why = ""
    frames = index_video(file).info.frames if column is None else count_rows(file)
    found: dict[int, _Picture] = {}
    resized: Sizes = {}
    first: tuple[int, ...] | None = None
    for frame, planes in decode_planes(file) if column is None else row_planes(file, column):
        if stop is not None and len(found) % LOOKS_EVERY == 0 and stop.exists():
            break
        if isinstance(planes, str):
            why = why or planes
            continue
        height, width = planes[0].shape
        first = first or (height, width)
        if (height, width) == first:
            found[frame] = _reduced(planes)
        else:
            resized[frame] = height, width
    return frames, why, found, resized


def _reduced(planes: tuple[NDArray[np.uint8], ...]) -> _Picture:
    digest = hashlib.blake2b(digest_size=8)
    for plane in planes:
        digest.update(np.ascontiguousarray(plane).data)
    sides = [BLOCKS, COLOUR_BLOCKS, COLOUR_BLOCKS]
    parts = [to_blocks(plane, side).reshape(-1) for plane, side in zip(planes, sides, strict=False)]
    return _Picture(
        blocks=np.concatenate(parts).astype(np.float16),
        coarse=to_blocks(planes[0], COARSE_BLOCKS).reshape(-1),
        digest=int.from_bytes(digest.digest(), "little"),
        is_black=bool(parts[0].max() <= BLACK_LEVEL),
        is_flat=all(float(np.ptp(part)) <= FLAT_LEVELS for part in parts),
    )


def to_blocks(plane: NDArray[np.uint8], side: int) -> Blocks:
    """(H, W) to the means of its blocks, (h, w) float32, h and w at most `side`, of 8 pixels or more."""
    starts, sizes = _grid(plane.shape, side)
    sums: NDArray[Any] = plane
    for axis in range(2):
        sums = np.add.reduceat(sums, starts[axis], axis=axis, dtype=np.uint32)
    return (sums / sizes).astype(np.float32)


@lru_cache(maxsize=64)
def _grid(shape: tuple[int, ...], side: int) -> tuple[list[NDArray[np.int64]], NDArray[np.int64]]:
    """Where blocks begin along each axis, and (h, w) how many pixels each has."""
    edges = [
        np.unique(np.linspace(0, size, max(1, min(side, size // BLOCK_LEAST_PIXELS)) + 1).astype(np.int64))
        for size in shape
    ]
    return [own[:-1] for own in edges], np.outer(*map(np.diff, edges))


def runs_of(flags: NDArray[np.bool_]) -> Iterator[tuple[int, int]]:
    """Half-open runs of True."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], flags, [False]]).astype(np.int8)))
    yield from zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True)


def _long(flags: NDArray[np.bool_], least: int) -> tuple[Run, ...]:
    return tuple(Run(start, stop) for start, stop in runs_of(flags) if stop - start >= least)


def _clips(job: Job, frames: int) -> Iterator[tuple[int, int]]:
    for _, first, count in job.clips:
        if 0 <= first < min(first + count, frames):
            yield first, min(first + count, frames)


def _still(
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


def _repeats(blocks: Blocks, usable: NDArray[np.bool_], job: Job, least: int) -> Iterator[Repeat]:
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


def _borders(blocks: Blocks, known: NDArray[np.bool_], job: Job) -> Iterator[Border]:
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
