"""Statistics of what does not fit into memory: equal to numpy's on what does, in memory that stays."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import stack.dataset.stats_pooled as pooled
from stack.dataset.pool import open_pool
from stack.dataset.stats import vector_stats
from stack.dataset.stats_order import RankSearch, interpolated, ordered_keys, quantile_ranks, values_of
from stack.dataset.stats_pooled import PooledJob, block_stats, pooled_stats
from stack.errors import StackError

QUANTILES = {"q01": 1, "q10": 10, "q50": 50, "q90": 90, "q99": 99}
DTYPES = ("float32", "float64", "int64", "int32", "uint8", "uint64", "bool", "float16")


def blocks_of(values: np.ndarray, size: int):
    return lambda: (values[at : at + size] for at in range(0, len(values), size))


def check(stats, values: np.ndarray) -> None:
    """Order statistics bit for bit as numpy has them; sums to the last digits."""
    exact = values.astype(np.float64)
    for name, percent in QUANTILES.items():
        assert np.array_equal(getattr(stats, name), np.atleast_1d(np.percentile(exact, percent, axis=0))), (
            name
        )
    assert stats.min.tolist() == np.atleast_1d(values.min(axis=0)).tolist()
    assert stats.max.tolist() == np.atleast_1d(values.max(axis=0)).tolist()
    wide = exact.astype(np.longdouble)
    scale = np.abs(exact).max() or 1.0
    np.testing.assert_allclose(stats.mean, np.atleast_1d(wide.mean(axis=0)), rtol=1e-13, atol=1e-13 * scale)
    np.testing.assert_allclose(stats.std, np.atleast_1d(wide.std(axis=0)), rtol=1e-9, atol=1e-13 * scale)
    assert stats.count.tolist() == [len(values)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [1, 2, 7, 1000, 5003])
def test_streaming_gives_what_numpy_gives(dtype, rows):
    rng = np.random.default_rng(rows)
    values = rng.normal(0, 50, (rows, 3))
    values[:, 1] = np.round(values[:, 1] / 40)  # few different values
    values[:, 2] = 3.0  # one
    values = np.abs(values) if dtype.startswith("u") else values
    values = (values > 1) if dtype == "bool" else values.astype(dtype)
    check(block_stats(blocks_of(values, 611), held_bytes_max=0), values)
    check(block_stats(blocks_of(values[:, 0], 100), held_bytes_max=0), values[:, 0])
    check(block_stats(blocks_of(values, 611)), values)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "uint32"])
def test_any_values_at_all(dtype):
    """Random bit patterns, all exponents and signs, with ties and long runs of one value."""
    kind = np.dtype(dtype)
    for seed in range(60):
        rng = np.random.default_rng(seed)
        rows, columns = int(rng.integers(1, 90)), int(rng.integers(1, 4))
        values = rng.integers(0, 256, (rows, columns, kind.itemsize), dtype=np.uint8).view(kind)[..., 0]
        if kind.kind == "f":
            values = np.where(np.abs(values) < 1e30, values, 0).astype(kind)
        again = rng.integers(0, rows, rows)
        values = np.where(rng.random((rows, 1)) < 0.4, values[again], values)
        streamed, held = block_stats(blocks_of(values, 17), held_bytes_max=0), vector_stats(values)
        for name in ("min", "max", *QUANTILES):
            assert getattr(streamed, name).tolist() == getattr(held, name).tolist(), (seed, name)
        for name, percent in QUANTILES.items():
            wanted = np.percentile(values.astype(np.float64), percent, axis=0)
            assert np.array_equal(getattr(streamed, name), wanted), (seed, name)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int64", "uint32", "uint64"])
def test_keys_keep_the_order_and_come_back(dtype):
    rng = np.random.default_rng(3)
    kind = np.dtype(dtype)
    values = np.unique(rng.integers(0, 256, (4000, kind.itemsize), dtype=np.uint8).view(kind))
    values = values[np.isfinite(values)]
    keys = ordered_keys(values)
    assert (keys[1:] > keys[:-1]).all()
    assert np.array_equal(values_of(keys, kind), values)


def test_every_rank_is_found():
    rng = np.random.default_rng(4)
    keys = ordered_keys(rng.normal(size=500).astype(np.float32))
    ranks = tuple(range(0, 500, 7))
    search, done = RankSearch(32), False
    while not done:
        for part in np.array_split(keys, 9):
            search.add(part)
        done = search.end_pass(ranks)
    assert search.keys().tolist() == np.sort(keys)[list(ranks)].tolist()


@pytest.mark.parametrize("rows", [*range(1, 30), 101, 1000, 1001])
def test_interpolation_is_numpys_bit_for_bit(rows):
    values = np.sort(np.random.default_rng(rows).normal(size=(4, rows)), axis=1)
    got = interpolated(rows, values[:, list(quantile_ranks(rows))])
    for name, percent in QUANTILES.items():
        assert np.array_equal(got[name], np.percentile(values, percent, axis=1)), name


@pytest.mark.parametrize("held", [0, 1 << 30])
def test_the_place_of_a_bad_value_is_named(held):
    values = np.zeros((1000, 12), dtype=np.float32)
    values[704, 9] = np.nan
    with pytest.raises(StackError) as caught:
        block_stats(blocks_of(values, 300), where="action", held_bytes_max=held)
    assert caught.value.id == "stats-not-finite"
    assert "row 704" in caught.value.what
    assert "channel 9" in caught.value.what
    assert caught.value.where == "action"


@pytest.mark.parametrize("held", [0, 1 << 30])
def test_nothing_and_texts_are_refused(held):
    for blocks, code in (
        (lambda: iter(()), "stats-no-rows"),
        (lambda: iter([np.array(["a"])]), "stats-not-numeric"),
    ):
        with pytest.raises(StackError) as caught:
            block_stats(blocks, held_bytes_max=held)
        assert caught.value.id == code


def write(file: Path, values: np.ndarray, group: int) -> None:
    kind = pa.list_(pa.float32(), values.shape[1])
    schema = pa.schema([("action", kind), ("action.raw", pa.float64())])
    with pq.ParquetWriter(file, schema) as writer:
        for at in range(0, len(values), group):
            part = np.ascontiguousarray(values[at : at + group])
            lists = pa.FixedSizeListArray.from_arrays(pa.array(part.reshape(-1)), type=kind)
            other = pa.array(np.full(len(part), 7.0))
            writer.write_table(pa.Table.from_arrays([lists, other], schema=schema))


@pytest.mark.parametrize("held", [1 << 30, 1])
def test_packing_changes_nothing(tmp_path, monkeypatch, held):
    monkeypatch.setattr(pooled, "BLOCK_BYTES", 4096)
    monkeypatch.setattr(
        pooled, "block_stats", lambda b, where: block_stats(b, where=where, held_bytes_max=held)
    )
    values = np.random.default_rng(5).normal(1000, 0.01, (3000, 6)).astype(np.float32)
    write(tmp_path / "a.parquet", values[:1100], 37)
    write(tmp_path / "b.parquet", values[1100:], 1)
    write(tmp_path / "c.parquet", values, 3000)
    split = pooled_stats(PooledJob(tmp_path, ("a.parquet", "b.parquet"), "action"))
    whole = pooled_stats(PooledJob(tmp_path, ("c.parquet",), "action"))
    assert split.to_json() == whole.to_json()
    check(whole, values)
    part = pooled_stats(PooledJob(tmp_path, ("c.parquet",), "action", (2, 5)))
    assert part.mean.tolist() == whole.mean[2:5].tolist()
    assert part.q99.tolist() == whole.q99[2:5].tolist()


CHILD = """
import resource, sys
import numpy as np
from stack.dataset.stats_pooled import block_stats
base = np.random.default_rng(0).normal(size=(1 << 14, 32)).astype(np.float32)
blocks = int(sys.argv[1])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
stats = block_stats(lambda: (base + np.float32(n) for n in range(blocks)), held_bytes_max=8 << 20)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before, float(stats.q50[0]), int(stats.count[0]))
"""


def test_memory_does_not_grow_with_the_rows():
    grown = []
    for blocks in (8, 64):
        out = subprocess.run(
            [sys.executable, "-c", CHILD, str(blocks)], capture_output=True, text=True, check=True
        ).stdout.split()
        assert int(out[2]) == blocks << 14
        assert float(out[1]) == pytest.approx((blocks - 1) / 2, abs=0.5)
        grown.append(int(out[0]))
    # 64 blocks are 128 MiB of values, and eight times the first.
    assert grown[1] < grown[0] + 10_000
    assert grown[1] < 80_000


READER = """
import resource, sys
from pathlib import Path
from stack.dataset.stats_pooled import written_blocks
file = Path(sys.argv[1])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
rows = sum(len(block) for block in written_blocks(file.parent, (file.name,), "action", (8, 16)))
print(rows, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_a_large_row_group_is_never_held_as_a_whole(tmp_path):
    rows, width = 1 << 19, 64  # 128 MiB
    few = np.random.default_rng(2).normal(size=(64, width)).astype(np.float32)
    values = pa.array(few.repeat(rows // 64, axis=0).reshape(-1))
    table = pa.table({"action": pa.FixedSizeListArray.from_arrays(values, width)})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=rows)
    command = [sys.executable, "-c", READER, str(tmp_path / "a.parquet")]
    read, grown = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert int(read) == rows
    assert int(grown) < 90_000


@pytest.mark.parametrize("jobs", [1, 2])
def test_shared_out_by_channels_and_joined(tmp_path, monkeypatch, jobs):
    rng = np.random.default_rng(8)
    values = rng.normal(3, 2, (500, 11)).astype(np.float32)
    lists = pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), 11)
    table = pa.table({"state": lists, "n": pa.array(np.arange(500))})
    pq.write_table(table.slice(0, 200), tmp_path / "a.parquet", row_group_size=90)
    pq.write_table(table.slice(200), tmp_path / "b.parquet")
    taken = []
    right = pooled.pooled_stats
    kinds = {"state": np.dtype(("f4", (11,))), "n": np.dtype(("i8", (1,)))}
    if jobs == 1:
        monkeypatch.setattr(pooled, "pooled_stats", lambda job: (taken.append(job), right(job))[1])
    monkeypatch.setattr(pooled, "BYTES_A_JOB", 8000)
    with open_pool(jobs) as pool:
        paths = ("a.parquet", "b.parquet")
        got = pooled.Pooling(tmp_path, paths, kinds, 500, pool, tmp_path / "scratch").result()
    check(got["state"], values)
    check(got["n"], np.arange(500))
    assert got["state"].q50.shape == (11,)
    if jobs == 1:
        assert [job.feature for job in taken] == ["n"]  # the other one is turned, see test_stats_columns.py
