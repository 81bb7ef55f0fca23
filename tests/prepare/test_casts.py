"""Casts and common dtypes: a value that is written is the value that was stored, or there is no output."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stack.errors import StackError
from stack.prepare import prepare

INTEGERS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32"]
BOUNDS = sorted({sign * 2**bits for sign in (1, -1) for bits in (0, 7, 8, 15, 16, 24, 31, 32, 53, 62, 63)})
NS = 1_700_000_000_123_456_789  # nanoseconds since 1970: float64 has steps of 256 there
STAMPS = [NS, NS + 1, 2**53 + 1, 5]


def near_bounds(dtype: str) -> np.ndarray:
    """Every bound that some integer has and its neighbours, as far as a dtype holds them."""
    kind = np.dtype(dtype)
    numbers = sorted({bound + near for bound in BOUNDS for near in (-1, 0, 1)})
    if kind.kind == "f":
        floats = np.array([float(number) for number in numbers]).astype(kind)
        around = [floats, np.nextafter(floats, kind.type(0)), np.nextafter(floats, kind.type(np.inf))]
        return np.unique(np.concatenate(around))
    held = np.iinfo(kind)
    return np.array([n for n in numbers if held.min <= n <= min(held.max, 2**63 - 1)], kind)


@pytest.fixture
def make(deliveries: ModuleType, tmp_path: Path) -> Any:
    """A v2.1 delivery of one episode, with scalar features `name: (dtype, values)` of one length."""

    def write(folder: str, **features: tuple[str, Any]) -> Path:
        length = len(next(iter(features.values()))[1])
        wanted = deliveries.Delivery(lengths=(length,), cameras=())
        root: Path = deliveries.write_delivery(tmp_path / folder, wanted)

        def add(table: pa.Table) -> pa.Table:
            for name, (dtype, values) in features.items():
                table = table.append_column(name, pa.array(np.asarray(values, dtype)))
            return table

        deliveries.edit_rows(root, 0, add)
        told = {name: {"dtype": dtype, "shape": [1], "names": None} for name, (dtype, _) in features.items()}
        deliveries.edit_info(root, lambda info: info["features"].update(told))
        return root

    return write


def written(out: Path, name: str) -> list[Any]:
    files = sorted(out.glob("data/*/*.parquet"))
    return list(pa.concat_tables(pq.read_table(file) for file in files).column(name).to_pylist())


@pytest.mark.parametrize("source", [*INTEGERS, "uint64", "float32", "float64"])
@pytest.mark.parametrize("target", [*INTEGERS, "bool"])
def test_each_value_near_a_bound_is_cast_exactly_or_refused(
    make: Any, load: Any, tmp_path: Path, source: str, target: str
) -> None:
    low, high = (0, 1) if target == "bool" else (np.iinfo(target).min, np.iinfo(target).max)
    values = near_bounds(source)
    fits = np.array([v == int(v) and low <= int(v) <= high for v in values.tolist()])
    manifest = f"sources: [{{path: src}}]\ncast: {{x: {target}}}\n"
    make("src", x=(source, values[fits]))
    prepare(load(manifest), out=tmp_path / "out", jobs=1)
    assert [int(v) for v in written(tmp_path / "out", "x")] == [int(v) for v in values[fits].tolist()]
    # Of the others the nearest to each bound, alone, so that no other one is the reason.
    wrong = values[~fits]
    near = {int(np.argmin(np.abs(wrong.astype(float) - float(bound)))) for bound in (low, high) if len(wrong)}
    for number in near:
        make(f"wrong-{number}", x=(source, [wrong[number]] * 2))
        with pytest.raises(StackError) as caught:
            prepare(load(manifest.replace("src", f"wrong-{number}")), out=tmp_path / "no", jobs=1)
        assert caught.value.id == "rows-cast-lossy" and "at frame 0, channel 0" in caught.value.what


@pytest.mark.parametrize("other", ["float32", "float64", "int8", "uint64"])
def test_integers_keep_every_digit_beside_other_dtypes_in_one_feature(
    make: Any, load: Any, tmp_path: Path, other: str
) -> None:
    make("src", stamp=("int64", STAMPS), f=(other, [1, 2, 3, 4]))
    text = "sources: [{path: src}]\nfeatures: {action: [{from: action}], y: [{from: f}, {from: stamp}]}\n"
    prepare(load(text + "cast: {y: int64}\n"), out=tmp_path / "out", jobs=1)
    assert written(tmp_path / "out", "y") == [[n + 1, stamp] for n, stamp in enumerate(STAMPS)]
    with pytest.raises(StackError) as caught:
        prepare(load(text + "cast: {y: uint32}\n"), out=tmp_path / "no", jobs=1)
    assert f"y holds {NS} at frame 0, channel 1" in caught.value.what


def test_signed_and_unsigned_integers_of_one_feature_stay_integers(
    make: Any, load: Any, tmp_path: Path
) -> None:
    make("a", stamp=("int64", STAMPS))
    make("b", stamp=("uint64", STAMPS))
    prepare(load("sources: [{path: a}, {path: b}]\n"), out=tmp_path / "out", jobs=1)
    assert written(tmp_path / "out", "stamp") == STAMPS * 2
    info = json.loads((tmp_path / "out/meta/info.json").read_text())
    assert info["features"]["stamp"]["dtype"] == "int64"
    make("c", i=("int64", STAMPS), u=("uint64", STAMPS))
    text = "sources: [{path: c}]\nfeatures: {action: [{from: action}], y: [{from: i}, {from: u}]}\n"
    prepare(load(text), out=tmp_path / "sliced", jobs=1)
    assert written(tmp_path / "sliced", "y") == [[stamp, stamp] for stamp in STAMPS]
