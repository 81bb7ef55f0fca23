"""A command's time and memory, as the kernel counted them for it and its children."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

LAUNCHER = Path(__file__).with_name("launch.py")


@dataclass(frozen=True)
class Cost:
    """Wall and processor seconds; `peak_mib` is the largest single process's resident memory."""

    wall_s: float
    cpu_s: float
    peak_mib: float

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.wall_s + other.wall_s, self.cpu_s + other.cpu_s, max(self.peak_mib, other.peak_mib))


class Failed(Exception):
    """A measured command did not succeed."""


def measure(
    command: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    exits_with: int = 0,
) -> Cost:
    """Run a command to its end.

    Raises:
        Failed: it is not there, or exits with another code; with the end of what it said.
    """
    with tempfile.TemporaryFile() as said, tempfile.TemporaryFile() as told:
        launch = [sys.executable, "-I", "-S", str(LAUNCHER), str(told.fileno()), *command]
        done = subprocess.run(
            launch,
            stdout=said,
            stderr=subprocess.STDOUT,
            env={**os.environ, **(env or {})},
            cwd=cwd,
            pass_fds=[told.fileno()],
            check=False,
        )
        told.seek(0)
        said.seek(0)
        tail = said.read().decode(errors="replace")[-2000:]
        try:
            counted = json.load(told)
        except ValueError:
            raise Failed(f"{command[0]}: nothing was counted, code {done.returncode}:\n{tail}") from None
    if "error" in counted:
        raise Failed(f"{command[0]}: {counted['error']}")
    if counted["code"] != exits_with:
        raise Failed(f"{' '.join(command)} exited with {counted['code']}:\n{tail}")
    return Cost(counted["wall_s"], counted["cpu_s"], counted["peak_mib"])


def median(run: Callable[[], Cost], repeats: int) -> Cost:
    """The run whose wall time is in the middle, with the largest memory of all."""
    costs = sorted((run() for _ in range(repeats)), key=lambda cost: cost.wall_s)
    return replace(costs[len(costs) // 2], peak_mib=max(cost.peak_mib for cost in costs))


def fresh(folder: Path) -> Path:
    """A path with nothing at it."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    return folder


def tree_bytes(root: Path) -> int:
    return sum(file.stat().st_size for file in root.rglob("*") if file.is_file())
