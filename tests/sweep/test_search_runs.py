"""Searches through the sweep's own door: on a made-up machine of eight cards, and for real on processes here.

`STACK_LONG=1` runs those on one process and on two.
"""

from __future__ import annotations

import csv
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stack.sweep import Point, sweep
from stack.sweep.result import SweepResult
from stack.sweep.runner import Runner
from stack.tracking.journal import read_journal

GB = 10**9
CAPACITY = 60 * GB
# Seconds a step of a card: what is fixed, what a sample takes, what eight cards lose to each other.
FIXED_S, SAMPLE_S, EXCHANGE_S = 0.3, 0.1, 0.05


def card(devices: int, batch: int) -> Point:
    """A made-up card: 30 GB and 4.3 GB a sample; with others, 2 GB of buffers on top."""
    blank = Point(devices, batch, "ok", capacity_bytes=CAPACITY)
    demand = int(30 * GB + 4.3 * GB * batch + (2 * GB if devices > 1 else 0))
    if demand > CAPACITY:
        return replace(blank, status="oom", message="out of memory", capacity_bytes=None)
    step_s = FIXED_S + SAMPLE_S * batch + (EXCHANGE_S if devices > 1 else 0)
    return replace(
        blank,
        step_s=step_s,
        samples_per_s=devices * batch / step_s,
        peak_memory_bytes=demand,
        demand_bytes=demand,
    )


def by_trying_all(devices: int, margin_frac: float) -> int:
    fitting = [
        batch
        for batch in range(1, 65)
        if (demand := card(devices, batch).demand_bytes) is not None
        and demand <= CAPACITY * (1 - margin_frac)
    ]
    return max(fitting)


@pytest.mark.lerobot
def test_one_card_and_eight(toys: Any, world: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Points that the door asks for, what it finds and advises, against trying every batch by hand."""

    def measure(self: Runner, group: Any, batch: int, predicted_bytes: int | None = None) -> Point:
        return replace(card(group.devices, batch), predicted_bytes=predicted_bytes)

    monkeypatch.setattr(Runner, "measure", measure)
    search = {"margin_frac": 0.05, "most": 64}
    groups = [{"devices": 1, "search": search}, {"devices": 8, "search": search}]
    said: list[str] = []
    result = sweep(
        toys.run_manifest(sweep={"groups": groups}, train={"batch_per_device": 16, "global_batch": 16}),
        dataset=world.dataset,
        mirror=world.mirror,
        models=world.models,
        out=tmp_path / "out",
        log=said.append,
    )
    assert SweepResult.read(tmp_path / "out") == result
    for found, advice, devices in zip(result.found, result.advice, (1, 8), strict=True):
        want = by_trying_all(devices, 0.05)
        assert (found.devices, found.largest, found.next_up, found.is_proven) == (
            devices,
            want,
            want + 1,
            True,
        )
        assert found.fastest == want and found.tried <= 7
        assert found.model is not None and found.model.sample_bytes == pytest.approx(4.3 * GB, rel=0.01)
        assert found.model.fixed_bytes == pytest.approx((30 if devices == 1 else 32) * GB, rel=0.01)
        # The global batch of 16 in whole steps, by hand: every divisor of a card's share that fits.
        share = 16 // devices
        ways = [b for b in range(1, want + 1) if share % b == 0]
        best = min(ways, key=lambda b: (card(devices, b).step_s or 0.0) * (share // b))
        assert (advice.devices, advice.batch, advice.accumulation) == (devices, best, share // best)
        assert advice.is_measured
    predicted = [p for p in result.points if p.predicted_bytes is not None and p.status == "ok"]
    assert predicted and all(abs(p.prediction_error_frac or 0.0) < 0.01 for p in predicted)
    table = said[-1]
    assert f"search on 8 device(s): batch {by_trying_all(8, 0.05)} leaves 5% of the memory free" in table
    assert "for global batch 16 on 8 device(s): batch_per_device 2, accumulation 1" in table
    rows = list(csv.DictReader((tmp_path / "out" / "sweep.csv").open()))
    assert [(int(r["devices"]), int(r["batch"])) for r in rows] == [
        (p.devices, p.batch) for p in result.points
    ]
    assert {p.name for p in (tmp_path / "out" / "figures").iterdir()} == {
        "sweep-speed.svg",
        "sweep-memory.svg",
        "sweep-model-d1.svg",
        "sweep-model-d8.svg",
    }
    params = {
        key: value
        for record in read_journal(tmp_path / "out" / "journal.jsonl")
        if record["kind"] == "params"
        for key, value in record["params"].items()
    }
    assert params["largest_with_margin.8_devices"] == str(by_trying_all(8, 0.05))
    assert params["advised_accumulation.1_devices"] == str(result.advice[0].accumulation)


@pytest.mark.lerobot
@pytest.mark.skipif(not os.environ.get("STACK_LONG"), reason="takes minutes: STACK_LONG=1 runs it")
@pytest.mark.parametrize("devices", [1, 2])
def test_memory_that_really_ends(toys: Any, world: Any, tmp_path: Path, devices: int) -> None:
    """Processes under a limit of their own; what is found is held against the points' own figures."""
    section = {
        "groups": [
            {
                "devices": devices,
                "memory_limit_mb": 400,
                "search": {"margin_frac": 0.1, "most": 64, "start": 2},
            }
        ],
        "warmup_steps": 1,
        "timed_steps": 3,
        "pictures": False,
    }
    share = 8 // devices
    result = sweep(
        toys.run_manifest(
            sweep=section,
            device={"count": devices},
            train={"batch_per_device": share, "global_batch": 8},
        ),
        dataset=world.dataset,
        mirror=world.mirror,
        models=world.models,
        out=tmp_path / "out",
        log=print,
    )
    print(result.table())
    ((found,), (advice,)) = result.found, result.advice
    assert found.is_proven and found.largest is not None and found.next_up == found.largest + 1
    points = {point.batch: point for point in result.points}
    for batch, point in points.items():
        leaves = (
            point.status == "ok"
            and point.demand_bytes is not None
            and point.demand_bytes <= 0.9 * 400_000_000
        )
        assert point.devices == devices and leaves == (batch <= found.largest), point
        if point.status != "ok":
            assert point.status == "oom" and "allocate" in point.message
    assert len(points) <= 12
    fastest = points[found.fastest or 0]
    fitting = [p for b, p in points.items() if b <= found.largest]
    assert fastest.samples_per_s == max(p.samples_per_s or 0.0 for p in fitting)
    assert advice.batch * advice.accumulation * devices == 8 and advice.batch in points
