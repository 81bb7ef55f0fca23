"""What a point came to, from what its processes left: no process is started here."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from stack.sweep import Point
from stack.sweep.judge import ACCOUNTS, STEPS, Kills, judge
from stack.sweep.result import RESULT
from stack.train.child import Ended

BLANK = Point(1, 8, "error")
OOM = "RuntimeError: NPU out of memory. Tried to allocate 2.00 GiB"
ELASTIC = """
Root Cause (first observed failure):
[0]:
  time      : 2026-11-30_06:00:00
  host      : localhost
  rank      : 1 (local_rank: 1)
  exitcode  : -9 (pid: 4711)
  error_file: <N/A>
"""


def ended(code: int, tail: str = "", kills: int | None = 0, is_timeout: bool = False) -> Ended:
    return Ended(code, is_timeout, False, 1.0, tail, kernel_kills=kills)


def account(folder: Path, rank: int, at: float, status: str, message: str, **more: Any) -> None:
    (folder / ACCOUNTS).mkdir(exist_ok=True)
    text = json.dumps({"time": at, "rank": rank, "status": status, "message": message, **more})
    (folder / ACCOUNTS / f"rank-{rank}.json").write_text(text)


def test_a_persons_kill_is_a_crash_named_by_its_signal(tmp_path: Path) -> None:
    point = judge(tmp_path, BLANK, ended(-9), 60.0)
    assert point.status == "error"
    assert "killed by signal 9 (SIGKILL) from outside" in point.message
    assert "the kernel ended no process(es) on this host for memory" in point.message
    unknown = judge(tmp_path, BLANK, ended(-9, kills=None), 60.0)
    assert unknown.status == "error" and "does not tell" in unknown.message


def test_the_points_own_group_decides_over_the_hosts_count(tmp_path: Path) -> None:
    """Somebody else's process was ended for memory meanwhile; this point was killed by a person."""
    point = judge(tmp_path, BLANK, ended(-9, kills=1), 60.0, Kills(0, is_own=True))
    assert point.status == "error" and "no process(es) of this point" in point.message
    own = judge(tmp_path, BLANK, ended(-9, kills=0), 60.0, Kills(1, is_own=True))
    assert own.status == "oom" and "1 process(es) of this point" in own.message
    assert own.evidence["kernel_kills"] == 1


def test_a_rank_that_was_killed_is_named(tmp_path: Path) -> None:
    account(tmp_path, 0, 5.0, "error", "RuntimeError: Connection closed by peer")
    two = replace(BLANK, devices=2)
    point = judge(tmp_path, two, ended(1, ELASTIC), 60.0)
    assert (point.status, point.message.split(" was ")[0]) == ("error", "rank 1 (process 4711)")
    assert judge(tmp_path, two, ended(1, ELASTIC, kills=1), 60.0).status == "oom"


def test_the_rank_that_ran_out_counts_whatever_the_others_said_before(tmp_path: Path) -> None:
    account(tmp_path, 0, 5.0, "error", "RuntimeError: Connection closed by peer")
    account(tmp_path, 3, 5.1, "oom", f"OutOfMemoryError: {OOM}", peak_memory_bytes=64 << 30)
    point = judge(tmp_path, replace(BLANK, devices=4), ended(1, "anything"), 60.0)
    assert (point.status, point.peak_memory_bytes) == ("oom", 64 << 30)
    assert point.message.startswith("rank 3: OutOfMemoryError")


def test_the_first_rank_to_fail_is_shown(tmp_path: Path) -> None:
    account(tmp_path, 0, 5.2, "error", "RuntimeError: Connection closed by peer")
    account(tmp_path, 1, 5.1, "error", "video-broken: the video cannot be decoded")
    point = judge(tmp_path, replace(BLANK, devices=2), ended(1, "RuntimeError"), 60.0)
    assert (point.status, point.message) == ("error", "rank 1: video-broken: the video cannot be decoded")


def test_a_loaders_worker_that_the_kernel_ended(tmp_path: Path) -> None:
    account(tmp_path, 0, 1.0, "error", "loader-worker-died: a loader's worker has died")
    point = judge(tmp_path, BLANK, ended(4), 60.0, Kills(1, is_own=True))
    assert point.status == "oom" and "loader-worker-died" in point.message


def test_too_slow_says_how_far_it_came(tmp_path: Path) -> None:
    (tmp_path / STEPS).write_text(
        '{"phase": "steps"}\n{"step": 1, "seconds": 40}\n{"step": 2, "seconds": 41}\n'
    )
    point = judge(tmp_path, BLANK, ended(-15, is_timeout=True), 100.0)
    assert (point.status, point.message) == ("timeout", "not done after 100 s; 2 step(s) were done")


def test_a_point_that_breaks_after_its_measurement_is_not_ok(tmp_path: Path) -> None:
    measured = Point(1, 8, "ok", 0.5, 16.0, 0.1, 7)
    (tmp_path / RESULT).write_text(json.dumps(measured.to_json()))
    assert judge(tmp_path, BLANK, ended(0), 60.0).status == "ok"
    broken = judge(tmp_path, BLANK, ended(-11), 60.0)
    assert broken.status == "error" and "SIGSEGV" in broken.message and broken.step_s == 0.5
