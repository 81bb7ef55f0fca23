"""Work spread over processes: results come back in the order of the items, whoever finishes first."""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing.connection import wait
from typing import TypeVar

from stack.errors import BadRequest, WorkFailed

Item = TypeVar("Item")
Result = TypeVar("Result")


class Pool:
    """Maps functions over items, in this process or over an executor that is started when first needed."""

    def __init__(self, jobs: int) -> None:
        self._jobs = jobs
        self._executor: Executor | None = None

    def map(self, work: Callable[[Item], Result], items: Sequence[Item]) -> Iterator[Result]:
        """Results in the order of `items`. The first error is raised and what has not begun is dropped."""
        if self._jobs == 1 or (self._executor is None and len(items) < 2):
            yield from map(work, items)
            return
        if self._executor is None:
            # Not fork: the caller may hold threads (Arrow's), and a forked child inherits their locks.
            context = multiprocessing.get_context("spawn")
            self._executor = ProcessPoolExecutor(self._jobs, mp_context=context, initializer=_end_with_parent)
        futures = [self._executor.submit(work, item) for item in items]
        try:
            for future in futures:
                yield future.result()
        except BrokenProcessPool as error:
            raise WorkFailed(
                "worker-died",
                "a worker process was killed, most likely because memory ran out",
                do="try again with fewer --jobs",
            ) from error
        finally:
            for future in futures:
                future.cancel()

    def close(self) -> None:
        if self._executor is not None:
            self._executor.shutdown(cancel_futures=True)


Jobs = int | Pool | None


@contextmanager
def open_pool(jobs: Jobs) -> Iterator[Pool]:
    """A pool of worker processes.

    Args:
        jobs: how many; 1 works in this process; not given takes the cores this process may use; a pool that
            is open already is used and stays open.

    Raises:
        BadRequest: `jobs` is below 1.
    """
    if isinstance(jobs, Pool):
        yield jobs
        return
    count = jobs if jobs is not None else len(os.sched_getaffinity(0))
    if count < 1:
        raise BadRequest("jobs-below-one", f"jobs must be at least 1, not {count}")
    pool = Pool(count)
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
