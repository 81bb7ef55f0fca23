"""The same work on a Dask cluster of processes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from stack.cli import cli
from stack.dataset import cluster, stats_pooled
from stack.dataset.pool import open_pool
from stack.dataset.read import read_dataset
from stack.dataset.selection import select_all
from stack.dataset.write import write_v30
from stack.dataset.write_plan import Caps, plan_files
from stack.errors import Exit, StackError
from stack.files import tree_digest

SMALL = Caps(data_mb=0.0015, video_mb=0.004, files_per_chunk=2)


@pytest.fixture(scope="module")
def local_cluster() -> Iterator[Any]:
    distributed = pytest.importorskip("distributed")
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address="127.0.0.1:0", silence_logs=50
    ) as running:
        yield running


@pytest.fixture
def address(local_cluster: Any) -> str:
    return str(local_cluster.scheduler_address)


@pytest.mark.parametrize("turns", [False, True], ids=["held", "turned on disk"])
def test_workers_of_a_cluster_write_the_same_dataset(
    delivery: Path, address: str, tmp_path: Path, turns: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if turns:
        monkeypatch.setattr(stats_pooled, "BYTES_A_JOB", 1)
        monkeypatch.setattr(stats_pooled, "PIECE_BYTES", 100)
    selection = select_all(read_dataset(delivery))
    plan = plan_files(selection, caps=SMALL)
    write_v30(selection, tmp_path / "here", plan=plan, jobs=1)
    with open_pool(None, executor=address, writes=tmp_path, reads=[delivery]) as pool:
        write_v30(selection, tmp_path / "there", plan=plan, jobs=pool)
    assert tree_digest(tmp_path / "there") == tree_digest(tmp_path / "here")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["here", "there"]


def test_commands_without_a_manifest_take_a_cluster(delivery: Path, address: str, tmp_path: Path) -> None:
    for command, extra in (("merge", [delivery]), ("drop", [])):
        options = ["--episodes", "1"] if command == "drop" else []
        for name, way in (("here", ["--jobs", "1"]), ("there", ["--executor", address])):
            words = [command, delivery, *extra, tmp_path / f"{command}-{name}", *way, *options]
            result = CliRunner().invoke(cli, [str(word) for word in words])
            assert result.exception is None, result.output
        here, there = (tmp_path / f"{command}-{name}" for name in ("here", "there"))
        assert (here / "meta/info.json").read_bytes() == (there / "meta/info.json").read_bytes()
        assert tree_digest(here / "data") == tree_digest(there / "data")
        assert tree_digest(here / "videos") == tree_digest(there / "videos")


def test_the_cluster_does_all_of_the_work_in_order(address: str, tmp_path: Path) -> None:
    items = [f"(__import__('os').getpid(), {number})" for number in range(20)]
    with open_pool(None, executor=address, writes=tmp_path) as pool:
        done = list(pool.map(eval, items))
    assert [number for _, number in done] == list(range(20))
    workers = {pid for pid, _ in done}
    assert os.getpid() not in workers and len(workers) == 2


def test_an_error_on_a_worker_is_the_same_error_here(delivery: Path, address: str, tmp_path: Path) -> None:
    root = Path(shutil.copytree(delivery, tmp_path / "copy"))
    selection = select_all(read_dataset(root))
    plan = plan_files(selection, caps=SMALL)
    gone = selection.episodes[2].episode.clips["observation.images.hand"].file
    with open_pool(None, executor=address, writes=tmp_path, reads=[root]) as pool:
        gone.unlink()
        with pytest.raises(StackError) as caught:
            write_v30(selection, tmp_path / "out", plan=plan, jobs=pool)
    assert str(gone) in str(caught.value)
    assert [p.name for p in tmp_path.iterdir()] == ["copy"]


def refusal(address: str, folder: Path, **options: Any) -> StackError:
    with pytest.raises(StackError) as caught, open_pool(None, executor=address, writes=folder, **options):
        raise AssertionError("the body must not run")
    return caught.value


def test_a_worker_that_does_not_see_a_source_is_named(address: str, tmp_path: Path) -> None:
    error = refusal(address, tmp_path, reads=[tmp_path / "nowhere"])
    assert (error.id, error.exit) == ("executor-paths-differ", Exit.NOT_ABLE)
    assert f"does not see {tmp_path / 'nowhere'}" in error.what and error.where.startswith("tcp://")
    assert list(tmp_path.iterdir()) == []


def test_a_worker_with_another_file_system_is_named(address: str, tmp_path: Path) -> None:
    """A worker in a mount namespace of its own, where the target's folder is another one."""
    script = (
        f"mount -t tmpfs tmpfs {tmp_path} && exec {sys.executable} -m distributed.cli.dask_worker {address}"
    )
    options = ["--nthreads", "1", "--no-dashboard", "--local-directory", "/tmp", "--no-nanny"]
    command = ["unshare", "--mount", "sh", "-c", " ".join([script, *options])]
    if os.geteuid() != 0 or subprocess.run(["unshare", "--mount", "true"]).returncode:
        pytest.skip("a mount namespace takes root")
    worker = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 30
        while _workers(address) < 3 and time.monotonic() < deadline:
            time.sleep(0.2)
        error = refusal(address, tmp_path)
        assert error.id == "executor-paths-differ"
        assert f"does not see {tmp_path} as this machine does" in error.what
    finally:
        worker.terminate()
        worker.wait()
    deadline = time.monotonic() + 30
    while _workers(address) > 2 and time.monotonic() < deadline:
        time.sleep(0.2)


def _workers(address: str) -> int:
    from distributed import Client

    with Client(address, set_as_default=False) as client:
        return len(client.nthreads())


def test_a_worker_that_runs_other_code_is_named(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "code_digest", lambda: "0" * 64)
    error = refusal(address, tmp_path)
    assert error.id == "executor-worker-differs" and "000000000000" in error.what


def test_nobody_at_the_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("distributed")
    monkeypatch.setattr(cluster, "CONNECT_TIMEOUT_S", 0.5)
    error = refusal("tcp://127.0.0.1:9", tmp_path)
    assert (error.id, error.exit) == ("executor-not-reached", Exit.NOT_ABLE)


def test_a_scheduler_without_workers(tmp_path: Path) -> None:
    distributed = pytest.importorskip("distributed")
    with distributed.LocalCluster(n_workers=0, dashboard_address="127.0.0.1:0", silence_logs=50) as empty:
        assert refusal(empty.scheduler_address, tmp_path).id == "executor-no-workers"


@pytest.mark.parametrize("text", ["127.0.0.1:8786", "http://127.0.0.1:8786", "tcp://127.0.0.1", "tcp://:1"])
def test_what_is_no_address(text: str, tmp_path: Path) -> None:
    error = refusal(text, tmp_path)
    assert (error.id, error.exit) == ("executor-address", Exit.BAD_REQUEST) and text in error.what


def test_the_package_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    error = refusal("tcp://127.0.0.1:8786", tmp_path)
    assert (error.id, error.exit) == ("executor-not-installed", Exit.NOT_ABLE)
    assert "pip install distributed" in error.do


def test_jobs_and_executor_are_one_or_the_other() -> None:
    with pytest.raises(StackError) as caught, open_pool(2, executor="tcp://127.0.0.1:8786"):
        raise AssertionError("the body must not run")
    assert caught.value.id == "jobs-and-executor"


def test_a_worker_that_dies_again_and_again_is_told(local_cluster: Any, address: str, tmp_path: Path) -> None:
    with open_pool(None, executor=address, writes=tmp_path) as pool:
        with pytest.raises(StackError) as caught:
            list(pool.map(eval, ["__import__('os')._exit(1)"]))
        assert (caught.value.id, caught.value.exit) == ("cluster-failed", Exit.WORK_FAILED)
    # The cluster starts its workers again meanwhile; closing it in the middle of that fails.
    deadline = time.monotonic() + 60
    while len(local_cluster.scheduler.workers) < 2 and time.monotonic() < deadline:
        time.sleep(0.1)
