"""What the vendor's tool sees while a point runs stands in the point: whole device, and power."""

from __future__ import annotations

import csv
import stat
import sys
from pathlib import Path
from typing import Any

import pytest

from stack.devices.witness import Witness
from stack.sweep import runner, sweep

# A point whose steps take a second; before them, while it loads, more is in use than it ever needs.
POINT = """
import json, pathlib, sys, time
folder = pathlib.Path(sys.argv[1]).parent
(folder / "steps.jsonl").write_text('{"phase": "steps"}\\n')
time.sleep(1.2)
figures = {"devices": 2, "batch": 4, "status": "ok", "step_s": 0.5, "samples_per_s": 16.0}
(folder / "result.json").write_text(json.dumps(figures))
"""


class OfCards(Witness):
    """Asks the tool for cards, though the point is on a cpu."""

    def __init__(self, _kind: str, count: int) -> None:
        super().__init__("cuda", count)


@pytest.mark.lerobot
def test_power_and_the_whole_device(
    toys: Any, world: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two cards of three, of 300.5 and 200 W; the fuller one counts, with what others hold on it."""
    tool = tmp_path / "nvidia-smi"
    rows = ["0, GPU-a, H200, 30000, 143771, 300.5, 40", "1, GPU-b, H200, 70000, 143771, 200.0, 40"]
    rows.append("2, GPU-c, H200, 140000, 143771, 700.0, 40")
    listing = "\n".join(rows)
    tool.write_text(f'#!/bin/sh\ncase "$1" in *compute-apps*) ;; *) echo "{listing}";; esac\n')
    tool.chmod(stat.S_IRWXU)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr("stack.devices.witness.TOOL_EVERY_S", 0.1)
    monkeypatch.setattr(runner, "Witness", OfCards)
    monkeypatch.setattr(runner, "device_count", lambda _kind: 2)
    monkeypatch.setattr(
        runner, "python_module", lambda _module, given, _n: [sys.executable, "-c", POINT, *given]
    )
    section = {"groups": [{"devices": 2, "batches": [4]}], "pictures": False}
    said: list[str] = []
    result = sweep(
        toys.run_manifest(sweep=section),
        dataset=world.dataset,
        mirror=world.mirror,
        models=world.models,
        out=tmp_path / "out",
        log=said.append,
    )
    (point,) = result.points
    assert point.status == "ok", point.message
    assert (point.power_w, point.device_source) == (500.5, "nvidia-smi")
    assert point.device_peak_bytes == 70000 << 20
    head, row = said[-1].splitlines()[:2]
    assert "power" in head and "whole device" in head and "500 W" in row and "73.40 GB" in row
    (line,) = csv.DictReader((tmp_path / "out" / "sweep.csv").open())
    assert (float(line["power_w"]), line["device_source"]) == (500.5, "nvidia-smi")
