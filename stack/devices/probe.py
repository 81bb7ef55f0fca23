"""Facts about this host and its devices, for the doctor; none of them needs torch for a cpu."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from dataclasses import dataclass
from pathlib import Path

from stack.devices.device import Kind
from stack.devices.memory import host_bytes

SHARED_MEMORY = Path("/dev/shm")
PACKAGES = ("torch", "torch_npu", "lerobot", "transformers", "accelerate")


@dataclass(frozen=True)
class HostFacts:
    """The host: cores usable by this process, memory, shared memory (loader workers pass batches in it)."""

    machine: str
    kernel: str
    cpu_name: str
    cpu_count: int
    memory_bytes: int
    memory_free_bytes: int
    shm_bytes: int | None
    shm_free_bytes: int | None
    versions: dict[str, str]


@dataclass(frozen=True)
class DeviceFacts:
    """Devices of one kind; `problem` says why there are none, or none usable."""

    kind: Kind
    count: int
    names: tuple[str, ...]
    memory_bytes: tuple[int, ...]
    problem: str | None


def probe(kind: Kind) -> tuple[HostFacts, DeviceFacts]:
    """Look at the host and at its devices of `kind`; never raises."""
    return _host(), _devices(kind)


def device_count(kind: Kind) -> int:
    """Devices of `kind` that one host offers; a cpu counts its usable cores, one rank each."""
    return _devices(kind).count


def cpu_name() -> str:
    """The processor's name; the architecture where the kernel does not tell (as on aarch64)."""
    for line in Path("/proc/cpuinfo").read_text(errors="replace").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _host() -> HostFacts:
    shm = os.statvfs(SHARED_MEMORY) if SHARED_MEMORY.is_dir() else None
    return HostFacts(
        machine=platform.machine(),
        kernel=platform.release(),
        cpu_name=cpu_name(),
        cpu_count=len(os.sched_getaffinity(0)),
        memory_bytes=host_bytes(),
        memory_free_bytes=host_bytes("MemAvailable"),
        shm_bytes=shm.f_frsize * shm.f_blocks if shm else None,
        shm_free_bytes=shm.f_frsize * shm.f_bavail if shm else None,
        versions=_versions(),
    )


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _devices(kind: Kind) -> DeviceFacts:
    if kind == "cpu":
        cores = len(os.sched_getaffinity(0))
        return DeviceFacts("cpu", cores, (cpu_name(),), (host_bytes(),), None)
    try:
        import torch

        module = getattr(torch, kind, None)
        if module is None:
            return DeviceFacts(kind, 0, (), (), f"this torch ({torch.__version__}) has no {kind} backend")
        if not module.is_available():
            return DeviceFacts(kind, 0, (), (), f"torch.{kind}.is_available() says no")
        count = int(module.device_count())
        names = tuple(str(module.get_device_name(index)) for index in range(count))
        memory = tuple(int(module.get_device_properties(index).total_memory) for index in range(count))
    except Exception as error:  # a broken driver may raise anything; the doctor reports it and goes on
        return DeviceFacts(kind, 0, (), (), f"{type(error).__name__}: {error}")
    return DeviceFacts(kind, count, names, memory, None)
