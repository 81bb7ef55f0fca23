"""An encoder does not make a process of root a real-time one, which would starve all else on the machine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ENCODES = """
import os, sys
from fractions import Fraction
from pathlib import Path
import av, numpy as np
from stack.dataset.video_encode import Encoding, encode_file

def policies():
    return {os.sched_getscheduler(int(thread)) for thread in os.listdir("/proc/self/task")}

def pictures():
    for n in range(6):
        yield av.VideoFrame.from_ndarray(np.full((64, 64, 3), 20 * n, np.uint8)).reformat(format="yuv420p")
        seen.update(policies())

seen = set()
encode_file(pictures(), Path(sys.argv[1]), Encoding(sys.argv[2], 64, 64, "yuv420p", 2), Fraction(10))
print(sorted(seen | policies()), len(os.listdir("/proc/self/task")))
if os.geteuid() == 0:  # it is given back what it had
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
"""


def has_right() -> bool:
    told = Path("/proc/self/status").read_text()
    bounding = int(told.partition("CapBnd:")[2].split()[0], 16)
    return os.geteuid() == 0 and bool(bounding >> 23 & 1)


@pytest.mark.parametrize("codec", ["av1", "h264"])
@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="Linux only")
def test_no_thread_is_real_time_while_a_video_is_encoded_or_after(codec: str, tmp_path: Path) -> None:
    if not has_right():
        pytest.skip("only a root with CAP_SYS_NICE could become real-time")
    child = subprocess.run(
        [sys.executable, "-c", ENCODES, str(tmp_path / "x.mp4"), codec],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert child.returncode == 0, child.stderr
    assert child.stdout.startswith(f"[{os.SCHED_OTHER}] ")


def test_tests_themselves_cannot_become_real_time() -> None:
    with pytest.raises(PermissionError):
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
