"""Writes small v2.x deliveries whose pictures say who they are; nothing here uses the code under test."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

BITS = 16  # delivery 2, camera 2, episode 5, frame 7
GRID = 4


def identity(delivery: int, camera: int, episode: int, frame: int) -> int:
    assert delivery < 4 and camera < 4 and episode < 32 and frame < 128
    return ((delivery * 4 + camera) * 32 + episode) * 128 + frame


def paint(number: int, width: int, height: int) -> np.ndarray:
    """(H, W, 3) uint8: a 4 x 4 grid of blocks, dark for 0 and bright for 1."""
    cells = np.array([(number >> bit) & 1 for bit in range(BITS)], dtype=np.uint8).reshape(GRID, GRID)
    rows = np.arange(height) * GRID // height
    columns = np.arange(width) * GRID // width
    return np.repeat((cells[rows][:, columns] * 200 + 25)[..., None], 3, axis=2).astype(np.uint8)


def read_identity(picture: np.ndarray) -> int:
    """The number painted in an (H, W, 3) picture, by the mean of each block's middle."""
    height, width = picture.shape[:2]
    number = 0
    for bit in range(BITS):
        row, column = divmod(bit, GRID)
        top, left = (2 * row + 1) * height // (2 * GRID), (2 * column + 1) * width // (2 * GRID)
        number |= int(picture[top - 2 : top + 2, left - 2 : left + 2].mean() > 125) << bit
    return number


def drifting(n: int, width: int, height: int) -> np.ndarray:
    """A soft landscape that drifts, and a square whose place says which frame it is; (H, W, 3) uint8."""
    y, x = np.mgrid[:height, :width]
    soft = np.stack([x * 2 + n, y * 3 - n, x + y + 3 * n], axis=-1)
    image = (110 + 70 * np.sin(soft / 23)).astype(np.uint8)
    left, top = (n * 5) % (width - 16), (n * 3) % (height - 16)
    image[top : top + 16, left : left + 16] = (230, 30, 60)
    return image


def value(delivery: int, episode: int, frame: int, channel: int) -> float:
    """Exact in float32 and different for every place."""
    return delivery * 4096 + episode * 128 + frame + channel / 256


@dataclass(frozen=True)
class Delivery:
    """What to write. Widths and names of state and action; `lengths` by episode number."""

    number: int = 0
    lengths: tuple[int, ...] = (7, 5, 9, 4, 6)
    fps: int = 10
    cameras: tuple[tuple[str, int, int], ...] = (
        ("observation.images.head", 96, 64),
        ("observation.images.hand", 64, 64),
    )
    state: int = 8
    action: int = 4
    tasks: tuple[str, ...] = ("fold the shirt", "把毛巾放进盒子")
    task_of: tuple[int, ...] = (0, 1, 0, 1, 0)
    names: Any = None
    fields: dict[str, list[int]] = field(default_factory=dict)
    version: str = "v2.1"
    chunks_size: int = 3
    robot_type: str | None = "toy"
    listed: tuple[str, ...] = ("ts",)
    feature_fps: bool = False
    clock_start_s: float = 0.0
    drop_columns: tuple[str, ...] = ()
    double: bool = False
    timescale: int = 12800
    codec: str = "libx264"
    data_path: str = "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet"


def write_delivery(root: Path, d: Delivery) -> Path:
    (root / "meta").mkdir(parents=True)
    first = 0
    for episode, length in enumerate(d.lengths):
        chunk = f"chunk-{episode // d.chunks_size:03d}"
        rows = root / "data" / chunk / f"episode_{episode:06d}.parquet"
        rows.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(_rows(d, episode, length, first), rows)
        first += length
        for number, (camera, width, height) in enumerate(d.cameras):
            file = root / "videos" / chunk / camera / f"episode_{episode:06d}.mp4"
            pictures = [paint(identity(d.number, number, episode, f), width, height) for f in range(length)]
            write_video(file, pictures, d.fps, timescale=d.timescale, codec=d.codec)
    (root / "meta" / "info.json").write_text(json.dumps(_info(d), ensure_ascii=False))
    entries = [
        {"episode_index": e, "tasks": [d.tasks[d.task_of[e % len(d.task_of)]]], "length": n}
        for e, n in enumerate(d.lengths)
    ]
    _lines(root / "meta" / "episodes.jsonl", entries)
    _lines(root / "meta" / "tasks.jsonl", [{"task_index": i, "task": t} for i, t in enumerate(d.tasks)])
    if d.version == "v2.1":
        stats = [{"episode_index": e, "stats": {}} for e in range(len(d.lengths))]
        _lines(root / "meta" / "episodes_stats.jsonl", stats)
    else:
        (root / "meta" / "stats.json").write_text("{}")
    return root


def write_video(
    file: Path, pictures: list[np.ndarray], fps: int, *, timescale: int = 12800, codec: str = "libx264"
) -> None:
    """H.264 with B-frames and few key frames, as ffmpeg makes it by default."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(file), "w", options={"video_track_timescale": str(timescale)}) as container:
        options = {"g": "12", "bf": "2", "crf": "12"} if codec == "libx264" else {"g": "12"}
        stream = container.add_stream(codec, rate=fps, options=options)
        stream.height, stream.width = pictures[0].shape[:2]
        stream.pix_fmt = "yuv420p"
        if codec != "libx264":
            stream.bit_rate = 4_000_000
        for number, picture in enumerate(pictures):
            frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
            frame.pts, frame.time_base = number, Fraction(1, fps)
            container.mux(stream.encode(frame))
        container.mux(stream.encode())


def state_of(d: Delivery, episode: int, frame: int) -> list[float]:
    return [value(d.number, episode, frame, c) for c in range(d.state)]


def action_of(d: Delivery, episode: int, frame: int) -> list[float]:
    return [value(d.number, episode, frame, 100 + c) for c in range(d.action)]


def _rows(d: Delivery, episode: int, length: int, first: int) -> pa.Table:
    number = pa.float64() if d.double else pa.float32()
    whole = pa.float64() if d.double else pa.int64()
    frames = range(length)
    ts = [1_700_000_000_000_000_000 + episode * 1000 + f for f in frames]
    columns = {
        "observation.state": pa.array([state_of(d, episode, f) for f in frames], pa.list_(number)),
        "action": pa.array([action_of(d, episode, f) for f in frames], pa.list_(number)),
        "ts": pa.array([[t] for t in ts], pa.list_(pa.int64()))
        if "ts" in d.listed
        else pa.array(ts, pa.int64()),
        "timestamp": pa.array([d.clock_start_s + f / d.fps for f in frames], number),
        "frame_index": pa.array(list(frames), whole),
        "episode_index": pa.array([episode] * length, whole),
        "index": pa.array([first + f for f in frames], whole),
        "task_index": pa.array([d.task_of[episode % len(d.task_of)]] * length, whole),
    }
    return pa.table({k: v for k, v in columns.items() if k not in d.drop_columns})


def _info(d: Delivery) -> dict[str, Any]:
    names = d.names if d.names is not None else [f"j{c}" for c in range(d.state)]
    state: dict[str, Any] = {"dtype": "float32", "shape": [d.state], "names": names}
    if d.fields:
        state["field_descriptions"] = {
            name: {"description": name, "dimensions": len(indices), "indices": indices}
            for name, indices in d.fields.items()
        }
    features: dict[str, Any] = {
        "observation.state": state,
        "action": {"dtype": "float32", "shape": [d.action], "names": [f"a{c}" for c in range(d.action)]},
        "ts": {"dtype": "int64", "shape": [1], "names": None},
    }
    for name in ("frame_index", "episode_index", "index", "task_index"):
        features[name] = {"dtype": "int64", "shape": [1], "names": None}
    features["timestamp"] = {"dtype": "float32", "shape": [1], "names": None}
    if d.feature_fps:
        for entry in features.values():
            entry["fps"] = d.fps
    for camera, width, height in d.cameras:
        features[camera] = {
            "dtype": "video",
            "shape": [height, width, 3],
            "names": ["height", "width", "channels"],
            "info": {"video.fps": d.fps, "video.codec": "h264", "video.pix_fmt": "yuv420p"},
        }
    return {
        "codebase_version": d.version,
        "robot_type": d.robot_type,
        "total_episodes": len(d.lengths),
        "total_frames": sum(d.lengths),
        "total_tasks": len(d.tasks),
        "total_videos": len(d.lengths) * len(d.cameras),
        "total_chunks": 1,
        "chunks_size": d.chunks_size,
        "fps": d.fps,
        "splits": {"train": f"0:{len(d.lengths)}"},
        "data_path": d.data_path,
        "video_path": "videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4",
        "features": features,
    }


def _lines(file: Path, entries: list[dict[str, Any]]) -> None:
    file.write_text("".join(json.dumps(entry, ensure_ascii=False) + "\n" for entry in entries))


def edit_info(root: Path, change: Any) -> None:
    """Let `change(info)` alter info.json in place."""
    file = root / "meta" / "info.json"
    info = json.loads(file.read_text())
    change(info)
    file.write_text(json.dumps(info))


def edit_rows(root: Path, episode: int, change: Any, *, chunks_size: int = 3) -> None:
    """Let `change(table) -> table` alter one episode's rows."""
    file = root / "data" / f"chunk-{episode // chunks_size:03d}" / f"episode_{episode:06d}.parquet"
    pq.write_table(change(pq.read_table(file)), file)
