"""Arrow arrays as numpy arrays, and back.

`pyarrow.array` and `to_numpy` import pandas, which takes longer than reading a small dataset does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray


def numbers_of(array: pa.Array) -> NDArray[Any]:
    """A view of an array of numbers without nulls; a copy of any other, a null being NaN."""
    kind = array.type
    plain = (pa.types.is_integer(kind) or pa.types.is_floating(kind)) and array.null_count == 0
    if not plain or len(array) == 0:
        copied: NDArray[Any] = array.to_numpy(zero_copy_only=False)
        return copied
    dtype = _dtype(kind)
    data = array.buffers()[1]
    return np.frombuffer(data, dtype=dtype, count=len(array), offset=array.offset * dtype.itemsize)


def list_lengths(array: pa.Array) -> NDArray[np.int64]:
    """(n,) how many entries each list has; -1 for a null."""
    lengths: NDArray[np.int64]
    if pa.types.is_fixed_size_list(array.type):
        lengths = np.full(len(array), array.type.list_size, dtype=np.int64)
    else:
        lengths = np.diff(numbers_of(array.offsets)).astype(np.int64)
    if array.null_count:
        lengths[array.is_null().to_numpy(zero_copy_only=False)] = -1
    return lengths


def flattened(array: pa.Array) -> pa.Array:
    """The entries of all lists, one level opened; null lists have none.

    Arrow's own `flatten` imports functions that take longer than reading a small dataset does.
    """
    if array.null_count or not len(array):
        return array.flatten()
    if pa.types.is_fixed_size_list(array.type):
        size = array.type.list_size
        return array.values.slice(array.offset * size, len(array) * size)
    offsets = numbers_of(array.offsets)
    return array.values.slice(int(offsets[0]), int(offsets[-1] - offsets[0]))


def array_of(values: NDArray[Any], kind: pa.DataType) -> pa.Array:
    """(n,) numbers as an array of a numeric type, cast where they have another."""
    if pa.types.is_boolean(kind) or values.dtype.kind not in "iuf":
        return pa.array(values, type=kind)
    plain = np.ascontiguousarray(values, dtype=_dtype(kind))
    return pa.Array.from_buffers(kind, len(plain), [None, pa.py_buffer(plain)])


def values_of(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Python numbers, texts, or lists of them to any depth, none of them None, as an array of a type."""
    if pa.types.is_list(kind):
        lengths = np.array([len(value) for value in values], dtype=np.int64)
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        inner = values_of([item for value in values for item in value], kind.value_type)
        return pa.ListArray.from_arrays(array_of(offsets, pa.int32()), inner, type=kind)
    if pa.types.is_string(kind):
        texts = [value.encode() for value in values]
        ends = np.cumsum([0, *map(len, texts)]).astype(np.int32)
        buffers = [None, pa.py_buffer(ends.tobytes()), pa.py_buffer(b"".join(texts))]
        return pa.Array.from_buffers(kind, len(texts), buffers)
    return array_of(np.array(values, dtype=_dtype(kind)), kind)


def nested_of(values: NDArray[Any]) -> pa.Array:
    """(n, ...) numbers as lists to that depth: int64 for whole numbers, double for the rest.

    Raises:
        pa.ArrowInvalid: a whole number that no int64 holds.
    """
    flat = values.reshape(-1)
    whole = flat.dtype.kind in "iub"
    if flat.dtype.kind == "u" and len(flat) and int(flat.max()) > np.iinfo(np.int64).max:
        raise pa.ArrowInvalid(f"{flat.max()} does not fit into int64")
    array = array_of(flat.astype(np.int64 if whole else np.float64), pa.int64() if whole else pa.float64())
    for axis in range(values.ndim - 1, 0, -1):
        count, size = int(np.prod(values.shape[:axis])), values.shape[axis]
        offsets = np.arange(count + 1, dtype=np.int32) * size
        array = pa.ListArray.from_arrays(array_of(offsets, pa.int32()), array)
    return array


def _dtype(kind: pa.DataType) -> np.dtype[Any]:
    # Arrow's own translation imports pandas as well.
    return np.dtype(
        {"halffloat": "float16", "float": "float32", "double": "float64"}.get(str(kind), str(kind))
    )
