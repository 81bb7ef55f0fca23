"""Rows read in batches give what a plain reader gives, and a file that breaks off leaves nothing behind."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stack.audit.evidence import Evidence
from stack.audit.rows import Column
from stack.audit.trouble import Trouble

WIDTH = 3


def made(kind: str, count: int, rng: random.Random) -> pa.Array:
    def vector() -> list[float]:
        return [rng.choice([rng.random(), 3.0, float("nan")]) for _ in range(WIDTH)]

    floats = pa.list_(pa.float32())
    match kind:
        case "scalar":
            return pa.array([rng.random() for _ in range(count)], pa.float32())
        case "double":
            return pa.array([rng.choice([1e300, rng.random()]) for _ in range(count)], pa.float64())
        case "whole":
            return pa.array([rng.randrange(9) for _ in range(count)], pa.int32())
        case "whole with nulls":
            return pa.array([rng.choice([None, 1, 2, 3]) for _ in range(count)], pa.int64())
        case "yes or no":
            return pa.array([rng.random() < 0.5 for _ in range(count)])
        case "half":
            return pa.array(np.array([rng.random() for _ in range(count)], np.float16))
        case "vector":
            return pa.array([vector() for _ in range(count)], floats)
        case "fixed vector":
            return pa.array([vector() for _ in range(count)], pa.list_(pa.float32(), WIDTH))
        case "null rows":
            return pa.array([rng.choice([None, vector()]) for _ in range(count)], floats)
        case "null elements":
            return pa.array([[rng.choice([None, x]) for x in vector()] for _ in range(count)], floats)
        case "odd widths":
            return pa.array([rng.choice([vector(), vector(), [1.0]]) for _ in range(count)], floats)
        case "matrix":
            return pa.array([[vector(), vector()] for _ in range(count)], pa.list_(floats))
        case "text":
            return pa.array(["a"] * count)
    raise AssertionError(kind)


KINDS = (
    "scalar", "double", "whole", "whole with nulls", "yes or no", "half", "vector", "fixed vector",
    "null rows", "null elements", "odd widths", "matrix", "text",
)  # fmt: skip


def flat(value: Any) -> list[Any] | None:
    """A row as a flat list; None where the row is null."""
    if isinstance(value, list):
        return [leaf for item in value for leaf in flat(item) or [None]]
    return None if value is None else [value]


def by_hand(rows: list[Any]) -> tuple[int, list[int], list[int], list[tuple[int, int]], list[list[float]]]:
    """(width, rows present, rows with a null, (row, width) of odd ones, values) from Python objects."""
    flats = [flat(row) for row in rows]
    widths = [len(row) for row in flats if row is not None]
    width = int(np.bincount(widths).argmax())
    nulls = [i for i, row in enumerate(flats) if row is None or None in row]
    odd = [(i, len(row)) for i, row in enumerate(flats) if row and len(row) != width and None not in row]
    fits = [i for i, row in enumerate(flats) if row and len(row) == width and None not in row]
    nothing = [float("nan")] * width
    values = [
        [float("nan") if x is None else float(x) for x in row] if row and len(row) == width else nothing
        for row in flats
    ]
    return width, fits, nulls, odd, values


def delivery(root: Path, tables: list[pa.Table], *, group_rows: int) -> Evidence:
    (root / "meta").mkdir(parents=True)
    (root / "data/chunk-000").mkdir(parents=True)
    path = "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet"
    info = {"codebase_version": "v2.1", "fps": 10, "chunks_size": 1000, "data_path": path, "features": {}}
    (root / "meta/info.json").write_text(json.dumps(info))
    lines = [json.dumps({"episode_index": e, "length": len(t), "tasks": []}) for e, t in enumerate(tables)]
    (root / "meta/episodes.jsonl").write_text("".join(f"{line}\n" for line in lines))
    for episode, table in enumerate(tables):
        file = root / path.format(episode_chunk=0, episode_index=episode)
        pq.write_table(table, file, row_group_size=group_rows)
    return Evidence(root)


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stack.audit.rows_load.ROWS_AT_ONCE", 7)


@pytest.mark.usefixtures("small_batches")
@pytest.mark.parametrize("kind", KINDS)
def test_batches_give_what_a_plain_reader_gives(kind: str, tmp_path: Path) -> None:
    rng = random.Random(kind)
    arrays = [made(kind, count, rng) for count in (20, 1, 31)]
    for group_rows in (3, 10, 1000):
        root = tmp_path / str(group_rows)
        rows = delivery(root, [pa.table({"x": a}) for a in arrays], group_rows=group_rows).rows
        column = rows.columns["x"]
        stored = [value for array in arrays for value in array.to_pylist()]
        assert rows.count == len(stored)
        assert [(s.episode, s.start, s.count) for s in rows.spans] == [(0, 0, 20), (1, 20, 1), (2, 21, 31)]
        assert list(column.types.values()) == [rows.files[0][0]]
        if kind == "text":
            assert column.values is None and column.present.all()
            continue
        width, fits, nulls, odd, values = by_hand(stored)
        assert column.values is not None and column.width == width
        assert np.flatnonzero(column.present).tolist() == fits
        assert column.null_rows == nulls
        assert column.odd_widths == odd
        np.testing.assert_array_equal(column.values.astype(np.float64), values)


@pytest.mark.usefixtures("small_batches")
def test_files_that_disagree_are_joined_as_numbers(tmp_path: Path) -> None:
    kinds = ("vector", "text", "fixed vector", "null rows", "vector")
    rng = random.Random(0)
    arrays = [made(kind, 9, rng) for kind in kinds]
    tables = [pa.table({"x": a, "y": pa.array(range(9))}) for a in arrays]
    tables.insert(2, pa.table({"y": pa.array(range(9))}))
    rows = delivery(tmp_path / "d", tables, group_rows=4).rows
    column = rows.columns["x"]
    assert column.absent_in == [rows.files[2][0]]
    numbers = [v for k, a in zip(kinds, arrays, strict=True) if k != "text" for v in a.to_pylist()]
    _, fits, _, _, values = by_hand(numbers)
    there = [*range(9), *range(27, 54)]  # neither those of the text nor those of the file without it
    assert np.flatnonzero(column.present).tolist() == [there[i] for i in fits]
    assert column.values is not None
    np.testing.assert_array_equal(column.values[there], np.array(values, np.float32))
    assert np.isnan(column.values[9:27]).all()
    assert rows.columns["y"].whole_numbers().tolist() == [*range(9)] * 6  # type: ignore[union-attr]


@pytest.mark.usefixtures("small_batches")
def test_a_file_that_breaks_off_leaves_nothing_behind(tmp_path: Path) -> None:
    rng = random.Random(1)
    tables = [pa.table({"x": made("vector", 20, rng)}) for _ in range(3)]
    evidence = delivery(tmp_path / "d", tables, group_rows=10)
    file = tmp_path / "d/data/chunk-000/episode_000001.parquet"
    last = pq.ParquetFile(file).metadata.row_group(1).column(0)
    content = bytearray(file.read_bytes())
    start = last.dictionary_page_offset or last.data_page_offset
    content[start : start + 8] = b"\xff" * 8  # the page's header
    file.write_bytes(content)
    assert len(pq.ParquetFile(file).read_row_group(0)) == 10
    rows = evidence.rows
    assert rows.unread == ("data/chunk-000/episode_000001.parquet",)
    assert [p.file for p in evidence.problems] == list(rows.unread)
    assert [(s.episode, s.start, s.count) for s in rows.spans] == [(0, 0, 20), (2, 20, 20)]
    column: Column = rows.columns["x"]
    _, fits, _, _, values = by_hand(tables[0]["x"].to_pylist() + tables[2]["x"].to_pylist())
    assert column.values is not None and np.flatnonzero(column.present).tolist() == fits
    np.testing.assert_array_equal(column.values, np.array(values, np.float32))


def test_a_column_that_only_a_broken_file_has_is_not_there(tmp_path: Path) -> None:
    rng = random.Random(1)
    tables = [pa.table({name: made("vector", 20, rng)}) for name in ("x", "y")]
    evidence = delivery(tmp_path / "d", tables, group_rows=10)
    file = tmp_path / "d/data/chunk-000/episode_000001.parquet"
    content = bytearray(file.read_bytes())
    content[4:12] = b"\xff" * 8
    file.write_bytes(content)
    assert list(evidence.rows.columns) == ["x"]
    assert evidence.rows.columns["x"].absent_in == []


def test_a_footer_that_promises_other_rows_is_told(tmp_path: Path) -> None:
    """FileMetaData.num_rows is field 3, after the schema: a zigzag varint of twice the number."""
    evidence = delivery(tmp_path / "d", [pa.table({"x": pa.array(range(64))})], group_rows=1000)
    file = tmp_path / "d/data/chunk-000/episode_000000.parquet"
    content = file.read_bytes()
    footer_at = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    at = content.index(b"\x16\x80\x01", footer_at)
    file.write_bytes(content[:at] + b"\x16\x82\x01" + content[at + 3 :])
    assert pq.ParquetFile(file).metadata.num_rows == 65
    assert evidence.rows.unread == ("data/chunk-000/episode_000000.parquet",)
    (problem,) = evidence.problems
    assert problem.trouble == Trouble.UNREADABLE
    assert "65 rows" in problem.detail and "64" in problem.detail
