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

    def __init__(self, batches: Iterable[Any]) -> None:
        self.batches = batches

    def __iter__(self) -> Ahead:
        # Workers are started here: torch watches them from the thread that it is imported in.
        return Ahead(iter(self.batches))


class Ahead(Iterator[Any]):
    """An iterator's items in their order, and its error in its place."""

    def __init__(self, items: Iterator[Any]) -> None:
        self._ready: queue.Queue[Any] = queue.Queue(TAKEN_OVER)
        self._is_over = threading.Event()
        # The thread knows the queue and not this object, so that dropping this object ends it.
        given = (items, self._ready, self._is_over)
        self._thread = threading.Thread(target=_fetch, args=given, name="next-batch", daemon=True)
        self._thread.start()
        self._end: _End | None = None

    def __next__(self) -> Any:
        if self._end is None:
            item = self._ready.get()
            if not isinstance(item, _End):
                return item
            self._end = item
        raise self._end.error

    def close(self) -> None:
        """End the thread, and with its iterator the workers."""
        self._is_over.set()
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
