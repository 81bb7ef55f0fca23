"""A Dask cluster as the executor of the writer's work, for sites whose data outgrows one machine."""

from __future__ import annotations

import importlib
import os
import re
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stack import __version__
from stack.dataset.own_code import code_digest
from stack.errors import BadRequest, NotAble

CONNECT_TIMEOUT_S = 10.0
ADDRESS = re.compile(r"(tcp|tls)://[^\s/:]+:\d{1,5}|(tcp|tls)://\[[0-9a-fA-F:]+\]:\d{1,5}")
PROBE_NAME = ".stack-probe-"


@dataclass(frozen=True)
class _Seen:
    """What one worker sees."""

    version: str
    code: str
    token: str | None
    missing: tuple[str, ...]
    write_error: str | None


@contextmanager
def open_cluster(address: str, *, writes: Path, reads: Sequence[Path] = ()) -> Iterator[tuple[Executor, int]]:
    """Connect to a scheduler and check that its workers are able; yields an executor and its threads.

    Every worker must run the same `stack` and see the same folders under the same paths. That is checked with
    a probe file in `writes`, which every worker reads, and beside which it writes.

    Args:
        address: `tcp://host:port` or `tls://host:port`.
        writes: the folder that output goes into; made if it is not there.
        reads: the sources' folders.

    Raises:
        BadRequest: not an address.
        NotAble: `distributed` is not installed; nobody answers; no workers; a worker that is not able.
    """
    if not ADDRESS.fullmatch(address):
        raise BadRequest("executor-address", f"'{address}' is no address; tcp://host:port is meant")
    try:
        distributed: Any = importlib.import_module("distributed")
    except ImportError as error:
        raise NotAble(
            "executor-not-installed",
            "a cluster is asked for, and the package 'distributed' is not installed",
            do="pip install distributed: here, and the same version wherever the scheduler and workers run",
        ) from error
    try:
        client = distributed.Client(address, timeout=CONNECT_TIMEOUT_S, set_as_default=False)
    except (OSError, TimeoutError, ValueError) as error:
        raise NotAble(
            "executor-not-reached",
            f"no Dask scheduler answers at {address} within {CONNECT_TIMEOUT_S:g} s",
            where=address,
            do="start one: dask scheduler, and on each machine: dask worker " + address,
        ) from error
    try:
        threads = sum(client.nthreads().values())
        if not threads:
            raise NotAble(
                "executor-no-workers",
                "the scheduler has no workers",
                where=address,
                do=f"dask worker {address}",
            )
        _check_workers(client, address, writes.absolute(), [root.absolute() for root in reads])
        yield client.get_executor(), threads
    finally:
        client.close()


def _check_workers(client: Any, address: str, writes: Path, reads: Sequence[Path]) -> None:
    token = uuid.uuid4().hex
    try:
        writes.mkdir(parents=True, exist_ok=True)
        probe = writes / f"{PROBE_NAME}{token}"
        probe.write_text(token)
    except OSError as error:
        raise NotAble("folder-not-writable", f"cannot write here: {error}", where=str(writes)) from error
    try:
        seen = client.run(_look, str(probe), [str(root) for root in reads], on_error="return")
    except Exception as error:
        # A worker without our package cannot even load the question.
        raise _unable(address, f"a worker cannot run stack: {type(error).__name__}: {error}") from error
    finally:
        probe.unlink(missing_ok=True)
    for worker, answer in seen.items():
        if isinstance(answer, BaseException):
            raise _unable(worker, f"the worker cannot run stack: {type(answer).__name__}: {answer}")
        if (answer.version, answer.code) != (__version__, code_digest()):
            raise _unable(
                worker,
                f"the worker runs stack {answer.version} ({answer.code[:12]}), this is {__version__} "
                f"({code_digest()[:12]})",
            )
        missing = [*answer.missing, *([str(writes)] if answer.token != token else [])]
        if missing:
            raise _blind(worker, f"the worker does not see {missing[0]} as this machine does")
        if answer.write_error is not None:
            raise _blind(worker, f"the worker cannot write to {writes}: {answer.write_error}")


def _look(probe: str, reads: Sequence[str]) -> _Seen:
    """Runs on a worker."""
    file = Path(probe)
    try:
        token = file.read_text()
    except OSError:
        token = None
    own = file.with_name(f"{file.name}-{uuid.uuid4().hex}")
    error = None
    try:
        own.write_text("")
        own.unlink()
    except OSError as caught:
        error = os.strerror(caught.errno) if caught.errno else str(caught)
    missing = tuple(root for root in reads if not Path(root).exists())
    return _Seen(__version__, code_digest(), token, missing, error)


def _unable(where: str, what: str) -> NotAble:
    return NotAble(
        "executor-worker-differs", what, where=where, do="install this stack in every worker's environment"
    )


def _blind(where: str, what: str) -> NotAble:
    return NotAble(
        "executor-paths-differ",
        what,
        where=where,
        do="put sources and output on a file system that every worker mounts at the same path",
    )
