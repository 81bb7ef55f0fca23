"""The processes of one training: one, or several under torch's elastic launcher."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from stack.devices import Device
from stack.errors import NotAble


@dataclass(frozen=True)
class Ranks:
    """This process's place among `world`; with a world of one nothing is communicated."""

    rank: int = 0
    world: int = 1

    def wrap(self, policy: Any, device: Device) -> Any:
        """The policy for the forward pass: as it is, or replicated with averaged gradients.

        Some tensors of pi0.5 never get a gradient (the language model's last layer feeds nothing), so that
        the replica must look for unused ones.
        """
        if self.world == 1:
            return policy
        from torch.nn.parallel import DistributedDataParallel

        ids = None if device.kind == "cpu" else [device.index]
        return DistributedDataParallel(policy, device_ids=ids, find_unused_parameters=True)

    def mean(self, value: float) -> float:
        """The mean over all ranks, equal on all; not finite where one is not."""
        return float(sum(self.gather(value))) / self.world

    def any(self, value: bool) -> bool:
        return any(self.gather(value))

    def gather(self, value: Any) -> list[Any]:
        """Every rank's value, in rank order, on every rank."""
        if self.world == 1:
            return [value]
        import torch.distributed

        values: list[Any] = [None] * self.world
        torch.distributed.all_gather_object(values, value)
        return values

    def barrier(self) -> None:
        if self.world > 1:
            import torch.distributed

            torch.distributed.barrier()

    def close(self) -> None:
        if self.world > 1:
            import torch.distributed

            torch.distributed.destroy_process_group()


def local_rank() -> int:
    """This process's index among those of its host, 0 outside a launcher."""
    return int(os.environ.get("LOCAL_RANK", "0"))


def join(device: Device, expected: int) -> Ranks:
    """Join the other processes of this training.

    Raises:
        NotAble: the launcher started another number than the manifest asks for.
    """
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world != expected:
        # Some launchers start a single process, or several that know nothing of each other, without a word.
        raise NotAble(
            "world-size-differs", f"{world} processes were started, and device.count asks for {expected}"
        )
    if world == 1:
        return Ranks()
    import torch.distributed

    torch.distributed.init_process_group(device.collective)
    return Ranks(torch.distributed.get_rank(), torch.distributed.get_world_size())
