"""Work that a damaged file may take down, in a process of its own: the report survives.

The readers of parquet and of video are C++ and C; some damaged bytes end the process that reads them, or keep
it busy for ever. So the work runs in a child. Before a file is given to a reader, its name goes into memory
that the parent shares (`reading`). Where the child dies or does not come back, the parent starts another that
leaves this file alone (`why_avoided`), and the report of that one says what stays unchecked.

`take_shelter` is for a command, which goes on in the child; `stack.audit.apart` is for everybody else.
"""

from __future__ import annotations

import ctypes
import itertools
import mmap
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from stack.errors import WorkFailed

READ_LEAST_S = 120.0
READ_BYTES_A_SECOND = 2e6  # no disk or reader is slower than this
DECODE_BYTES_A_SECOND = 1e4  # nor is any decoder: one large picture in several seconds
GRACE_S = 10.0  # after --max-seconds, which the work itself keeps unless a reader hangs
RESTARTS = 20
NOTE_BYTES = 8192
PR_SET_PDEATHSIG = 1  # linux/prctl.h
CRASHES = (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGILL, signal.SIGFPE)

_note: mmap.mmap | None = None
_child = 0  # pid of the process that may die; workers that it forks are not it
_ends_s: float | None = None  # monotonic; when the work that goes on now is to be at its end
_avoided: dict[str, tuple[str, tuple[int, int]]] = {}  # path -> why, and what the file was then


def take_shelter() -> None:
    """Go on in a child process; the parent waits, and leaves with the child's exit code.

    Where this process has more than one thread the work stays in it: a forked child could inherit a lock that
    nobody will open. So call this before numpy is imported.

    Raises:
        WorkFailed: in the parent, where the child dies although no file can be blamed, or again and again.
    """
    if in_shelter() or not can_branch():
        return
    code = branch()
    if code is not None:
        sys.exit(code)


def can_branch() -> bool:
    """Whether this process can be copied without harm: no other thread holds a lock."""
    return hasattr(os, "fork") and _threads() == 1


def branch(
    *, owner: int | None = None, restarts: int | None = RESTARTS, again: Callable[[], None] | None = None
) -> int | None:
    """Fork, and watch over the child.

    Args:
        owner: pid of the parent for whom this is done; where it is gone, the child is ended.
        restarts: how many children may break off; None where the owner counts.
        again: called before another child begins what the last one broke off at.

    Returns:
        None in the child, which is to do the work; in the parent the child's exit code, once it has ended.

    Raises:
        WorkFailed: as in `take_shelter`.
    """
    global _note, _child
    _note = _note or mmap.mmap(-1, NOTE_BYTES)
    for turn in itertools.count():
        if turn == restarts:
            raise died_again()
        sys.stdout.flush()
        sys.stderr.flush()
        _note[:] = bytes(NOTE_BYTES)
        if turn and again:
            again()
        child = os.fork()
        if child == 0:
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
            _child = os.getpid()
            return None
        died = _watch(child, owner)
        if died is None:
            continue
        if died >= 0:
            return died
        file = _noted()
        if -died in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            return 128 - died
        if -died not in CRASHES or not file:
            raise _no_one_to_blame(-died)
        _avoid(file, f"the reader crashed on it (signal {-died}); it was left alone")
    raise AssertionError("unreachable")


def died_again() -> WorkFailed:
    return WorkFailed(
        "audit-died-again",
        f"readers crashed or hung on {RESTARTS} files; the audit gave up",
        where=next(reversed(_avoided), ""),
        do="take the damaged files out of the delivery, or copy them again",
    )


@contextmanager
def work_bounded(max_seconds: float | None) -> Iterator[None]:
    """Bound the work in the body: a reader that is still busy `GRACE_S` after that is ended."""
    global _ends_s
    before = _ends_s
    _ends_s = before if max_seconds is None else time.monotonic() + max_seconds + GRACE_S
    try:
        yield
    finally:
        _ends_s = before


def why_avoided(file: Path) -> str:
    """Why this file must not be read; empty where it may be, as one that was replaced since."""
    why, was = _avoided.get(os.path.abspath(file), ("", (0, 0)))
    return why if was == _identity(os.path.abspath(file)) else ""


@contextmanager
def reading(file: Path, *, bytes_a_second: float = READ_BYTES_A_SECOND) -> Iterator[None]:
    """Say which file a reader is about to get, and bound its time.

    Args:
        bytes_a_second: what the slowest reader would manage, beyond `READ_LEAST_S`.

    Raises:
        OSError: an earlier attempt at this file ended badly.
    """
    path = os.path.abspath(file)
    with _noting(path, _identity(path)[0] / bytes_a_second):
        yield


@contextmanager
def reading_together(work: str, size_bytes: int, *, bytes_a_second: float) -> Iterator[None]:
    """As `reading`, for files that other processes read meanwhile, who note nothing.

    Args:
        work: names it, as an absolute path with something added.

    Raises:
        OSError: an earlier attempt did not come back; read one file after another.
    """
    with _noting(os.path.abspath(work), size_bytes / bytes_a_second):
        yield


@contextmanager
def _noting(path: str, seconds: float) -> Iterator[None]:
    if why := why_avoided(Path(path)):
        raise OSError(why)
    if not in_shelter():
        yield
        return
    until = time.monotonic() + READ_LEAST_S + seconds
    until = until if _ends_s is None else min(until, _ends_s)
    assert _note is not None
    before = bytes(_note)
    content = f"{until:.3f}".encode() + b"\0" + path.encode(errors="surrogateescape")
    _note[: len(content) + 1] = content[: NOTE_BYTES - 1] + b"\0"
    try:
        yield
    finally:
        _note[:] = before


def in_shelter() -> bool:
    """Whether this process may die without harm."""
    return _child == os.getpid()


def _threads() -> int:
    try:
        return len(os.listdir("/proc/self/task"))
    except OSError:
        return 0


def _identity(path: str) -> tuple[int, int]:
    """Size and time of change: another pair is another file."""
    try:
        found = os.stat(path)
    except OSError:
        return 0, 0
    return found.st_size, found.st_mtime_ns


def _avoid(path: str, why: str) -> None:
    _avoided[path] = (why, _identity(path))


def _noted() -> str:
    """The file that a reader has, or had when its process died."""
    return _fields()[1]


def _fields() -> tuple[float, str]:
    assert _note is not None
    until, _, rest = bytes(_note).partition(b"\0")
    name = rest.partition(b"\0")[0].decode(errors="surrogateescape") if until else ""
    return float(until or 0), name


def _watch(child: int, owner: int | None) -> int | None:
    """The child's exit code, negative for a signal; None where a reader hung and the child was ended."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT,)}
    before[signal.SIGTERM] = signal.signal(signal.SIGTERM, lambda *_: os.kill(child, signal.SIGTERM))
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
            if owner is not None and os.getppid() != owner:
                os.kill(child, signal.SIGKILL)
            elif file and until and time.monotonic() > until:
                _avoid(file, "the reader did not come back from it in time; it was left alone")
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
