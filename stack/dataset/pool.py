"""Work spread over processes: results come back in the order of the items, whoever finishes first."""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, Executor, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing.connection import wait
from pathlib import Path
from typing import TypeVar

from stack.errors import BadRequest, WorkFailed

WORTH_A_START_S = 1.0  # a worker takes about this long to import what it needs

Item = TypeVar("Item")
Result = TypeVar("Result")


class Pool:
    """Maps functions over items, in this process or over an executor that is started when first needed.

    Args:
        jobs: processes; 1 works in this process.
        patient: work that this process finishes within `WORTH_A_START_S` starts no others.
        executor: one that is running already and belongs to the caller; it gets all of the work.
    """

    def __init__(self, jobs: int, *, patient: bool = False, executor: Executor | None = None) -> None:
        self._jobs = jobs
        self._patience_s = WORTH_A_START_S if patient else 0.0
        self._executor = executor
        self._is_own = executor is None

    def map(self, work: Callable[[Item], Result], items: Sequence[Item]) -> Iterator[Result]:
        """Results in the order of `items`. The first error is raised and what has not begun is dropped."""
        if self._is_own and (self._jobs == 1 or (self._executor is None and len(items) < 2)):
            yield from map(work, items)
            return
        done, started_s = 0, time.monotonic()
        while self._executor is None and done < len(items):
            if time.monotonic() - started_s >= self._patience_s:
                break
            yield work(items[done])
            done += 1
        yield from self._map_over_processes(work, items[done:])

    def _map_over_processes(self, work: Callable[[Item], Result], items: Sequence[Item]) -> Iterator[Result]:
        if self._executor is None and items:
            # Not fork: the caller may hold threads (Arrow's), and a forked child inherits their locks.
            context = multiprocessing.get_context("spawn")
            self._executor = ProcessPoolExecutor(self._jobs, mp_context=context, initializer=_end_with_parent)
        futures = [self._executor.submit(work, item) for item in items] if self._executor else []
        try:
            for future in futures:
                yield future.result()
        except BrokenProcessPool as error:
            raise WorkFailed(
                "worker-died",
                "a worker process was killed, most likely because memory ran out",
                do="try again with fewer --jobs",
            ) from error
        except Exception as error:
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

    def close(self) -> None:
        if self._executor is not None and self._is_own:
            self._executor.shutdown(cancel_futures=True)


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


def _end_with_parent() -> None:
    """Let a worker end when its parent is killed: the executor alone would leave it waiting for ever."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_wait_and_end, args=(parent.sentinel,), daemon=True).start()


def _wait_and_end(sentinel: int) -> None:
    wait([sentinel])
    os._exit(1)
