"""A batch of one column as numbers: lists opened, however deep; nulls and odd widths kept in mind."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from stack.audit.rows import Array
from stack.dataset.arrow import numbers_of


@dataclass(frozen=True)
class Part:
    """Rows from `start` on, as one batch has them.

    Attributes:
        values: (n, D), NaN where a row is null; None where rows are of several widths or no numbers, and
            once the values have been put elsewhere.
        widths: (n,) of each row; -1 where it is null.
        nulls: (n,) rows that hold a null, whole or in one element.
        loose: the values of rows of several widths, one row after another.
        is_numeric: whether there were values.
    """

    start: int
    values: Array | None
    widths: NDArray[np.int64]
    nulls: NDArray[np.bool_]
    loose: Array | None = None
    is_numeric: bool = True

    def of_width(self, width: int) -> tuple[NDArray[np.int64], Array]:
        """Which rows of `loose` have this width, counted from `start`, and their values (m, width)."""
        assert self.loose is not None
        rows = np.flatnonzero(self.widths == width)
        first = np.cumsum(np.maximum(self.widths, 0))[rows] - width
        return rows, self.loose[first[:, None] + np.arange(width)]


def is_light(type_: pa.DataType) -> bool:
    while pa.types.is_list(type_) or pa.types.is_large_list(type_) or pa.types.is_fixed_size_list(type_):
        type_ = type_.value_type
    return bool(pa.types.is_integer(type_) or pa.types.is_floating(type_) or pa.types.is_boolean(type_))


def opaque(rows: int, start: int) -> Part:
    return Part(start, None, _all(rows, 1), _none(rows), is_numeric=False)


def _all(rows: int, width: int) -> NDArray[np.int64]:
    """(rows,) of the same width, in the memory of one number; not to be written to."""
    return np.broadcast_to(np.int64(width), (rows,))


def _none(rows: int) -> NDArray[np.bool_]:
    """(rows,) of False, in the memory of one; not to be written to."""
    return np.broadcast_to(np.False_, (rows,))


def part_of(array: pa.Array, start: int) -> Part:
    """Flatten lists, however deep: (n, width) where every non-null row has the same width."""
    rows = len(array)
    widths: NDArray[np.int64] = _all(rows, 1)
    nulls = _nulls(array)
    first = True
    while not (pa.types.is_primitive(array.type) or pa.types.is_boolean(array.type)):
        import pyarrow.compute as pc  # takes longer than the audit of a small dataset's form

        lengths = pc.list_value_length(array)
        lengths = numbers_of(pc.fill_null(lengths, 0) if array.null_count else lengths).astype(np.int64)
        if first:
            widths = lengths
        else:
            # An inner level keeps the outer rows apart only where all inner lists are equally long.
            inner = set(lengths.tolist())
            widths = widths * inner.pop() if len(inner) == 1 else np.full(rows, -1, np.int64)
        array, first = array.flatten(), False
    widths = np.where(nulls, -1, widths) if nulls.any() else widths
    leaf_nulls = _nulls(array)
    flat = _numbers(array)
    if first:
        return Part(start, flat.reshape(rows, 1), widths, nulls)
    good = widths[widths >= 0]
    if not len(good) or (good != good[0]).any() or len(flat) != int(good.sum()):
        return _ragged(flat, leaf_nulls, widths, nulls, start)
    width = int(good[0])
    values: Array = flat.reshape(-1, width) if width else np.zeros((len(good), 0))
    if len(good) == rows and not leaf_nulls.any():
        return Part(start, values, _all(rows, width), nulls)
    if len(good) < rows:
        whole = np.full((rows, width), np.nan, np.result_type(np.float32, values))
        whole[widths >= 0] = values
        values = whole
    if leaf_nulls.any() and width:
        nulls = nulls.copy()
        nulls[np.flatnonzero(widths >= 0)[leaf_nulls.reshape(-1, width).any(axis=1)]] = True
    return Part(start, values, widths, nulls)


def _ragged(
    flat: Array,
    leaf_nulls: NDArray[np.bool_],
    widths: NDArray[np.int64],
    nulls: NDArray[np.bool_],
    start: int,
) -> Part:
    """Rows of unequal widths, or none that is there."""
    good = widths[widths >= 0]
    if not len(good) or len(flat) != int(good.sum()):
        return Part(start, None, widths, nulls, is_numeric=False)
    nulls = nulls.copy()
    nulls[np.repeat(np.arange(len(widths)), np.maximum(widths, 0))[leaf_nulls]] = True
    return Part(start, None, widths, nulls, loose=flat.copy())


def _numbers(array: pa.Array) -> Array:
    """(n,) values, NaN where null; whole numbers as int64, those that may be beyond it as float64."""
    if pa.types.is_boolean(array.type):
        array = array.cast(pa.uint8())
    if pa.types.is_integer(array.type):
        wide = pa.float64() if array.null_count or pa.types.is_uint64(array.type) else pa.int64()
        # A cast imports `pyarrow.compute`.
        array = array if array.type == wide else array.cast(wide, safe=False)
    elif pa.types.is_float16(array.type):
        array = array.cast(pa.float32())
    return numbers_of(array)


def _nulls(array: pa.Array) -> NDArray[np.bool_]:
    if not array.null_count:
        return _none(len(array))
    return numbers_of(array.is_null().cast(pa.uint8())).astype(np.bool_)
