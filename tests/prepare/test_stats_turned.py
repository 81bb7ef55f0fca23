"""`stack stats` from one reading of all features: as numpy counts them, and as feature by feature."""

from __future__ import annotations

import errno
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

import stack.prepare.measure as measure_room
from stack.cli import cli
from stack.dataset import stats_columns, stats_pooled
from stack.errors import BadRequest, StackError
from stack.prepare.measure import measure
from stack.scratch import scratch_folder


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    place = tmp_path / "scratch"
    place.mkdir()
    monkeypatch.setenv("TMPDIR", str(place))
    monkeypatch.setattr("tempfile.tempdir", None)
    return place


def test_what_a_killed_call_left_is_removed_by_the_next_one(two: Path, scratch: Path) -> None:
    """And what another call is just working in stays, as does what belongs to nobody here."""
    words = [sys.executable, "-c", LEFT]
    killed = subprocess.run(words, capture_output=True, text=True)
    assert killed.returncode == -signal.SIGKILL
    left = Path(killed.stdout.strip())
    assert (left / "turned" / "0-0").is_file() and left.parent == scratch
    (other := scratch / "somebody-elses").mkdir()
    measure(two / "a", jobs=1)
    assert left.is_dir(), "made just now: it may not be held yet"
    for folder in (left, other):
        os.utime(folder, (1e9, 1e9))
    with scratch_folder() as held:
        os.utime(held, (1e9, 1e9))
        measure(two / "a", jobs=1)
        assert held.is_dir() and not left.exists() and other.is_dir()
    assert not held.exists()


LEFT = """
import os, signal
from stack.scratch import scratch_folder
with scratch_folder() as folder:
    (folder / "turned").mkdir()
    (folder / "turned" / "0-0").write_bytes(b"1234")
    print(folder, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def rows_of(root: Path, name: str) -> np.ndarray:
    files = sorted((root / "data").rglob("*.parquet"))
    return np.concatenate([np.array(pq.read_table(f, columns=[name])[name].to_pylist()) for f in files])


@pytest.mark.parametrize("jobs", [1, 2])
@pytest.mark.parametrize("room", [0, 8 * 11, 400], ids=["none turned", "narrow ones", "in groups"])
def test_equal_to_numpy_and_to_each_feature_alone(
    two: Path, scratch: Path, jobs: int, room: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stats_columns, "BLOCK_BYTES", 100)
    monkeypatch.setattr(measure_room, "PIECE_BYTES", 300)
    turned = measure(two / "a", jobs=jobs)
    assert not list(scratch.iterdir())
    monkeypatch.setattr(measure_room, "TURNED_BYTES_MAX", room)
    alone = measure(two / "a", jobs=jobs)
    assert list(turned.features) == list(alone.features)
    for name, stats in turned.features.items():
        assert stats.to_json() == alone.features[name].to_json(), name
    for name in ("observation.state", "action", "timestamp", "index", "task_index"):
        values, stats = rows_of(two / "a", name), turned.features[name]
        values = values.reshape(len(values), -1).astype(np.float32 if name == "timestamp" else float)
        assert stats.count.tolist() == [len(values)]
        assert stats.min.tolist() == values.min(axis=0).tolist()
        assert stats.q10.tolist() == np.percentile(values.astype(float), 10, axis=0).tolist()
        np.testing.assert_allclose(stats.mean, values.astype(float).mean(axis=0), rtol=1e-12)


def test_a_full_disk_for_scratch_is_no_reason_to_stop(
    two: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: _Usage())
    monkeypatch.setattr(stats_columns, "turn", lambda _: pytest.fail("nothing is turned"))
    assert measure(two / "a", jobs=1).features["action"].count.tolist() == [len(rows_of(two / "a", "action"))]


def test_nowhere_to_write_is_no_reason_to_stop(two: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere() -> Path:
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found")

    monkeypatch.setattr(measure_room, "scratch_place", nowhere)
    monkeypatch.setattr(stats_columns, "turn", lambda _: pytest.fail("nothing is turned"))
    assert measure(two / "a", jobs=1).features["action"].count.tolist() == [len(rows_of(two / "a", "action"))]


@pytest.mark.parametrize("jobs", [1, 2])
def test_scratch_that_fills_up_in_the_middle_is_no_reason_to_stop(
    two: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch, jobs: int
) -> None:
    right = measure(two / "a", jobs=1).features
    monkeypatch.setattr(measure_room, "PIECE_BYTES", 300)
    told: list[str] = []
    with limited_files(100):
        found = measure(two / "a", jobs=jobs, log=told.append).features
    assert {name: s.to_json() for name, s in found.items()} == {
        name: s.to_json() for name, s in right.items()
    }
    [line] = [text for text in told if "several times" in text]
    assert line.startswith(f"{scratch}: ") and os.strerror(errno.EFBIG) in line
    assert not list(scratch.iterdir())


@contextmanager
def limited_files(largest_bytes: int) -> Iterator[None]:
    """As a disk that fills up: the error comes from the system, where the bytes are written."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (largest_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_dataset_without_rows_has_no_statistics(two: Path, tmp_path: Path) -> None:
    root = shutil.copytree(two / "a", tmp_path / "empty")
    for file in (root / "data").rglob("*.parquet"):
        pq.write_table(pq.read_table(file).slice(0, 0), file)
    with pytest.raises(BadRequest, match="none of its episodes has a row"):
        measure(root, jobs=1)


@pytest.mark.parametrize("is_full", [True, False])
def test_preparing_takes_half_of_the_free_disk_at_most(
    two: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_full: bool
) -> None:
    """And reads the written rows several times where that is not enough, which gives the same statistics."""
    turned: list[object] = []
    turn = stats_columns.turn
    monkeypatch.setattr(stats_columns, "turn", lambda job: (turned.append(job), turn(job))[1])
    monkeypatch.setattr(stats_pooled, "BYTES_A_JOB", 1)
    root, out = two / "a", tmp_path / "out"
    needed = sum(rows_of(root, name).size * 4 for name in ("observation.state", "action"))
    usage = shutil.disk_usage(root)._replace(free=needed // 2 if is_full else 1 << 30)
    monkeypatch.setattr(stats_pooled, "shutil", SimpleNamespace(disk_usage=lambda _: usage))
    result = CliRunner().invoke(cli, ["convert", str(root), str(out), "--jobs", "1"])
    assert result.exit_code == 0, result.output
    wide = {name for job in turned for name in job.features}
    assert ("observation.state" in wide) == (not is_full)
    found = json.loads((out / "meta/stats.json").read_text())
    for name in ("observation.state", "action"):
        assert found[name]["q99"] == np.percentile(rows_of(out, name), 99, axis=0).tolist()


class _Usage:
    free = 64


def test_the_command_tells_what_it_does_and_leaves_nothing(two: Path, scratch: Path, tmp_path: Path) -> None:
    file = tmp_path / "stats.json"
    result = CliRunner().invoke(cli, ["stats", str(two / "a"), "--json", str(file), "--jobs", "1"])
    assert result.exit_code == 0, result.output
    frames = len(rows_of(two / "a", "action"))
    assert f"reading {frames} rows of observation.state, action" in result.output
    assert json.loads(file.read_text())["action"]["count"] == [frames]
    assert not list(scratch.iterdir())


@pytest.mark.parametrize(
    "error",
    [OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), KeyboardInterrupt()],
    ids=["full", "interrupted"],
)
def test_what_stops_the_counting_leaves_nothing_to_stumble_over(
    two: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    def stopped(job: object) -> None:
        raise error

    monkeypatch.setattr(stats_pooled, "BYTES_A_JOB", 1)
    words = ["convert", str(two / "a"), str(tmp_path / "out"), "--jobs", "1"]
    with monkeypatch.context() as patch:
        patch.setattr(stats_columns, "channels_counted", stopped)
        failed = CliRunner().invoke(cli, words)
    assert failed.exit_code != 0 and not (tmp_path / "out").exists()
    if isinstance(error, OSError):
        assert isinstance(failed.exception, StackError) and failed.exception.exit == 3
        assert not list(tmp_path.rglob("turned"))
    else:
        assert list(tmp_path.rglob("turned/*"))  # what the next call has to do with
    again = CliRunner().invoke(cli, words)
    assert again.exit_code == 0, again.output
    assert not list(tmp_path.rglob("turned")) and not list(tmp_path.rglob(".resume"))
    found = json.loads((tmp_path / "out/meta/stats.json").read_text())
    values = rows_of(tmp_path / "out", "observation.state")
    assert found["observation.state"]["q99"] == np.percentile(values, 99, axis=0).tolist()
