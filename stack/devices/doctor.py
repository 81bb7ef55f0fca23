"""Is this machine able to train? Facts against needs, as faults with a mend."""

from __future__ import annotations

import os
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from stack.devices.device import Kind
from stack.devices.probe import DeviceFacts, HostFacts, probe
from stack.devices.witness import Use, look
from stack.faults import Fault, Place

SHM_PER_WORKER_BYTES = 64 * 1024**2
OFFLINE_SWITCHES = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE")
TRAINING_PACKAGES = ("torch", "lerobot", "transformers")


@dataclass(frozen=True)
class Needs:
    """Attributes:
    count: devices wanted on this host.
    workers: loader processes a device.
    disk: a folder on the disk that checkpoints go to, and the free bytes wanted there.
    """

    kind: Kind
    count: int = 1
    workers: int = 0
    disk: Path | None = None
    disk_bytes: int = 2 * 1024**3


@dataclass(frozen=True)
class Examination:
    host: HostFacts
    devices: DeviceFacts
    faults: tuple[Fault, ...]

    def to_json(self) -> dict[str, Any]:
        return {
            "host": asdict(self.host),
            "devices": asdict(self.devices),
            "faults": [fault.to_json() for fault in self.faults],
        }


def examine(needs: Needs) -> Examination:
    """Look at this host; never raises, never imports torch for a cpu."""
    host, devices = probe(needs.kind)
    faults = [
        *_packages(host),
        *_device_faults(needs, devices),
        *_cards(look(needs.kind, needs.count)),
        *_shared_memory(needs, host),
        *_disk(needs),
        *_offline_switches(),
    ]
    return Examination(host, devices, tuple(faults))


def _packages(host: HostFacts) -> list[Fault]:
    missing = [name for name in TRAINING_PACKAGES if name not in host.versions]
    if not missing:
        return []
    return [
        Fault(
            "doctor-packages-missing",
            "error",
            f"packages that training needs are not installed: {', '.join(missing)}",
            "training cannot start; data commands work without them",
            "run `make setup`",
        )
    ]


def _device_faults(needs: Needs, devices: DeviceFacts) -> list[Fault]:
    if devices.problem is None and devices.count >= needs.count:
        return []
    found = f"{devices.count} found" if devices.problem is None else devices.problem
    return [
        Fault(
            "doctor-devices",
            "error",
            f"{needs.count} {needs.kind} device(s) are needed on this host: {found}",
            "training or the sweep would fail at its start",
            "check the driver and the container's devices, or lower device.count",
        )
    ]


def _cards(use: Use) -> list[Fault]:
    """What the vendor's tool says of each card; a cpu has neither health nor cards."""
    faults = []
    if use.problem is not None:
        faults.append(
            Fault(
                "doctor-unseen-cards",
                "warning",
                f"health of the cards and other users of them cannot be seen: {use.problem}",
                "a sick card, or one that somebody else uses, shows only when the training fails",
                "make the vendor's tool work here: in a container, mount it and the driver's folders",
            )
        )
    for card in use.cards:
        if card.health not in (None, "OK"):
            faults.append(
                Fault(
                    "doctor-card-unhealthy",
                    "error",
                    f"card {card.id} ({card.name}) has health {card.health}",
                    "training on it may fail or be wrong",
                    f"look at `npu-smi info -t health -i {card.id.partition('-')[0]}`, or leave the card out",
                )
            )
        if card.processes and card.id != "host":
            held = ", ".join(
                f"{p.name} (process {p.pid}, {p.used_bytes / 1e9:.1f} GB)" for p in card.processes
            )
            faults.append(
                Fault(
                    "doctor-card-in-use",
                    "warning",
                    f"others hold memory on card {card.id} ({card.name}): {held}",
                    "training has that much less memory, and both are slower",
                    "wait for them, end them, or leave the card out",
                )
            )
    return faults


def _shared_memory(needs: Needs, host: HostFacts) -> list[Fault]:
    if needs.workers == 0 or host.shm_free_bytes is None:
        return []
    wanted = needs.workers * needs.count * SHM_PER_WORKER_BYTES
    if host.shm_free_bytes >= wanted:
        return []
    return [
        Fault(
            "doctor-shared-memory",
            "error",
            f"/dev/shm has {host.shm_free_bytes / 1e6:.0f} MB free; {needs.workers * needs.count} loader "
            f"workers want {wanted / 1e6:.0f} MB",
            "workers die with a bus error in the middle of training",
            "start the container with a larger --shm-size, or lower train.workers",
        )
    ]


def _disk(needs: Needs) -> list[Fault]:
    if needs.disk is None:
        return []
    free = shutil.disk_usage(needs.disk).free
    if free >= needs.disk_bytes:
        return []
    return [
        Fault(
            "doctor-disk",
            "error",
            f"{free / 1e9:.1f} GB free; data and checkpoints want {needs.disk_bytes / 1e9:.1f} GB",
            "the run would end when a checkpoint cannot be written",
            "free some space or choose another --work folder",
            where=Place(file=str(needs.disk)),
        )
    ]


def _offline_switches() -> list[Fault]:
    off = [name for name in OFFLINE_SWITCHES if os.environ.get(name, "").lower() in ("0", "false", "no")]
    if not off:
        return []
    return [
        Fault(
            "doctor-online-switch",
            "warning",
            f"the environment asks for hub access: {', '.join(off)}",
            "none for this stack's own trainings, which switch it off; other tools in this shell reach out",
            f"unset {' '.join(off)}",
        )
    ]
