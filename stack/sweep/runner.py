"""Measures points, each in a fresh process: an error may leave one in any state; keeps what it measured."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from stack.devices import device_count
from stack.devices.cgroup import MemoryGroup, make_memory_group
from stack.devices.witness import Witness, Witnessed
from stack.errors import BadRequest, NotAble
from stack.files import canonical_json, read_json, sha256_file, sha256_text, write_json
from stack.manifests.run import Sweep, SweepGroup
from stack.sweep.journal import journal_point
from stack.sweep.judge import STEPS, Kills, judge
from stack.sweep.pictures import PICTURES, PictureCost
from stack.sweep.result import Point
from stack.train import lines
from stack.train.child import Ended, environment, python_module, run_child
from stack.train.job import Job

POINTS = "points"
KEPT = "point.json"
OUTPUT = "point.log"
HOME = ".hf-home"
TRIED_AGAIN = ("error", "unavailable")
"""What a sweep that goes on measures once more: a crash may have been somebody's kill."""


class Interrupted(KeyboardInterrupt):
    """The sweep was asked to stop; the points measured so far are kept in its folder."""


@dataclass
class Runner:
    """Measures the points of one sweep.

    Attributes:
        parent: run_id of the sweep's journal.
        is_resume: points of an earlier start in the same folder are taken, where all that they depend on is
            the same.
    """

    job: Job
    settings: Sweep
    parent: str
    is_resume: bool
    log: Callable[[str], None]

    def __post_init__(self) -> None:
        self._key = _key(self.job)
        self._available = device_count(self.job.run.device.kind)
        self._pictures: PictureCost | None = None
        self._is_pictures_done = not self.settings.pictures

    @property
    def pictures(self) -> PictureCost | None:
        """What the first point that ran found out about pictures."""
        return self._pictures

    def measure(self, group: SweepGroup, batch: int, predicted_bytes: int | None = None) -> Point:
        """One point: kept from before, or measured in a child of its own."""
        blank = Point(group.devices, batch, "error", predicted_bytes=predicted_bytes)
        folder = self.job.out / POINTS / blank.name
        kept = self._kept(folder, group)
        if kept is not None:
            self.log(f"{line(kept)} (kept from before)")
            self._read_pictures(folder)
            return kept
        started_unix_s = time.time()
        if group.devices > self._available:
            kind = self.job.run.device.kind
            message = f"{group.devices} {kind} devices are asked for, {self._available} are here"
            point = replace(blank, status="unavailable", message=message)
        else:
            point = self._in_child(folder, group, blank)
        self.log(line(point))
        journal_point(self.job, point, self.parent, started_unix_s)
        write_json(folder / KEPT, {"key": self._key_of(group), "point": point.to_json()})
        return point

    def _in_child(self, folder: Path, group: SweepGroup, blank: Point) -> Point:
        job = self.job
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        replace(job, out=folder).write(folder / "job.json")
        spec = {
            "job": str(folder / "job.json"),
            "devices": group.devices,
            "batch": blank.batch,
            "memory_limit_mb": group.memory_limit_mb,
            "host_limit_mb": group.host_limit_mb,
            "pictures": not self._is_pictures_done,
        }
        write_json(folder / "spec.json", spec)
        command = python_module("stack.sweep.point", [str(folder / "spec.json")], group.devices)
        own_group = _own_group(blank.name, group)
        try:
            if own_group is not None:
                command = own_group.enter(command)
            witness, ended = self._run(folder, command, group.devices)
            kills = own_group.kills() if own_group is not None else None
        finally:
            if own_group is not None:
                own_group.close()
        if ended.is_signalled:
            raise Interrupted
        point = judge(
            folder,
            blank,
            ended,
            self.settings.timeout_s,
            None if kills is None else Kills(kills, is_own=True),
        )
        seen = witness.seen()
        self._read_pictures(folder)
        return replace(
            _with_workers(point, seen, group, job),
            predicted_bytes=blank.predicted_bytes,
            device_peak_bytes=seen.peak_bytes,
            device_source=seen.source if seen.peak_bytes is not None else None,
            power_w=seen.power_w,
        )

    def _run(self, folder: Path, command: list[str], devices: int) -> tuple[Witness, Ended]:
        job, has_begun = self.job, False

        with Witness(job.run.device.kind, devices) as witness:

            def poll() -> None:
                nonlocal has_begun
                if not has_begun and (folder / STEPS).exists():
                    has_begun = True
                    witness.restart()  # loading may take more than the steps do

            ended = run_child(
                command,
                env=environment(job.out / HOME, is_cpu=job.run.device.kind == "cpu", ranks=devices),
                output=folder / OUTPUT,
                timeout_s=self.settings.timeout_s,
                on_poll=poll,
                on_start=witness.watch,
            )
        return witness, ended

    def _kept(self, folder: Path, group: SweepGroup) -> Point | None:
        if not self.is_resume or not (folder / KEPT).exists():
            return None
        with suppress(BadRequest, KeyError, TypeError):
            raw = read_json(folder / KEPT, what="kept point")
            point = Point.from_json(raw["point"])
            if raw["key"] == self._key_of(group) and point.status not in TRIED_AGAIN:
                return point
        return None

    def _key_of(self, group: SweepGroup) -> str:
        return sha256_text(f"{self._key} {group.devices} {group.memory_limit_mb} {group.host_limit_mb}")

    def _read_pictures(self, folder: Path) -> None:
        if self._is_pictures_done or not (folder / PICTURES).exists():
            return
        self._is_pictures_done = True
        raw: dict[str, Any] = read_json(folder / PICTURES, what="cost of pictures")
        if "why_not" in raw:
            self.log(f"the cost of pictures was not measured: {raw['why_not']}")
        else:
            self._pictures = PictureCost.from_json(raw)


def check_limits(settings: Sweep, kind: str) -> None:
    """Raises NotAble where a limit is asked for that cannot be set here."""
    limited = [group for group in settings.groups if group.host_limit_mb is not None]
    if not limited:
        return
    own_group = make_memory_group("stack-sweep-check")
    if own_group is None:
        raise NotAble(
            "sweep-no-cgroup",
            "host_limit_mb needs a control group of its own for each point, and none can be made here",
            do="use memory_limit_mb (in one process, cpu only), or run where /sys/fs/cgroup may be written",
        )
    own_group.close()


def line(point: Point) -> str:
    """A point in one line, for the log."""
    if point.status != "ok" or point.step_s is None:
        return f"{point.name}: {point.status}: {point.message}"
    peak = (point.peak_memory_bytes or 0) / 1e9
    off = point.prediction_error_frac
    model = "" if off is None else f", the model expected {off:+.1%}"
    speed = f"{point.step_s:.3f} s/step, {point.samples_per_s:.1f} samples/s"
    return f"{point.name}: {speed}, peak {peak:.2f} GB{model}"


def _own_group(name: str, group: SweepGroup) -> MemoryGroup | None:
    """A control group for the point, where one can be made: its kills are then counted for it alone."""
    own_group = make_memory_group(f"stack-sweep-{name}")
    if own_group is not None and group.host_limit_mb is not None:
        try:
            own_group.limit(group.host_limit_mb * 1_000_000)
        except OSError as error:
            own_group.close()
            raise NotAble("sweep-no-cgroup", f"host_limit_mb cannot be set: {error}") from error
    return own_group


def _with_workers(point: Point, seen: Witnessed, group: SweepGroup, job: Job) -> Point:
    """On a cpu, loader workers take of the same memory; only the kernel's sum over all processes has them."""
    if job.run.device.kind != "cpu" or group.memory_limit_mb is not None or point.demand_bytes is None:
        return point
    everyone = seen.peak_bytes or 0
    if group.host_limit_mb is not None:
        return replace(point, demand_bytes=(everyone - seen.file_bytes) // group.devices)
    return replace(point, demand_bytes=max(point.demand_bytes, everyone // group.devices))


def _key(job: Job) -> str:
    """Of all that a point's figures depend on."""
    run = job.run
    sweep = run.sweep
    assert sweep is not None
    meta = job.dataset / "meta"
    return sha256_text(
        canonical_json(
            {
                "policy": run.policy.model_dump(mode="json"),
                "device": run.device.model_dump(mode="json"),
                "train": run.train.model_dump(mode="json"),
                "steps": [sweep.warmup_steps, sweep.timed_steps, sweep.timeout_s],
                "data": {f.name: sha256_file(f) for f in sorted(meta.glob("*.json"))},
                "versions": lines.versions(),
            }
        )
    )
