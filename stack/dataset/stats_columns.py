"""Wide features turned on disk: read once row by row, written channel by channel, and counted from there.

Parquet gives all channels of a vector or none, so that a few of them cost as much reading as all. What is too
large to be held is therefore read once and laid out anew: blocks of some rows, each channel of a block in one
run. Any few channels of all rows are then a short read from each block.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import numpy as np
from numpy.typing import NDArray

from stack.dataset.memory import give_back
from stack.dataset.pool import Pool
from stack.dataset.stats import (
    VALUES_AT_ONCE,
    Stats,
    can_count,
    channels_stats,
    check_numeric,
    not_finite,
    side_by_side,
)
from stack.errors import WorkFailed

BLOCK_BYTES = 2 << 20
COUNT_BYTES = 16_000_000  # of channels, a job
PIECE_BYTES = 16_000_000  # of rows, a job


class RowsOf(Protocol):
    """Some neighbouring rows of a dataset, of several features."""

    def blocks(self) -> Iterator[Mapping[str, NDArray[Any]]]:
        """Feature -> (n,), (n, D) or (n, all values of a frame), of one dtype, the rows in order."""
        ...


@dataclass(frozen=True)
class TurnJob:
    """A piece that begins at row `row` of the dataset; feature n goes to the file `scratch / "n-number"`."""

    rows: RowsOf
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


class Turning:
    """Begin exact statistics of several features over all rows, spread over workers.

    Args:
        pieces: all rows in order, in pieces of about `PIECE_BYTES`, and how many each has.
        kinds: feature -> what one row of it is, such as `np.dtype(("f4", (163,)))`.
        scratch: a folder that is not there, as large as all values; it is made, and removed by `result`.
        is_long: worth starting other processes for.
    """

    def __init__(
        self,
        pieces: Iterable[tuple[RowsOf, int]],
        kinds: Mapping[str, np.dtype[Any]],
        pool: Pool,
        scratch: Path,
        *,
        is_long: bool,
    ) -> None:
        self._kinds, self._pool, self._scratch, self._is_long = kinds, pool, scratch, is_long
        jobs: list[TurnJob] = []
        row = 0
        for rows, count in pieces:
            jobs.append(TurnJob(rows, row, tuple(kinds), scratch, len(jobs)))
            row += count
        scratch.mkdir(parents=True)
        self._turning = pool.begin(turn, jobs, is_long=is_long)
        self._counting: Iterator[tuple[str, Stats]] | None = None

    def go_on(self) -> None:
        """Wait until all is turned and let it be counted; called by `result` where nobody has before.

        Raises:
            BadRequest: as `stack.dataset.stats.vector_stats`.
        """
        if self._counting is None:
            jobs = list(channels_jobs(list(self._turning), self._kinds))
            begun = self._pool.begin(channels_counted, [job for _, job in jobs], is_long=self._is_long)
            self._counting = zip((name for name, _ in jobs), begun, strict=True)

    def result(self) -> dict[str, Stats]:
        """Feature -> statistics.

        Raises:
            BadRequest: as `go_on`.
            WorkFailed: a file in `scratch` is not as it was written.
        """
        self.go_on()
        parts: dict[str, list[Stats]] = {name: [] for name in self._kinds}
        for name, stats in self._counting or ():
            parts[name].append(stats)
        shutil.rmtree(self._scratch, ignore_errors=True)
        return {name: side_by_side(own) for name, own in parts.items()}


def turn(job: TurnJob) -> list[Turned]:
    """Lay out one piece; one result a feature.

    Raises:
        BadRequest: as `stack.dataset.stats.vector_stats`; rows are counted over the dataset.
    """
    give_back()  # a worker has written files before, which takes memory too
    with ExitStack() as stack:
        layouts = {}
        for n, feature in enumerate(job.features):
            file = job.scratch / f"{n}-{job.number}"
            layouts[feature] = _Layout(file, stack.enter_context(file.open("wb")), feature, job.row)
        for block in job.rows.blocks():
            for feature, layout in layouts.items():
                layout.add(block[feature])
            del block  # while the next one is read
        return [layout.end() for layout in layouts.values()]


class _Layout:
    """The file of one feature in the making."""

    def __init__(self, file: Path, out: BinaryIO, feature: str, row: int) -> None:
        self._feature = feature
        self._file, self._out, self._row = file, out, row
        self._waiting: list[NDArray[Any]] = []
        self._rows: list[int] = []
        self._bytes = 0
        self._dtype = ""

    def add(self, table: NDArray[Any]) -> None:
        check_numeric(table, self._feature)
        if not can_count(table):
            raise not_finite(table.reshape(len(table), -1), self._feature, first_row=self._row)
        self._row += len(table)
        self._waiting.append(table)
        self._bytes += table.nbytes
        if self._bytes >= BLOCK_BYTES:
            self._write()

    def _write(self) -> None:
        block = np.concatenate(self._waiting)
        self._dtype = block.dtype.str
        self._rows.append(len(block))
        # Not `tofile`: its error tells no number by which a full disk is known.
        self._out.write(np.ascontiguousarray(block.reshape(len(block), -1).T).data)
        self._waiting, self._bytes = [], 0

    def end(self) -> Turned:
        if self._waiting:
            self._write()
        return Turned(self._file, self._dtype, tuple(self._rows))


def channels_counted(job: ChannelsJob) -> Stats:
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
    dtype = np.dtype(next(turned.dtype for turned in job.files if turned.rows))
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
    turned: Sequence[Sequence[Turned]], kinds: Mapping[str, np.dtype[Any]]
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
        step = max(1, COUNT_BYTES // (rows * kind.base.itemsize))
        for first in range(0, width, step):
            yield name, ChannelsJob(files, width, (first, min(first + step, width)))
