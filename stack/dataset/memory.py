"""Memory that is no longer used goes back to the system, where an allocator would keep it for later."""

from __future__ import annotations

import ctypes

import pyarrow as pa

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # malloc.h
LARGE_BYTES = 2 << 20
KEPT_BYTES = 4 << 20  # new pages cost more than many a work on them: 0.8 ms a MB on a virtual machine


def keep_little() -> None:
    """From now on, large arrays go back as soon as they are freed: glibc would learn to keep those, too.

    Smaller ones are made where earlier ones were.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # mallopt(3), glibc only
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, LARGE_BYTES)
        mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)


def give_back() -> None:
    """Takes about a millisecond; glibc and Arrow keep what earlier work needed, other allocators may not."""
    pa.default_memory_pool().release_unused()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # malloc_trim(3), glibc only
    if trim is not None:
        trim(0)
