"""The fast audit on the size of the story's job: 681 episodes, 305,425 frames, 3 cameras.

Runs only where STACK_SPEED names a folder to keep the dataset in (0.5 GB, made once in minutes); the bench
measures the same (`python -m bench --only audit`). The bar is 60 s on two idle cores, so at most 120 s of
processor time: that is judged, as other work on the machine stretches the clock but not the processor time.
The memory bar is 1 GiB for all processes together.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bench.audit_large import CAMERAS, FRAMES, large, measured

FOLDER = os.environ.get("STACK_SPEED")
CPU_S, MEMORY_BYTES = 120, 1 << 30


@pytest.mark.skipif(not FOLDER, reason="STACK_SPEED does not name a folder")
def test_the_size_of_a_real_job() -> None:
    pytest.importorskip("psutil")
    assert FOLDER is not None
    got = measured(large(Path(FOLDER)))
    print(got)
    assert got["ok"]
    assert (got["frames"], got["pictures"]) == (FRAMES, FRAMES * len(CAMERAS))
    assert got["cpu_s"] < CPU_S
    assert got["peak_bytes"] < MEMORY_BYTES
