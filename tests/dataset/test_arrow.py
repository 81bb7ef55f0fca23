"""Arrow arrays as numpy sees them, and that this costs no import of pandas."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stack.dataset.arrow import array_of, flattened, list_lengths, numbers_of, values_of

KINDS = [pa.int8(), pa.int64(), pa.uint16(), pa.uint64(), pa.float16(), pa.float32(), pa.float64()]


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_numbers_come_as_they_are(kind):
    values = np.arange(10).astype(kind.to_pandas_dtype())
    array = pa.array(values, type=kind)
    for part in (array, array.slice(3, 4), array.slice(10, 0)):
        got = numbers_of(part)
        assert got.dtype == values.dtype
        assert got.tolist() == part.to_pylist()


def test_nulls_become_nan_and_texts_stay():
    assert np.isnan(numbers_of(pa.array([1.0, None]))).tolist() == [False, True]
    assert numbers_of(pa.array(["a", "b"])).tolist() == ["a", "b"]
    assert numbers_of(pa.array([True, False])).tolist() == [True, False]


def test_a_list_in_a_slice_keeps_its_own_values():
    lists = pa.FixedSizeListArray.from_arrays(pa.array(np.arange(12, dtype=np.float32)), 3)
    assert numbers_of(lists.slice(1, 2).flatten()).tolist() == [3, 4, 5, 6, 7, 8]


LISTS = [
    pa.list_(pa.float32()),
    pa.large_list(pa.float64()),
    pa.list_(pa.int64(), 3),
    pa.list_(pa.list_(pa.float32())),
    pa.list_(pa.list_(pa.int32(), 2), 3),
]


def random_lists(rng: np.random.Generator, kind: pa.DataType, count: int, nulls: float) -> list:
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)):
        return rng.integers(0, 100, count).tolist()
    made = []
    for _ in range(count):
        length = kind.list_size if pa.types.is_fixed_size_list(kind) else int(rng.integers(0, 5))
        is_null = rng.random() < nulls
        made.append(None if is_null else random_lists(rng, kind.value_type, length, nulls))
    return made


@pytest.mark.parametrize("nulls", [0.0, 0.3])
@pytest.mark.parametrize("kind", LISTS, ids=str)
def test_lists_are_opened_and_counted_as_python_does(kind, nulls):
    rng = np.random.default_rng(9)
    for count in [0, 1, 2, 5, 9] * 4:
        whole = pa.array(random_lists(rng, kind, count, nulls), type=kind)
        first = int(rng.integers(0, count + 1))
        for array in (whole, whole.slice(first), whole.slice(first, 2)):
            lists = array.to_pylist()
            assert list_lengths(array).tolist() == [-1 if v is None else len(v) for v in lists]
            assert flattened(array).to_pylist() == [entry for v in lists if v is not None for entry in v]


def test_rows_are_read_without_arrows_functions(tmp_path):
    """They take longer to import than a small dataset takes to read."""
    kind = pa.list_(pa.float32())
    for fixed in (kind, pa.list_(pa.float32(), 2)):
        pq.write_table(pa.table({"a": pa.array([[1.5, 2], [3, 4]], fixed)}), tmp_path / f"{fixed == kind}")
    code = (
        "import sys; from pathlib import Path; from stack.dataset.model import *; "
        "from stack.dataset.rows import column_array\n"
        "for file in sys.argv[1:]:\n"
        "    e = Episode(0, 2, (), RowsRef(Path(file), 0, 2), {}, Origin('d', 0))\n"
        "    print(column_array(e, Feature('a', 'float32', (2,))).tolist(), 'pyarrow.compute' in sys.modules)"
    )
    files = [str(tmp_path / name) for name in ("True", "False")]
    done = subprocess.run([sys.executable, "-c", code, *files], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["[[1.5, 2.0], [3.0, 4.0]] False"] * 2


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([3, 1, 2**60], pa.int64()),
        ([0.1, -2.0], pa.float64()),
        (["fold", "把毛巾", ""], pa.string()),
        ([["a", "b"], [], ["把"]], pa.list_(pa.string())),
        ([[1.5, 2.5], [], [3.5]], pa.list_(pa.float64())),
        ([[[[0.5]], [[0.25]]], [[[1.0]], [[2.0]]]], pa.list_(pa.list_(pa.list_(pa.float64())))),
        ([], pa.string()),
    ],
    ids=str,
)
def test_python_values_as_pyarrow_makes_them(values, kind):
    got = values_of(values, kind)
    got.validate(full=True)
    assert got.equals(pa.array(values, type=kind))


@pytest.mark.parametrize("dtype", ["int64", "float32", "float64", "uint8", "bool"])
def test_there_and_back(dtype):
    values = np.arange(7).astype(dtype)
    kind = pa.from_numpy_dtype(dtype)
    assert array_of(values, kind).equals(pa.array(values, type=kind))
    assert array_of(values[::2], kind).to_pylist() == values[::2].tolist()
    assert array_of(values, pa.float32()).to_pylist() == values.astype("float32").tolist()


def test_pandas_is_not_imported():
    code = (
        "import sys; import numpy as np; import pyarrow as pa; from stack.dataset.arrow import *; "
        "print(numbers_of(array_of(np.array([1.5, 2.5]), pa.float64())).tolist(), 'pandas' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[1.5, 2.5] False"
