"""Workers: copies where that is safe, fresh processes elsewhere; the same results either way."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import stack.dataset.pool as pool_module
from stack.dataset.pool import Pool, can_fork, open_pool
from stack.dataset.video_open import check_file
from stack.errors import BadRequest, WorkFailed
from stack.files import sha256_text


def where(item: int) -> tuple[int, int]:
    return item * item, os.getpid()


def touch(file: Path) -> str:
    file.touch()
    return file.name


@pytest.mark.parametrize("forks", [True, False])
def test_results_in_order_from_other_processes(monkeypatch, tmp_path, forks):
    """Functions of the product: fresh processes cannot import a test's."""
    monkeypatch.setattr(pool_module, "can_fork", lambda: forks)
    texts = [str(n) for n in range(9)]
    with open_pool(2) as pool:
        assert list(pool.map(sha256_text, texts)) == [hashlib.sha256(t.encode()).hexdigest() for t in texts]
        with pytest.raises(BadRequest, match="not there"):
            list(pool.map(check_file, [tmp_path / text for text in texts]))
        assert list(pool.map(sha256_text, texts[:1]))  # an error ends its own work only


def test_work_is_done_by_copies(monkeypatch):
    monkeypatch.setattr(pool_module, "can_fork", lambda: True)
    with open_pool(2) as pool:
        got = list(pool.map(where, list(range(9))))
    assert [value for value, _ in got] == [n * n for n in range(9)]
    assert os.getpid() not in {pid for _, pid in got}


def test_long_work_is_not_tried_here_first(monkeypatch):
    monkeypatch.setattr(pool_module, "can_fork", lambda: True)
    with open_pool(None) as pool:
        pids = {pid for _, pid in pool.begin(where, [1, 2, 3])}
        assert os.getpid() in pids  # what is short is done at once
    with open_pool(None) as pool:
        pool._jobs = 2  # also on a machine of one core
        got = list(pool.begin(where, [1, 2, 3], is_long=True))
    assert [value for value, _ in got] == [1, 4, 9]
    assert os.getpid() not in {pid for _, pid in got}


def test_no_copies_beside_other_threads_or_torch(monkeypatch):
    quiet = threading.active_count() == 1 and "torch" not in sys.modules
    assert can_fork() == (quiet and sys.platform == "linux")
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait)
    thread.start()
    try:
        assert not can_fork()
    finally:
        stop.set()
        thread.join()
    monkeypatch.setitem(sys.modules, "torch", sys)
    assert not can_fork()


def test_what_is_begun_goes_on_meanwhile(monkeypatch, tmp_path):
    monkeypatch.setattr(pool_module, "can_fork", lambda: True)  # fresh processes cannot import `touch`
    files = [tmp_path / str(n) for n in range(4)]
    with open_pool(2) as pool:
        list(pool.map(where, [1, 2]))  # now there are workers
        begun = pool.begin(touch, files)
        deadline = time.monotonic() + 60
        while not all(file.exists() for file in files) and time.monotonic() < deadline:
            time.sleep(0.02)
        assert all(file.exists() for file in files)
        assert list(begun) == ["0", "1", "2", "3"]
    alone = Pool(1).begin(touch, [tmp_path / "alone"])
    assert not (tmp_path / "alone").exists()  # one process does one thing after another
    assert list(alone) == ["alone"]


def end(_: int) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_worker_that_is_killed_is_told(monkeypatch):
    """By what was begun before it died, and by what is begun after."""
    monkeypatch.setattr(pool_module, "can_fork", lambda: True)
    with open_pool(2) as pool:
        for work in (end, where, where):
            with pytest.raises(WorkFailed) as caught:
                list(pool.begin(work, [1, 2, 3]) if work is where else pool.map(work, [1, 2, 3]))
            assert caught.value.id == "worker-died"


HOLDS = """
import json, os, sys
from pathlib import Path
from stack.dataset.pool import can_fork, open_pool
from stack.files import hold_target

def locks(_):
    links = (os.readlink(f"/proc/self/fd/{n}") for n in os.listdir("/proc/self/fd") if
             os.path.exists(f"/proc/self/fd/{n}"))
    return os.getpid(), [link for link in links if link.endswith("-lock")]

with hold_target(Path(sys.argv[1])), open_pool(2) as pool:
    forks = can_fork()
    told = list(pool.map(locks, range(20)))
    print(json.dumps([forks, os.getpid(), locks(0), told]))
"""


def test_copies_hold_no_target(tmp_path):
    """Else a kill of the parent would leave its target locked until the last of them is gone."""
    command = [sys.executable, "-c", HOLDS, str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    forks, parent, own, told = json.loads(done.stdout)
    assert forks and len(own[1]) == 1
    assert all(pid != parent and not held for pid, held in told)
