"""A small dataset that is right in every way, in layouts v2.1 and v3.0, for planting faults in it.

Nothing of `stack` takes part in writing it, so that the audit is not judged by its own readers and writers.
4 episodes of 56 to 80 frames at 10 fps, 2 cameras, 2 tasks, state and action 6 wide.
"""

from __future__ import annotations

import json
import shutil
import zlib
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet as pq

FPS = 10
LENGTHS = (56, 64, 64, 80)
TASKS = ("pick up the cup", "把杯子放下")
TASK_OF = (0, 1, 0, 1)
CAMERAS = {"observation.images.head": (64, 48), "observation.images.hand": (48, 32)}
NAMES = [f"joint_{i}" for i in range(5)] + ["gripper"]
WIDTH = len(NAMES)
PANDAS = {
    "index_columns": ["task"],
    "column_indexes": [],
    "columns": [
        {"name": "task_index", "field_name": "task_index", "pandas_type": "int64", "numpy_type": "int64"},
        {"name": "task", "field_name": "task", "pandas_type": "unicode", "numpy_type": "object"},
    ],
}


def write_json(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, ensure_ascii=False, indent=2), encoding="utf-8")


def write_lines(path: Path, values: Sequence[Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(v, ensure_ascii=False) + "\n" for v in values), encoding="utf-8")


def motion(episode: int) -> tuple[np.ndarray, np.ndarray]:
    """State and action (L, 6) float32: smooth, of ordinary scale, different in each episode."""
    rng = np.random.default_rng(episode)
    t = np.arange(LENGTHS[episode])[:, None] / FPS
    phase, pace = rng.uniform(0, 6, WIDTH), rng.uniform(1.5, 3, WIDTH)
    state = np.sin(t * pace + phase) + 0.01 * rng.normal(size=(LENGTHS[episode], WIDTH))
    action = np.sin((t + 0.1) * pace + phase)
    return state.astype(np.float32), action.astype(np.float32)


def picture(episode: int, frame: int, size: tuple[int, int]) -> np.ndarray:
    width, height = size
    image = np.full((height, width, 3), 90 + 20 * episode, np.uint8)
    left = (frame * 3) % (width - 8)
    image[8:16, left : left + 8] = (250, 200 - 2 * frame, 40)
    return image


def encode(
    path: Path,
    pictures: Sequence[np.ndarray],
    *,
    fps: float = FPS,
    times: Sequence[int] | None = None,
    gop: int = 5,
    crf: int = 20,
    **x264: str,
) -> None:
    """H.264 with a key frame every `gop` frames; `times` in ticks of 1/(1000 fps) in place of n / fps."""
    path.parent.mkdir(parents=True, exist_ok=True)
    base = Fraction(1, round(1000 * fps))
    with av.open(str(path), "w", options={"video_track_timescale": str(base.denominator)}) as container:
        stream = container.add_stream("libx264", rate=round(fps))
        stream.height, stream.width = pictures[0].shape[:2]
        stream.pix_fmt = "yuv420p"
        stream.codec_context.time_base = base
        stream.options = {
            "g": str(gop),
            "bf": "0",
            "preset": "ultrafast",
            "crf": str(crf),
            "sc_threshold": "0",
            **x264,
        }
        for number, array in enumerate(pictures):
            frame = av.VideoFrame.from_ndarray(array, format="rgb24")
            frame.pts = times[number] if times else number * 1000
            frame.time_base = base
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))


def rows_table(episode: int) -> pa.Table:
    state, action = motion(episode)
    length = LENGTHS[episode]
    first = sum(LENGTHS[:episode])

    def vectors(values: np.ndarray) -> pa.Array:
        return pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), WIDTH)

    return pa.table(
        {
            "observation.state": vectors(state),
            "action": vectors(action),
            "timestamp": pa.array((np.arange(length) / FPS).astype(np.float32)),
            "frame_index": pa.array(np.arange(length)),
            "episode_index": pa.array(np.full(length, episode)),
            "index": pa.array(np.arange(first, first + length)),
            "task_index": pa.array(np.full(length, TASK_OF[episode])),
        }
    )


def basic_stats(values: np.ndarray) -> dict[str, Any]:
    rows = values.astype(np.float64).reshape(len(values), -1)
    return {
        "min": rows.min(0).tolist(),
        "max": rows.max(0).tolist(),
        "mean": rows.mean(0).tolist(),
        "std": rows.std(0).tolist(),
        "count": [len(rows)],
    }


def with_quantiles(values: np.ndarray) -> dict[str, Any]:
    rows = np.sort(values.astype(np.float64).reshape(len(values), -1), axis=0)
    stats = basic_stats(values)
    for name, q in (("q01", 0.01), ("q10", 0.1), ("q50", 0.5), ("q90", 0.9), ("q99", 0.99)):
        at = q * (len(rows) - 1)
        low = int(at)
        high = min(low + 1, len(rows) - 1)
        stats[name] = (rows[low] + (rows[high] - rows[low]) * (at - low)).tolist()
    return stats


def camera_stats(frames: int) -> dict[str, Any]:
    level = {"min": 0.0, "max": 1.0, "mean": 0.4, "std": 0.1}
    stats: dict[str, Any] = {name: [[[value]]] * 3 for name, value in level.items()}
    return {**stats, "count": [frames]}


def numbers(table: pa.Table) -> dict[str, np.ndarray]:
    return {
        name: np.array(table.column(name).to_pylist(), np.float64 if name in ("timestamp",) else None)
        for name in table.column_names
    }


def info(version: str) -> dict[str, Any]:
    vector = {"dtype": "float32", "shape": [WIDTH], "names": NAMES}
    features: dict[str, Any] = {"observation.state": dict(vector), "action": dict(vector)}
    for camera, (width, height) in CAMERAS.items():
        features[camera] = {
            "dtype": "video",
            "shape": [height, width, 3],
            "names": ["height", "width", "channels"],
            "info": {
                "video.height": height,
                "video.width": width,
                "video.codec": "h264",
                "video.pix_fmt": "yuv420p",
                "video.fps": FPS,
            },
        }
    for name in ("timestamp", "frame_index", "episode_index", "index", "task_index"):
        dtype = "float32" if name == "timestamp" else "int64"
        features[name] = {"dtype": dtype, "shape": [1], "names": None}
    common = {
        "codebase_version": version,
        "robot_type": "arm",
        "total_episodes": len(LENGTHS),
        "total_frames": sum(LENGTHS),
        "total_tasks": len(TASKS),
        "chunks_size": 1000,
        "fps": FPS,
        "splits": {"train": f"0:{len(LENGTHS)}"},
        "features": features,
    }
    if version == "v3.0":
        return {
            **common,
            "data_files_size_in_mb": 100,
            "video_files_size_in_mb": 200,
            "data_path": "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
            "video_path": "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4",
        }
    return {
        **common,
        "total_videos": len(LENGTHS) * len(CAMERAS),
        "total_chunks": 1,
        "data_path": "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet",
        "video_path": "videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4",
    }


def pictures_of(episode: int, camera: str) -> list[np.ndarray]:
    return [picture(episode, frame, CAMERAS[camera]) for frame in range(LENGTHS[episode])]


def write_v21(root: Path) -> None:
    write_json(root / "meta/info.json", info("v2.1"))
    write_lines(root / "meta/tasks.jsonl", [{"task_index": i, "task": t} for i, t in enumerate(TASKS)])
    entries, stats = [], []
    for episode, length in enumerate(LENGTHS):
        table = rows_table(episode)
        file = root / f"data/chunk-000/episode_{episode:06d}.parquet"
        file.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table, file)
        entries.append({"episode_index": episode, "tasks": [TASKS[TASK_OF[episode]]], "length": length})
        own = {name: basic_stats(values) for name, values in numbers(table).items()}
        own |= {camera: camera_stats(length) for camera in CAMERAS}
        stats.append({"episode_index": episode, "stats": own})
        for camera in CAMERAS:
            encode(
                root / f"videos/chunk-000/{camera}/episode_{episode:06d}.mp4", pictures_of(episode, camera)
            )
    write_lines(root / "meta/episodes.jsonl", entries)
    write_lines(root / "meta/episodes_stats.jsonl", stats)


def to_png(image: np.ndarray) -> bytes:
    """(H, W, 3) as a PNG, after ISO 15948: one unfiltered line after another."""
    height, width = image.shape[:2]
    lines = b"".join(b"\0" + image[y].tobytes() for y in range(height))

    def chunk(name: bytes, content: bytes) -> bytes:
        checksum = zlib.crc32(name + content).to_bytes(4, "big")
        return len(content).to_bytes(4, "big") + name + content + checksum

    header = width.to_bytes(4, "big") + height.to_bytes(4, "big") + bytes([8, 2, 0, 0, 0])
    parts = [(b"IHDR", header), (b"IDAT", zlib.compress(lines)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*part) for part in parts)


def pictures_into_rows(root: Path, camera: str) -> None:
    """Make a camera of the v2.1 or v3.0 dataset one whose pictures lie in the rows, as PNG."""
    shutil.rmtree(next(root.glob(f"videos/{camera}"), root / f"videos/chunk-000/{camera}"))
    for file in sorted((root / "data").rglob("*.parquet")):
        table = pq.read_table(file)
        pairs = zip(
            table.column("episode_index").to_pylist(), table.column("frame_index").to_pylist(), strict=True
        )
        cells = [
            {"bytes": to_png(picture(episode, frame, CAMERAS[camera])), "path": None}
            for episode, frame in pairs
        ]
        kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
        table = table.append_column(camera, pa.array(cells, kind))
        with pq.ParquetWriter(file, table.schema) as writer:
            for episode in dict.fromkeys(table.column("episode_index").to_pylist()):
                writer.write_table(table.filter(pa.compute.equal(table.column("episode_index"), episode)))
    table_file = root / "meta/episodes/chunk-000/file-000.parquet"
    if table_file.exists():
        entries = pq.read_table(table_file)
        kept = [name for name in entries.column_names if not name.startswith(f"videos/{camera}/")]
        pq.write_table(entries.select(kept), table_file)
    info = json.loads((root / "meta/info.json").read_text())
    info["features"][camera] = {
        key: "image" if key == "dtype" else value
        for key, value in info["features"][camera].items()
        if key != "info"
    }
    if "total_videos" in info:
        info["total_videos"] = len(LENGTHS) * (len(CAMERAS) - 1)
    write_json(root / "meta/info.json", info)


# Which data file and which file of the head camera each episode is in; the hand camera has one file.
FILE_OF = (0, 0, 1, 1)


def write_v30(root: Path) -> None:
    write_json(root / "meta/info.json", info("v3.0"))
    tasks = pa.table({"task_index": pa.array([0, 1]), "task": pa.array(TASKS)})
    (root / "meta").mkdir(exist_ok=True)
    metadata = {"pandas": json.dumps(PANDAS)}
    pq.write_table(tasks.replace_schema_metadata(metadata), root / "meta/tasks.parquet")
    tables = [rows_table(episode) for episode in range(len(LENGTHS))]
    for number in sorted(set(FILE_OF)):
        file = root / f"data/chunk-000/file-{number:03d}.parquet"
        file.parent.mkdir(parents=True, exist_ok=True)
        with pq.ParquetWriter(file, tables[0].schema) as writer:
            for table, own_file in zip(tables, FILE_OF, strict=True):
                if own_file == number:
                    writer.write_table(table)  # one row group an episode
    entries: list[dict[str, Any]] = []
    for episode, length in enumerate(LENGTHS):
        first = sum(LENGTHS[:episode])
        entry: dict[str, Any] = {
            "episode_index": episode,
            "tasks": [TASKS[TASK_OF[episode]]],
            "length": length,
            "data/chunk_index": 0,
            "data/file_index": FILE_OF[episode],
            "dataset_from_index": first,
            "dataset_to_index": first + length,
        }
        for camera in CAMERAS:
            file_of = FILE_OF if camera.endswith("head") else (0,) * len(LENGTHS)
            before = sum(
                n for n, f in zip(LENGTHS[:episode], file_of[:episode], strict=True) if f == file_of[episode]
            )
            entry |= {
                f"videos/{camera}/chunk_index": 0,
                f"videos/{camera}/file_index": file_of[episode],
                f"videos/{camera}/from_timestamp": before / FPS,
                f"videos/{camera}/to_timestamp": (before + length) / FPS,
            }
        entries.append(entry)
    file = root / "meta/episodes/chunk-000/file-000.parquet"
    file.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(entries), file)
    for camera in CAMERAS:
        file_of = FILE_OF if camera.endswith("head") else (0,) * len(LENGTHS)
        for number in sorted(set(file_of)):
            own = [e for e in range(len(LENGTHS)) if file_of[e] == number]
            joined = [array for e in own for array in pictures_of(e, camera)]
            encode(root / f"videos/{camera}/chunk-000/file-{number:03d}.mp4", joined)
    whole = numbers(pa.concat_tables(tables))
    stats = {name: with_quantiles(values) for name, values in whole.items()}
    stats |= {camera: camera_stats(sum(LENGTHS)) for camera in CAMERAS}
    write_json(root / "meta/stats.json", stats)
