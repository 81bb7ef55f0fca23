"""All rows of a dataset as arrays, with what was odd about how they are stored.

Values keep their stored precision. Pooled over 305,425 rows, 199 float32 channels take 243 MB.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from stack.audit.shelter import reading
from stack.dataset.arrow import numbers_of
from stack.faults import Place

if TYPE_CHECKING:
    from stack.audit.evidence import Evidence

Array = NDArray[Any]


FLOAT32_BYTES = 4
FLOAT32_MOST = float(np.finfo(np.float32).max)


def finite(values: Array) -> NDArray[np.bool_]:
    """Which numbers are finite once they are loaded as float32."""
    good: NDArray[np.bool_] = np.isfinite(values)
    if values.dtype.kind == "f" and values.dtype.itemsize > FLOAT32_BYTES:
        good &= (values <= FLOAT32_MOST) & (values >= -FLOAT32_MOST)
    return good


@dataclass(frozen=True)
class Span:
    """Consecutive rows of one episode: `start` counts over all files in loading order."""

    episode: int
    file: str
    start: int
    count: int


def in_episode(spans: Iterable[Span]) -> Iterator[tuple[Span, int]]:
    """Each span with the frame of its episode at which it begins: an episode may lie in several pieces."""
    before: dict[int, int] = {}
    for span in spans:
        offset = before.get(span.episode, 0)
        before[span.episode] = offset + span.count
        yield span, offset


@dataclass
class Column:
    """One column over all rows.

    Attributes:
        values: (N, D) numbers; rows that are absent, null or of another width are NaN. None where the
            column holds no numbers.
        present: (N,) rows that have a value of the right width.
        types: arrow types as stored -> the first file that has it.
        null_rows: rows that hold a null, whole or in one element, ascending.
        odd_widths: (row, width) of rows whose width is not D.
        absent_in: row files without this column.
        texts: stored values of a text column.
    """

    values: Array | None
    present: NDArray[np.bool_]
    types: dict[pa.DataType, str]
    null_rows: list[int] = field(default_factory=list)
    odd_widths: list[tuple[int, int]] = field(default_factory=list)
    absent_in: list[str] = field(default_factory=list)

    @property
    def width(self) -> int:
        return 0 if self.values is None else int(self.values.shape[1])

    def whole_numbers(self) -> NDArray[np.int64] | None:
        """(N,) the one-wide column as whole numbers, 0 where absent; None where a present row is not one."""
        if self.values is None or self.width != 1:
            return None
        flat = self.values[:, 0]
        if flat.dtype.kind != "f":
            return flat.astype(np.int64)
        own = flat[self.present]
        if not (np.isfinite(own).all() and (own == np.rint(own)).all() and (np.abs(own) < 2.0**62).all()):
            return None
        return np.where(self.present, flat, 0).astype(np.int64)


@dataclass(frozen=True)
class Rows:
    """All rows that could be read.

    Attributes:
        files: row files that could be read, in loading order, with their first row and count.
        unread: row files that could not be.
        doubled: (file, column) of columns that a file holds twice.
        groups: rows of each row group, by file.
    """

    files: tuple[tuple[str, int, int], ...]
    unread: tuple[str, ...]
    spans: tuple[Span, ...]
    columns: dict[str, Column]
    doubled: tuple[tuple[str, str], ...]
    count: int
    groups: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    @cached_property
    def lengths(self) -> dict[int, int]:
        """Rows of each episode."""
        lengths: dict[int, int] = {}
        for span in self.spans:
            lengths[span.episode] = lengths.get(span.episode, 0) + span.count
        return lengths

    @cached_property
    def _starts(self) -> NDArray[np.int64]:
        return np.array([span.start for span in self.spans], np.int64)

    def place(self, row: int, feature: str | None = None, channel: str | None = None) -> Place:
        """Where a row is: file, episode, and frame counted from the episode's first row."""
        at = int(np.searchsorted(self._starts, row, side="right")) - 1
        if at < 0:
            return Place(feature=feature, channel=channel)
        span = self.spans[at]
        return Place(span.file, span.episode, row - span.start, feature, channel)


@dataclass(frozen=True)
class _Part:
    start: int
    values: Array | None
    widths: NDArray[np.int64]
    nulls: NDArray[np.bool_]


def load_rows(evidence: Evidence) -> Rows:
    files: list[tuple[str, int, int]] = []
    unread: list[str] = []
    doubled: list[tuple[str, str]] = []
    parts: dict[str, list[_Part]] = {}
    types: dict[str, dict[pa.DataType, str]] = {}
    episodes: list[int | None] = []
    groups: dict[str, tuple[int, ...]] = {}
    count = 0
    for relative, episode in evidence.layout.data_files:
        try:
            if not evidence.files.get(relative):
                raise OSError("no bytes")
            with reading(evidence.root / relative):
                parquet = pq.ParquetFile(evidence.root / relative)
                schema = parquet.schema_arrow
                names = schema.names
                twice = sorted(name for name, times in Counter(names).items() if times > 1)
                wanted = [n for n in names if n not in twice and _is_light(schema.field(n).type)]
                table = parquet.read(columns=wanted)
                # A damaged page can give offsets beyond the values, at which a later look would crash.
                table.validate(full=True)
        except Exception as error:  # pyarrow raises OSError, ArrowInvalid and more on damaged files
            unread.append(relative)
            evidence.problems.append(evidence.explain(relative, error))
            continue
        rows = parquet.metadata.num_rows
        doubled += [(relative, name) for name in twice]
        for name in dict.fromkeys(names):
            kept = schema.field(name).type if name not in twice else pa.null()
            types.setdefault(name, {}).setdefault(kept, relative)
            parts.setdefault(name, []).append(
                _part(table.column(name), count) if name in wanted else _opaque(rows, count)
            )
        files.append((relative, count, rows))
        meta = parquet.metadata
        groups[relative] = tuple(meta.row_group(g).num_rows for g in range(meta.num_row_groups))
        episodes.append(episode)
        count += rows
    # Taken out one by one, so that at most one column is held twice.
    columns = {name: _column(parts.pop(name), types[name], files, count) for name in list(parts)}
    spans = tuple(_spans(evidence, files, episodes, columns))
    return Rows(tuple(files), tuple(unread), spans, columns, tuple(doubled), count, groups)


def _is_light(type_: pa.DataType) -> bool:
    while pa.types.is_list(type_) or pa.types.is_large_list(type_) or pa.types.is_fixed_size_list(type_):
        type_ = type_.value_type
    return bool(pa.types.is_integer(type_) or pa.types.is_floating(type_) or pa.types.is_boolean(type_))


def _opaque(rows: int, start: int) -> _Part:
    return _Part(start, None, np.ones(rows, np.int64), np.zeros(rows, np.bool_))


def _part(column: pa.ChunkedArray, start: int) -> _Part:
    """Flatten lists, however deep: (n, width) where every non-null row has the same width."""
    rows = len(column)
    array: pa.Array = pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
    widths: NDArray[np.int64] = np.ones(rows, np.int64)
    nulls = _nulls(array)
    first = True
    while not (pa.types.is_primitive(array.type) or pa.types.is_boolean(array.type)):
        lengths = pc.list_value_length(array)
        lengths = numbers_of(pc.fill_null(lengths, 0) if array.null_count else lengths).astype(np.int64)
        if first:
            widths = lengths
        else:
            # An inner level keeps the outer rows apart only where all inner lists are equally long.
            inner = set(lengths.tolist())
            widths = widths * inner.pop() if len(inner) == 1 else np.full(rows, -1, np.int64)
        array, first = array.flatten(), False
    widths = np.where(nulls, -1, widths)
    leaf_nulls = _nulls(array)
    flat = _numbers(array)
    if first:
        return _Part(start, flat.reshape(rows, 1), np.where(nulls, -1, 1), nulls)
    good = widths[widths >= 0]
    if not len(good) or (good != good[0]).any() or len(flat) != int(good.sum()):
        return _ragged(flat, widths, nulls, start)
    width = int(good[0])
    values = flat.reshape(-1, width) if width else np.zeros((len(good), 0))
    if len(good) < rows:
        whole = np.full((rows, width), np.nan)
        whole[widths >= 0] = values
        values = whole
    if leaf_nulls.any() and width:
        nulls[np.flatnonzero(widths >= 0)[leaf_nulls.reshape(-1, width).any(axis=1)]] = True
    return _Part(start, values, widths, nulls)


def _ragged(flat: Array, widths: NDArray[np.int64], nulls: NDArray[np.bool_], start: int) -> _Part:
    """Rows of unequal widths: those of the commonest width are kept."""
    good = widths[widths >= 0]
    if not len(good) or len(flat) != int(good.sum()):
        return _Part(start, None, widths, nulls)
    common = int(np.bincount(good).argmax())
    values = np.full((len(widths), common), np.nan)
    starts = np.concatenate([[0], np.cumsum(np.maximum(widths, 0))])
    for row in np.flatnonzero(widths == common):
        values[row] = flat[starts[row] : starts[row] + common]
    return _Part(start, values, widths, nulls)


def _numbers(array: pa.Array) -> Array:
    """(n,) values, NaN where null; whole numbers as int64, those that may be beyond it as float64."""
    if pa.types.is_boolean(array.type):
        array = array.cast(pa.uint8())
    if pa.types.is_integer(array.type):
        wide = pa.float64() if array.null_count or pa.types.is_uint64(array.type) else pa.int64()
        array = array.cast(wide, safe=False)
    elif pa.types.is_float16(array.type):
        array = array.cast(pa.float32())
    return numbers_of(array)


def _nulls(array: pa.Array) -> NDArray[np.bool_]:
    if not array.null_count:
        return np.zeros(len(array), np.bool_)
    return numbers_of(pc.is_null(array).cast(pa.uint8())).astype(np.bool_)


def _column(
    parts: list[_Part], types: dict[pa.DataType, str], files: list[tuple[str, int, int]], count: int
) -> Column:
    starts = {part.start for part in parts}
    absent = [relative for relative, start, rows in files if start not in starts and rows]
    present = np.zeros(count, np.bool_)
    null_rows = [part.start + int(row) for part in parts for row in np.flatnonzero(part.nulls)]
    numeric = [part for part in parts if part.values is not None and len(part.widths)]
    if not numeric:
        for part in parts:
            present[part.start : part.start + len(part.widths)] = True
        return Column(None, present, types, null_rows, [], absent)
    all_widths = np.concatenate([part.widths[part.widths >= 0] for part in numeric])
    width = int(np.bincount(all_widths).argmax()) if len(all_widths) else 1
    odd = []
    whole = True
    for part in numeric:
        fits = (part.widths == width) & ~part.nulls
        present[part.start : part.start + len(fits)] = fits
        whole = whole and bool(fits.all()) and part.values is not None and part.values.shape[1] == width
        odd += [
            (part.start + int(row), int(part.widths[row]))
            for row in np.flatnonzero((part.widths != width) & ~part.nulls)
        ]
    arrays = [part.values for part in numeric if part.values is not None]
    if whole and present.all():
        return Column(np.concatenate(arrays), present, types, null_rows, odd, absent)
    dtype = np.result_type(np.float32, *arrays)
    values = np.full((count, width), np.nan, dtype)
    for part in numeric:
        if part.values is not None and part.values.shape[1] == width:
            rows = np.flatnonzero(part.widths == width)
            values[part.start + rows] = part.values[rows]
    return Column(values, present, types, null_rows, odd, absent)


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
