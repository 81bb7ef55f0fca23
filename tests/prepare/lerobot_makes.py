"""Run as a child process by either line's Python: datasets made and read by lerobot's own tools.

Usage: lerobot_makes.py make FOLDER | read FOLDER...
"""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import shutil
import sys
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

for switch in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE"):
    os.environ[switch] = "1"

IS_OLD = version("lerobot").startswith("0.4.")
STATE, ACTION, FPS = 4, 2, 10
CAMERAS = (("observation.images.head", 96, 64), ("observation.images.hand", 64, 64))
TASKS = ("fold the shirt", "把毛巾放进盒子")
TINY_MB = 0.0008  # about one episode of rows a file
CONVERTED_MB = 0.0025  # about two


def generator() -> ModuleType:
    """Paints pictures that say who they are."""
    place = Path(__file__).parents[1] / "dataset" / "deliveries.py"
    spec = importlib.util.spec_from_file_location("small_deliveries", place)
    assert spec is not None and spec.loader is not None
    sys.modules["small_deliveries"] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


G = generator()


def features() -> dict[str, Any]:
    vectors = (("observation.state", "j", STATE), ("action", "a", ACTION))
    found: dict[str, Any] = {
        name: {"dtype": "float32", "shape": (width,), "names": [f"{mark}{c}" for c in range(width)]}
        for name, mark, width in vectors
    }
    for camera, width, height in CAMERAS:
        names = ["height", "width", "channels"]
        found[camera] = {"dtype": "video", "shape": (height, width, 3), "names": names}
    return found


def add_episodes(dataset: Any, number: int, first: int, lengths: tuple[int, ...]) -> None:
    for episode, length in enumerate(lengths, first):
        for frame in range(length):
            picture = {
                camera: G.paint(G.identity(number, at, episode, frame), width, height)
                for at, (camera, width, height) in enumerate(CAMERAS)
            }
            state = np.array([G.value(number, episode, frame, c) for c in range(STATE)], dtype=np.float32)
            action = np.array([G.value(number, episode, frame, 100 + c) for c in range(ACTION)], np.float32)
            task = TASKS[episode % 2]
            dataset.add_frame({"observation.state": state, "action": action, "task": task, **picture})
        dataset.save_episode()
    dataset.finalize()


def encoder() -> dict[str, Any]:
    """H.264 rather than AV1, so that what is recorded may be merged with what is converted."""
    if IS_OLD:
        from lerobot.datasets import lerobot_dataset, video_utils

        encode = functools.partial(video_utils.encode_video_frames, vcodec="h264")
        lerobot_dataset.encode_video_frames = encode
        return {}
    from lerobot.configs.video import RGBEncoderConfig

    return {"rgb_encoder": RGBEncoderConfig(vcodec="h264", preset="medium")}


def record(root: Path, number: int, lengths: tuple[int, ...], *, caps_mb: float | None = None) -> None:
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    dataset = LeRobotDataset.create(
        f"local/{root.name}", FPS, features(), root=root, robot_type="toy", **encoder()
    )
    if caps_mb is not None:
        dataset.meta.update_chunk_settings(data_files_size_in_mb=caps_mb, video_files_size_in_mb=caps_mb)
    add_episodes(dataset, number, 0, lengths)


def resume(root: Path, number: int, first: int, lengths: tuple[int, ...]) -> None:
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    name = f"local/{root.name}"
    if IS_OLD:
        encoder()
        dataset = LeRobotDataset(name, root=root)
    else:
        dataset = LeRobotDataset.resume(name, root=root, **encoder())
    add_episodes(dataset, number, first, lengths)


def deliver(root: Path, number: int, lengths: tuple[int, ...]) -> None:
    """A v2.1 delivery with the statistics that the converter wants."""
    shape = G.Delivery(
        number=number,
        lengths=lengths,
        state=STATE,
        action=ACTION,
        cameras=CAMERAS,
        tasks=TASKS,
        task_of=(0, 1),
        listed=(),
    )
    G.write_delivery(root, shape)
    stats: dict[str, Any] = {}
    for name in ("observation.state", "action", "ts", "timestamp", "frame_index", "episode_index", "index"):
        width = {"observation.state": STATE, "action": ACTION}.get(name, 1)
        stats[name] = {key: [0.0] * width for key in ("min", "max", "mean", "std")} | {"count": [3]}
    stats["task_index"] = stats["index"]
    for camera, _, _ in CAMERAS:
        stats[camera] = {key: [[[0.5]]] * 3 for key in ("min", "max", "mean", "std")} | {"count": [3]}
    entries = [{"episode_index": episode, "stats": stats} for episode in range(len(lengths))]
    lines = "".join(json.dumps(entry) + "\n" for entry in entries)
    (root / "meta/episodes_stats.jsonl").write_text(lines)


def convert(root: Path, number: int, lengths: tuple[int, ...]) -> None:
    deliver(root, number, lengths)
    if IS_OLD:
        from lerobot.datasets.v30.convert_dataset_v21_to_v30 import convert_dataset

        convert_dataset(root.name, None, CONVERTED_MB, 0.004, root.parent, push_to_hub=False)
    else:
        from lerobot.scripts.convert_dataset_v21_to_v30 import convert_dataset

        convert_dataset(root.name, None, CONVERTED_MB, 0.004, root, push_to_hub=False)
    shutil.rmtree(root.with_name(f"{root.name}_old"))


def merge(sources: list[Path], root: Path) -> None:
    from lerobot.datasets.aggregate import aggregate_datasets

    names = [f"local/{source.name}" for source in sources]
    aggregate_datasets(names, f"local/{root.name}", roots=sources, aggr_root=root)


EVERY = 3  # of how many frames one is read with a chunk of actions
LENGTHS = {"recorded": (7, 5, 9), "resumed": (4, 6), "second": (3, 8), "converted": (5, 6, 7, 4, 8, 3, 6)}
NUMBERS = {"recorded": 0, "resumed": 1, "second": 2, "converted": 3}
MORE = (5, 3)  # the episodes that are recorded later


def make(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    record(folder / "recorded", NUMBERS["recorded"], LENGTHS["recorded"], caps_mb=TINY_MB)
    record(folder / "resumed", NUMBERS["resumed"], LENGTHS["resumed"])
    resume(folder / "resumed", NUMBERS["resumed"], len(LENGTHS["resumed"]), MORE)
    convert(folder / "converted", NUMBERS["converted"], LENGTHS["converted"])
    if not IS_OLD:
        record(folder / "second", NUMBERS["second"], LENGTHS["second"])
        # Its episode table names a file that is not there, so that lerobot itself cannot merge it again.
        merge([folder / "resumed", folder / "second"], folder / "merged")
        merge([folder / "second", folder / "recorded"], folder / "once")
        merge([folder / "once", folder / "resumed"], folder / "twice")


def read(root: Path, **options: Any) -> dict[str, Any]:
    """Every frame as lerobot's reader gives it, and some with a filter and with chunks of actions."""
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    def load(**options: Any) -> Any:
        return LeRobotDataset(f"local/{root.name}", root=root, video_backend="pyav", **options)

    dataset = load()
    middle = dataset.meta.total_episodes // 2
    chunks = load(delta_timestamps={"action": [0.0, 0.1, 0.2]})
    # 0.4.0 reads every row, whatever the filter says.
    filtered = [] if IS_OLD else load(episodes=[0, middle])
    return {
        "lerobot": version("lerobot"),
        "episodes": dataset.meta.total_episodes,
        "frames": [frame(dataset[index]) for index in range(len(dataset))],
        "filtered": [frame(filtered[index]) for index in range(len(filtered))],
        "chunks": {
            index: [item["action"][:, 0].tolist(), item["action_is_pad"].tolist()]
            for index, item in ((index, chunks[index]) for index in range(0, len(chunks), EVERY))
        },
    }


def frame(item: dict[str, Any]) -> list[Any]:
    shown = [
        G.read_identity((item[camera].numpy().transpose(1, 2, 0) * 255).round().astype(np.uint8))
        for camera, _, _ in CAMERAS
    ]
    numbers = [int(item[name]) for name in ("episode_index", "frame_index", "index")]
    return [*numbers, item["task"], *shown, item["observation.state"].tolist(), item["action"].tolist()]


def main() -> None:
    import torch

    torch.set_num_threads(1)
    command, folders = sys.argv[1], [Path(name) for name in sys.argv[2:]]
    if command == "make":
        make(folders[0])
    else:
        answers = {folder.name: read(folder) for folder in folders}
        print(json.dumps(answers, ensure_ascii=False))


if __name__ == "__main__":
    main()
