"""Memory that is no longer used goes back to the system, where an allocator would keep it for later."""

from __future__ import annotations

import ctypes

import pyarrow as pa

M_MMAP_THRESHOLD = -3  # malloc.h
LARGE_BYTES = 1 << 20


def give_back() -> None:
    """Takes about a millisecond; glibc and Arrow keep what earlier work needed, other allocators may not.

    From then on, large arrays go back as soon as they are freed: glibc would learn to keep those, too.
    """
    pa.default_memory_pool().release_unused()
    library = ctypes.CDLL(None)
    if hasattr(library, "malloc_trim") and hasattr(library, "mallopt"):  # glibc
        library.mallopt(M_MMAP_THRESHOLD, LARGE_BYTES)
        library.malloc_trim(0)
