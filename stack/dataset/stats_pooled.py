"""Exact statistics of a whole dataset in memory that does not grow with it, from the files as written."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stack.dataset.memory import give_back
from stack.dataset.pool import Pool
from stack.dataset.stats import (
    Stats,
    as_extremes,
    can_count,
    check_numeric,
    joined_stats,
    not_finite,
    side_by_side,
)
from stack.dataset.stats_columns import PIECE_BYTES, Turning
from stack.dataset.stats_order import RankSearch, interpolated, ordered_keys, quantile_ranks, values_of
from stack.dataset.stats_rows import batches, group_pieces, numbers_in

HELD_BYTES_MAX = 64 << 20  # what is smaller is held as a whole and read once
BLOCK_BYTES = 2 << 20
BYTES_A_JOB = 16_000_000
TURNED_BYTES_MAX = 2 << 30  # as much of the disk is taken for a while
PARTS_STREAMED = 4  # what cannot be turned is read several times anyway, and once more for each part

Blocks = Callable[[], Iterator[NDArray[Any]]]


@dataclass(frozen=True)
class PooledJob:
    """One feature of a written dataset; `channels` narrows a wide one down to a part of its own."""

    root: Path
    paths: tuple[str, ...]
    feature: str
    channels: tuple[int, int] | None = None


def pooled_stats(job: PooledJob) -> Stats:
    """Exact statistics of one feature over all rows, from the files that were written.

    Raises:
        BadRequest: as `stack.dataset.stats.vector_stats`.
    """

    give_back()  # a worker has written files before, which takes memory too

    def blocks() -> Iterator[NDArray[Any]]:
        return written_blocks(job.root, job.paths, job.feature, job.channels)

    return block_stats(blocks, where=job.feature)


class Pooling:
    """Begin statistics over all rows of several features, as `pooled_stats` gives them, spread over workers.

    Wide features are turned on disk first (`stack.dataset.stats_columns`), but for those that are too large
    for that: their channels are shared out, and read several times.

    Args:
        kinds: feature -> what one row of it is, such as `np.dtype(("f4", (163,)))`.
        rows: how many rows the files have.
        scratch: a folder that is not there, for what is turned; it is made and removed. It lies on the disk
            of `root`, of which half of what is free is taken at the most.
    """

    def __init__(
        self,
        root: Path,
        paths: tuple[str, ...],
        kinds: Mapping[str, np.dtype[Any]],
        rows: int,
        pool: Pool,
        scratch: Path,
    ) -> None:
        self._names = tuple(kinds)
        turned = _turned(kinds, rows, min(TURNED_BYTES_MAX, shutil.disk_usage(root).free // 2))
        self._jobs = [
            PooledJob(root, paths, name, span)
            for name, kind in kinds.items()
            if name not in turned
            for span in _spans(kind, rows)
        ]
        is_long = max((kind.itemsize for kind in kinds.values()), default=0) * rows > BYTES_A_JOB
        self._turning: Turning | None = None
        if turned:
            least = PIECE_BYTES // sum(kind.itemsize for kind in turned.values())
            pieces = group_pieces([root / path for path in paths], tuple(turned), least)
            self._turning = Turning(pieces, turned, pool, scratch, is_long=is_long)
        self._counting = pool.begin(pooled_stats, self._jobs, is_long=is_long)

    def go_on(self) -> None:
        """As `Turning.go_on`."""
        if self._turning is not None:
            self._turning.go_on()

    def result(self) -> dict[str, Stats]:
        """Feature -> statistics.

        Raises:
            BadRequest: as `pooled_stats`.
        """
        found = self._turning.result() if self._turning is not None else {}
        parts: dict[str, list[Stats]] = {}
        for job, stats in zip(self._jobs, self._counting, strict=True):
            parts.setdefault(job.feature, []).append(stats)
        found |= {name: side_by_side(own) for name, own in parts.items()}
        return {name: found[name] for name in self._names}


def _turned(kinds: Mapping[str, np.dtype[Any]], rows: int, left_bytes: int) -> dict[str, np.dtype[Any]]:
    """Features that are worth turning and can be, as long as there is room."""
    found: dict[str, np.dtype[Any]] = {}
    for name, kind in kinds.items():
        size, channel_bytes = kind.itemsize * rows, kind.base.itemsize * rows
        is_wide = prod(kind.shape) > 1 and kind.base.kind in "iuf"
        if is_wide and BYTES_A_JOB < size <= left_bytes and channel_bytes <= HELD_BYTES_MAX:
            found[name] = kind
            left_bytes -= size
    return found


def _spans(kind: np.dtype[Any], rows: int) -> list[tuple[int, int] | None]:
    width = prod(kind.shape)
    parts = min(width, PARTS_STREAMED) if kind.itemsize * rows > BYTES_A_JOB else 1
    return [*pairwise([width * n // parts for n in range(parts + 1)])] if parts > 1 else [None]


def block_stats(blocks: Blocks, *, where: str = "", held_bytes_max: int = HELD_BYTES_MAX) -> Stats:
    """Exact statistics over blocks of rows, equal to `vector_stats` of all of them joined.

    What fits into `held_bytes_max` is held and counted at once. Else the blocks are read several times:
    once for sums, extremes and the leading bits of every quantile, and again for deviations from the mean
    and the bits that follow (three times for 32-bit values, five times for 64-bit ones).

    Args:
        blocks: gives all rows from the start each time: (n,) or (n, D), of one dtype.
        where: what error messages call the place.

    Raises:
        BadRequest: no rows, not numeric, or a value that is not finite.
    """
    held: list[NDArray[Any]] = []
    size = 0
    for block in blocks():
        held.append(block)
        size += block.nbytes
        if size > held_bytes_max:
            held.clear()
            return _streamed(blocks, where)
    give_back()  # what reading took
    return joined_stats(held, where=where)


class _Moments:
    """Sums of one channel: first of the values, then of the deviations from their mean."""

    def __init__(self) -> None:
        self.sum = self.deviations = self.squares = 0.0
        self.low: Any = None
        self.high: Any = None

    def first(self, values: NDArray[Any]) -> None:
        self.sum += float(values.sum(dtype=np.float64))
        low, high = values.min(), values.max()
        self.low = low if self.low is None else min(self.low, low)
        self.high = high if self.high is None else max(self.high, high)

    def second(self, exact: NDArray[np.float64], rows: int) -> None:
        exact -= self.sum / rows
        self.deviations += float(exact.sum())
        self.squares += float(np.square(exact, out=exact).sum())

    def mean_std(self, rows: int) -> tuple[float, float]:
        if self.low == self.high:
            return float(self.low), 0.0
        shift = self.deviations / rows
        return self.sum / rows + shift, float(np.sqrt(self.squares / rows - shift * shift))


def _streamed(blocks: Blocks, where: str) -> Stats:
    moments, searches, rows, kind = _first_pass(blocks, where)
    ranks = quantile_ranks(rows)
    found, seen = all([search.end_pass(ranks) for search in searches]), 1
    while not found:
        for block in blocks():
            for moment, search, values in zip(moments, searches, _channels(block, kind), strict=True):
                if seen == 1:
                    moment.second(values.astype(np.float64), rows)
                search.add(ordered_keys(values))
        found = all([search.end_pass(ranks) for search in searches])
        seen += 1
    at_ranks = values_of(np.stack([search.keys() for search in searches]), kind)
    pairs = np.array([moment.mean_std(rows) for moment in moments])
    return Stats(
        min=as_extremes(np.array([moment.low for moment in moments])),
        max=as_extremes(np.array([moment.high for moment in moments])),
        mean=pairs[:, 0],
        std=pairs[:, 1],
        count=np.array([rows], dtype=np.int64),
        **interpolated(rows, at_ranks),
    )


def _first_pass(blocks: Blocks, where: str) -> tuple[list[_Moments], list[RankSearch], int, np.dtype[Any]]:
    """Sums, extremes and leading bits; refuses what is not finite."""
    moments: list[_Moments] = []
    searches: list[RankSearch] = []
    rows, kind = 0, np.dtype("f4")
    for block in blocks():
        check_numeric(block, where)
        if not can_count(block):
            raise not_finite(block.reshape(len(block), -1), where, first_row=rows)
        if rows == 0:
            kind = _key_dtype(block.dtype)
            channels = int(np.prod(block.shape[1:]))
            moments = [_Moments() for _ in range(channels)]
            searches = [RankSearch(8 * kind.itemsize) for _ in range(channels)]
        rows += len(block)
        for moment, search, values in zip(moments, searches, _channels(block, kind), strict=True):
            moment.first(values)
            search.add(ordered_keys(values))
    return moments, searches, rows, kind


def _channels(block: NDArray[Any], kind: np.dtype[Any]) -> NDArray[Any]:
    """(C, n): each channel in one run, in the dtype that keys are made of."""
    return np.ascontiguousarray(block.reshape(len(block), -1).T.astype(kind, copy=False))


def _key_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The narrowest dtype of 32 or 64 bits that holds all values of another."""
    if dtype.kind == "f":
        return np.dtype("f4" if dtype.itemsize <= 4 else "f8")
    if dtype.kind == "b" or dtype.itemsize < 4:
        return np.dtype("i4")
    return np.dtype(f"{dtype.kind}{dtype.itemsize}")


def written_blocks(
    root: Path, paths: Sequence[str], feature: str, channels: tuple[int, int] | None = None
) -> Iterator[NDArray[Any]]:
    """Rows of one feature, in the order of the files, in blocks that do not depend on how they were packed.

    Args:
        channels: the first, and the one behind the last; all if not given.

    Yields:
        (n,), (n, D), or (n, all values of a frame) where there are more dimensions, in the written dtype.
    """
    waiting: list[NDArray[Any]] = []
    held = 0
    for table in _written_batches(root, paths, feature):
        if channels is not None:
            table = table[:, slice(*channels)].copy()  # a view would hold all channels
        rows = max(1, BLOCK_BYTES // max(1, table.nbytes // max(1, len(table))))
        waiting.append(table)
        held += len(table)
        if held >= rows:
            joined = np.concatenate(waiting)
            whole = held - held % rows
            for start in range(0, whole, rows):
                yield joined[start : start + rows]
            waiting, held = [joined[whole:].copy()], held - whole
    if held:
        yield np.concatenate(waiting)


def _written_batches(root: Path, paths: Sequence[str], feature: str) -> Iterator[NDArray[Any]]:
    for path in paths:
        for batch in batches(root / path, [feature]):
            yield numbers_in(batch, feature)
            del batch  # while the next one is read
