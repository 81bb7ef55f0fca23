"""Work spread over processes: results come back in the order of the items, whoever finishes first."""

from __future__ import annotations

import ctypes
import gc
import multiprocessing
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, Executor, Future, ProcessPoolExecutor
from concurrent.futures import wait as wait_for
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing.connection import wait
from pathlib import Path
from typing import TypeVar

from stack.dataset.memory import keep_little
from stack.errors import BadRequest, WorkFailed
from stack.folders import LOCK_NAME, PARTIAL_MARK

WORTH_A_START_S = 1.0  # a fresh worker takes about this long to import what it needs
WORTH_A_FORK_S = 0.1
SHARES = 6  # groups of items for each worker, at least
MANY = 3
PR_SET_PDEATHSIG = 1  # linux/prctl.h

Item = TypeVar("Item")
Result = TypeVar("Result")


class Pool:
    """Maps functions over items, in this process or over an executor that is started when first needed.

    Args:
        jobs: processes; 1 works in this process.
        patient: work that this process finishes about as quickly as it can start others starts none.
        executor: one that is running already and belongs to the caller; it gets all of the work.
    """

    def __init__(self, jobs: int, *, patient: bool = False, executor: Executor | None = None) -> None:
        self._jobs = jobs
        self._is_patient = patient
        self._executor = executor
        self._is_own = executor is None

    @property
    def is_local(self) -> bool:
        """Whether all of the work is done on this machine."""
        return self._is_own

    def map(
        self, work: Callable[[Item], Result], items: Sequence[Item], *, together: int = 1
    ) -> Iterator[Result]:
        """Results in the order of `items`. The first error is raised and what has not begun is dropped.

        Args:
            together: how many items travel to a worker at once, for many small ones with much in common. Many
                times as many items are worth other processes without trying one here first.
        """
        if self._is_own and (self._jobs == 1 or (self._executor is None and len(items) < 2)):
            yield from map(work, items)
            return
        done, started_s = 0, time.monotonic()
        patience_s = (WORTH_A_FORK_S if can_fork() else WORTH_A_START_S) if self._is_patient else 0.0
        if together > 1 and len(items) >= MANY * together and can_fork():
            patience_s = 0.0
        while self._executor is None and done < len(items):
            if time.monotonic() - started_s >= patience_s:
                break
            yield work(items[done])
            done += 1
        groups = self._grouped(items[done:], together)
        for results in self._map_over_processes(partial(_each, work), groups):
            yield from results

    def _grouped(self, items: Sequence[Item], together: int) -> list[Sequence[Item]]:
        # Less at once where there are few, so that no worker has much to do while others have nothing.
        size = max(1, min(together, len(items) // (SHARES * self._jobs)))
        return [items[start : start + size] for start in range(0, len(items), size)]

    def begin(
        self,
        work: Callable[[Item], Result],
        items: Sequence[Item],
        *,
        is_long: bool = False,
        together: int = 1,
    ) -> Iterator[Result]:
        """As `map`; where other processes are at work already, they begin at once.

        Args:
            is_long: each item takes so long that other processes are started without trying one here first.
        """
        if self._executor is None and is_long and self._jobs > 1 and len(items) > 1:
            return self._map_over_processes(work, items)
        if self._executor is None:
            return self.map(work, items, together=together)
        begun = self._results(self._submit(partial(_each, work), self._grouped(items, together)))
        return (result for results in begun for result in results)

    def _map_over_processes(self, work: Callable[[Item], Result], items: Sequence[Item]) -> Iterator[Result]:
        if self._executor is None and items:
            forks = can_fork()
            context = multiprocessing.get_context("fork" if forks else "spawn")
            begin = _begin_forked if forks else _end_with_parent
            self._executor = ProcessPoolExecutor(self._jobs, mp_context=context, initializer=begin)
        yield from self._results(self._submit(work, items))

    def _results(self, futures: list[Future[Result]]) -> Iterator[Result]:
        futures.reverse()
        try:
            while futures:  # a result is the caller's alone as soon as it is given
                yield futures.pop().result()
        except BrokenProcessPool as error:
            raise _worker_died() from error
        except Exception as error:
            if self._is_own:  # else what is at work would go on writing where the caller clears up
                wait_for([future for future in futures if not future.cancel()])
            if not isinstance(error, CancelledError) and not type(error).__module__.startswith("distributed"):
                raise
            raise WorkFailed(
                "cluster-failed",
                f"the cluster did not finish the work: {type(error).__name__}: {error}",
                do="look at the workers' logs (memory?), then run the same command again: it goes on",
            ) from error
        finally:
            for future in futures:
                future.cancel()

    def _submit(self, work: Callable[[Item], Result], items: Sequence[Item]) -> list[Future[Result]]:
        if self._executor is None:
            return []
        with warnings.catch_warnings():
            # Python 3.12 counts any thread of the process; `can_fork` tells which of them matter.
            warnings.filterwarnings("ignore", ".*fork.*", DeprecationWarning)
            try:
                return [self._executor.submit(work, item) for item in items]
            except BrokenProcessPool as error:
                raise _worker_died() from error

    def close(self) -> None:
        if self._executor is not None and self._is_own:
            self._executor.shutdown(cancel_futures=True)


def _each(work: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
    return [work(item) for item in items]


Jobs = int | Pool | None


@contextmanager
def open_pool(
    jobs: Jobs, *, executor: str | None = None, writes: Path | None = None, reads: Sequence[Path] = ()
) -> Iterator[Pool]:
    """A pool of worker processes, here or on a cluster.

    Args:
        jobs: how many; 1 works in this process; not given takes the cores this process may use; a pool that
            is open already is used and stays open.
        executor: address of a Dask scheduler, `tcp://host:port`; its workers then do all of the work.
        writes, reads: the folders that workers of a cluster must see; see `stack.dataset.cluster`.

    Raises:
        BadRequest: `jobs` is below 1, or given together with `executor`.
        NotAble: the cluster is not there, or not able.
    """
    if isinstance(jobs, Pool):
        yield jobs
        return
    if executor is not None:
        if jobs is not None:
            raise BadRequest(
                "jobs-and-executor", "--jobs counts local processes; a cluster has its own number"
            )
        from stack.dataset.cluster import open_cluster

        with open_cluster(executor, writes=writes or Path.cwd(), reads=reads) as (running, threads):
            yield Pool(threads, executor=running)
        return
    patient = jobs is None
    count = jobs if jobs is not None else len(os.sched_getaffinity(0))
    if count < 1:
        raise BadRequest("jobs-below-one", f"jobs must be at least 1, not {count}")
    pool = Pool(count, patient=patient)
    try:
        yield pool
    finally:
        pool.close()


def _worker_died() -> WorkFailed:
    return WorkFailed(
        "worker-died",
        "a worker process was killed, most likely because memory ran out",
        do="try again with fewer --jobs",
    )


def can_fork() -> bool:
    """Whether workers may be copies of this process, which spares them a second of imports.

    A copy inherits locks that other threads hold just then. With no other thread of Python at work, none is
    held: Arrow's, OpenBLAS' and jemalloc's own threads are idle, and these libraries make themselves anew in
    a copy. OpenMP, which torch brings, does not.
    """
    return sys.platform == "linux" and threading.active_count() == 1 and "torch" not in sys.modules


def _begin_forked() -> None:
    """End with the parent at once, and hold none of its targets: a kill of the parent frees them."""
    gc.freeze()  # looking for garbage among what the parent made would copy all of its pages
    keep_little()
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            if os.readlink(f"/proc/self/fd/{name}").endswith(f"{PARTIAL_MARK}{LOCK_NAME}"):
                os.close(int(name))
    _end_with_parent()


def _end_with_parent() -> None:
    """Let a worker end when its parent is killed: the executor alone would leave it waiting for ever."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_wait_and_end, args=(parent.sentinel,), daemon=True).start()


def _wait_and_end(sentinel: int) -> None:
    wait([sentinel])
    os._exit(1)
