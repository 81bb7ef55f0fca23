"""Wide features turned on disk: read once row by row, written channel by channel, and counted from there.

Parquet gives all channels of a vector or none, so that a few of them cost as much reading as all. What is too
large to be held is therefore read once and laid out anew: blocks of some rows, each channel of a block in one
run. Any few channels of all rows are then a short read from each block.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from stack.dataset.memory import give_back
from stack.dataset.stats import VALUES_AT_ONCE, Stats, channels_stats, check_numeric, not_finite, side_by_side
from stack.dataset.stats_rows import batches, numbers_in
from stack.errors import WorkFailed

BLOCK_BYTES = 2 << 20
TURN_BYTES = 16_000_000  # of rows, a job


@dataclass(frozen=True)
class TurnJob:
    """Row groups `first` to `stop` (half-open) of one file, whose rows begin at row `row` of the dataset.

    `features` are laid out below `scratch`, feature n of job `number` in the file `n-number`.
    """

    root: Path
    path: str
    groups: tuple[int, int]
    row: int
    features: tuple[str, ...]
    scratch: Path
    number: int


@dataclass(frozen=True)
class Turned:
    """One file of blocks (D, n) one behind another, row-major, of one dtype; `rows`: n of each block."""

    file: Path
    dtype: str
    rows: tuple[int, ...]


@dataclass(frozen=True)
class ChannelsJob:
    """Channels `first` to `stop` (half-open) of a feature of `width` channels."""

    files: tuple[Turned, ...]
    width: int
    channels: tuple[int, int]


def turn_jobs(
    root: Path, paths: Sequence[str], features: tuple[str, ...], row_bytes: int, scratch: Path
) -> list[TurnJob]:
    """All rows in pieces of about `TURN_BYTES`; `row_bytes` is what one row of the features takes."""
    jobs: list[TurnJob] = []
    row = 0
    for path in paths:
        metadata = pq.read_metadata(root / path)
        first = rows = 0
        for n in range(metadata.num_row_groups):
            rows += metadata.row_group(n).num_rows
            if rows * row_bytes >= TURN_BYTES or n + 1 == metadata.num_row_groups:
                jobs.append(TurnJob(root, path, (first, n + 1), row, features, scratch, len(jobs)))
                row, first, rows = row + rows, n + 1, 0
    return jobs


def turn(job: TurnJob) -> list[Turned]:
    """Lay out one piece; one result a feature.

    Raises:
        BadRequest: as `stack.dataset.stats.vector_stats`; rows are counted over the dataset.
    """
    give_back()  # a worker has written files before, which takes memory too
    with ExitStack() as stack:
        layouts = []
        for n, feature in enumerate(job.features):
            file = job.scratch / f"{n}-{job.number}"
            layouts.append(_Layout(file, stack.enter_context(file.open("wb")), feature, job.row))
        for batch in batches(job.root / job.path, job.features, job.groups):
            for layout in layouts:
                layout.add(numbers_in(batch, layout.feature))
            del batch  # while the next one is read
        return [layout.end() for layout in layouts]


class _Layout:
    """The file of one feature in the making."""

    def __init__(self, file: Path, out: BinaryIO, feature: str, row: int) -> None:
        self.feature = feature
        self._file, self._out, self._row = file, out, row
        self._waiting: list[NDArray[Any]] = []
        self._rows: list[int] = []
        self._bytes = 0
        self._dtype = ""

    def add(self, table: NDArray[Any]) -> None:
        check_numeric(table, self.feature)
        if table.dtype.kind == "f" and not np.isfinite(table).all():
            raise not_finite(table, self.feature, first_row=self._row)
        self._row += len(table)
        self._waiting.append(table)
        self._bytes += table.nbytes
        if self._bytes >= BLOCK_BYTES:
            self._write()

    def _write(self) -> None:
        block = np.concatenate(self._waiting)
        self._dtype = block.dtype.str
        self._rows.append(len(block))
        np.ascontiguousarray(block.T).tofile(self._out)
        self._waiting, self._bytes = [], 0

    def end(self) -> Turned:
        if self._waiting:
            self._write()
        return Turned(self._file, self._dtype, tuple(self._rows))


def turned_stats(job: ChannelsJob) -> Stats:
    """Exact statistics of some channels over all rows, a few at a time.

    Raises:
        WorkFailed: a file is not as it was written.
    """
    give_back()
    rows = sum(sum(turned.rows) for turned in job.files)
    wide = max(1, VALUES_AT_ONCE // rows)
    first, stop = job.channels
    return side_by_side(
        [
            channels_stats(_channels(job, start, min(start + wide, stop), rows))
            for start in range(first, stop, wide)
        ]
    )


def _channels(job: ChannelsJob, first: int, stop: int, rows: int) -> NDArray[Any]:
    """(stop - first, rows), each channel in one run."""
    dtype = np.dtype(job.files[0].dtype)
    channels = np.empty((stop - first, rows), dtype)
    place = 0
    for turned in job.files:
        with turned.file.open("rb") as source:
            at = 0
            for count in turned.rows:
                source.seek((at * job.width + first * count) * dtype.itemsize)
                part = np.fromfile(source, dtype, (stop - first) * count)
                if part.size != (stop - first) * count:
                    raise WorkFailed(
                        "stats-scratch-changed", "a file of turned rows was cut", where=str(turned.file)
                    )
                channels[:, place : place + count] = part.reshape(stop - first, count)
                place, at = place + count, at + count
    return channels


def channels_jobs(
    turned: Sequence[Sequence[Turned]], kinds: Mapping[str, np.dtype[Any]], bytes_a_job: int
) -> Iterator[tuple[str, ChannelsJob]]:
    """What is left to count when all is turned, feature by feature.

    Args:
        turned: of each piece, its features in the order of `kinds`.
        kinds: feature -> what one row of it is.
    """
    for n, (name, kind) in enumerate(kinds.items()):
        files = tuple(piece[n] for piece in turned)
        width = prod(kind.shape)
        rows = sum(sum(file.rows) for file in files)
        step = max(1, bytes_a_job // (rows * kind.base.itemsize))
        for first in range(0, width, step):
            yield name, ChannelsJob(files, width, (first, min(first + step, width)))
