"""Two deliveries in LeRobot v2.1, in the manner of AgiBot exports, with the faults of `stack.demo.faults`."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from stack.dataset.model import ClipRef
from stack.dataset.stats import sample_camera, vector_stats
from stack.dataset.video import probe
from stack.demo.channels import ACTION_FIELDS, ARM_JOINTS, STATE_FIELDS, channel_names, field_descriptions
from stack.demo.faults import ABORTED_EPISODE, CAMERA_KEYS, MISSHAPEN_FEATURE, NESTED_FEATURE, TASK, TASK_1
from stack.demo.identity import Identity, paint
from stack.demo.motion import (
    COLOURS,
    CURRENT_SPIKE_MA,
    FPS,
    EpisodePlan,
    Rows,
    Spike,
    run_episode,
)
from stack.demo.scene import BLOCK_HALF, CAMERAS, Camera, render
from stack.errors import WorkFailed
from stack.files import whole_folder, write_json, write_text

LENGTHS = (48, 65)  # frames an episode, half-open
LOST_FRAMES = 5
ROBOT = "a2d"
CHUNK_EPISODES = 1000
DATA_PATH = "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet"
VIDEO_PATH = "videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4"
# Without mbtree: x264's is not the same from run to run where it has AVX-512.
ENCODER = {
    "preset": "veryfast",
    "crf": "20",
    "g": "12",
    "bf": "2",
    "threads": "1",
    "x264-params": "mbtree=0",
}
STATISTICS_V21 = ("min", "max", "mean", "std", "count")
CLOCK_START_NS = 1_735_689_600_000_000_000  # 2025-01-01T00:00:00Z

TASK_TEXTS = {"red": "抓取红色方块", "green": "抓取绿色方块", "blue": "Pick up the blue block"}


@dataclass(frozen=True)
class _Delivery:
    """`colours`: the block of each episode, which decides its task. `bursts`: episode -> sign of its jerk."""

    name: str
    number: int
    colours: tuple[str, ...]
    bursts: Mapping[int, int]


DELIVERIES: tuple[_Delivery, ...] = (
    _Delivery(TASK, 0, ("red",) * 12, {2: 1, 9: -1}),
    _Delivery(TASK_1, 1, ("red", "green", "red", "blue", "green", "red", "blue", "red"), {1: -1, 5: 1}),
)


def write_deliveries(out: Path, *, seed: int = 0, log: Callable[[str], None] = lambda _: None) -> None:
    """Write `out/demo_task` (12 episodes) and `out/demo_task-1` (8), the same bytes for the same seed.

    Raises:
        BadRequest: one of the folders exists already.
        NotAble: `out` cannot be written.
    """
    for delivery in DELIVERIES:
        with whole_folder(out / delivery.name) as folder:
            frames = _write_delivery(delivery, folder, seed)
        log(f"delivery {delivery.name}: {len(delivery.colours)} episodes, {frames} frames")


def _write_delivery(delivery: _Delivery, folder: Path, seed: int) -> int:
    texts = tuple(dict.fromkeys(TASK_TEXTS[colour] for colour in delivery.colours))
    plans = _plan(delivery, np.random.default_rng([seed, delivery.number]))
    episodes, statistics, start = [], [], 0
    for number, plan in enumerate(plans):
        rng = np.random.default_rng([seed, delivery.number, number])
        rows = run_episode(plan, rng, lost_frames=LOST_FRAMES)
        text = TASK_TEXTS[COLOURS[plan.colour]]
        columns = _columns(rows, number, start, texts.index(text))
        _write_rows(columns, folder / DATA_PATH.format(episode_chunk=0, episode_index=number))
        stats = {name: _column_stats(values) for name, values in columns.items()}
        for place, camera in enumerate(CAMERAS):
            file = folder / VIDEO_PATH.format(episode_chunk=0, video_key=camera.key, episode_index=number)
            _write_video(file, camera, plan, rows, Identity(delivery.number, place, number, 0))
            if delivery.name != TASK:
                stats[camera.key] = _v21(sample_camera(ClipRef(file, 0, plan.length)).stats().to_json())
        episodes.append({"episode_index": number, "tasks": [text], "length": plan.length})
        statistics.append({"episode_index": number, "stats": _spoil(delivery, stats)})
        start += plan.length
    meta = folder / "meta"
    write_json(meta / "info.json", _info(delivery, episodes=len(plans), frames=start, tasks=len(texts)))
    _write_lines(meta / "tasks.jsonl", [{"task_index": i, "task": text} for i, text in enumerate(texts)])
    _write_lines(meta / "episodes.jsonl", episodes)
    _write_lines(meta / "episodes_stats.jsonl", statistics)
    return start


def _plan(delivery: _Delivery, rng: np.random.Generator) -> list[EpisodePlan]:
    aborted = ABORTED_EPISODE if delivery.name == TASK else None
    lengths = [int(n) for n in rng.integers(*LENGTHS, len(delivery.colours))]
    sound = [number for number in range(len(lengths)) if number != aborted]
    spikes: dict[int, list[Spike]] = {number: [] for number in range(len(lengths))}
    for joint in range(2 * ARM_JOINTS):
        for sign in (1, -1):
            number = int(rng.choice(sound))
            frame = int(rng.integers(5, lengths[number] - 5))
            spikes[number].append(Spike(frame, joint, sign * float(rng.uniform(*CURRENT_SPIKE_MA))))
    plans = []
    for number, (length, colour) in enumerate(zip(lengths, delivery.colours, strict=True)):
        side = number % 2
        plans.append(
            EpisodePlan(
                length=length,
                colour=COLOURS.index(colour),
                side=side,
                blocks=_scatter(COLOURS.index(colour), side, rng),
                spikes=tuple(spikes[number]),
                burst=delivery.bursts.get(number, 0),
                aborted=number == aborted,
            )
        )
    return plans


def _scatter(named: int, side: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """(3, 2): places of the blocks, clear of each other, the named one before the hand that reaches."""
    while True:
        blocks = rng.uniform([0.1, 0.2], [0.9, 0.85], (len(COLOURS), 2))
        blocks[named] = rng.uniform([0.1 + 0.45 * side, 0.2], [0.45 + 0.45 * side, 0.85])
        apart = np.abs(blocks - np.roll(blocks, 1, axis=0)).max(axis=1)
        if (apart > 3 * BLOCK_HALF).all():
            return blocks


def _columns(rows: Rows, episode: int, start: int, task: int) -> dict[str, NDArray[Any]]:
    """The rows' columns as arrays; one-wide features of the export stay (N, 1)."""
    n = len(rows.state)
    counter = np.arange(n, dtype=np.int64)
    clock = CLOCK_START_NS + episode * 60_000_000_000 + counter * 1_000_000_000 // FPS
    moving = rows.grippers.min(axis=1) < 0.5
    return {
        "observation.state": rows.state,
        "action": rows.action,
        "ts": clock[:, None],
        "action_src_status": moving.astype(np.uint64)[:, None],
        "timestamp": (counter / FPS).astype(np.float32),
        "frame_index": counter,
        "episode_index": np.full(n, episode, dtype=np.int64),
        "index": start + counter,
        "task_index": np.full(n, task, dtype=np.int64),
    }


def _write_rows(columns: Mapping[str, NDArray[Any]], file: Path) -> None:
    arrays: dict[str, pa.Array] = {}
    described: dict[str, Any] = {}
    for name, values in columns.items():
        value = {"dtype": values.dtype.name, "_type": "Value"}
        flat = pa.array(values.ravel())
        if values.ndim == 1:
            arrays[name], described[name] = flat, value
            continue
        wide = values.shape[1]
        if wide == 1:
            arrays[name] = pa.ListArray.from_arrays(pa.array(range(len(values) + 1), pa.int32()), flat)
        else:
            arrays[name] = pa.FixedSizeListArray.from_arrays(flat, wide)
        described[name] = {"feature": value, "length": wide, "_type": "Sequence"}
    table = pa.table(arrays).replace_schema_metadata(
        {"huggingface": json.dumps({"info": {"features": described}})}
    )
    file.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, file)


def _write_video(file: Path, camera: Camera, plan: EpisodePlan, rows: Rows, identity: Identity) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(file), mode="w", format="mp4", options={"fflags": "+bitexact"}) as container:
        stream = container.add_stream("libx264", rate=FPS, options=ENCODER)
        stream.width, stream.height, stream.pix_fmt = camera.width, camera.height, "yuv420p"
        for n in range(plan.length):
            picture = render(camera, plan.blocks, rows.hands[n], rows.grippers[n])
            paint(picture, Identity(identity.delivery, identity.camera, identity.episode, n))
            frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
            frame.pts, frame.time_base = n, Fraction(1, FPS)
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    if (written := probe(file).frames) != plan.length:
        what = f"{plan.length} frames were encoded and {written} are in the file"
        raise WorkFailed("demo-video-wrong", what, where=str(file))


def _column_stats(values: NDArray[Any]) -> dict[str, Any]:
    # The exporter passes over lost readings; a NaN here would be one more fault than is listed.
    sound = values[np.isfinite(values).reshape(len(values), -1).all(axis=1)]
    return _v21(vector_stats(sound).to_json()) | {"count": [len(values)]}


def _v21(stats: Mapping[str, Any]) -> dict[str, Any]:
    return {name: stats[name] for name in STATISTICS_V21}


def _spoil(delivery: _Delivery, stats: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Put the delivery's faulty statistics in the place of the right ones."""
    if delivery.name == TASK:
        zeros = [[[0.0]], [[0.0]], [[0.0]]]
        placeholder = {name: zeros for name in STATISTICS_V21[:-1]} | {"count": [0]}
        misshapen = stats[MISSHAPEN_FEATURE] | {"count": [stats[MISSHAPEN_FEATURE]["count"]]}
        return stats | {camera: placeholder for camera in CAMERA_KEYS} | {MISSHAPEN_FEATURE: misshapen}
    right = stats[NESTED_FEATURE]
    return stats | {NESTED_FEATURE: {n: v if n == "count" else [v] for n, v in right.items()}}


def _info(delivery: _Delivery, *, episodes: int, frames: int, tasks: int) -> dict[str, Any]:
    return {
        "codebase_version": "v2.1",
        "robot_type": ROBOT,
        "total_episodes": episodes,
        "total_frames": frames,
        "total_tasks": tasks,
        "total_videos": episodes * len(CAMERAS),
        "total_chunks": 1,
        "chunks_size": CHUNK_EPISODES,
        "fps": FPS,
        "splits": {"train": f"0:{episodes}"},
        "data_path": DATA_PATH,
        "video_path": VIDEO_PATH,
        "features": _features(delivery),
    }


def _features(delivery: _Delivery) -> dict[str, Any]:
    def vector(kind: str, fields: Any) -> dict[str, Any]:
        names = channel_names(fields)
        return {
            "dtype": "float32",
            "shape": [len(names)],
            "names": {"motors": names} if delivery.name == TASK else names,
            "field_descriptions": field_descriptions(kind, fields),
        }

    def scalar(dtype: str) -> dict[str, Any]:
        return {"dtype": dtype, "shape": [1], "names": None}

    features = {
        **{camera.key: _camera_feature(camera) for camera in CAMERAS},
        "observation.state": vector("state", STATE_FIELDS),
        "action": vector("action", ACTION_FIELDS),
        "ts": scalar("int64"),
        "action_src_status": scalar("uint64"),
        "timestamp": scalar("float32"),
        **{name: scalar("int64") for name in ("frame_index", "episode_index", "index", "task_index")},
    }
    if delivery.name == TASK_1:
        features = {name: entry | {"fps": FPS} for name, entry in features.items()}
    return features


def _camera_feature(camera: Camera) -> dict[str, Any]:
    return {
        "dtype": "video",
        "shape": [camera.height, camera.width, 3],
        "names": ["height", "width", "channels"],
        "info": {
            "video.height": camera.height,
            "video.width": camera.width,
            "video.codec": "h264",
            "video.pix_fmt": "yuv420p",
            "video.is_depth_map": False,
            "video.fps": FPS,
            "video.channels": 3,
            "has_audio": False,
        },
    }


def _write_lines(file: Path, entries: Sequence[Mapping[str, Any]]) -> None:
    write_text(file, "".join(json.dumps(entry, ensure_ascii=False) + "\n" for entry in entries))
