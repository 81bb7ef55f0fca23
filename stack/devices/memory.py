"""Memory of a process and a host from /proc, and telling out-of-memory from other failures."""

from __future__ import annotations

import re
from pathlib import Path

KILLED = -9
_STATUS = Path("/proc/self/status")

# torch and torch_npu allocators, CANN's error codes (EL0004 and 207001, 207005, 207018, 200000 stand for
# failed allocations), pinned host memory, torch's CPU allocator, and the C library.
_TEXTS = re.compile(
    r"out of memory|can't allocate memory|cannot allocate memory|not enough memory|malloc pin memory failed"
    r"|workspaceallocator tried to allocate|failed to allocate memory|bad_alloc|el0004"
    r"|\b(?:200000|207001|207005|207018)\b",
    re.IGNORECASE,
)


def is_out_of_memory(evidence: BaseException | int, text: str = "") -> bool:
    """Whether a failure is that memory ran out, on a device or on the host.

    Args:
        evidence: what was raised, or the return code of a child process. -9 is how Linux ends a process
            that took too much; nothing else is left behind by it.
        text: the child's last words.
    """
    if isinstance(evidence, int):
        return evidence == KILLED or (evidence != 0 and _TEXTS.search(text) is not None)
    if isinstance(evidence, MemoryError):
        return True
    if type(evidence).__name__ == "OutOfMemoryError":
        return True
    return isinstance(evidence, (RuntimeError, OSError)) and _TEXTS.search(f"{evidence} {text}") is not None


def process_bytes(field: str) -> int:
    """A field of this process's /proc/self/status, such as VmRSS, VmHWM or VmData, in bytes."""
    for line in _STATUS.read_text().splitlines():
        name, _, rest = line.partition(":")
        if name == field:
            return int(rest.split()[0]) * 1024
    raise KeyError(field)


def reset_process_peak() -> bool:
    """Start VmHWM anew from the current size; False where the kernel does not allow it."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True


def host_bytes(field: str = "MemTotal") -> int:
    """A field of /proc/meminfo in bytes."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        name, _, rest = line.partition(":")
        if name == field:
            return int(rest.split()[0]) * 1024
    raise KeyError(field)


def limit_data_bytes(extra_bytes: int) -> int:
    """Let this process take at most `extra_bytes` more private memory; returns the limit set.

    Beyond it, allocations fail with an error that a program can handle, as on a full device.
    """
    import resource

    limit = process_bytes("VmData") + extra_bytes
    _soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))
    return limit
