"""Control groups of Linux: a memory limit for a child and all its processes, and the kernel's account of it.

Sources: the kernel's Documentation/admin-guide/cgroup-v2.rst (memory.max, memory.peak, memory.events) and
cgroup-v1/memory.rst (memory.limit_in_bytes, memory.max_usage_in_bytes, memory.oom_control). Most containers
may not make groups; what needs one then says so or does without.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
OWN = Path("/proc/self/cgroup")
CLOSE_S = 5.0


@dataclass(frozen=True)
class MemoryGroup:
    """A group that this process has made; `close` removes it again.

    Attributes:
        is_v2: of the unified hierarchy, whose files have other names.
    """

    folder: Path
    is_v2: bool

    def enter(self, command: Sequence[str]) -> list[str]:
        """`command`, run within the group from its first instruction on."""
        script = 'echo $$ > "$0" && exec "$@"'
        return ["/bin/sh", "-c", script, str(self.folder / "cgroup.procs"), *command]

    def limit(self, limit_bytes: int) -> None:
        """All processes of the group together may take so much; beyond it the kernel ends one of them.

        Swap is closed where it can be, so that the limit is on all memory.
        """
        name = "memory.max" if self.is_v2 else "memory.limit_in_bytes"
        (self.folder / name).write_text(str(limit_bytes))
        swap = ("memory.swap.max", "0") if self.is_v2 else ("memory.memsw.limit_in_bytes", str(limit_bytes))
        with suppress(OSError):
            (self.folder / swap[0]).write_text(swap[1])

    def kills(self) -> int | None:
        """Processes of this group that the kernel has ended for want of memory; None: it does not tell."""
        name = "memory.events" if self.is_v2 else "memory.oom_control"
        return _counted(self.folder / name, "oom_kill")

    def peak_bytes(self) -> int | None:
        """The most that the group has held, its share of the page cache included; None: not told."""
        return _number(self.folder / ("memory.peak" if self.is_v2 else "memory.max_usage_in_bytes"))

    def close(self) -> None:
        """Remove the group; one whose last process is still leaving is waited for shortly."""
        deadline = time.monotonic() + CLOSE_S
        while self.folder.is_dir():
            try:
                self.folder.rmdir()
            except OSError:
                if time.monotonic() > deadline:
                    return
                time.sleep(0.05)


def make_memory_group(name: str, *, root: Path = ROOT, own: Path = OWN) -> MemoryGroup | None:
    """A new group below this process's own; None where none can be made (as in most containers)."""
    for parent, is_v2 in _parents(root, own):
        for left in parent.glob(f"{name}-*"):
            with suppress(OSError):  # of a process that was killed; one with processes in it stays
                left.rmdir()
        folder = parent / f"{name}-{os.getpid()}"
        try:
            folder.mkdir(exist_ok=True)
        except OSError:
            continue
        group = MemoryGroup(folder, is_v2)
        wanted = folder / ("memory.max" if is_v2 else "memory.limit_in_bytes")
        if os.access(wanted, os.W_OK) and os.access(folder / "cgroup.procs", os.W_OK):
            return group
        group.close()  # of a hierarchy that does not hand out the memory controller here
    return None


def memory_limit_bytes(*, root: Path = ROOT, own: Path = OWN) -> int | None:
    """The least limit on this process's memory that its groups and those above set; None: there is none."""
    limits = []
    for parent, is_v2 in _parents(root, own):
        name = "memory.max" if is_v2 else "memory.limit_in_bytes"
        folder = parent
        while folder != root.parent and folder != folder.parent:
            limit = _number(folder / name)
            # v1 says "none" by a number close to 2^63.
            if limit is not None and limit < 1 << 62:
                limits.append(limit)
            folder = folder.parent
    return min(limits, default=None)


def _parents(root: Path, own: Path) -> list[tuple[Path, bool]]:
    """This process's groups of the memory controller, v1 before v2; in a container the root stands for it."""
    try:
        lines = own.read_text().splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            bases, is_v2 = [root / "memory"], False
        elif not controllers:
            bases, is_v2 = [root, root / "unified"], True
        else:
            continue
        for base in bases:
            places = (base / path.lstrip("/"), base)
            found += [(place, is_v2) for place in places if (place / "cgroup.procs").exists()][:1]
    return sorted(found, key=lambda place: place[1])


def _counted(file: Path, name: str) -> int | None:
    try:
        lines = file.read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) for line in lines if line.startswith(f"{name} ")), None)


def _number(file: Path) -> int | None:
    try:
        text = file.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None
