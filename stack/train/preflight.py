"""Before the trainer is started: what an earlier run left behind, memory to share, room, and ports."""

from __future__ import annotations

import json
import os
import resource
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from stack.devices.doctor import Needs, examine
from stack.errors import NotAble
from stack.manifests.run import Device as DeviceManifest
from stack.tracking.liveness import lives
from stack.train.child import LAUNCHER_ENV
from stack.train.hosts import Hosts
from stack.train.job import WEIGHTS_FILE, Job

MODULES = ("stack.train.worker", "stack.sweep.point")
LEAVE_S = 30.0
LOOK_S = 0.5
# Weights, and AdamW's two moments; a new checkpoint stands beside the old one until it is whole.
CHECKPOINT_OF_WEIGHTS = 3.0
CHECKED = ("doctor-shared-memory", "doctor-disk")
OPEN_FILES, OPEN_FILES_A_WORKER = 128, 32
# HCCL listens on 16 ports from this one for each host (HCCL_IF_BASE_PORT; CANN's default).
HCCL_FIRST_PORT, HCCL_PORTS = 60000, 16


@dataclass(frozen=True)
class Leftover:
    """A trainer's process that is still there.

    Attributes:
        folder: the run's folder it works in.
        is_orphan: whoever started it is gone.
    """

    pid: int
    folder: Path
    is_orphan: bool


def check(
    job: Job, log: Callable[[str], None], folder: Path | None = None, hosts: Hosts | None = None
) -> None:
    """Refuse a start that could not go well.

    Args:
        folder: where this host's trainer works; the run's own where not given.

    Raises:
        NotAble: an earlier start still works in this folder; shared memory, disk or ports do not suffice.
    """
    _check_leftovers(folder or job.out, log)
    run, hosts = job.run, hosts or Hosts()
    needs = Needs(
        kind="cpu",  # devices are opened by the child: here, that would cost an import of torch
        workers=run.train.workers * hosts.ranks_here(run.device.count),
        disk=job.out,
        disk_bytes=int((job.weights / WEIGHTS_FILE).stat().st_size * CHECKPOINT_OF_WEIGHTS),
    )
    for fault in examine(needs).faults:
        if fault.code in CHECKED:
            raise NotAble(fault.code, f"{fault.message}: {fault.consequence}", do=fault.mend)
    check_open_files(run.train.workers)
    check_ports(needed_ports(run.device))
    if hosts.count > 1 and hosts.is_first:
        check_ports([hosts.port + 1], do="or give STACK_FIRST_HOST another port")


def check_open_files(workers: int) -> None:
    """Raises NotAble where a trainer could not open as many files as its loader's batches need.

    A worker hands over each tensor as an open file; one that it cannot open is lost, and nobody says so.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES + workers * OPEN_FILES_A_WORKER
    if hard != resource.RLIM_INFINITY and hard < wanted:
        raise NotAble(
            "open-files-few",
            f"a process may open {hard} files here; a trainer with {workers} loader workers wants {wanted}",
            do="raise the limit ('ulimit -Hn', docker's --ulimit nofile), or lower train.workers",
        )


def raise_open_files() -> None:
    """Let this process, and those it starts, open as many files as the system's limit allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def needed_ports(device: DeviceManifest) -> list[int]:
    """Ports of this host that the training is bound to; the launcher itself takes whichever is free."""
    if device.kind != "npu" or device.count == 1:
        return []
    first = int(os.environ.get("HCCL_IF_BASE_PORT", HCCL_FIRST_PORT))
    return list(range(first, first + HCCL_PORTS))


def check_ports(ports: list[int], do: str = "or set HCCL_IF_BASE_PORT") -> None:
    """Raises NotAble where somebody listens on one of them already."""
    for port in ports:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("", port))
            except OSError as error:
                raise NotAble(
                    "port-in-use",
                    f"port {port} is in use, and the ranks need it to meet: {error.strerror}",
                    do=f"end what listens there ('ss -ltnp sport = :{port}'), {do}",
                ) from error


def leftovers() -> Iterator[Leftover]:
    """Trainers of any run on this host, but for those of launchers that this process can see alive."""
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            words = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
            environment = (entry / "environ").read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue  # it has just ended, or belongs to somebody else
        if not any(module in words for module in MODULES):
            continue
        jobs = [Path(word) for word in words if word.endswith(".json")]
        if jobs and int(entry.name) != os.getpid():
            yield Leftover(int(entry.name), jobs[0].parent, not _has_launcher(environment))


def _has_launcher(environment: list[str]) -> bool:
    given = next((item for item in environment if item.startswith(f"{LAUNCHER_ENV}=")), None)
    if given is None:
        return True  # started by hand; nobody to miss
    return lives(json.loads(given.partition("=")[2]), last_written_ms=int(time.time() * 1000))


def _check_leftovers(out: Path, log: Callable[[str], None]) -> None:
    deadline, is_told = time.monotonic() + LEAVE_S, False
    while True:
        found = list(leftovers())
        here = [left for left in found if left.folder.absolute() == out.absolute()]
        if not here:
            break
        pids = ", ".join(str(left.pid) for left in here)
        # One that has lost its launcher saves and leaves by itself.
        if not all(left.is_orphan for left in here) or time.monotonic() > deadline:
            raise NotAble(
                "train-still-running",
                f"process {pids} of an earlier start still trains in this folder; nothing was started",
                where=str(out),
                do=f"wait for it, or end it: kill {pids.replace(',', '')}",
            )
        if not is_told:
            log(f"waiting for process {pids} of an earlier start, which has lost its launcher, to leave")
            is_told = True
        time.sleep(LOOK_S)
    for left in found:
        if left.is_orphan:
            log(
                f"warning: process {left.pid} of an earlier run in {left.folder} has lost its launcher and "
                f"is still there; it holds memory and devices. To end it: kill {left.pid}"
            )
