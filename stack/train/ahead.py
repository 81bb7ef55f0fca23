"""A loader's batches, fetched one ahead by a thread.

A batch that a worker has ready still has to be taken over: for each of its tensors, a file descriptor comes
through a socket from a thread of the worker, which is busy decoding. That is some milliseconds of waiting
for every batch, and no prefetching by workers hides it.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

TAKEN_OVER = 1  # batches that stand ready in this process, besides those of the workers
LOOK_S = 0.5
CLOSE_S = 10.0


@dataclass(frozen=True)
class _End:
    """The last item: why there are no more."""

    error: BaseException


class AheadLoader:
    """Iterates as `batches` does, its iterators being `Ahead`."""

    def __init__(self, batches: Iterable[Any], timeout_s: float | None = None) -> None:
        self.batches, self.timeout_s = batches, timeout_s

    def __iter__(self) -> Ahead:
        # Workers are started here: torch watches them from the thread that it is imported in.
        return Ahead(iter(self.batches), self.timeout_s)


class NothingCame(Exception):
    """No item within so many seconds; a worker hangs, or what it sent was lost on the way."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"no item came within {seconds:g} s")
        self.seconds = seconds


class Ahead(Iterator[Any]):
    """An iterator's items in their order, and its error in its place.

    Args:
        timeout_s: raise `NothingCame` where an item does not come for so long; None: wait for ever.
    """

    def __init__(self, items: Iterator[Any], timeout_s: float | None = None) -> None:
        self.timeout_s, self._is_stuck = timeout_s, False
        self._ready: queue.Queue[Any] = queue.Queue(TAKEN_OVER)
        self._is_over = threading.Event()
        # The thread knows the queue and not this object, so that dropping this object ends it.
        given = (items, self._ready, self._is_over)
        self._thread = threading.Thread(target=_fetch, args=given, name="next-batch", daemon=True)
        self._thread.start()
        self._end: _End | None = None

    def __next__(self) -> Any:
        if self._end is None:
            try:
                item = self._ready.get(timeout=self.timeout_s)
            except queue.Empty:
                self._is_over.set()  # its thread may hang, too: nobody waits for it
                self._is_stuck = True
                raise NothingCame(self.timeout_s or 0.0) from None
            if not isinstance(item, _End):
                return item
            self._end = item
        raise self._end.error

    def close(self) -> None:
        """End the thread, and with its iterator the workers."""
        self._is_over.set()
        if not self._is_stuck:
            self._thread.join(CLOSE_S)

    def __del__(self) -> None:
        self._is_over.set()


def _fetch(items: Iterator[Any], ready: queue.Queue[Any], is_over: threading.Event) -> None:
    while not is_over.is_set():
        try:
            item = next(items)
        except BaseException as error:  # StopIteration too: it is raised where the items are wanted
            item = _End(error)
        _put(item, ready, is_over)
        if isinstance(item, _End):
            return


def _put(item: Any, ready: queue.Queue[Any], is_over: threading.Event) -> None:
    while not is_over.is_set():
        try:
            return ready.put(item, timeout=LOOK_S)
        except queue.Full:
            continue
