"""lerobot of another version and Python reads what was prepared: the same frames, tasks, chunks and episodes.

`STACK_LEROBOT` names that Python, for instance one of 3.10 with lerobot 0.4.4:

    python3.10 -m venv other && other/bin/pip install lerobot==0.4.4
    STACK_LEROBOT=other/bin/python python -m pytest tests/prepare/test_other_lerobot.py
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from stack.prepare import prepare

READER = Path(__file__).with_name("read_by_lerobot.py")

Episodes = list[tuple[int, int, int, str]]
Read = Callable[[Path], dict[str, Any]]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    python = os.environ.get("STACK_LEROBOT")
    if not python:
        pytest.skip("STACK_LEROBOT names no Python with another lerobot")

    def run(root: Path) -> dict[str, Any]:
        own = {f"HF_{name}": str(tmp_path / "hf") for name in ("HOME", "DATASETS_CACHE", "LEROBOT_HOME")}
        out = tmp_path / "read.npz"
        subprocess.run(
            [python, str(READER), str(root), str(out)],
            check=True,
            env={**os.environ, **own, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
        )
        with np.load(out) as found:
            return dict(found)

    return run


def _judge(found: dict[str, Any], episodes: Episodes, deliveries: ModuleType) -> None:
    claims = [(n, d, e, f, t) for n, (d, e, length, t) in enumerate(episodes) for f in range(length)]
    assert len(found["index"]) == len(claims)
    for index, (number, delivery, episode, frame, task) in enumerate(claims):
        where = [int(found[key][index]) for key in ("episode_index", "frame_index", "index")]
        assert where == [number, frame, index]
        assert found["timestamp"][index] == pytest.approx(frame / 10)
        assert found["task"][index] == task
        state = [deliveries.value(delivery, episode, frame, c) for c in range(8)]
        assert found["observation.state"][index].tolist() == (
            state if delivery == 0 else state[2:] + state[:2]
        )
        for camera, name in enumerate(("observation.images.head", "observation.images.wrist")):
            shown = deliveries.read_identity(found[name][index])
            assert shown == deliveries.identity(delivery, camera, episode, frame), (index, name)
        last = episodes[number][2] - 1
        ahead = [min(frame + n, last) for n in range(3)]
        assert found["chunk"][index, :, 0].tolist() == [
            deliveries.value(delivery, episode, f, 101) for f in ahead
        ]
        assert found["chunk_is_pad"][index].tolist() == [frame + n > last for n in range(3)]
    for name, percent in (("q01", 1), ("q99", 99)):
        rows = found["observation.state"].astype(np.float64)
        np.testing.assert_allclose(found[f"stats.{name}"], np.percentile(rows, percent, axis=0), rtol=1e-6)


def test_every_frame_of_a_merged_dataset(
    read: Read, merged: Path, merged_episodes: Episodes, deliveries: ModuleType
) -> None:
    found = read(merged)
    _judge(found, merged_episodes, deliveries)
    assert found["some"].tolist() == [[n, f] for n in (1, 4) for f in range(merged_episodes[n][2])]


def test_every_frame_where_videos_are_linked(
    read: Read, merged_manifest: Any, merged_episodes: Episodes, deliveries: ModuleType, tmp_path: Path
) -> None:
    prepare(merged_manifest, out=tmp_path / "link", videos="link", jobs=1)
    _judge(read(tmp_path / "link"), merged_episodes, deliveries)
