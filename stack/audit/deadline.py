"""An upper bound on how long an audit works, also inside a single long check."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

RING_AGAIN_S = 0.5


class TimeUp(BaseException):
    """Time is over. No `Exception`: whoever catches those to report a damaged file must not catch this."""


@contextmanager
def deadline(seconds: float | None) -> Iterator[None]:
    """Raise `TimeUp` in the body after so many seconds; None sets no bound.

    A timer of the process interrupts the main thread between two Python instructions, so also inside a loop
    over packets or channels; a single call into a library is left as soon as it returns. In other threads the
    body must look at the clock itself.
    """
    if seconds is None or threading.current_thread() is not threading.main_thread():
        yield
        return

    armed = True

    def ring(_: int, __: FrameType | None) -> None:
        if armed:
            raise TimeUp

    before = signal.signal(signal.SIGALRM, ring)
    # Again and again: a ring during a callback or a destructor is swallowed by the interpreter.
    signal.setitimer(signal.ITIMER_REAL, max(seconds, 1e-3), RING_AGAIN_S)
    try:
        yield
    finally:
        armed = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
