"""The processes of one training: one, or several under torch's elastic launcher."""

from __future__ import annotations

import datetime
import os
from dataclasses import dataclass
from typing import Any

from stack.devices import Device
from stack.errors import NotAble

# A rank that dies is seen at once, by its launcher and by closed connections; this ends what is left: a rank
# that hangs. A checkpoint or an evaluation of one rank that the others wait for takes less.
COLLECTIVE_TIMEOUT = datetime.timedelta(minutes=30)


@dataclass(frozen=True)
class Ranks:
    """This process's place among `world`; with a world of one nothing is communicated."""

    rank: int = 0
    world: int = 1
    talk: Any = (
        None  # a process group on the hosts' own network, for words and numbers; None: the default one
    )

    def wrap(self, policy: Any, device: Device) -> Any:
        """The policy for the forward pass: as it is, or replicated with averaged gradients.

        Some tensors of pi0.5 never get a gradient (the language model's last layer feeds nothing), so that
        the replica must look for unused ones. Its buffers are constants, equal on all ranks: to exchange
        them would make every rank wait in its forward pass for the slowest, and hide which one that is.
        """
        if self.world == 1:
            return policy
        from torch.nn.parallel import DistributedDataParallel

        ids = None if device.kind == "cpu" else [device.index]
        return DistributedDataParallel(
            policy, device_ids=ids, find_unused_parameters=True, broadcast_buffers=False
        )

    def gather(self, value: Any) -> list[Any]:
        """Every rank's value, in rank order, on every rank."""
        if self.world == 1:
            return [value]
        import torch.distributed

        values: list[Any] = [None] * self.world
        torch.distributed.all_gather_object(values, value, group=self.talk)
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

    torch.distributed.init_process_group(device.collective, timeout=COLLECTIVE_TIMEOUT)
    found = torch.distributed.get_world_size()
    if found != expected:
        raise NotAble(
            "world-size-differs", f"{found} processes have met, and device.count asks for {expected}"
        )
    # What ranks tell each other each step must not go over the device, which would have to stop for it.
    talk = None if device.kind == "cpu" else torch.distributed.new_group(backend="gloo")
    return Ranks(torch.distributed.get_rank(), found, talk)
