"""Whether the process that wrote a journal still lives.

A process is named by the machine's boot, its pid namespace, its pid and its start time, so that neither a pid
used again, nor a container's pid, nor a journal copied to another machine is taken for a living writer.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

QUIET_S = 600.0
"""A writer on another machine is taken for dead when its journal has been quiet for this long."""


def this_process() -> dict[str, Any]:
    """`pid`, `started` (clock ticks since boot), `place` (boot and pid namespace), for the journal."""
    return {"pid": os.getpid(), "started": started_ticks(os.getpid()), "place": _place()}


def started_ticks(pid: int) -> int | None:
    """When a living process was started, in clock ticks since boot; None where there is none, or a zombie.

    Source: proc(5), /proc/pid/stat, fields 3 (state) and 22 (starttime); the command (field 2) may hold
    spaces and parentheses, so fields are counted from the last one.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[19])


def lives(process: Mapping[str, Any], *, last_written_ms: int) -> bool:
    """Whether the process of a journal's `run` or `attempt` line lives.

    Args:
        process: that line's `process`, or, in journals before it, only `pid`.
        last_written_ms: time of the journal's last line, milliseconds since the epoch.
    """
    pid = process.get("pid")
    if "place" not in process and isinstance(pid, int):
        return started_ticks(pid) is not None
    if process.get("place") != _place() or not isinstance(pid, int):
        return time.time() - last_written_ms / 1000 < QUIET_S
    ticks = started_ticks(pid)
    return ticks is not None and ticks == process.get("started")


def _place() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return f"{os.uname().nodename} unknown"
