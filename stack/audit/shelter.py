"""Work that a damaged file may take down, in a process of its own: the report survives.

The readers of parquet and of video are C++ and C; some damaged bytes end the process that reads them, or keep
it busy for ever. So the work runs in a child. Before a file is given to a reader, its name goes into memory
that the parent shares (`reading`). Where the child dies or does not come back, the parent starts another that
leaves this file alone (`why_avoided`), and the report of that one says what stays unchecked.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import select
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from stack.errors import WorkFailed

READ_LEAST_S, BYTES_A_SECOND = 120.0, 2e6  # no disk or reader is slower than this
GRACE_S = 10.0  # after --max-seconds, which the work itself keeps unless a reader hangs
RESTARTS = 20
NOTE_BYTES = 8192
PR_SET_PDEATHSIG = 1  # linux/prctl.h
CRASHES = (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGILL, signal.SIGFPE)

_note: mmap.mmap | None = None
_avoided: dict[str, str] = {}


def take_shelter(max_seconds: float | None = None) -> None:
    """Go on in a child process; the parent waits, and leaves with the child's exit code.

    Where this process has more than one thread the work stays in it: a forked child could inherit a lock that
    nobody will open. So call this before numpy is imported.

    Args:
        max_seconds: what the work is given; a reader that is still busy `GRACE_S` later is ended.

    Raises:
        WorkFailed: in the parent, where the child dies although no file can be blamed, or again and again.
    """
    global _note
    if _note is not None or not hasattr(os, "fork") or _threads() != 1:
        return
    _note = mmap.mmap(-1, NOTE_BYTES)
    for _ in range(RESTARTS):
        sys.stdout.flush()
        sys.stderr.flush()
        _note[:] = bytes(NOTE_BYTES)
        child = os.fork()
        if child == 0:
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
            return
        died = _watch(child, max_seconds)
        if died is None:
            continue
        if died >= 0:
            sys.exit(died)
        file = _noted()
        if -died in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            sys.exit(128 - died)
        if -died not in CRASHES or not file:
            raise _no_one_to_blame(-died)
        _avoided[file] = f"the reader crashed on it (signal {-died}); it was left alone"
    raise WorkFailed(
        "audit-died-again",
        f"readers crashed on {RESTARTS} files; the audit gave up",
        where=_noted(),
        do="take the damaged files out of the delivery, or copy them again",
    )


def why_avoided(file: Path) -> str:
    """Why this file must not be read; empty where it may be."""
    return _avoided.get(os.path.abspath(file), "")


@contextmanager
def reading(file: Path, *, bounded: bool = True) -> Iterator[None]:
    """Say which file a reader is about to get.

    Args:
        bounded: whether it should come back soon; decoding hours of video may take hours.

    Raises:
        OSError: an earlier attempt at this file ended badly.
    """
    if why := why_avoided(file):
        raise OSError(why)
    if _note is None:
        yield
        return
    name = os.path.abspath(file).encode(errors="surrogateescape")
    until = time.monotonic() + READ_LEAST_S + _size(file) / BYTES_A_SECOND if bounded else 0.0
    _write(f"{until:.3f}".encode() + b"\0" + name)
    try:
        yield
    finally:
        _write(b"")


def in_shelter() -> bool:
    """Whether this process may die without harm."""
    return _note is not None


def _threads() -> int:
    try:
        return len(os.listdir("/proc/self/task"))
    except OSError:
        return 0


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:
        return 0


def _write(content: bytes) -> None:
    assert _note is not None
    _note[: len(content) + 1] = content[: NOTE_BYTES - 1] + b"\0"


def _noted() -> str:
    """The file that a reader has, or had when its process died."""
    return _fields()[1]


def _fields() -> tuple[float, str]:
    assert _note is not None
    until, _, rest = bytes(_note).partition(b"\0")
    name = rest.partition(b"\0")[0].decode(errors="surrogateescape") if until else ""
    return float(until or 0), name


def _watch(child: int, max_seconds: float | None) -> int | None:
    """The child's exit code, negative for a signal; None where a reader hung and the child was ended."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT,)}
    before[signal.SIGTERM] = signal.signal(signal.SIGTERM, lambda *_: os.kill(child, signal.SIGTERM))
    ends = None if max_seconds is None else time.monotonic() + max_seconds + GRACE_S
    handle = os.pidfd_open(child) if hasattr(os, "pidfd_open") else None
    try:
        while True:
            if handle is not None:
                select.select([handle], [], [], 1.0)
            else:
                time.sleep(0.05)
            pid, status = os.waitpid(child, os.WNOHANG)
            if pid:
                return os.waitstatus_to_exitcode(status)
            until, file = _fields()
            hung = file and until and time.monotonic() > until
            late = file and ends is not None and time.monotonic() > ends
            if hung or late:
                _avoided[file] = "the reader did not come back from it in time; it was left alone"
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
                return None
    finally:
        if handle is not None:
            os.close(handle)
        for number, handler in before.items():
            signal.signal(number, handler)


def _no_one_to_blame(number: int) -> WorkFailed:
    why = f"the process of the audit was ended by signal {number}"
    if number == signal.SIGKILL:
        why += ", most likely because memory ran out"
    return WorkFailed("audit-died", why, do="look at the machine's memory and log, then try again")
