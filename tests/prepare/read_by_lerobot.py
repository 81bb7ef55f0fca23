"""Read a dataset by whichever lerobot this Python has: read_by_lerobot.py DATASET OUT.npz; no stack here.

All frames: indices, time, task, state, action, pictures as (N, H, W, 3) uint8; then action chunks of three
frames by delta timestamps, and the indices of a reader that was given episodes 1 and 4 alone.
"""

import sys
from pathlib import Path

import lerobot
import numpy as np
from lerobot.datasets.lerobot_dataset import LeRobotDataset


def read(root: Path, **options):
    dataset = LeRobotDataset(f"local/{root.name}", root=root, video_backend="pyav", **options)
    return dataset, [dataset[n] for n in range(len(dataset))]


def stacked(items: list, key: str) -> np.ndarray:
    return np.stack([np.asarray(item[key]) for item in items])


def main(root: Path, out: Path) -> None:
    dataset, items = read(root)
    fps = dataset.meta.fps
    found = {key: stacked(items, key) for key in ("episode_index", "frame_index", "index", "timestamp")}
    found |= {key: stacked(items, key) for key in ("observation.state", "action")}
    found["task"] = np.array([item["task"] for item in items])
    for camera in dataset.meta.camera_keys:
        pictures = stacked(items, camera).transpose(0, 2, 3, 1)
        found[camera] = (pictures * 255).round().astype(np.uint8)
    for name in ("q01", "q99"):
        found[f"stats.{name}"] = np.asarray(dataset.meta.stats["observation.state"][name])
    _, chunks = read(root, delta_timestamps={"action": [n / fps for n in range(3)]})
    found["chunk"], found["chunk_is_pad"] = stacked(chunks, "action"), stacked(chunks, "action_is_pad")
    _, some = read(root, episodes=[1, 4])
    found["some"] = np.array([[int(item["episode_index"]), int(item["frame_index"])] for item in some])
    np.savez(out, version=lerobot.__version__, **found)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
