"""Row access: the columns of one episode as numpy arrays, whatever form the parquet file has them in."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, pairwise
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from stack.dataset.arrow import flattened, list_lengths, numbers_of
from stack.dataset.model import Episode, Feature, RowsRef
from stack.dataset.read_meta import open_parquet
from stack.dataset.rows_faults import mend, null_row, ragged, without
from stack.errors import BadRequest


def column_names(rows: RowsRef) -> tuple[str, ...]:
    """Top-level columns of the file that holds these rows."""
    return _footer(rows.file, _stamp(rows.file)).names


def row_count(file: Path) -> int:
    """Rows of a parquet file, from its footer.

    Raises:
        BadRequest: as `open_parquet`.
    """
    return _footer(file, _stamp(file)).starts[-1]


def hold_rows(rows: RowsRef, columns: Iterable[str]) -> None:
    """Read all of these columns that are there at once, for `read_rows` to give them one by one."""
    present = column_names(rows)
    wanted = [name for name in dict.fromkeys(columns) if name in present]
    if wanted:
        read_rows(rows, wanted)


def read_rows(rows: RowsRef, columns: Sequence[str]) -> pa.Table:
    """These columns of an episode's rows; only the row groups that hold them are read.

    Raises:
        BadRequest: a column is not there, or the file cannot be read.
    """
    stamp = _stamp(rows.file)
    present = _footer(rows.file, stamp).names
    for column in columns:
        if column not in present:
            raise BadRequest(
                "rows-no-column",
                f"there is no column '{column}'; the file has: {', '.join(present)}",
                where=str(rows.file),
                do=without(column),
            )
    table, first = _read_groups(rows.file, stamp, rows.start, rows.count, tuple(columns))
    return table.slice(rows.start - first, rows.count)


def stored_array(episode: Episode, feature: Feature) -> NDArray[Any]:
    """As `column_array`, but a view in the column's own dtype where that is the declared one."""
    column = read_rows(episode.rows, [feature.name]).column(feature.name)
    return decode_column(column, episode, feature, as_stored=True)


def column_array(episode: Episode, feature: Feature) -> NDArray[Any]:
    """One feature of one episode.

    One-element lists become scalars, bare scalars serve one-wide vectors, doubles serve integers.

    Returns:
        (L,) for shape (1,), else (L, D) for a vector or (L, *shape); float64 for floating dtypes, int64 for
        integers and bool. A null in a floating column becomes NaN.

    Raises:
        BadRequest: the column is missing, ragged, of another width than declared, holds nulls or fractions
            where integers are declared, or is no number at all.
    """
    return decode_column(read_rows(episode.rows, [feature.name]).column(feature.name), episode, feature)


def decode_column(
    column: pa.ChunkedArray, episode: Episode, feature: Feature, *, as_stored: bool = False
) -> NDArray[Any]:
    """As `column_array`, from a column that has been read already.

    Args:
        as_stored: no conversion to float64 and back where the column has the declared dtype.
    """
    values = _flat_values(column, episode, feature)
    width = prod(feature.shape)
    if len(values) != episode.length * width:
        raise ragged(column, episode, feature, width)
    declared = _numpy_dtype(feature)
    if as_stored and values.dtype == declared and declared.kind in "fi":
        pass
    elif declared.kind != "f":
        values = _as_int64(values, episode, feature, width)
    else:
        values = values.astype(np.float64, copy=False)
    return values if feature.shape == (1,) else values.reshape(episode.length, *feature.shape)


def text_column(episode: Episode, name: str) -> list[str | None]:
    """A column of texts, one a frame."""
    values: list[str | None] = read_rows(episode.rows, [name]).column(name).cast(pa.string()).to_pylist()
    return values


def _numpy_dtype(feature: Feature) -> np.dtype[Any]:
    try:
        return np.dtype(feature.dtype)
    except TypeError:
        raise BadRequest(
            "rows-not-numeric",
            f"{feature.name} has dtype '{feature.dtype}', which is no number",
            do=without(feature.name),
        ) from None


def _flat_values(column: pa.ChunkedArray, episode: Episode, feature: Feature) -> NDArray[Any]:
    """All numbers of the column in row order; lists of any depth are opened."""
    array = column.combine_chunks()
    if isinstance(array, pa.ChunkedArray):
        array = pa.concat_arrays(array.chunks) if array.num_chunks else pa.array([], column.type)
    if isinstance(array, pa.ExtensionArray):
        array = array.storage  # `datasets`, where it is loaded, has types of its own for arrays
    width = prod(feature.shape)
    while _is_list(array.type):
        lengths = list_lengths(array)
        if len(array) == episode.length and len(lengths) and (lengths != lengths[0]).any():
            raise ragged(column, episode, feature, width)
        if pa.types.is_fixed_size_list(array.type) and array.null_count:
            raise ragged(column, episode, feature, width)
        array = flattened(array)
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if pa.types.is_boolean(array.type):
        array = array.cast(pa.int8())
    if not (pa.types.is_integer(array.type) or pa.types.is_floating(array.type)):
        raise BadRequest(
            "rows-not-numeric",
            f"{feature.name} is declared {feature.dtype} but stored as {column.type}",
            where=f"{episode.rows.file}, episode {episode.origin.episode}",
            do=mend(feature),
        )
    if array.null_count and _numpy_dtype(feature).kind != "f":
        at = int(np.argmax(array.is_null().to_numpy(zero_copy_only=False)))
        raise BadRequest(
            "rows-null",
            f"{feature.name} is declared {feature.dtype} but is null at frame {at // max(1, width)}",
            where=f"{episode.rows.file}, episode {episode.origin.episode}",
            do=mend(feature),
        )
    return numbers_of(array)


def _as_int64(values: NDArray[Any], episode: Episode, feature: Feature, width: int) -> NDArray[Any]:
    if np.issubdtype(values.dtype, np.integer):
        if values.dtype == np.uint64 and len(values) and values.max() > np.iinfo(np.int64).max:
            raise BadRequest(
                "rows-integer-too-big",
                f"{feature.name} holds {values.max()}, which no int64 can hold",
                where=f"{episode.rows.file}, episode {episode.origin.episode}",
                do=mend(feature),
            )
        return values.astype(np.int64, copy=False)
    with np.errstate(invalid="ignore"):
        whole = np.isfinite(values) & (values == np.round(values)) & (np.abs(values) < 2.0**63)
    if not whole.all():
        at = int(np.argmin(whole))
        raise BadRequest(
            "rows-not-integer",
            f"{feature.name} is declared {feature.dtype} but holds {values[at]} at frame {at // width}",
            where=f"{episode.rows.file}, episode {episode.origin.episode}",
            do=mend(feature),
        )
    return values.astype(np.int64)


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _stamp(file: Path) -> tuple[int, int]:
    try:
        stat = file.stat()
    except FileNotFoundError:
        return (0, 0)
    return (stat.st_mtime_ns, stat.st_size)


def _null_vector(
    file: Path, stamp: tuple[int, int], groups: tuple[int, ...], columns: tuple[str, ...]
) -> BadRequest | None:
    """Which row has no values, where that is why Arrow cannot read a column of fixed-size lists."""
    footer = _footer(file, stamp)
    for column in columns:
        kind = footer.metadata.schema.to_arrow_schema().field(column).type
        if not pa.types.is_fixed_size_list(kind):
            continue
        for group in groups:
            row = footer.starts[group]
            try:
                with pq.ParquetFile(file, metadata=footer.metadata) as parquet:
                    for _ in parquet.iter_batches(1, [group], [column], use_threads=False):
                        row += 1
            except pa.ArrowInvalid as error:
                return (
                    null_row(column, f"row {row} of the file", str(file)) if "size=0" in str(error) else None
                )
            except (pa.ArrowException, OSError):
                return None
    return None


@dataclass(frozen=True)
class _Footer:
    """`starts`: the first row of each row group, and the number of all rows."""

    metadata: pq.FileMetaData
    names: tuple[str, ...]
    starts: tuple[int, ...]


@lru_cache(maxsize=64)
def _footer(file: Path, stamp: tuple[int, int]) -> _Footer:
    with open_parquet(file) as parquet:
        metadata = parquet.metadata
        sizes = (metadata.row_group(group).num_rows for group in range(metadata.num_row_groups))
        return _Footer(metadata, tuple(parquet.schema_arrow.names), tuple(accumulate(sizes, initial=0)))


def _read_groups(
    file: Path, stamp: tuple[int, int], start: int, count: int, columns: tuple[str, ...]
) -> tuple[pa.Table, int]:
    """The row groups that hold the rows, and the position of the first row of the first group."""
    starts = _footer(file, stamp).starts
    groups = tuple(
        group for group, (first, end) in enumerate(pairwise(starts)) if first < start + count and end > start
    )
    table = _read_whole_groups(file, stamp, groups, columns)
    return table, starts[groups[0]] if groups else start


# Other writers put all episodes of a file into one row group: without this, every episode would read the
# whole file again. Columns that were read before are not read twice.
_HELD: OrderedDict[tuple[Path, tuple[int, int], tuple[int, ...]], pa.Table] = OrderedDict()
HELD_TABLES = 2


def _read_whole_groups(
    file: Path, stamp: tuple[int, int], groups: tuple[int, ...], columns: tuple[str, ...]
) -> pa.Table:
    key = (file, stamp, groups)
    held = _HELD.pop(key, None)
    if held is None or not set(columns) <= set(held.column_names):
        more = [name for name in held.column_names if name not in columns] if held is not None else []
        held = _read_columns(file, stamp, groups, (*columns, *more))
    _HELD[key] = held
    while len(_HELD) > HELD_TABLES:
        _HELD.popitem(last=False)
    return held.select(list(columns))


def _read_columns(
    file: Path, stamp: tuple[int, int], groups: tuple[int, ...], columns: tuple[str, ...]
) -> pa.Table:
    try:
        with pq.ParquetFile(file, metadata=_footer(file, stamp).metadata) as parquet:
            table = parquet.read_row_groups(list(groups), columns=list(columns), use_threads=False)
    except (pa.ArrowException, OSError) as error:
        raise _null_vector(file, stamp, groups, columns) or BadRequest(
            "dataset-file-damaged",
            f"the rows cannot be read: {error}",
            where=str(file),
            do="fetch this file again",
        ) from error
    # pyarrow takes `action` for `action.raw` too, and a file may hold a column twice.
    return table.select([table.column_names.index(column) for column in columns])
