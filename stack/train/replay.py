"""Take a kept batch's step again: the door, and the child that does it."""

from __future__ import annotations

import shutil
import sys
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from stack.errors import BadRequest, Exit, StackError, WorkFailed
from stack.files import read_json, write_json
from stack.train import lines, offline
from stack.train.child import environment, last_line, run_child
from stack.train.failure import record_failure
from stack.train.job import Job
from stack.train.part import HOME, JOB

ANSWER = "replay.json"
LOG = "replay.log"


def replay_file(file: Path, *, log: Callable[[str], None] = print) -> dict[str, Any]:
    """Replay a kept batch with the newest weights of its run from before its step.

    Returns step, weights_step, is_exact, loss, was, grad_norm and culprits; log gets them in words.

    Raises:
        BadRequest: the file, or the run's folder around it, is not there.
        WorkFailed: the replay itself failed.
    """
    file = file.absolute()
    out = file.parent.parent
    if not file.is_file() or not (out / JOB).is_file():
        raise BadRequest(
            "kept-missing",
            "there is no kept batch here, or it has been taken out of its run's folder",
            where=str(file),
            do="name a file in RUN/train/kept",
        )
    lines.detect_line()
    job = Job.read(out / JOB)
    work = file.parent / f".{file.stem}"
    work.mkdir(exist_ok=True)
    try:
        ended = run_child(
            [sys.executable, "-m", "stack.train.replay", str(file), str(work)],
            env=environment(work / HOME, is_cpu=job.run.device.kind == "cpu", ranks=1),
            output=work / LOG,
        )
        answer = _answer(work, ended.tail)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    for line in _words(answer):
        log(line)
    return answer


def _answer(work: Path, tail: str) -> dict[str, Any]:
    from stack.train.failure import first_failure

    failed = first_failure(work)
    if failed is not None and "id" in failed:
        raise StackError(
            failed["id"], failed["what"], where=failed["where"], do=failed["do"], exit=Exit(failed["exit"])
        )
    if not (work / ANSWER).is_file():
        what = failed["what"] if failed is not None else last_line(tail)
        raise WorkFailed("replay-failed", f"the replay did not come to its end: {what}")
    answer: dict[str, Any] = read_json(work / ANSWER, what="replay's answer")
    return answer


def _words(answer: dict[str, Any]) -> list[str]:
    origin = (
        f"the checkpoint of step {answer['weights_step']}"
        if answer["weights_step"]
        else "the weights it began with"
    )
    lines_ = [
        f"step {answer['step']}, rank {answer['rank']} of {answer['world']}, with {origin}:",
        f"  loss {answer['loss']} (in the training {answer['was']}), gradient norm {answer['grad_norm']}",
        *(f"  out of range: {culprit}" for culprit in answer["culprits"]),
    ]
    if not answer["culprits"]:
        lines_.append("  no input of this batch is far out of its range")
    if not answer["is_exact"]:
        lines_.append("  (the weights are not the very ones of that step, or other ranks took part in it)")
    return lines_


def main(file: Path, work: Path) -> int:
    try:
        write_json(work / ANSWER, _replay(file))
    except Exception as error:
        traceback.print_exc()
        record_failure(work, 0, error)
        return int(error.exit if isinstance(error, StackError) else Exit.WORK_FAILED)
    return 0


def _replay(file: Path) -> dict[str, Any]:
    from stack.devices import open_device
    from stack.train import checkpoint, kept
    from stack.train.ranks import Ranks
    from stack.train.session import open_session

    content = kept.read(file)
    # The folder may have been renamed since: a stage's is, when it is whole.
    out = file.parent.parent
    job = replace(Job.read(out / JOB), out=out, is_resume=False)
    offline.install_guard(job.outside)
    if job.run.device.kind == "cpu":
        import torch

        torch.set_num_threads(1)
    device = open_device(job.run.device.kind)
    session = open_session(job, device, Ranks(), lambda _kind, **_details: None)
    before = [f for f in checkpoint.folders(job.checkpoints) if int(f.name) < content["trip"]["step"]]
    if before:
        session.start = checkpoint.load(
            before[-1],
            job,
            session.trainable,
            session.average,
            session.optimizer,
            session.scheduler,
            device,
            0,
        )
    found = kept.replay(session, content)
    numbers = {name: _json(getattr(found, name)) for name in ("loss", "was", "grad_norm")}
    return {
        "step": found.step,
        "rank": found.rank,
        "world": found.world,
        "weights_step": found.weights_step,
        "is_exact": found.is_exact,
        "culprits": [str(culprit) for culprit in found.culprits],
        **numbers,
    }


def _json(value: float) -> float | str:
    """JSON has no numbers that are not finite."""
    return value if abs(value) < float("inf") else str(value)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(int(Exit.BAD_REQUEST))
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
