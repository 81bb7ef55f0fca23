"""Keeps an encoder from making this process a real-time one.

SVT-AV1, where the user is root, asks for SCHED_FIFO at priority 99 for its threads and for the thread that
opens it, and never gives it back: everything that this process does and starts from then on runs before all
else on the machine, sshd and a training beside it included. It takes a refusal well, so it is refused.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager

CAP_SYS_NICE = 1 << 23  # linux/capability.h; without it sched_setscheduler(2) refuses real-time policies
VERSION_3 = 0x20080522  # _LINUX_CAPABILITY_VERSION_3: capabilities in two words, see capget(2)


class _Header(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("thread", ctypes.c_int))


class _Word(ctypes.Structure):
    _fields_ = (
        ("effective", ctypes.c_uint32),
        ("permitted", ctypes.c_uint32),
        ("inheritable", ctypes.c_uint32),
    )


@contextmanager
def no_realtime() -> Iterator[None]:
    """The calling thread, and threads that it starts, may not become real-time meanwhile; Linux only."""
    had = refuse_realtime()
    try:
        yield
    finally:
        if had:
            _set(True)


def refuse_realtime() -> bool:
    """From now on for the calling thread, the threads it starts, and forks; not for what they execute.

    Returns whether it could have become real-time before.
    """
    return _set(False)


def _set(allowed: bool) -> bool:
    """Says whether anything was changed."""
    library = ctypes.CDLL(None, use_errno=True)
    if not (hasattr(library, "capget") and hasattr(library, "capset")):
        return False
    header, words = _Header(VERSION_3, 0), (_Word * 2)()
    if library.capget(ctypes.byref(header), words) != 0:
        return False
    if bool(words[0].effective & CAP_SYS_NICE) == allowed:
        return False
    words[0].effective ^= CAP_SYS_NICE
    return bool(library.capset(ctypes.byref(header), words) == 0)
