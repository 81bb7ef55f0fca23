"""Memory seen from outside: against what a child really took, and against tools that are stand-ins."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from stack.devices import witness
from stack.devices.smi import Card
from stack.devices.witness import Witness, look, visible

TAKES = """
import os, subprocess, sys, time
own = b"x" * int(sys.argv[1])
if len(sys.argv) > 2:
    child = subprocess.Popen([sys.executable, "-c", __import__("os").environ["TAKES"], sys.argv[2]])
print("ready", flush=True)
sys.stdin.read()
"""


def test_a_child_and_its_child_are_counted_together() -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", TAKES, "200000000", "150000000"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "TAKES": TAKES},
    )
    assert child.stdin is not None and child.stdout is not None
    try:
        child.stdout.readline()
        child.stdout.readline()
        with Witness("cpu", 1) as watching:
            watching.watch(child.pid)
            time.sleep(0.5)
        seen = watching.seen()
    finally:
        child.stdin.close()
        child.wait()
    assert seen.source == "process tree" and seen.power_w is None and seen.samples >= 2
    assert seen.peak_bytes is not None
    assert 350e6 < seen.peak_bytes < 350e6 + 100e6  # two interpreters on top
    assert 0 < seen.file_bytes < 50e6 and seen.peak_bytes - seen.file_bytes > 350e6


CARDS = tuple(Card(str(n), "910B3", n << 30, 64 << 30, uuid=f"GPU-{n}") for n in range(4))


@pytest.mark.parametrize(
    ("kind", "environment", "ids"),
    [
        ("npu", {}, "0123"),
        ("npu", {"ASCEND_RT_VISIBLE_DEVICES": "2,0"}, "20"),
        ("npu", {"CUDA_VISIBLE_DEVICES": "1"}, "0123"),
        ("cuda", {"CUDA_VISIBLE_DEVICES": "GPU-3, 1"}, "31"),
        ("cuda", {"CUDA_VISIBLE_DEVICES": "1,9,2"}, "1"),
        ("cuda", {"CUDA_VISIBLE_DEVICES": ""}, ""),
    ],
)
def test_visible_devices(kind: str, environment: dict[str, str], ids: str) -> None:
    assert "".join(card.id for card in visible(kind, CARDS, environment)) == ids


def tool(folder: Path, used: int) -> None:
    answer = f"0, GPU-aa, NVIDIA H200, {used}, 143771, 300.0, 44"
    processes = f'*compute-apps*) echo "GPU-aa, 7, python, {used}";;'
    script = f'#!/bin/sh\ncase "$1" in {processes} *) echo "{answer}";; esac\n'
    (folder / "nvidia-smi").write_text(script)
    (folder / "nvidia-smi").chmod(stat.S_IRWXU)


def test_the_tool_is_asked_while_a_child_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(witness, "TOOL_EVERY_S", 0.05)
    tool(tmp_path, 90000)
    use = look("cuda", 1)
    assert use.problem is None and use.cards[0].processes[0].pid == 7
    with Witness("cuda", 1) as watching:
        watching.watch(os.getpid())
        time.sleep(0.4)
        tool(tmp_path, 50000)
        watching.restart()
        time.sleep(0.6)
        seen = watching.seen()
    assert (seen.source, seen.power_w) == ("nvidia-smi", 300.0)
    assert seen.peak_bytes is not None and seen.peak_bytes >= 50000 << 20


def test_without_a_tool_nothing_is_made_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    use = look("npu", 8)
    assert use.cards == () and "npu-smi is not installed here" in str(use.problem)
    with Witness("npu", 8) as watching:
        watching.watch(os.getpid())
        time.sleep(0.1)
    assert watching.seen().peak_bytes is None and watching.seen().samples == 0


def test_the_host_names_others_that_hold_much(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(witness, "NAMED_BYTES", 1)
    (host,) = look("cpu", 1).cards
    assert 0 < host.used_bytes < host.total_bytes
    pids = {process.pid for process in host.processes}
    assert os.getpid() not in pids and pids
