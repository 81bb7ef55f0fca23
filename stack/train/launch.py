"""The door: one training from a manifest, in a child process; this one stays free of torch."""

from __future__ import annotations

import os
import shutil
import socket
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
from stack.train.child import Ended
from stack.train.failure import FAILURES, Ending, judge
from stack.train.gathering import meet
from stack.train.hosts import check_interface, hosts_from, refuse_foreign_ranks
from stack.train.job import Job, make_job, make_out
from stack.train.meeting import Meeting
from stack.train.part import JOB, facts, run_trainer, train_part
from stack.train.record import Recorder, close_journal, open_journal
from stack.train.result import RESULT, TrainResult


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

    Where the environment names several hosts (`stack.train.hosts`), this is one host's part, and its result
    that of all.

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
    run, hosts = loaded.manifest, hosts_from(os.environ)
    refuse_foreign_ranks(os.environ, hosts)
    job = make_job(run, dataset=dataset, mirror=mirror, models=models, out=out, is_resume=resume)
    lines.detect_line()
    check_interface(hosts)
    _check_devices(run, hosts.ranks_here(run.device.count))
    if not hosts.is_first:
        return train_part(job, hosts, log)
    _clear(job, resume)
    preflight.check(job, log, job.out, hosts)
    record_provenance(job.out)
    job.write(job.out / JOB)
    journal = open_journal(loaded, job, parent)
    recorder, meeting = Recorder(job, journal, log), Meeting(hosts, log)
    try:
        meeting = meet(hosts, facts(job), log)
        ended = run_trainer(job, hosts, job.out, meeting, recorder.poll)
        recorder.close()
        result = _read_result(job, ended, meeting)
        meeting.tell(result=result.to_json())
    except StackError as error:
        meeting.tell(error=error)
        journal.event("error", id=error.id, what=error.what, where=error.where)
        journal.tags({names.OUTCOME: "refused", "stack.message": error.what})
        journal.end("FAILED")
        journal.close()
        raise
    finally:
        meeting.close()
    close_journal(journal, result, job.out)
    return result


def _check_devices(run: RunManifest, here: int) -> None:
    # Importing torch for a count would cost this process seconds; the child finds out for accelerators.
    if run.device.kind == "cpu" and here > (found := device_count("cpu")):
        raise NotAble(
            "devices-missing",
            f"device.count is {run.device.count}, {here} of them here, and {found} cores are usable",
        )


def _clear(job: Job, resume: bool) -> None:
    if not resume and any(job.checkpoints.glob("[0-9]*")):
        raise BadRequest(
            "train-out-exists",
            "the folder holds checkpoints of a training already; nothing was started",
            where=str(job.out),
            do="resume it with --resume, or name another folder",
        )
    make_out(job.out)
    for stale in (job.out / RESULT, job.events, job.outside):
        stale.unlink(missing_ok=True)
    shutil.rmtree(job.out / FAILURES, ignore_errors=True)


def _read_result(job: Job, ended: Ended, meeting: Meeting) -> TrainResult:
    """The first rank's own account; where it left none, what can be said about the training's end."""
    if (job.out / RESULT).exists():
        return TrainResult.read(job.out)
    host = f"host 0 ({socket.gethostname()})" if meeting.hosts.count > 1 else ""
    endings = [Ending.of(job.out, ended, host)]
    for peer, said in meeting.endings():
        endings.append(Ending.from_json(said, peer.words, peer.clock_ahead_s))
    if not any(ending.killed for ending in endings):
        meeting.refuse_lost()
    result = judge(endings, job.run.device.count)
    write_json(job.out / RESULT, result.to_json())
    return result
