"""The device that a process computes on.

`torch.cuda` and `torch.npu` have the same names for what is needed here, so that one class serves both; the
cpu answers from /proc. Everything outside this room is blind to the kind.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from stack.devices.cgroup import memory_limit_bytes
from stack.devices.memory import host_bytes, process_bytes, reset_process_peak
from stack.errors import NotAble

Kind = Literal["npu", "cuda", "cpu"]
COLLECTIVES: Mapping[str, str] = {"cpu": "gloo", "cuda": "nccl", "npu": "hccl"}


def open_device(kind: Kind, index: int = 0) -> Device:
    """Select a device for this process.

    Raises:
        NotAble: torch, its backend or that many devices are not there.
    """
    try:
        import torch
    except ImportError:
        raise NotAble("torch-missing", "torch is not installed", do="run 'make setup'") from None
    if kind == "cpu":
        return Device("cpu", index)
    module = getattr(torch, kind, None)
    if module is None:
        raise NotAble(
            "device-backend-missing",
            f"this torch has no {kind} backend",
            do="install torch_npu" if kind == "npu" else "install a torch that is built for CUDA",
        )
    found = module.device_count() if module.is_available() else 0
    if index >= found:
        raise NotAble(
            "device-missing",
            f"device {kind}:{index} is asked for, {found} are visible",
            do="run 'stack doctor'",
        )
    module.set_device(index)
    return Device(kind, index)


@dataclass(frozen=True)
class Device:
    """One selected device; `open_device` makes it."""

    kind: Kind
    index: int

    @property
    def torch(self) -> Any:
        """The `torch.device`."""
        import torch

        return torch.device("cpu") if self.kind == "cpu" else torch.device(self.kind, self.index)

    @property
    def collective(self) -> str:
        """The backend of `torch.distributed` for this kind."""
        return COLLECTIVES[self.kind]

    @property
    def name(self) -> str:
        """What the driver calls it, such as `Ascend910B3`; the processor's model name for a cpu."""
        if self.kind != "cpu":
            return str(self._module.get_device_name(self.index))
        from stack.devices.probe import cpu_name

        return cpu_name()

    def seed(self, seed: int) -> None:
        """Seed Python, numpy, torch and the device."""
        import numpy
        import torch

        random.seed(seed)
        numpy.random.seed(seed % 2**32)
        torch.manual_seed(seed)
        if self.kind != "cpu":
            self._module.manual_seed_all(seed)

    def synchronise(self) -> None:
        """Wait until the device has done what was queued; clocks are read after this."""
        if self.kind != "cpu":
            self._module.synchronize()

    def memory_now_bytes(self) -> int:
        """Allocated on the device; the process's resident size for a cpu."""
        return process_bytes("VmRSS") if self.kind == "cpu" else int(self._module.memory_allocated())

    def memory_peak_bytes(self) -> int:
        """The highest `memory_now_bytes` since `reset_memory_peak`; for a cpu VmHWM."""
        return process_bytes("VmHWM") if self.kind == "cpu" else int(self._module.max_memory_allocated())

    def memory_reserved_peak_bytes(self) -> int | None:
        """What the caching allocator held at most; None for a cpu, which has none."""
        return None if self.kind == "cpu" else int(self._module.max_memory_reserved())

    def reset_memory_peak(self) -> bool:
        """Start the peak anew; False where that is not possible."""
        if self.kind == "cpu":
            return reset_process_peak()
        self._module.reset_peak_memory_stats()
        return True

    def memory_total_bytes(self) -> int:
        """What the driver gives out; for a cpu the host's, or what this process's control group may take."""
        if self.kind != "cpu":
            return int(self._module.mem_get_info()[1])
        return min(host_bytes(), memory_limit_bytes() or host_bytes())

    def memory_free_bytes(self) -> int:
        """What nobody holds just now, as the driver counts it, contexts and all other buffers included."""
        if self.kind != "cpu":
            return int(self._module.mem_get_info()[0])
        limit = memory_limit_bytes()
        free = host_bytes("MemAvailable")
        return free if limit is None else max(0, min(free, limit - process_bytes("VmRSS")))

    def memory_reserved_bytes(self) -> int:
        """What the caching allocator holds; a cpu has none, so the process's resident size."""
        return process_bytes("VmRSS") if self.kind == "cpu" else int(self._module.memory_reserved())

    def empty_caches(self) -> None:
        if self.kind != "cpu":
            self._module.empty_cache()

    def autocast(self, dtype: str | None) -> contextlib.AbstractContextManager[Any]:
        """A context that computes in `dtype` (`bfloat16`); None changes nothing."""
        import torch

        if dtype is None:
            return contextlib.nullcontext()
        context: contextlib.AbstractContextManager[Any] = torch.autocast(
            self.kind, dtype=getattr(torch, dtype)
        )
        return context

    def seed_draws(self, seed: int) -> None:
        """Seed torch's generators alone, of the host and the device: what a model draws its noise from."""
        import torch

        torch.manual_seed(seed)
        if self.kind == "npu":
            self._module.manual_seed_all(seed)

    def rng_state(self) -> dict[str, Any]:
        """The state of all generators that a step may draw from, as tensors and plain tuples of numbers."""
        import numpy
        import torch

        name, keys, *rest = numpy.random.get_state(legacy=True)
        state = {
            "python": random.getstate(),
            "numpy": (name, numpy.asarray(keys).tolist(), *rest),
            "torch": torch.get_rng_state(),
        }
        if self.kind != "cpu":
            state[self.kind] = self._module.get_rng_state()
        return state

    def set_rng_state(self, state: Mapping[str, Any]) -> None:
        """Raises KeyError where the state was taken on another kind of device."""
        import numpy
        import torch

        random.setstate(state["python"])
        name, keys, *rest = state["numpy"]
        numpy.random.set_state((name, numpy.asarray(keys, dtype=numpy.uint32), *rest))
        torch.set_rng_state(state["torch"])
        if self.kind != "cpu":
            self._module.set_rng_state(state[self.kind])

    @property
    def _module(self) -> Any:
        import torch

        return getattr(torch, self.kind)
