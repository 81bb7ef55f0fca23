"""Work beside a training takes what the training leaves of the processor.

Linux keeps the nice value for each thread (sched(7)), so a shipper that is a thread of a larger process steps
back alone; threads that it starts follow it. Its disk requests follow its nice value (ioprio_set(2)). Nothing
here can be undone without privileges, and nothing fails where a container forbids it.
"""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from pathlib import Path

BESIDE_NICE = 19
THREAD_NICE = 10
"""For a thread of a process with other work: while it waits for the processor it may hold the interpreter."""


def step_back(nice: int = BESIDE_NICE) -> None:
    """Let the calling thread give way; it interrupts nobody when it wakes (SCHED_BATCH)."""
    thread = threading.get_native_id()
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, thread, nice)
    with suppress(OSError):
        os.sched_setscheduler(thread, os.SCHED_BATCH, os.sched_param(0))


def send_back(leader: int) -> None:
    """The same for a child that leads a session of its own, with all its threads and processes.

    Where the kernel groups processes by session (sched(7), autogroup), it is the group's value that counts.
    """
    with suppress(OSError):
        os.setpriority(os.PRIO_PGRP, leader, BESIDE_NICE)
    with suppress(OSError):
        Path(f"/proc/{leader}/autogroup").write_text(str(BESIDE_NICE))
