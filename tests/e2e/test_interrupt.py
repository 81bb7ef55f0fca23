"""A run that is interrupted in its training goes on from its last checkpoint by the same command."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from typing import Any

import pytest

pytest.importorskip("lerobot")
pytestmark = [pytest.mark.lerobot, pytest.mark.e2e]
ARGUMENTS = [
    "reproduce", "manifests/runs/demo-cpu.yaml", "--work", "interrupted", "--no-track",
    "--set", "sweep=null", "--set", "train.steps=40", "--set", "train.save_every=10",
]  # fmt: skip


def test_interrupted_training_is_resumed(first: Any, house: Any) -> None:
    child = subprocess.Popen(
        [sys.executable, "-m", "stack", *ARGUMENTS],
        cwd=house.root,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    partial = house.root / "interrupted" / "runs" / "demo-cpu" / "train.partial"
    wait_for(lambda: (partial / "checkpoints" / "000010").exists(), child)
    child.send_signal(signal.SIGINT)
    _, err = child.communicate(timeout=120)
    assert child.returncode == 130, err[-3000:]
    assert "go on with the same command" in err and partial.is_dir()

    again = house.stack(*ARGUMENTS)
    assert again.code == 1  # the sweep was left out, so the speed gate cannot be judged
    assert "prepare: ok, nothing changed" in again.err
    result = json.loads((partial.with_name("train") / "result.json").read_text())
    assert (result["outcome"], result["steps"]) == ("finished", 40)
    steps = [
        json.loads(line) for line in (partial.with_name("train") / "journal.jsonl").read_text().splitlines()
    ]
    assert sum(line["kind"] == "attempt" for line in steps) == 1
    assert not partial.exists()


def wait_for(condition: Any, child: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 300
    while not condition():
        assert child.poll() is None, "it ended before it could be interrupted"
        assert time.monotonic() < deadline
        time.sleep(0.05)
