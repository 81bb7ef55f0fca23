"""Deliveries to measure with: v2.1, as a recorder leaves them, made once and kept."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import asdict, dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from stack.dataset.model import ClipRef
from stack.dataset.stats import sample_camera

MAKER = 2  # another number: inputs that an earlier maker left are made again
CLIPS = 8  # different clips a camera and length; episodes share them, their bytes count all the same
CHUNK = 1000
CAMERAS = ("observation.images.head", "observation.images.hand_left", "observation.images.hand_right")
DATA_PATH = "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet"
VIDEO_PATH = "videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4"
TASKS = ("fold the shirt", "put the towel into the box")
STATISTICS = ("min", "max", "mean", "std", "count")  # what v2.1 keeps of an episode
INTEGERS = ("frame_index", "episode_index", "index", "task_index")


@dataclass(frozen=True)
class Size:
    """What a delivery is like. `lengths` is the number of frames of each episode."""

    lengths: tuple[int, ...]
    width: int = 320
    height: int = 240
    state: int = 163
    action: int = 36
    fps: int = 30
    seed: int = 0
    cameras: tuple[str, ...] = CAMERAS


def delivery(root: Path, clips: Path, size: Size) -> Path:
    """Make a delivery, or keep the one that is there.

    Args:
        clips: where different clips are kept; episodes are hard links to them.
    """
    done = root / "made-from.json"
    described = json.dumps({"maker": MAKER, **asdict(size)}, sort_keys=True)
    if done.is_file() and done.read_text() == described:
        return root
    shutil.rmtree(root, ignore_errors=True)  # what a stopped run left, or another size
    (root / "meta").mkdir(parents=True)
    first, statistics = 0, []
    for episode, length in enumerate(size.lengths):
        table, described_rows = _rows(size, episode, length, first)
        file = root / DATA_PATH.format(episode_chunk=episode // CHUNK, episode_index=episode)
        file.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table, file)
        statistics.append({"episode_index": episode, "stats": described_rows})
        for number, camera in enumerate(size.cameras):
            target = root / VIDEO_PATH.format(
                episode_chunk=episode // CHUNK, episode_index=episode, video_key=camera
            )
            target.parent.mkdir(parents=True, exist_ok=True)
            clip = _clip(clips, size, length, number * CLIPS + episode % CLIPS)
            os.link(clip, target)
            described_rows[camera] = _clip_statistics(clip, length)
        first += length
    _write_meta(root, size, statistics)
    done.write_text(described)
    return root


def _rows(size: Size, episode: int, length: int, first: int) -> tuple[pa.Table, dict[str, Any]]:
    rng = np.random.default_rng((size.seed, episode))
    columns: dict[str, Any] = {}
    statistics: dict[str, Any] = {}
    for name, width in (("observation.state", size.state), ("action", size.action)):
        steps = rng.normal(0, 0.01, (length, width))
        values = (rng.normal(0, 1, width) + steps.cumsum(axis=0)).astype(np.float32)
        lists = pa.ListArray.from_arrays(
            pa.array(np.arange(length + 1, dtype=np.int32) * width), pa.array(values.reshape(-1))
        )
        columns[name], statistics[name] = lists, _statistics(values)
    numbers = np.arange(length)
    integers = {
        "frame_index": numbers,
        "episode_index": np.full(length, episode),
        "index": first + numbers,
        "task_index": np.full(length, episode % len(TASKS)),
    }
    columns["timestamp"] = pa.array((numbers / size.fps).astype(np.float32))
    statistics["timestamp"] = _statistics((numbers / size.fps)[:, None])
    for name, values in integers.items():
        columns[name] = pa.array(values.astype(np.int64))
        statistics[name] = _statistics(values[:, None])
    return pa.table(columns), statistics


def _statistics(values: NDArray[Any]) -> dict[str, Any]:
    return {
        "min": values.min(axis=0).tolist(),
        "max": values.max(axis=0).tolist(),
        "mean": values.mean(axis=0).tolist(),
        "std": values.std(axis=0).tolist(),
        "count": [len(values)],
    }


def _clip_statistics(clip: Path, length: int) -> dict[str, Any]:
    """What a recorder would have stored of a clip, kept beside it."""
    kept = clip.with_suffix(".json")
    if not kept.is_file():
        found = sample_camera(ClipRef(clip, 0, length)).stats().to_json()
        partial = kept.with_suffix(".partial")
        partial.write_text(json.dumps({name: found[name] for name in STATISTICS}))
        partial.replace(kept)
    told: dict[str, Any] = json.loads(kept.read_text())
    return told


def _clip(folder: Path, size: Size, length: int, number: int) -> Path:
    file = folder / f"{size.width}x{size.height}-{size.fps}-{length}-{number}.mp4"
    if file.is_file():
        return file
    folder.mkdir(parents=True, exist_ok=True)
    partial = file.with_suffix(".partial.mp4")
    rng = np.random.default_rng(number)
    # A window that wanders over one large picture, with a little of a sensor's noise.
    wide = rng.integers(0, 256, (size.height // 4 + 40, size.width // 4 + 40, 3), dtype=np.uint8)
    scene = wide.repeat(8, axis=0).repeat(8, axis=1)
    with av.open(str(partial), "w") as container:
        stream = container.add_stream("libx264", rate=size.fps, options={"preset": "veryfast", "g": "10"})
        stream.width, stream.height, stream.pix_fmt = size.width, size.height, "yuv420p"
        for n in range(length):
            top, left = (int(40 + 39 * np.sin(n / 20 + k + number)) for k in (0, 1))
            picture = scene[top : top + size.height, left : left + size.width] // 2
            picture = picture + rng.integers(0, 6, (size.height, size.width, 1), dtype=np.uint8)
            frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
            frame.pts, frame.time_base = n, Fraction(1, size.fps)
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    partial.replace(file)
    return file


def _write_meta(root: Path, size: Size, statistics: list[dict[str, Any]]) -> None:
    episodes = [
        {"episode_index": e, "tasks": [TASKS[e % len(TASKS)]], "length": length}
        for e, length in enumerate(size.lengths)
    ]
    _lines(root / "meta" / "episodes.jsonl", episodes)
    _lines(root / "meta" / "tasks.jsonl", [{"task_index": n, "task": t} for n, t in enumerate(TASKS)])
    _lines(root / "meta" / "episodes_stats.jsonl", statistics)
    features: dict[str, Any] = {
        "observation.state": _vector("float32", size.state),
        "action": _vector("float32", size.action),
        "timestamp": _vector("float32", 1),
        **{name: _vector("int64", 1) for name in INTEGERS},
    }
    for camera in size.cameras:
        features[camera] = {
            "dtype": "video",
            "shape": [size.height, size.width, 3],
            "names": ["height", "width", "channels"],
            "info": {
                "video.fps": size.fps,
                "video.height": size.height,
                "video.width": size.width,
                "video.channels": 3,
                "video.codec": "h264",
                "video.pix_fmt": "yuv420p",
                "video.is_depth_map": False,
                "has_audio": False,
            },
        }
    info = {
        "codebase_version": "v2.1",
        "robot_type": "bench",
        "total_episodes": len(size.lengths),
        "total_frames": sum(size.lengths),
        "total_tasks": len(TASKS),
        "total_videos": len(size.lengths) * len(size.cameras),
        "total_chunks": (len(size.lengths) + CHUNK - 1) // CHUNK,
        "chunks_size": CHUNK,
        "fps": size.fps,
        "splits": {"train": f"0:{len(size.lengths)}"},
        "data_path": DATA_PATH,
        "video_path": VIDEO_PATH if size.cameras else None,
        "features": features,
    }
    (root / "meta" / "info.json").write_text(json.dumps(info, indent=2))


def _vector(dtype: str, width: int) -> dict[str, Any]:
    return {
        "dtype": dtype,
        "shape": [width],
        "names": None if width == 1 else [f"c{n}" for n in range(width)],
    }


def _lines(file: Path, entries: list[dict[str, Any]]) -> None:
    file.write_text("".join(json.dumps(entry) + "\n" for entry in entries))


def rows_only(
    folder: Path, rows: int, widths: dict[str, int], *, group: int = 449, steps: int | None = None
) -> Path:
    """A parquet of float vectors, one row group an episode, as the writer packs them.

    Args:
        steps: each value stays for so many rows, and few are different, so that the file is small.
    """
    file = folder / f"rows-{rows}-{'-'.join(map(str, widths.values()))}.parquet"
    if file.is_file():
        return file
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    schema = pa.schema([(name, pa.list_(pa.float32(), width)) for name, width in widths.items()])
    partial = file.with_suffix(".partial")
    with pq.ParquetWriter(partial, schema, use_dictionary=steps is not None) as writer:
        for start in range(0, rows, group):
            count = min(group, rows - start)
            arrays = []
            for field in schema:
                width = field.type.list_size
                if steps is None:
                    values = rng.normal(0, 1, width) + rng.normal(0, 0.01, (count, width)).cumsum(axis=0)
                else:
                    few = np.rint(rng.normal(0, 300, (-(-count // steps), width))) / 256
                    values = few.repeat(steps, axis=0)[:count]
                flat = pa.array(values.astype(np.float32).reshape(-1))
                arrays.append(pa.FixedSizeListArray.from_arrays(flat, type=field.type))
            writer.write_table(pa.Table.from_arrays(arrays, schema=schema), row_group_size=count)
    partial.replace(file)
    return file
