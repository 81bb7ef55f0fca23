"""What a sweep found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from stack.errors import Exit
from stack.files import read_json
from stack.sweep.advice import Advice
from stack.sweep.memory_model import MemoryModel
from stack.sweep.pictures import PictureCost

Status = Literal["ok", "oom", "timeout", "error", "unavailable"]
RESULT = "result.json"


@dataclass(frozen=True)
class Point:
    """One batch size on one number of devices.

    Memory is that of the device where it was highest, from before the first step to after the last.

    Attributes:
        batch: samples a device and step.
        status: `oom`: memory ran out; `timeout`: too slow; `error`: a crash, or refused; `unavailable`: there
            are not that many devices.
        step_s: median over the timed steps, the wait for data included.
        data_wait_s: median of that wait.
        peak_memory_bytes: what tensors took at most; for a cpu the process's resident size.
        message: why it is not ok.
        peak_reserved_bytes: what the caching allocator held at most; a cpu has none.
        demand_bytes, capacity_bytes: memory that it took of what nobody held before, buffers of the runtime
            included, and how much that was; under `memory_limit_mb` both count from the loaded policy.
        predicted_bytes: what the memory model expected of `demand_bytes` before the point ran.
        device_peak_bytes, device_source: most memory in use on one device, and who counted from outside.
        power_w: all devices together, mean.
        evidence: exit, the kernel's count, steps done, seconds.
    """

    devices: int
    batch: int
    status: Status
    step_s: float | None = None
    samples_per_s: float | None = None
    data_wait_s: float | None = None
    peak_memory_bytes: int | None = None
    message: str = ""
    peak_reserved_bytes: int | None = None
    demand_bytes: int | None = None
    capacity_bytes: int | None = None
    predicted_bytes: int | None = None
    device_peak_bytes: int | None = None
    device_source: str | None = None
    power_w: float | None = None
    evidence: Mapping[str, Any] = field(default_factory=dict)

    @property
    def global_batch(self) -> int:
        return self.devices * self.batch

    @property
    def name(self) -> str:
        return f"d{self.devices}-b{self.batch}"

    @property
    def data_frac(self) -> float | None:
        """The wait for data as a share of the step."""
        return self.data_wait_s / self.step_s if self.step_s and self.data_wait_s is not None else None

    @property
    def prediction_error_frac(self) -> float | None:
        """How far the model was off, over what was measured; positive: it expected more."""
        if self.predicted_bytes is None or not self.demand_bytes:
            return None
        return self.predicted_bytes / self.demand_bytes - 1

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "evidence": dict(self.evidence), "global_batch": self.global_batch}

    @staticmethod
    def from_json(raw: Mapping[str, Any]) -> Point:
        return Point(**{key: value for key, value in raw.items() if key in Point.__dataclass_fields__})


@dataclass(frozen=True)
class Found:
    """What the search on so many devices came to.

    Attributes:
        largest: the largest batch that ran and left the margin; None: not even the first did.
        next_up: the smallest one that did not, measured; None: the search's end was reached before.
        is_proven: nothing between the two is unknown.
        fastest: the batch of most samples a second among those that left the margin.
        model: the line through all points that ran.
        tried: how many points the search measured.
    """

    devices: int
    largest: int | None
    next_up: int | None
    is_proven: bool
    fastest: int | None
    margin_frac: float
    model: MemoryModel | None
    tried: int

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(raw: Mapping[str, Any]) -> Found:
        model = MemoryModel(**raw["model"]) if raw["model"] else None
        return Found(**{**raw, "model": model})


@dataclass(frozen=True)
class SweepResult:
    """`out/result.json`.

    Attributes:
        points: in the order in which they were measured.
        advice: for each number of devices, how to make the run's global batch.
        before: what was in use on each device before any point, in words.
    """

    points: tuple[Point, ...]
    found: tuple[Found, ...] = ()
    advice: tuple[Advice, ...] = ()
    pictures: PictureCost | None = None
    before: tuple[str, ...] = ()

    @property
    def largest_ok(self) -> dict[int, int | None]:
        """Devices -> the largest batch that ran, or None."""
        groups = dict.fromkeys(point.devices for point in self.points)
        return {
            devices: max(
                (p.batch for p in self.points if p.devices == devices and p.status == "ok"), default=None
            )
            for devices in groups
        }

    @property
    def exit(self) -> Exit:
        return Exit.OK if any(point.status == "ok" for point in self.points) else Exit.WORK_FAILED

    def to_json(self) -> dict[str, Any]:
        return {
            "points": [point.to_json() for point in self.points],
            "largest_ok": {str(devices): batch for devices, batch in self.largest_ok.items()},
            "found": [found.to_json() for found in self.found],
            "advice": [advice.to_json() for advice in self.advice],
            "pictures": self.pictures.to_json() if self.pictures else None,
            "before": list(self.before),
        }

    @staticmethod
    def read(out: Path) -> SweepResult:
        """The result of the sweep in folder `out`; BadRequest where there is none."""
        raw = read_json(out / RESULT, what="sweep's result")
        pictures = raw.get("pictures")
        return SweepResult(
            points=tuple(Point.from_json(point) for point in raw["points"]),
            found=tuple(Found.from_json(found) for found in raw.get("found", ())),
            advice=tuple(_advice(advice) for advice in raw.get("advice", ())),
            pictures=PictureCost.from_json(pictures) if pictures else None,
            before=tuple(raw.get("before", ())),
        )

    def table(self) -> str:
        """The table of the points, and what follows from it, as text."""
        from stack.sweep.table import as_text

        return as_text(self)


def _advice(raw: Mapping[str, Any]) -> Advice:
    return Advice(**{key: raw[key] for key in Advice.__dataclass_fields__})


def ordered(points: Sequence[Point]) -> list[Point]:
    """By devices as they first came, then by batch: as people read a table."""
    groups = list(dict.fromkeys(point.devices for point in points))
    return sorted(points, key=lambda point: (groups.index(point.devices), point.batch))
