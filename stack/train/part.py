"""One host's part of a training: its ranks, and on hosts other than the first what stands for the rest."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stack.files import read_json, sha256_file
from stack.train import checkpoint, preflight
from stack.train.checkpoint import MODEL
from stack.train.child import Ended, environment, python_module, run_child
from stack.train.failure import FAILURES, Ending
from stack.train.gathering import meet
from stack.train.hosts import Hosts
from stack.train.identity import IDENTITY, identity
from stack.train.job import WEIGHTS_FILE, Job, make_out
from stack.train.meeting import Meeting
from stack.train.result import TrainResult

OUTPUT = "trainer.log"
JOB = "job.json"
HOME = ".hf-home"


def run_trainer(
    job: Job, hosts: Hosts, folder: Path, meeting: Meeting, on_poll: Callable[[], None] = lambda: None
) -> Ended:
    """Run this host's ranks to their end; `folder` has their job, output and failures."""

    def poll() -> None:
        on_poll()
        meeting.poll()

    ranks = job.run.device.count
    try:
        return run_child(
            python_module("stack.train.worker", [str(folder / JOB)], ranks, hosts),
            env=environment(folder / HOME, is_cpu=job.run.device.kind == "cpu", ranks=ranks, hosts=hosts),
            output=folder / OUTPUT,
            on_poll=poll,
            should_end=meeting.should_end,
        )
    finally:
        shutil.rmtree(folder / HOME, ignore_errors=True)


def train_part(job: Job, hosts: Hosts, log: Callable[[str], None]) -> TrainResult:
    """Train on a host other than the first, which keeps journal, checkpoints and result.

    Raises:
        StackError: what the training ends with on the first host, or what stands in the way here.
    """
    folder = job.out / "hosts" / str(hosts.index)
    make_out(folder)
    shutil.rmtree(folder / FAILURES, ignore_errors=True)
    preflight.check(job, log, folder, hosts)
    job.write(folder / JOB)
    meeting = meet(hosts, facts(job), log)
    try:
        log(f"the ranks of host {hosts.index} are started; their output is in {folder / OUTPUT}")
        ended = run_trainer(job, hosts, folder, meeting)
        ending = Ending.of(folder, ended)
        result = meeting.report({**ending.to_json(), "is_good": ended.returncode == 0})
        return TrainResult.from_json(result)
    finally:
        meeting.close()


def facts(job: Job) -> dict[str, Any]:
    """What has to be equal on all hosts, flat: name -> value."""
    run, own = job.run, identity(job, {})
    found = {f"policy.{key}": value for key, value in own["policy"].items()}
    found |= {
        f"train.{key}": value for key, value in run.train.model_dump(mode="json").items() if key != "workers"
    }
    found |= {f"version of {package}": version for package, version in own["versions"].items()}
    found |= {f"dataset's {key}": value for key, value in own["data"].items()}
    found["device"] = f"{run.device.count} {run.device.kind}"
    found["dataset's statistics"] = sha256_file(job.dataset / "meta" / "stats.json")[:12]
    found["size of the weights"] = (job.weights / WEIGHTS_FILE).stat().st_size
    found["checkpoint to resume from"] = _checkpoint(job) if job.is_resume else "none is asked for"
    return found


def _checkpoint(job: Job) -> str:
    folder = checkpoint.last(job.checkpoints)
    if folder is None:
        return "there is none"
    stamp = read_json(folder / MODEL / IDENTITY, what="checkpoint's identity")
    return f"{folder.name} ({str(stamp.get('weights_sha256'))[:12]})"
