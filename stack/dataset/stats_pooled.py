"""Exact statistics of a whole dataset in memory that does not grow with it, from the files as written."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from stack.dataset.arrow import flattened, numbers_of
from stack.dataset.memory import give_back
from stack.dataset.pool import Pool
from stack.dataset.stats import Stats, as_extremes, check_numeric, joined_stats, not_finite, side_by_side
from stack.dataset.stats_order import RankSearch, interpolated, ordered_keys, quantile_ranks, values_of

HELD_BYTES_MAX = 64 << 20  # what is smaller is held as a whole and read once
BLOCK_BYTES = 2 << 20
READ_BYTES = 1 << 20
READ_ROWS = 512  # a few hundred kB, which the decoder keeps in memory that it has: thrice as fast as 2,048
GROUPS_BYTES = 2 << 20
# Another part of a feature means reading all of it once more, which costs less than holding much of it; what
# no number of parts makes small is read several times for each part anyway.
BYTES_A_JOB = 50_000_000
LONG_BYTES = 25_000_000
PARTS_MAX = 24
PARTS_STREAMED = 4

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


def pooled_features(
    root: Path, paths: tuple[str, ...], kinds: Mapping[str, np.dtype[Any]], rows: int, pool: Pool
) -> Callable[[], dict[str, Stats]]:
    """Begin `pooled_stats` of several features at once; large ones are shared out among the workers.

    Args:
        kinds: feature -> what one row of it is, such as `np.dtype(("f4", (163,)))`.
        rows: how many rows the files have.

    Returns:
        A function that waits for the statistics; it raises `BadRequest` as `pooled_stats`.
    """
    jobs: list[PooledJob] = []
    for name, kind in kinds.items():
        width = prod(kind.shape)
        parts = -(-kind.itemsize * rows // BYTES_A_JOB)
        parts = min(width, parts if parts <= PARTS_MAX else PARTS_STREAMED)
        bounds = [width * n // parts for n in range(parts + 1)]
        spans: list[tuple[int, int] | None] = [*pairwise(bounds)] if parts > 1 else [None]
        jobs += [PooledJob(root, paths, name, span) for span in spans]
    is_long = max((kind.itemsize for kind in kinds.values()), default=0) * rows > LONG_BYTES
    begun = pool.begin(pooled_stats, jobs, is_long=is_long)

    def finish() -> dict[str, Stats]:
        found: dict[str, list[Stats]] = {}
        for job, stats in zip(jobs, begun, strict=True):
            found.setdefault(job.feature, []).append(stats)
        return {name: side_by_side(parts) for name, parts in found.items()}

    return finish


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
        if block.dtype.kind == "f" and not np.isfinite(block).all():
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
    for table in _written_groups(root, paths, feature):
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


def _written_groups(root: Path, paths: Sequence[str], feature: str) -> Iterator[NDArray[Any]]:
    for path in paths:
        # Pages come through a buffer: a row group may be larger than all that is held otherwise.
        with pq.ParquetFile(root / path, buffer_size=READ_BYTES) as parquet:
            for groups in _small_groups(parquet.metadata):
                for batch in parquet.iter_batches(READ_ROWS, groups, [feature], use_threads=False):
                    yield _table(batch.column(feature))  # pyarrow takes `action` for `action.raw` too
                    del batch  # while the next one is read
                pa.default_memory_pool().release_unused()  # or each group is decoded into new memory


def _small_groups(metadata: pq.FileMetaData) -> Iterator[list[int]]:
    """Row groups that are read at once, all of which a reader holds: only small ones together."""
    together: list[int] = []
    held = 0
    for group in range(metadata.num_row_groups):
        size = metadata.row_group(group).total_byte_size
        if together and held + size > GROUPS_BYTES:
            yield together
            together, held = [], 0
        together.append(group)
        held += size
    if together:
        yield together


def _table(chunk: pa.Array) -> NDArray[Any]:
    frames, nested = len(chunk), False
    while pa.types.is_list(chunk.type) or pa.types.is_fixed_size_list(chunk.type):
        chunk, nested = flattened(chunk), True
    values = numbers_of(chunk)
    return values.reshape(frames, -1) if nested else values
