"""The Ascend manifest: which drivers of a host a CANN runs on."""

from __future__ import annotations

import fnmatch
from typing import Literal

from pydantic import Field

from stack.manifests.base import Strict


class Cann(Strict):
    """What one CANN version needs of the host that its container runs on.

    Attributes:
        drivers: versions of the host's driver, `*` for any rest, as the vendor's release notes list them.
        tested_with: the driver version that the vendor released together with it.
    """

    drivers: tuple[str, ...] = Field(min_length=1)
    tested_with: str

    def runs_on(self, driver: str) -> bool:
        return any(fnmatch.fnmatchcase(driver.lower(), pattern) for pattern in self.drivers)


class Module(Strict):
    """A kind of card: its name as npu-smi says it, rated memory, and PCI vendor and device."""

    name: str
    memory_mb: int = Field(ge=1)
    pci_device: str = Field(pattern=r"^[0-9a-f]{4}:[0-9a-f]{4}$")


class AscendManifest(Strict):
    schema_: Literal["stack/ascend/1"] = Field(alias="schema")
    cann: dict[str, Cann]
    modules: tuple[Module, ...]
