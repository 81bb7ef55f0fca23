"""The door: one training from a manifest, in a child process; this one stays free of torch."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from stack.devices import device_count
from stack.errors import BadRequest, NotAble, StackError
from stack.files import write_json
from stack.manifests.load import Loaded
from stack.manifests.models import ModelsManifest
from stack.manifests.run import RunManifest
from stack.tracking import names
from stack.train import lines, preflight
from stack.train.child import Ended, environment, python_module, run_child
from stack.train.failure import FAILURES, judge
from stack.train.job import Job, make_job
from stack.train.record import Recorder, close_journal, open_journal
from stack.train.result import RESULT, TrainResult

OUTPUT = "trainer.log"
JOB = "job.json"
HOME = ".hf-home"


def train(
    loaded: Loaded[RunManifest],
    *,
    dataset: Path,
    mirror: Path,
    models: ModelsManifest,
    out: Path,
    resume: bool = False,
    parent: str | None = None,
    record_provenance: Callable[[Path], None] = lambda _: None,
    log: Callable[[str], None] = print,
) -> TrainResult:
    """Train what `loaded` asks for, and judge nothing: the result says what happened.

    Args:
        dataset: a prepared dataset (v3.0).
        mirror: folder that holds `<model name>/` for the weights and the tokenizer.
        out: the run's folder: journal, checkpoints, result, the trainer's own output.
        resume: continue from the newest checkpoint in `out`; without one, start.
        parent: run_id of the journal that this one is nested under.
        record_provenance: called with `out` once nothing refuses the run; fills its `provenance/`.
        log: gets progress lines.

    Raises:
        BadRequest: data, models or manifest are not right; `out` holds a training and `resume` is not set.
        NotAble: lerobot, the device or that many devices are not there; or what `preflight` finds.
    """
    run = loaded.manifest
    job = make_job(run, dataset=dataset, mirror=mirror, models=models, out=out, is_resume=resume)
    lines.detect_line()
    _check_devices(run)
    _clear(job, resume)
    preflight.check(job, log)
    record_provenance(job.out)
    job.write(job.out / JOB)
    journal = open_journal(loaded, job, parent)
    recorder = Recorder(job, journal, log)
    ranks = run.device.count
    try:
        ended = run_child(
            python_module("stack.train.worker", [str(job.out / JOB)], ranks),
            env=environment(job.out / HOME, is_cpu=run.device.kind == "cpu", ranks=ranks),
            output=job.out / OUTPUT,
            on_poll=recorder.poll,
        )
        recorder.close()
        result = _read_result(job, ended)
    except StackError as error:
        journal.event("error", id=error.id, what=error.what, where=error.where)
        journal.tags({names.OUTCOME: "refused", "stack.message": error.what})
        journal.end("FAILED")
        journal.close()
        raise
    finally:
        shutil.rmtree(job.out / HOME, ignore_errors=True)
    close_journal(journal, result, job.out)
    return result


def _check_devices(run: RunManifest) -> None:
    # Importing torch for a count would cost this process seconds; the child finds out for accelerators.
    if run.device.kind == "cpu" and run.device.count > (found := device_count("cpu")):
        raise NotAble(
            "devices-missing", f"device.count is {run.device.count}, and {found} cores are usable here"
        )


def _clear(job: Job, resume: bool) -> None:
    if not resume and any(job.checkpoints.glob("[0-9]*")):
        raise BadRequest(
            "train-out-exists",
            "the folder holds checkpoints of a training already; nothing was started",
            where=str(job.out),
            do="resume it with --resume, or name another folder",
        )
    job.out.mkdir(parents=True, exist_ok=True)
    for stale in (job.out / RESULT, job.events, job.outside):
        stale.unlink(missing_ok=True)
    shutil.rmtree(job.out / FAILURES, ignore_errors=True)


def _read_result(job: Job, ended: Ended) -> TrainResult:
    """The first rank's own account; where it left none, what can be said about the training's end."""
    if (job.out / RESULT).exists():
        return TrainResult.read(job.out)
    result = judge(job.out, ended, job.run.device.count)
    write_json(job.out / RESULT, result.to_json())
    return result
