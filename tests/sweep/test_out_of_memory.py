"""Memory that really runs out, by each way that a limit can be set; every time told, and the next point well.

Twice in CI; with STACK_LONG=1 twenty times each.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from stack.devices.cgroup import make_memory_group
from stack.sweep import Point, sweep

RUNS = 20 if os.environ.get("STACK_LONG") == "1" else 1
TOO_MUCH, ENOUGH = 64, 2


@pytest.fixture
def can_make_groups() -> None:
    group = make_memory_group("stack-test")
    if group is None:
        pytest.skip("no control group of the memory controller can be made here")
    group.close()


def pair(toys: Any, world: Any, out: Path, limit: dict[str, int]) -> tuple[Point, Point]:
    """A point that takes too much, and the one after it."""
    section = {
        "groups": [{"devices": 1, "batches": [TOO_MUCH, ENOUGH], **limit}],
        "warmup_steps": 1,
        "timed_steps": 3,
        "pictures": False,
    }
    result = sweep(
        toys.run_manifest(sweep=section),
        dataset=world.dataset,
        mirror=world.mirror,
        models=world.models,
        out=out,
        log=lambda _: None,
    )
    big, small = result.points
    return big, small


@pytest.mark.lerobot
@pytest.mark.parametrize("number", range(RUNS))
def test_an_allocation_that_fails(toys: Any, world: Any, tmp_path: Path, number: int) -> None:
    if RUNS == 1:
        pytest.skip("test_sweep.py has this one; with STACK_LONG=1 it is done 20 times here")
    big, small = pair(toys, world, tmp_path, {"memory_limit_mb": 250})
    assert big.status == "oom" and "allocate" in big.message
    assert (small.status, small.message) == ("ok", "")


@pytest.mark.lerobot
@pytest.mark.parametrize("number", range(RUNS))
def test_the_kernel_ends_the_process(
    toys: Any, world: Any, tmp_path: Path, can_make_groups: None, number: int
) -> None:
    big, small = pair(toys, world, tmp_path, {"host_limit_mb": 650})
    assert big.status == "oom", big.message
    assert "SIGKILL" in big.message and "the kernel ended 1 process(es) of this point" in big.message
    assert (big.evidence["kernel_kills"], big.evidence["kernel_kills_are_own"]) == (1, True)
    assert (small.status, small.message) == ("ok", "")
    assert small.evidence["kernel_kills"] == 0
    assert small.demand_bytes is not None and small.capacity_bytes == 650_000_000
    assert small.demand_bytes < small.capacity_bytes
