"""The audit on the size of a real job: 681 episodes, 305,425 frames, 3 cameras; time and memory of it all."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bench.audit_good import encode
from bench.memory_limit import within

FPS, EPISODES, FRAMES = 30, 681, 305_425
WIDTHS = {"observation.state": 159, "action": 40}  # an export before slicing; 16 wide after
CAMERAS = ("observation.images.head", "observation.images.hand_left", "observation.images.hand_right")
INDEX = ("timestamp", "frame_index", "episode_index", "index", "task_index")

MEASURE = """
import json, resource, sys, threading, time
from pathlib import Path
import psutil
from stack.audit import PolicyNeeds, audit
from stack.audit.apart import let_go

peak = 0
def held(pid):
    # Pss: a page that n processes share counts for 1/n of each, so that the sum counts it once.
    with open(f"/proc/{pid}/smaps_rollup") as file:
        return sum(int(line.split()[1]) * 1024 for line in file if line.startswith("Pss:"))

def watch():
    global peak
    own = psutil.Process()
    while True:
        now = 0
        for process in [own, *own.children(recursive=True)]:
            try:
                now += held(process.pid)
            except (OSError, psutil.Error):
                pass
        peak = max(peak, now)
        time.sleep(0.1)

if __name__ == "__main__":
    threading.Thread(target=watch, daemon=True).start()
    needs = PolicyNeeds(max_state_dim=200, max_action_dim=64)
    said, started = [], time.monotonic()
    report = audit(Path(sys.argv[1]), policy=needs, deep=sys.argv[2] == "deep", log=said.append)
    wall_s = time.monotonic() - started
    let_go()  # counted once it has left
    used = [resource.getrusage(w) for w in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    decoded = report.measures.decoded
    print(json.dumps({
        "ok": report.ok, "codes": sorted({f.code for f in report.faults}), "wall_s": wall_s,
        "cpu_s": sum(u.ru_utime + u.ru_stime for u in used), "peak_bytes": peak,
        "frames": report.facts.frames, "pictures": sum(camera.frames for camera in report.facts.cameras),
        "decoded": None if decoded is None else decoded[0],
        "decoding_s": None if decoded is None else decoded[1],
        "rate_said": [line for line in said if "a second" in line][-1:],
    }))
"""


def basic(rows: np.ndarray) -> dict[str, Any]:
    flat = rows.astype(np.float64).reshape(len(rows), -1)
    stats = {"min": flat.min(0), "max": flat.max(0), "mean": flat.mean(0), "std": flat.std(0)}
    return {**{name: value.tolist() for name, value in stats.items()}, "count": [len(rows)]}


def columns_of(episode: int, length: int, first: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(episode)
    t = np.arange(length)[:, None] / FPS
    made: dict[str, np.ndarray] = {}
    for name, width in WIDTHS.items():
        moved = np.sin(t * rng.uniform(1.5, 3, width) + rng.uniform(0, 6, width))
        made[name] = (moved + 0.01 * rng.normal(size=moved.shape)).astype(np.float32)
    return {
        **made,
        "timestamp": (np.arange(length) / FPS).astype(np.float32),
        "frame_index": np.arange(length),
        "episode_index": np.full(length, episode),
        "index": np.arange(first, first + length),
        "task_index": np.zeros(length, np.int64),
    }


def info() -> dict[str, Any]:
    features: dict[str, Any] = {
        name: {"dtype": "float32", "shape": [width], "names": [f"joint_{i}" for i in range(width)]}
        for name, width in WIDTHS.items()
    }
    for camera in CAMERAS:
        features[camera] = {"dtype": "video", "shape": [48, 64, 3], "names": ["height", "width", "channels"]}
    for name in INDEX:
        dtype = "float32" if name == "timestamp" else "int64"
        features[name] = {"dtype": dtype, "shape": [1], "names": None}
    return {
        "codebase_version": "v2.1",
        "robot_type": "arm",
        "total_episodes": EPISODES,
        "total_frames": FRAMES,
        "total_tasks": 1,
        "total_videos": EPISODES * len(CAMERAS),
        "total_chunks": 1,
        "chunks_size": 1000,
        "fps": FPS,
        "splits": {"train": f"0:{EPISODES}"},
        "features": features,
        "data_path": "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet",
        "video_path": "videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4",
    }


def write_large(root: Path) -> None:
    short, longer = FRAMES // EPISODES, FRAMES % EPISODES
    coded: dict[int, bytes] = {}
    for length in (short, short + 1):
        pictures = []
        for frame in range(length):
            picture = np.full((48, 64, 3), 100, np.uint8)
            picture[8:16, frame * 3 % 56 : frame * 3 % 56 + 8] = 255
            pictures.append(picture)
        encode(root / "one.mp4", pictures, fps=FPS, gop=2)
        coded[length] = (root / "one.mp4").read_bytes()
        (root / "one.mp4").unlink()
    level = {"min": 0.0, "max": 1.0, "mean": 0.4, "std": 0.1}
    of_camera = {name: [[[value]]] * 3 for name, value in level.items()}
    entries, stats, first = [], [], 0
    for episode in range(EPISODES):
        length = short + (episode < longer)
        columns = columns_of(episode, length, first)
        first += length
        arrays = {
            name: pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), values.shape[1])
            if values.ndim == 2
            else pa.array(values)
            for name, values in columns.items()
        }
        file = root / f"data/chunk-000/episode_{episode:06d}.parquet"
        file.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table(arrays), file)
        entries.append({"episode_index": episode, "tasks": ["pick up the cup"], "length": length})
        own = {name: basic(values) for name, values in columns.items()}
        own |= {camera: {**of_camera, "count": [length]} for camera in CAMERAS}
        stats.append({"episode_index": episode, "stats": own})
        for camera in CAMERAS:
            video = root / f"videos/chunk-000/{camera}/episode_{episode:06d}.mp4"
            video.parent.mkdir(parents=True, exist_ok=True)
            video.write_bytes(coded[length])
    meta = root / "meta"
    meta.mkdir()
    for name, lines in (("episodes", entries), ("episodes_stats", stats)):
        (meta / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (meta / "tasks.jsonl").write_text(json.dumps({"task_index": 0, "task": "pick up the cup"}) + "\n")
    (meta / "info.json").write_text(json.dumps(info()))  # last: its presence says that all is written


def large(root: Path) -> Path:
    """The dataset (0.5 GB), made where it is not there yet, in minutes."""
    if not (root / "meta/info.json").exists():
        write_large(root)
    return root


def measured(root: Path, *, deep: bool = False, group: Path | None = None) -> dict[str, Any]:
    """Seconds, processor seconds, and the peak of all processes' memory together, in a new process.

    Memory is the sum of proportional set sizes, ten times a second: pages that processes share, as those of
    forked workers and of libraries, are counted once, and so are pages of files that are mapped.

    Args:
        deep: also decode every picture.
        group: a cgroup to run in.

    Raises:
        subprocess.CalledProcessError: the audit did not end well, as where the group has too little memory.
    """
    paths = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        within(group, [sys.executable, "-c", MEASURE, str(root), "deep" if deep else "fast"]),
        capture_output=True,
        text=True,
        timeout=7200,
        check=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": paths},
    )
    return json.loads(done.stdout)  # type: ignore[no-any-return]
