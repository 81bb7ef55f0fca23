"""Ctrl-C that is not lost.

Python tells an interrupt by raising `KeyboardInterrupt` wherever it happens to be. Some places drop it: the
start of modules that Cython made (numpy's, pandas's), callbacks of weak references, destructors. The work
would go on as if nobody had asked. So it is remembered, and raised again at the next line of progress.
"""

from __future__ import annotations

import signal
import sys
import threading
from types import FrameType

_asked = False


def remember_interrupts() -> None:
    """From now on; does nothing where SIGINT is ignored (as under nohup) or somebody else's."""
    global _asked
    _asked = False
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _remember)


def raise_lost_interrupt() -> None:
    """Raise `KeyboardInterrupt` once more if one was asked for and nothing is on its way because of it.

    In the main thread only, where Python raises it itself: another one would die of it unheard.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if _asked and is_main and sys.exc_info()[0] is None:
        raise KeyboardInterrupt


def _remember(_number: int, _frame: FrameType | None) -> None:
    global _asked
    _asked = True
    raise KeyboardInterrupt
