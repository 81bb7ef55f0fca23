"""A sweep in the journal: a parent run, and a nested run for each point."""

from __future__ import annotations

from pathlib import Path

from stack.files import write_json, write_text
from stack.sweep.result import RESULT, Point, SweepResult
from stack.sweep.table import as_csv, charts
from stack.tracking import names
from stack.tracking.journal import Journal
from stack.train.figures import record_figure
from stack.train.job import Job
from stack.train.record import dataset_name, filter_tags

POINTS = "points"
CSV = "sweep.csv"


def journal_point(job: Job, point: Point, parent: str, started_unix_s: float) -> None:
    """A nested run: what the point was, what it took, and what it came to."""
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
        f"{names.FINAL}data_frac": point.data_frac,
        names.FINAL_PEAK_MEMORY_BYTES: point.peak_memory_bytes,
        f"{names.FINAL}peak_reserved_bytes": point.peak_reserved_bytes,
        f"{names.FINAL}memory_demand_bytes": point.demand_bytes,
        f"{names.FINAL}memory_predicted_bytes": point.predicted_bytes,
        f"{names.FINAL}device_peak_bytes": point.device_peak_bytes,
        f"{names.FINAL}power_w": point.power_w,
    }
    journal.metrics({key: float(value) for key, value in finals.items() if value is not None}, step=0)
    journal.end("FINISHED" if point.status == "ok" else "FAILED")
    journal.close()


def close_journal(journal: Journal, result: SweepResult, out: Path) -> None:
    """Write the sweep's result, table and charts, show them, and end its run."""
    write_json(out / RESULT, result.to_json())
    write_text(out / CSV, as_csv(result))
    sizes = {f"largest_ok.{devices}_devices": batch for devices, batch in result.largest_ok.items()}
    for found in result.found:
        sizes[f"largest_with_margin.{found.devices}_devices"] = found.largest
        sizes[f"fastest.{found.devices}_devices"] = found.fastest
    for advice in result.advice:
        sizes[f"advised_batch.{advice.devices}_devices"] = advice.batch
        sizes[f"advised_accumulation.{advice.devices}_devices"] = advice.accumulation
    journal.params({key: "none" if value is None else value for key, value in sizes.items()})
    _journal_fastest(journal, result)
    statuses = [point.status for point in result.points]
    counts = {
        f"{names.FINAL}points_{status}": float(statuses.count(status)) for status in dict.fromkeys(statuses)
    }
    if result.pictures is not None:
        counts[f"{names.FINAL}picture_frac"] = result.pictures.picture_frac
        counts[f"{names.FINAL}transcode_saves_s"] = result.pictures.saved_s
    journal.metrics(counts, step=0)
    journal.tags({names.OUTCOME: "ok" if "ok" in statuses else "failed"})
    journal.artifact(out / RESULT)
    journal.artifact(out / CSV)
    for name, text in charts(result).items():
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
