"""The child that trains: `python -m stack.train.worker JOB.json`, one process a device.

It talks to its parent through files only: progress in `events.jsonl`, the end in `result.json`. A
`StackError` goes there too, so that the parent raises it as its own.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from stack.devices import Device, open_device
from stack.errors import Exit, StackError, WorkFailed
from stack.files import write_json
from stack.tracking.liveness import lives
from stack.train import offline
from stack.train.child import LAUNCHER_ENV
from stack.train.failure import record_failure
from stack.train.job import Job
from stack.train.preflight import raise_open_files
from stack.train.result import RESULT, Outcome, TrainResult, fifths

if TYPE_CHECKING:
    from stack.train.session import Session

WARMUP_STEPS = 2


class Stop:
    """Set by SIGTERM and SIGINT, or when whoever started it is gone: finish the step, save, leave.

    Under the elastic launcher the parent is that launcher, which would go on without ours.
    """

    def __init__(self) -> None:
        self._asked = False
        self._parent = os.getppid()
        self._launcher = json.loads(os.environ.get(LAUNCHER_ENV, "null"))
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._ask)

    def _ask(self, _number: int, _frame: FrameType | None) -> None:
        self._asked = True

    def __call__(self) -> bool:
        return self._asked or os.getppid() != self._parent or self._has_lost_launcher()

    def _has_lost_launcher(self) -> bool:
        if self._launcher is None:
            return False
        return not lives(self._launcher, last_written_ms=int(time.time() * 1000))


def emitter(path: Path, is_first_rank: bool) -> Callable[..., None]:
    """A function that appends one event; only the first rank speaks."""

    def emit(kind: str, **details: Any) -> None:
        if not is_first_rank:
            return
        line = json.dumps({"t": int(time.time() * 1000), "kind": kind, **details}, ensure_ascii=False)
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            os.write(file, line.encode() + b"\n")
        finally:
            os.close(file)

    return emit


def main(job_file: Path) -> int:
    job = Job.read(job_file)
    raise_open_files()
    offline.install_guard(job.outside, allow=filter(None, [os.environ.get("MASTER_ADDR")]))
    stop = Stop()
    rank = int(os.environ.get("RANK", "0"))
    try:
        result = _train(job, stop, emitter(job.events, rank == 0))
    except Exception as error:
        # First of all: the others fail next, and the earliest account is the one that counts.
        record_failure(job_file.parent, rank, error)
        traceback.print_exc()
        return int(error.exit if isinstance(error, StackError) else Exit.WORK_FAILED)
    return int(result.exit)


def _train(job: Job, stop: Stop, emit: Callable[..., None]) -> TrainResult:
    import torch

    from stack.train import ranks as ranks_module
    from stack.train.loop import train_loop
    from stack.train.session import open_session
    from stack.train.settings import of_session

    run = job.run
    if run.device.kind == "cpu":
        # Sums depend on the thread count bit by bit, and two spinning threads on a busy host cost seconds.
        torch.set_num_threads(1)
    device = open_device(run.device.kind, ranks_module.local_rank())
    ranks = ranks_module.join(device, run.device.count)
    try:
        session = open_session(job, device, ranks, emit)
        _check_equal_weights(session)
        emit("start", step=session.start.step, device=device.name)
        emit("settings", params=of_session(session))
        found = train_loop(session, emit, stop)
        result = _result(job, session, found, device)
        result = replace(result, outside_connections=tuple(offline.attempts(job.outside)))
        if ranks.rank == 0:
            write_json(job.out / RESULT, result.to_json())
        # A rank that leaves with an exit code other than 0 makes the elastic launcher end the others: none
        # may, before the first has its checkpoint and result on disk.
        ranks.gather(None)
        return result
    finally:
        ranks.close()


def _check_equal_weights(session: Session) -> None:
    """Raises WorkFailed where ranks have read other weights: replicas would silently train rank 0's."""
    files = session.ranks.gather(session.proofs.weights.file_sha256)
    other = next((rank for rank, file in enumerate(files) if file != files[0]), None)
    if other is not None:
        raise WorkFailed(
            "weights-differ-over-ranks",
            f"rank {other} has read weights {files[other][:12]}, and rank 0 {files[0][:12]}",
            where=str(session.job.weights),
            do="bring the same mirror to all hosts, and verify it with 'stack mirror verify'",
        )


def _result(job: Job, session: Any, found: Any, device: Device) -> TrainResult:
    from stack.train import checkpoint, lines

    trip = found.trip
    outcome: Outcome = "stopped" if found.is_stopped else "finished"
    if trip is not None:
        outcome = trip.outcome
    means = fifths(found.losses)
    step_s, wait_s = _median(found.steps_s), _median(found.data_waits_s)
    return TrainResult(
        outcome=outcome,
        message=found.message,
        steps=len(found.losses),
        first_losses=tuple(found.losses[:10]),
        windows=tuple(found.windows),
        first_fifth=means[0] if means else None,
        last_fifth=means[1] if means else None,
        last_to_first_fifth=means[1] / means[0] if means else None,
        final_loss=means[1] if means else None,
        nonfinite=sum(t.outcome == "nonfinite" for t in (*found.skipped, *filter(None, [trip]))),
        skipped=tuple({"step": t.step, "outcome": t.outcome, "message": t.message} for t in found.skipped),
        evaluations=tuple({"step": s, **e.to_json()} for s, e in sorted(found.evaluations.items())),
        trainable=session.trainable.to_json(),
        checkpoint_stop_s=_median(found.saves_s),
        step_s=step_s,
        samples_per_s=job.run.train.global_batch / step_s if step_s else None,
        data_wait_s=wait_s,
        data_wait_frac=wait_s / step_s if step_s and wait_s is not None else None,
        peak_memory_bytes=device.memory_peak_bytes(),
        weights=session.proofs.weights.to_json(),
        golden={"ok": True, "checked": session.proofs.golden_checked},
        stats_proven=True,
        prompt_tokens=session.proofs.prompt_tokens,
        line=lines.detect_line(),
        versions=lines.versions(),
        parameters=session.proofs.weights.parameters,
        seed=job.run.train.seed,
        device={"kind": device.kind, "name": device.name},
        world=session.ranks.world,
        # The first rank alone: while it writes and removes them, no other may look.
        checkpoints=tuple(checkpoint.listing(job)) if session.ranks.rank == 0 else (),
        culprits=tuple(culprit.to_json() for culprit in found.culprits),
    )


def _median(values: Sequence[float]) -> float | None:
    warm = values[WARMUP_STEPS:] or values
    return statistics.median(warm) if warm else None


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(int(Exit.BAD_REQUEST))
    sys.exit(main(Path(sys.argv[1])))
