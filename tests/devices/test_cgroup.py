"""Control groups: against the kernel where groups can be made, and folders with the kernel's names."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from stack.devices.cgroup import MemoryGroup, make_memory_group, memory_limit_bytes

NONE_V1 = 9223372036854771712


@pytest.fixture
def group() -> MemoryGroup:
    made = make_memory_group("stack-test")
    if made is None:
        pytest.skip("no control group of the memory controller can be made here")
    return made


def test_the_kernel_ends_what_takes_too_much_and_counts_it(group: MemoryGroup) -> None:
    try:
        group.limit(150_000_000)
        takes = [sys.executable, "-c", "import sys; b = b'x' * int(sys.argv[1]); print(len(b))"]
        small = subprocess.run(group.enter([*takes, "50000000"]), capture_output=True, text=True)
        assert (small.returncode, small.stdout.strip()) == (0, "50000000")
        assert group.kills() == 0
        big = subprocess.run(group.enter([*takes, "300000000"]), capture_output=True, text=True)
        assert big.returncode == -9 and group.kills() == 1
        peak = group.peak_bytes()
        assert peak is not None and 140_000_000 < peak <= 150_000_000
        mine = Path("/proc/self/cgroup").read_text()
        assert group.folder.name not in mine  # this process stayed outside
    finally:
        group.close()
    assert not group.folder.exists()


def folders(tmp_path: Path, *, own: str, files: dict[str, str]) -> dict[str, Path]:
    root = tmp_path / "cgroup"
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    (tmp_path / "own").write_text(own)
    return {"root": root, "own": tmp_path / "own"}


def test_limits_of_both_versions(tmp_path: Path) -> None:
    v2 = folders(
        tmp_path / "2",
        own="0::/pod/app\n",
        files={
            "cgroup.procs": "",
            "pod/app/cgroup.procs": "",
            "pod/app/memory.max": "max\n",
            "pod/memory.max": "8000000000\n",
        },
    )
    assert memory_limit_bytes(**v2) == 8_000_000_000  # the one above counts too
    v1 = folders(
        tmp_path / "1",
        own="4:memory:/pod/app\n2:cpu:/\n0::/\n",
        files={
            "memory/cgroup.procs": "",
            "memory/memory.limit_in_bytes": f"{NONE_V1}\n",
            "memory/pod/app/cgroup.procs": "",
            "memory/pod/app/memory.limit_in_bytes": "3000000000\n",
        },
    )
    assert memory_limit_bytes(**v1) == 3_000_000_000
    # In a container the path of the host's hierarchy is not there; its root is the container's own group.
    inside = folders(
        tmp_path / "3",
        own="4:memory:/docker/abc\n",
        files={"memory/cgroup.procs": "", "memory/memory.limit_in_bytes": "5000000000\n"},
    )
    assert memory_limit_bytes(**inside) == 5_000_000_000
    free = folders(
        tmp_path / "4",
        own="4:memory:/\n",
        files={"memory/cgroup.procs": "", "memory/memory.limit_in_bytes": f"{NONE_V1}\n"},
    )
    assert memory_limit_bytes(**free) is None


def test_a_hierarchy_without_the_controller_makes_none(tmp_path: Path) -> None:
    places = folders(tmp_path, own="0::/\n", files={"cgroup.procs": ""})
    assert make_memory_group("x", **places) is None
    assert [entry.name for entry in places["root"].iterdir()] == ["cgroup.procs"]
    assert make_memory_group("x", root=tmp_path / "none", own=tmp_path / "none") is None


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_hierarchy_that_may_not_be_written_makes_none(tmp_path: Path) -> None:
    places = folders(tmp_path, own="0::/\n", files={"cgroup.procs": "", "memory.max": "max"})
    places["root"].chmod(0o555)
    assert make_memory_group("x", **places) is None


def test_counts_of_the_unified_hierarchy(tmp_path: Path) -> None:
    (tmp_path / "memory.events").write_text("low 0\nhigh 0\nmax 12\noom 3\noom_kill 2\noom_group_kill 0\n")
    (tmp_path / "memory.peak").write_text("123456\n")
    group = MemoryGroup(tmp_path, is_v2=True)
    assert (group.kills(), group.peak_bytes()) == (2, 123456)
    assert MemoryGroup(tmp_path, is_v2=False).kills() is None
