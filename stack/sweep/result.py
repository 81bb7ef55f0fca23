"""What a sweep found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from stack.errors import Exit
from stack.files import read_json

Status = Literal["ok", "oom", "timeout", "error", "unavailable"]
RESULT = "result.json"


@dataclass(frozen=True)
class Point:
    """One batch size on one number of devices.

    Attributes:
        batch: samples a device and step.
        status: `oom`: memory ran out; `unavailable`: there are not that many devices.
        step_s: median over the timed steps, the wait for data included.
        data_wait_s: median of that wait.
        peak_memory_bytes: of the first device over warm-up and timed steps; for a cpu the process's size.
        message: why it is not ok.
    """

    devices: int
    batch: int
    status: Status
    step_s: float | None = None
    samples_per_s: float | None = None
    data_wait_s: float | None = None
    peak_memory_bytes: int | None = None
    message: str = ""

    @property
    def global_batch(self) -> int:
        return self.devices * self.batch

    @property
    def name(self) -> str:
        return f"d{self.devices}-b{self.batch}"

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "global_batch": self.global_batch}


@dataclass(frozen=True)
class SweepResult:
    """`out/result.json`: the points in the manifest's order."""

    points: tuple[Point, ...]

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
        }

    @staticmethod
    def read(out: Path) -> SweepResult:
        """The result of the sweep in folder `out`; BadRequest where there is none."""
        raw = read_json(out / RESULT, what="sweep's result")
        keys = Point.__dataclass_fields__
        return SweepResult(tuple(Point(**{k: v for k, v in p.items() if k in keys}) for p in raw["points"]))

    def table(self) -> str:
        """The table of the points, one line each, as the field's reports show it."""
        head = ("devices", "batch", "global", "s/step", "samples/s", "peak memory", "result")
        rows = [head, *(_row(point) for point in self.points)]
        widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
        lines = [
            "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows
        ]
        fits = [
            f"largest batch that fits on {devices} device(s): {'none' if batch is None else batch}"
            for devices, batch in self.largest_ok.items()
        ]
        return "\n".join([*lines, *fits])


def _row(point: Point) -> Sequence[str]:
    return (
        str(point.devices),
        str(point.batch),
        str(point.global_batch),
        "-" if point.step_s is None else f"{point.step_s:.3f}",
        "-" if point.samples_per_s is None else f"{point.samples_per_s:.1f}",
        "-" if point.peak_memory_bytes is None else f"{point.peak_memory_bytes / 1e9:.2f} GB",
        {"ok": "ok", "oom": "out of memory"}.get(point.status, point.status),
    )
