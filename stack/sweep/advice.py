"""Which batch a device and how many accumulations make the wanted global batch, fastest first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Fitting:
    """A batch that fits, and its seconds a step."""

    batch: int
    step_s: float


@dataclass(frozen=True)
class Advice:
    """One way to the global batch.

    Attributes:
        step_s: of the whole step: the measured step times the accumulations. An upper bound, for the
            optimiser and the ranks' exchange come once a step and were measured once a batch.
        is_measured: this very batch was measured; otherwise its time lies on the line between two that were.
    """

    devices: int
    batch: int
    accumulation: int
    global_batch: int
    step_s: float
    is_measured: bool

    @property
    def samples_per_s(self) -> float:
        return self.global_batch / self.step_s

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "samples_per_s": self.samples_per_s}


def advise(fitting: Sequence[Fitting], *, devices: int, global_batch: int) -> Advice | None:
    """The fastest batch that divides the global batch; None where none does.

    Every batch up to the largest fitting one is looked at; of two that differ by less than 2 % the larger.
    """
    known = {point.batch: point.step_s for point in fitting}
    if global_batch % devices or not known:
        return None
    share = global_batch // devices
    found = []
    for batch in range(1, min(max(known), share) + 1):
        step_s = _step_s(known, batch)
        if share % batch == 0 and step_s is not None:
            accumulation = share // batch
            found.append(
                Advice(devices, batch, accumulation, global_batch, step_s * accumulation, batch in known)
            )
    if not found:
        return None
    quickest = min(advice.step_s for advice in found)
    return max((a for a in found if a.step_s <= quickest * 1.02), key=lambda a: (a.is_measured, a.batch))


def _step_s(known: dict[int, float], batch: int) -> float | None:
    """Seconds a step, on the line between the two measured neighbours."""
    if batch in known:
        return known[batch]
    below = max((b for b in known if b < batch), default=None)
    above = min((b for b in known if b > batch), default=None)
    if below is None or above is None:
        return None
    part = (batch - below) / (above - below)
    return known[below] + part * (known[above] - known[below])
