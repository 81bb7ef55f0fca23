"""Memory of a process and a host from /proc, and telling out-of-memory from other failures."""

from __future__ import annotations

import re
from pathlib import Path

KILLED = -9
_STATUS = Path("/proc/self/status")
_VMSTAT = Path("/proc/vmstat")

# torch and torch_npu allocators, CANN's error codes (EL0004 and 207001, 207005, 207018, 200000 stand for
# failed allocations), pinned host memory, torch's CPU allocator, and the C library.
_TEXTS = re.compile(
    r"out of memory|can't allocate memory|cannot allocate memory|not enough memory|malloc pin memory failed"
    r"|workspaceallocator tried to allocate|failed to allocate memory|bad_alloc|el0004"
    r"|\b(?:200000|207001|207005|207018)\b",
    re.IGNORECASE,
)


def is_out_of_memory(
    evidence: BaseException | int, text: str = "", *, kernel_kills: int | None = None
) -> bool:
    """Whether a failure is that memory ran out, on a device or on the host.

    Args:
        evidence: what was raised, or the return code of a child process. Linux ends a process that took too
            much with -9, but so does whoever sends that signal: the kernel's own count tells them apart.
        text: the child's last words.
        kernel_kills: processes that the kernel ended for memory while the child ran; None: not known.
    """
    if isinstance(evidence, int):
        if evidence == KILLED:
            return bool(kernel_kills)
        return evidence != 0 and _TEXTS.search(text) is not None
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


def kernel_kills() -> int | None:
    """Processes that the kernel has ended for want of memory since its boot, of any group; None: not told.

    Source: `oom_kill` of /proc/vmstat (since Linux 4.13), which counts kills by a cgroup's limit too.
    """
    try:
        lines = _VMSTAT.read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), None)


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
