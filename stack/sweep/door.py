"""The door: measure the manifest's points, each in a fresh process: an error may leave one in any state."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from stack.devices import device_count
from stack.drawing import Bar, bar_chart
from stack.errors import BadRequest
from stack.files import read_json, write_json
from stack.manifests.load import Loaded
from stack.manifests.models import ModelsManifest
from stack.manifests.run import RunManifest, Sweep, SweepGroup
from stack.sweep.result import RESULT, Point, SweepResult
from stack.tracking import names
from stack.tracking.journal import Journal
from stack.tracking.secrets import redacted
from stack.train import lines
from stack.train.child import Ended, environment, last_line, python_module, run_child
from stack.train.figures import record_figure
from stack.train.identity import data_facts
from stack.train.job import Job, make_job
from stack.train.record import MANIFEST, dataset_name, filter_tags, parameters, record_inputs
from stack.train.settings import before_start

POINTS = "points"
OUTPUT = "point.log"
HOME = ".hf-home"


class Interrupted(KeyboardInterrupt):
    """The sweep was asked to stop; the points measured so far are in its journal."""


def sweep(
    loaded: Loaded[RunManifest],
    *,
    dataset: Path,
    mirror: Path,
    models: ModelsManifest,
    out: Path,
    parent: str | None = None,
    record_provenance: Callable[[Path], None] = lambda _: None,
    log: Callable[[str], None] = print,
) -> SweepResult:
    """Measure every point of the manifest's `sweep`, whatever became of the ones before.

    Args:
        dataset, mirror, models, parent, record_provenance, log: as for `stack.train.train`.
        out: gets result.json, a journal, and `points/d<devices>-b<batch>/` with a journal for each point.

    Raises:
        BadRequest: the manifest has no `sweep` or names a point twice, or data or models are not there.
        NotAble: lerobot is not installed.
        Interrupted: a signal came.
    """
    run = loaded.manifest
    if run.sweep is None:
        raise BadRequest("sweep-missing", "the manifest has no 'sweep:'", where=str(loaded.file))
    _refuse_doubles(run.sweep)
    job = make_job(run, dataset=dataset, mirror=mirror, models=models, out=out)
    lines.detect_line()
    out.mkdir(parents=True, exist_ok=True)
    record_provenance(out)
    journal = Journal(
        out,
        name=f"{run.name} sweep",
        experiment=names.SWEEP,
        parent=parent,
        tags=filter_tags(run),
        description=f"Batch sizes of {run.name}: {run.purpose}",
    )
    write_json(out / MANIFEST, redacted(run.model_dump(mode="json", by_alias=True)))
    facts = data_facts(job.dataset)
    journal.params({**parameters(run, facts), **before_start(job, facts)})
    record_inputs(journal, job)
    journal.artifact(out / MANIFEST)
    try:
        result = SweepResult(tuple(_points(job, run.sweep, journal.run_id, log)))
        write_json(out / RESULT, result.to_json())
        _close(journal, result, out)
    except BaseException as error:
        journal.end("FAILED" if isinstance(error, Exception) else "KILLED")
        journal.close()
        raise
    finally:
        shutil.rmtree(out / HOME, ignore_errors=True)
    log(result.table())
    return result


def _refuse_doubles(settings: Sweep) -> None:
    points = [(group.devices, batch) for group in settings.groups for batch in group.batches]
    for devices, batch in points:
        if points.count((devices, batch)) > 1:
            raise BadRequest(
                "sweep-point-twice", f"batch {batch} on {devices} device(s) is named twice in 'sweep:'"
            )


def _points(job: Job, settings: Sweep, parent: str, log: Callable[[str], None]) -> list[Point]:
    available = device_count(job.run.device.kind)
    points = []
    for group in settings.groups:
        for batch in group.batches:
            started_unix_s = time.time()
            if group.devices > available:
                message = f"{group.devices} {job.run.device.kind} devices are asked for, {available} are here"
                point = Point(group.devices, batch, "unavailable", message=message)
            else:
                point = _measure(job, settings, group, batch)
            log(_line(point))
            _journal_point(job, point, parent, started_unix_s)
            points.append(point)
    return points


def _measure(job: Job, settings: Sweep, group: SweepGroup, batch: int) -> Point:
    """One point in a child of its own."""
    blank = Point(group.devices, batch, "error")
    folder = job.out / POINTS / blank.name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    replace(job, out=folder).write(folder / "job.json")
    spec = {
        "job": str(folder / "job.json"),
        "devices": group.devices,
        "batch": batch,
        "memory_limit_mb": group.memory_limit_mb,
    }
    write_json(folder / "spec.json", spec)
    ended = run_child(
        python_module("stack.sweep.point", [str(folder / "spec.json")], group.devices),
        env=environment(job.out / HOME, is_cpu=job.run.device.kind == "cpu", ranks=group.devices),
        output=folder / OUTPUT,
        timeout_s=settings.timeout_s,
    )
    if ended.is_signalled:
        raise Interrupted("the sweep was interrupted")
    return _judge(folder, blank, ended, settings.timeout_s)


def _judge(folder: Path, blank: Point, ended: Ended, timeout_s: float) -> Point:
    """What a point came to, from its own account or, without one, from how its process ended."""
    if ended.is_timeout:
        return replace(blank, status="timeout", message=f"not done after {timeout_s:g} s")
    if (folder / RESULT).exists():
        raw = read_json(folder / RESULT, what="point's result")
        return Point(**{key: value for key, value in raw.items() if key in Point.__dataclass_fields__})
    message = f"ended without a result ({ended.how}): {last_line(ended.tail)}"
    return replace(blank, status="oom" if ended.is_out_of_memory else "error", message=message)


def _line(point: Point) -> str:
    if point.status != "ok" or point.step_s is None:
        return f"{point.name}: {point.status}: {point.message}"
    peak = (point.peak_memory_bytes or 0) / 1e9
    return f"{point.name}: {point.step_s:.3f} s/step, {point.samples_per_s:.1f} samples/s, peak {peak:.2f} GB"


def _journal_point(job: Job, point: Point, parent: str, started_unix_s: float) -> None:
    run = job.run
    journal = Journal(
        job.out / POINTS / point.name,
        name=f"{point.devices} device(s), batch {point.batch} ({run.name})",
        experiment=names.SWEEP,
        parent=parent,
        tags={**filter_tags(run), names.OUTCOME: point.status},
        description=point.message or None,
        started_unix_s=started_unix_s,
    )
    journal.params(
        {
            "sweep": run.name,
            "devices": point.devices,
            "batch": point.batch,
            "global_batch": point.global_batch,
            "data": dataset_name(run),
            "policy.weights": run.policy.weights,
            "policy.dtype": run.policy.dtype,
            "policy.image_size": run.policy.image_size,
            "policy.action_horizon": run.policy.action_horizon,
            "train.workers": run.train.workers,
            "train.trains": "lora" if run.train.lora else run.train.trains,
            "train.freeze_vision": run.train.freeze_vision,
            "train.master_weights": run.train.master_weights,
            "train.gradient_checkpointing": run.train.gradient_checkpointing,
        }
    )
    finals = {
        names.FINAL_STEP_S: point.step_s,
        names.FINAL_SAMPLES_PER_S: point.samples_per_s,
        f"{names.FINAL}data_wait_s": point.data_wait_s,
        names.FINAL_PEAK_MEMORY_BYTES: point.peak_memory_bytes,
    }
    journal.metrics({key: float(value) for key, value in finals.items() if value is not None}, step=0)
    journal.end("FINISHED" if point.status == "ok" else "FAILED")
    journal.close()


def _close(journal: Journal, result: SweepResult, out: Path) -> None:
    sizes = {f"largest_ok.{devices}_devices": batch for devices, batch in result.largest_ok.items()}
    journal.params({key: "none" if batch is None else batch for key, batch in sizes.items()})
    _journal_fastest(journal, result)
    statuses = [point.status for point in result.points]
    counts = {
        f"{names.FINAL}points_{status}": float(statuses.count(status)) for status in dict.fromkeys(statuses)
    }
    journal.metrics(counts, step=0)
    journal.tags({names.OUTCOME: "ok" if "ok" in statuses else "failed"})
    journal.artifact(out / RESULT)
    for name, text in figures(result).items():
        record_figure(journal, name, text)
    journal.end("FINISHED" if "ok" in statuses else "FAILED")
    journal.close()


def _journal_fastest(journal: Journal, result: SweepResult) -> None:
    """A sweep's own row shows its fastest point, so that sweeps compare without their points."""
    done = [point for point in result.points if point.status == "ok" and point.samples_per_s]
    if not done:
        return
    fastest = max(done, key=lambda point: point.samples_per_s or 0.0)
    journal.params({"devices": fastest.devices, "batch": fastest.batch})
    finals = {
        names.FINAL_STEP_S: fastest.step_s,
        names.FINAL_SAMPLES_PER_S: fastest.samples_per_s,
        names.FINAL_PEAK_MEMORY_BYTES: fastest.peak_memory_bytes,
    }
    journal.metrics({key: float(value) for key, value in finals.items() if value is not None}, step=0)


def figures(result: SweepResult) -> dict[str, str]:
    """SVG by file name: speed and peak memory of each point; one that did not run says why."""
    words = {"oom": "out of memory", "ok": ""}
    speeds, sizes = [], []
    for point in result.points:
        name, word = f"{point.devices} device(s), batch {point.batch}", words.get(point.status, point.status)
        gigabytes = point.peak_memory_bytes / 1e9 if point.peak_memory_bytes else None
        speeds.append(Bar(name, point.samples_per_s, word))
        sizes.append(Bar(name, gigabytes, word))
    return {
        "sweep-speed.svg": bar_chart(speeds, title="samples a second", unit="samples/s"),
        "sweep-memory.svg": bar_chart(sizes, title="peak memory of a device", unit="GB"),
    }
