"""Row files read into one table a column, a few thousand rows at a time.

What is held meanwhile is the table itself and one batch: values go to their place as they are read.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from stack.audit.rows import Array, Column, Rows, Span, UnreadColumn
from stack.audit.rows_part import Part, is_light, opaque, part_of
from stack.audit.shelter import reading
from stack.dataset.memory import give_back

if TYPE_CHECKING:
    from stack.audit.evidence import Evidence

ROWS_AT_ONCE = 8_192  # 7 MB of 199 float32 channels
GROWTH = 1.25


class _Run:
    """Rows one after another, of one type and width, in memory that grows where it lies."""

    def __init__(self, start: int, values: Array) -> None:
        self.start, self.count = start, 0
        self._table = np.empty((0, values.shape[1]), values.dtype)
        self.add(values)

    @property
    def width(self) -> int:
        return int(self._table.shape[1])

    @property
    def dtype(self) -> np.dtype[Any]:
        return self._table.dtype

    def goes_on_with(self, start: int, values: Array) -> bool:
        alike = self.dtype == values.dtype and self.width == values.shape[1]
        return alike and start == self.start + self.count

    def add(self, values: Array) -> None:
        until = self.count + len(values)
        if until > len(self._table):
            # The C library moves the pages of a large block, so that growing copies nothing.
            room = max(until, int(len(self._table) * GROWTH))
            self._table.resize((room, self.width), refcheck=False)
        self._table[self.count : until] = values
        self.count = until

    def cut(self, stop: int) -> None:
        self.count = min(self.count, stop - self.start)

    def taken(self) -> Array:
        """(count, D); the run is over."""
        self._table.resize((self.count, self.width), refcheck=False)
        return self._table


@dataclass
class _Gathered:
    """One column while it is read: the parts' values lie in `runs`."""

    types: dict[pa.DataType, str] = field(default_factory=dict)
    parts: list[Part] = field(default_factory=list)
    runs: list[_Run] = field(default_factory=list)
    is_unread: bool = False

    def add(self, part: Part) -> None:
        values = part.values
        if values is not None:
            if self.runs and self.runs[-1].goes_on_with(part.start, values):
                self.runs[-1].add(values)
            else:
                self.runs.append(_Run(part.start, values))
        self.parts.append(replace(part, values=None))

    def forget_from(self, row: int) -> None:
        self.parts = [part for part in self.parts if part.start < row]
        self.runs = [run for run in self.runs if run.start < row]
        if self.runs:
            self.runs[-1].cut(row)


@dataclass
class _Reading:
    """What has been read of all files so far."""

    form_only: bool = False
    files: list[tuple[str, int, int]] = field(default_factory=list)
    doubled: list[tuple[str, str]] = field(default_factory=list)
    columns: dict[str, _Gathered] = field(default_factory=dict)
    groups: dict[str, tuple[int, ...]] = field(default_factory=dict)
    count: int = 0

    def column(self, name: str) -> _Gathered:
        return self.columns.setdefault(name, _Gathered())

    def take(self, relative: str, parquet: pq.ParquetFile) -> None:
        schema, meta = parquet.schema_arrow, parquet.metadata
        names = list(dict.fromkeys(schema.names))
        twice = sorted(name for name, times in Counter(schema.names).items() if times > 1)
        light = [n for n in names if n not in twice and is_light(schema.field(n).type)]
        wanted = [n for n in light if not (self.form_only and pa.types.is_nested(schema.field(n).type))]
        rows = self.count
        for name in names:
            self.column(name)  # in the file's order
        for batch in _batches(parquet, wanted, use_threads=not self.form_only):
            # A damaged page can give offsets beyond the values, at which a later look would crash.
            batch.validate(full=True)
            for name in wanted:
                self.column(name).add(part_of(batch.column(name), rows))
            rows += batch.num_rows
        if wanted and rows - self.count != meta.num_rows:
            raise OSError(f"its footer speaks of {meta.num_rows} rows; {rows - self.count} are there")
        for name in names:
            kept = schema.field(name).type if name not in twice else pa.null()
            self.column(name).types.setdefault(kept, relative)
            if name not in wanted:
                self.column(name).add(opaque(meta.num_rows, self.count))
                self.column(name).is_unread |= name in light
        self.doubled += [(relative, name) for name in twice]
        self.groups[relative] = tuple(meta.row_group(g).num_rows for g in range(meta.num_row_groups))
        self.files.append((relative, self.count, meta.num_rows))
        self.count += meta.num_rows

    def forget(self) -> None:
        """What came of a file that broke off."""
        for name, column in list(self.columns.items()):
            column.forget_from(self.count)
            if not column.types:
                del self.columns[name]


def _batches(parquet: pq.ParquetFile, columns: list[str], use_threads: bool) -> Iterator[pa.RecordBatch]:
    """Of a few row groups at a time: over all, the reader would hold what it has given until the last."""
    together, rows = [], 0
    for group in range(parquet.num_row_groups if columns else 0):
        together.append(group)
        rows += parquet.metadata.row_group(group).num_rows
        if rows >= ROWS_AT_ONCE or group == parquet.num_row_groups - 1:
            yield from parquet.iter_batches(
                ROWS_AT_ONCE, row_groups=together, columns=columns, use_threads=use_threads
            )
            together, rows = [], 0
            pa.default_memory_pool().release_unused()  # or the next ones are read into new memory


def load_rows(evidence: Evidence) -> Rows:
    """Every row file that can be read; what cannot becomes a problem."""
    read, unread, episodes = _Reading(evidence.form_only), [], []
    for relative, episode in evidence.layout.data_files:
        try:
            if not evidence.files.get(relative):
                raise OSError("no bytes")
            with reading(evidence.root / relative), pq.ParquetFile(evidence.root / relative) as parquet:
                read.take(relative, parquet)
        except Exception as error:  # pyarrow raises OSError, ArrowInvalid and more on damaged files
            read.forget()
            unread.append(relative)
            evidence.problems.append(evidence.explain(relative, error))
            continue
        episodes.append(episode)
        if evidence.form_only:
            give_back()  # its footer, which lists every chunk of its columns
    files, count = read.files, read.count
    # Taken out one by one, so that at most one column is held twice.
    columns = {name: _column(read.columns.pop(name), files, count) for name in list(read.columns)}
    spans = tuple(_spans(evidence, files, episodes, columns))
    return Rows(tuple(files), tuple(unread), spans, columns, tuple(read.doubled), count, read.groups)


def _column(gathered: _Gathered, files: list[tuple[str, int, int]], count: int) -> Column:
    parts = gathered.parts
    numeric = [part for part in parts if part.is_numeric]
    starts = {part.start for part in parts}
    absent = [relative for relative, start, rows in files if start not in starts and rows]
    present: NDArray[np.bool_] = np.zeros(count, np.bool_)
    null_rows = [part.start + int(row) for part in parts for row in np.flatnonzero(part.nulls)]
    if not numeric:
        for part in parts:
            present[part.start : part.start + len(part.widths)] = True
        kind = UnreadColumn if gathered.is_unread else Column
        return kind(None, present, gathered.types, null_rows, [], absent)
    width = _commonest(numeric)
    odd: list[tuple[int, int]] = []
    for part in numeric:
        fits = (part.widths == width) & ~part.nulls
        present[part.start : part.start + len(fits)] = fits
        others = np.flatnonzero((part.widths != width) & ~part.nulls)
        odd += [(part.start + int(row), int(part.widths[row])) for row in others]
    if present.all():
        present = np.broadcast_to(np.True_, (count,))  # one byte, where a dataset is as it should be
    return Column(_values(gathered, width, count), present, gathered.types, null_rows, odd, absent)


def _commonest(parts: list[Part]) -> int:
    """The width that most rows have."""
    widths = np.concatenate([part.widths[part.widths >= 0] for part in parts])
    return int(np.bincount(widths).argmax()) if len(widths) else 1


def _values(gathered: _Gathered, width: int, count: int) -> Array:
    """(count, width), NaN where no row of this width is. Takes the runs."""
    runs, loose = gathered.runs, [part for part in gathered.parts if part.loose is not None]
    if len(runs) == 1 and runs[0].count == count and runs[0].width == width:
        return runs.pop().taken()
    dtype = np.result_type(
        np.float32, *(run.dtype for run in runs), *(p.loose.dtype for p in loose if p.loose is not None)
    )
    values = np.full((count, width), np.nan, dtype)
    while runs:
        run = runs.pop()
        if run.width == width:
            values[run.start : run.start + run.count] = run.taken()
    for part in loose:
        rows, own = part.of_width(width)
        values[part.start + rows] = own
    return values


def _spans(
    evidence: Evidence,
    files: list[tuple[str, int, int]],
    episodes: list[int | None],
    columns: dict[str, Column],
) -> Iterable[Span]:
    if not evidence.is_v3:
        for (relative, start, rows), episode in zip(files, episodes, strict=True):
            if episode is not None:
                yield Span(episode, relative, start, rows)
        return
    column = columns.get("episode_index")
    numbers = column.whole_numbers() if column is not None and column.present.all() else None
    if numbers is None:
        listed = [(e.index, e.length) for e in evidence.episodes if e.index is not None and e.length]
        numbers = np.repeat([i for i, _ in listed], [n for _, n in listed]) if listed else None
    for relative, start, rows in files:
        if numbers is None or start + rows > len(numbers) or not rows:
            continue
        own = numbers[start : start + rows]
        cuts = [0, *(np.flatnonzero(np.diff(own)) + 1).tolist(), rows]
        for first, last in itertools.pairwise(cuts):
            yield Span(int(own[first]), relative, start + first, last - first)
