"""One video file decoded whole: what its pictures say, small enough to cross a process border.

A picture is reduced to block means (levels 0 to 255): brightness in at most 32 x 32 blocks, each of the two
colour planes in 16 x 16. Two pictures of one camera differ by the block that differs most: a gripper's edge
that moves by one pixel changes a block of 20 x 20 by several levels, while a still picture that was encoded
again stays within two.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stack.audit.checks.deep_series import (
    Blocks,
    Border,
    Job,
    Repeat,
    Run,
    borders,
    long_runs,
    repeats,
    still,
)
from stack.audit.shelter import DECODE_BYTES_A_SECOND, reading
from stack.errors import StackError

BLOCKS, COLOUR_BLOCKS = 32, 16  # along each side, at most
COARSE_BLOCKS = 4
BLOCK_LEAST_PIXELS = 8  # smaller ones follow the encoder's noise
BLACK_LEVEL = 24  # of 255; limited-range black with noise stays below
FLAT_LEVELS = 2.0
BLACK_FRAMES = 3
LEAST_S = 0.5
LEAST_FRAMES = 5
LOOKS_EVERY = 16


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
        black=long_runs(black, BLACK_FRAMES),
        flat=long_runs(flat, BLACK_FRAMES),
        still=tuple(still(blocks, digests, black | flat | ~known, job, least)),
        repeats=tuple(repeats(blocks, known & ~black & ~flat, job, least)),
        borders=tuple(borders(blocks, known, job)),
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
