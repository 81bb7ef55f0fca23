"""Run a command and write what the kernel counted for it and its children, as JSON, to a file descriptor.

A child's peak of memory begins with that of the process that starts it (`exec_mmap` in Linux' fs/exec.c), so
one that has made a bench's inputs would be counted for the command. This process is small.

Usage: python -I -S launch.py FD COMMAND [ARGUMENT ...]
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time


def main(told_to: int, command: list[str]) -> None:
    started_s = time.monotonic()
    try:
        child = subprocess.Popen(command)
    except OSError as error:
        told: dict[str, float | str] = {"error": str(error)}
    else:
        _, status, usage = os.wait4(child.pid, 0)
        told = {
            "wall_s": time.monotonic() - started_s,
            "cpu_s": usage.ru_utime + usage.ru_stime,
            "peak_mib": usage.ru_maxrss / 1024,
            "code": os.waitstatus_to_exitcode(status),
        }
    os.write(told_to, json.dumps(told).encode())


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
