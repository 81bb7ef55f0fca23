"""Features turned on disk against numpy, whatever the packing, and what goes wrong there."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import stack.dataset.stats_columns as columns
import stack.dataset.stats_pooled as pooled
from stack.dataset.pool import open_pool
from stack.dataset.stats_pooled import Pooling
from stack.errors import BadRequest, WorkFailed

QUANTILES = {"q01": 1, "q10": 10, "q50": 50, "q90": 90, "q99": 99}


def lists(values: np.ndarray) -> pa.Array:
    """Fixed-size lists, or lists of lists where a frame has two dimensions."""
    flat = pa.array(values.reshape(-1))
    if values.ndim == 2:
        return pa.FixedSizeListArray.from_arrays(flat, values.shape[1])
    inner = pa.ListArray.from_arrays(np.arange(0, values.size + 1, values.shape[2], dtype=np.int32), flat)
    return pa.ListArray.from_arrays(np.arange(0, len(inner) + 1, values.shape[1], dtype=np.int32), inner)


def write(folder, values: dict[str, np.ndarray], cuts: list[int], group: int) -> tuple[str, ...]:
    """One file between two cuts."""
    rows = len(next(iter(values.values())))
    names = []
    for n, (first, stop) in enumerate(zip([0, *cuts], [*cuts, rows], strict=True)):
        arrays = {
            name: lists(v[first:stop]) if v.ndim > 1 else pa.array(v[first:stop])
            for name, v in values.items()
        }
        names.append(f"{n}.parquet")
        pq.write_table(pa.table(arrays), folder / names[-1], row_group_size=group)
    return tuple(names)


def pooling(folder, paths, values, pool) -> Pooling:
    kinds = {name: np.dtype((v.dtype, v.shape[1:] or (1,))) for name, v in values.items()}
    rows = len(next(iter(values.values())))
    return Pooling(folder, paths, kinds, rows, pool, folder / "scratch" / "turned")


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(pooled, "BYTES_A_JOB", 2000)
    monkeypatch.setattr(pooled, "PIECE_BYTES", 5000)
    monkeypatch.setattr(columns, "COUNT_BYTES", 7000)
    monkeypatch.setattr(columns, "BLOCK_BYTES", 1500)
    monkeypatch.setattr(columns, "VALUES_AT_ONCE", 1300)


@pytest.mark.parametrize("jobs", [1, 2])
@pytest.mark.parametrize(("cuts", "group"), [([], 600), ([1, 3, 250], 90), ([300], 1)])
def test_equal_to_numpy_however_packed(tmp_path, small, jobs, cuts, group):
    rng = np.random.default_rng(3)
    rows = 600
    values = {
        "state": rng.normal(1000, 0.01, (rows, 11)).astype(np.float32),
        "state.raw": rng.normal(0, 1, (rows, 3)),  # pyarrow reads it where `state` is asked for
        "wide": rng.integers(-(2**40), 2**40, (rows, 5)),
        "table": rng.normal(-3, 9, (rows, 2, 4)).astype(np.float32),
        "index": np.arange(rows),
        "still": np.full((rows, 4), 0.1, np.float32),
    }
    paths = write(tmp_path, values, cuts, group)
    with open_pool(jobs) as pool:
        own = pooling(tmp_path, paths, values, pool)
        assert (tmp_path / "scratch" / "turned").is_dir()
        own.go_on()
        found = own.result()
    assert not (tmp_path / "scratch" / "turned").exists()
    assert list(found) == list(values)
    for name, raw in values.items():
        exact, got = raw.reshape(rows, -1).astype(np.float64), found[name]
        assert got.count.tolist() == [rows]
        assert got.min.tolist() == raw.reshape(rows, -1).min(axis=0).tolist()
        assert got.max.tolist() == raw.reshape(rows, -1).max(axis=0).tolist()
        np.testing.assert_allclose(got.mean, exact.mean(axis=0), rtol=1e-14)
        centred = exact - exact.mean(axis=0)
        np.testing.assert_allclose(got.std, np.sqrt((centred**2).mean(axis=0)), rtol=1e-9, atol=1e-18)
        for quantile, percent in QUANTILES.items():
            assert getattr(got, quantile).tolist() == np.percentile(exact, percent, axis=0).tolist(), name
    assert found["still"].std.tolist() == [0.0] * 4


def test_packing_and_workers_change_no_bit(tmp_path, small):
    values = {"state": np.random.default_rng(4).normal(7, 1e-3, (900, 9)).astype(np.float32)}
    found = []
    for n, (cuts, group, jobs) in enumerate([([], 900, 1), ([10, 20, 500], 33, 2)]):
        folder = tmp_path / str(n)
        folder.mkdir()
        with open_pool(jobs) as pool:
            found.append(pooling(folder, write(folder, values, cuts, group), values, pool).result()["state"])
    assert found[0].to_json() == found[1].to_json()


def test_every_row_and_channel_is_turned_once(tmp_path, small):
    """Each channel counts rows by a value of its own, so that a shifted block or channel would show."""
    rows, width = 700, 13
    values = {"state": np.arange(rows * width, dtype=np.float32).reshape(rows, width)}
    with open_pool(1) as pool:
        found = pooling(tmp_path, write(tmp_path, values, [333], 50), values, pool).result()["state"]
    assert found.min.tolist() == list(range(width))
    assert found.max.tolist() == [(rows - 1) * width + n for n in range(width)]
    assert found.q50.tolist() == [(rows - 1) / 2 * width + n for n in range(width)]


def test_a_value_that_is_not_finite_is_told_by_its_row(tmp_path, small):
    values = {"state": np.zeros((800, 6), np.float32), "index": np.arange(800)}
    values["state"][617, 4] = np.inf
    paths = write(tmp_path, values, [100, 600], 40)
    with open_pool(1) as pool, pytest.raises(BadRequest) as caught:
        pooling(tmp_path, paths, values, pool).result()
    assert (caught.value.id, caught.value.where) == ("stats-not-finite", "state")
    assert "row 617, channel 4" in caught.value.what


def test_scratch_that_was_cut_is_told(tmp_path, small):
    values = {"state": np.ones((800, 6), np.float32)}
    with open_pool(1) as pool:
        own = pooling(tmp_path, write(tmp_path, values, [], 40), values, pool)
        own.go_on()
        victim = max((tmp_path / "scratch" / "turned").iterdir(), key=lambda file: file.stat().st_size)
        victim.write_bytes(victim.read_bytes()[:-4])
        with pytest.raises(WorkFailed) as caught:
            own.result()
    assert (caught.value.id, caught.value.where) == ("stats-scratch-changed", str(victim))


def test_what_would_take_too_much_of_the_disk_is_not_turned(tmp_path, small, monkeypatch):
    values = {
        "state": np.random.default_rng(1).normal(size=(500, 8)).astype(np.float32),
        "action": np.random.default_rng(2).normal(size=(500, 6)).astype(np.float32),
    }
    monkeypatch.setattr(pooled, "TURNED_BYTES_MAX", 20_000)  # state takes 16,000, action 12,000
    taken = []
    right = columns.turn
    monkeypatch.setattr(columns, "turn", lambda job: (taken.append(job.features), right(job))[1])
    with open_pool(1) as pool:
        found = pooling(tmp_path, write(tmp_path, values, [], 70), values, pool).result()
    assert set(taken) == {("state",)}
    for name in values:
        assert found[name].q10.tolist() == np.percentile(values[name].astype(float), 10, axis=0).tolist()


MEASURED = """
import resource, sys
from pathlib import Path
import numpy as np
from stack.dataset.pool import open_pool
from stack.dataset.stats_pooled import Pooling
file, rows = Path(sys.argv[1]), int(sys.argv[2])
kinds = {"action": np.dtype(("f4", (64,)))}
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
with open_pool(1) as pool:
    found = Pooling(file.parent, (file.name,), kinds, rows, pool, file.parent / f"scratch-{rows}").result()
print(found["action"].count[0], resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_memory_does_not_grow_with_the_rows(tmp_path):
    grown = []
    for rows in (1 << 17, 1 << 19):  # 32 and 128 MiB
        few = np.random.default_rng(2).normal(size=(64, 64)).astype(np.float32)
        table = pa.table({"action": lists(few.repeat(rows // 64, axis=0))})
        pq.write_table(table, tmp_path / f"{rows}.parquet", row_group_size=300)
        command = [sys.executable, "-c", MEASURED, str(tmp_path / f"{rows}.parquet"), str(rows)]
        count, more = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
        assert int(count) == rows
        grown.append(int(more))
    assert grown[1] < grown[0] + 16_000
    assert grown[1] < 70_000
