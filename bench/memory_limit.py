"""A memory cgroup around a command: it and all its children get so many bytes, page cache included."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
JOIN = 'echo $$ > "$1/cgroup.procs" && shift && exec "$@"'
LEAVE_S = 5.0


@contextmanager
def memory_limit(limit_bytes: int) -> Iterator[Path | None]:
    """Yield the folder of a new cgroup that is removed at the end; None where none may be made here."""
    group = None
    for parent, file in ((CGROUPS / "memory", "memory.limit_in_bytes"), (CGROUPS, "memory.max")):
        own = parent / f"stack-bench-{os.getpid()}"
        try:
            own.mkdir()
        except OSError:
            continue
        try:
            (own / file).write_text(str(limit_bytes))
            with suppress(OSError):  # absent where the machine counts no swap
                (own / "memory.swap.max").write_text("0")
            group = own
            break
        except OSError:
            own.rmdir()
    try:
        yield group
    finally:
        if group is not None:
            _remove(group)


def within(group: Path | None, command: Sequence[str]) -> list[str]:
    """The command that runs `command` in the group."""
    return list(command) if group is None else ["sh", "-c", JOIN, "sh", str(group), *command]


def _remove(group: Path) -> None:
    until = time.monotonic() + LEAVE_S
    while True:
        try:
            group.rmdir()
            return
        except OSError:  # the last process is still leaving
            if time.monotonic() > until:
                raise
            time.sleep(0.05)
