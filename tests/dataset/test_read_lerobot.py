"""What lerobot's own recorder writes reads right."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from stack.dataset.digest import content_digest
from stack.dataset.read import read_dataset
from stack.dataset.rows import column_array
from stack.dataset.selection import select_all
from stack.dataset.write import write_v30

pytestmark = pytest.mark.lerobot
LENGTHS = (6, 4, 5)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory, deliveries) -> Path:
    pytest.importorskip("lerobot")
    import torch
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    torch.set_num_threads(1)
    root = tmp_path_factory.mktemp("recorded") / "set"
    features = {
        "observation.state": {"dtype": "float32", "shape": (3,), "names": {"motors": ["x", "y", "z"]}},
        "action": {"dtype": "float32", "shape": (2,), "names": ["u", "v"]},
        "observation.images.cam": {
            "dtype": "video",
            "shape": (64, 64, 3),
            "names": ["height", "width", "channels"],
        },
    }
    dataset = LeRobotDataset.create("local/set", 10, features, root=root, robot_type="toy", use_videos=True)
    for episode, length in enumerate(LENGTHS):
        for frame in range(length):
            dataset.add_frame(
                {
                    "observation.state": np.array([episode, frame, 1], dtype=np.float32),
                    "action": np.array([frame, episode], dtype=np.float32),
                    "observation.images.cam": deliveries.paint(
                        deliveries.identity(0, 0, episode, frame), 64, 64
                    ),
                    "task": f"task {episode % 2}",
                }
            )
        dataset.save_episode()
    if hasattr(dataset, "finalize"):
        dataset.finalize()
    return root


def test_episodes_rows_and_tasks(recorded: Path) -> None:
    dataset = read_dataset(recorded)
    assert dataset.version == "v3.0" and dataset.notes == ()
    assert [e.length for e in dataset.episodes] == list(LENGTHS)
    assert [e.tasks for e in dataset.episodes] == [("task 0",), ("task 1",), ("task 0",)]
    assert dataset.features["observation.state"].names == ("x", "y", "z")
    for episode in dataset.episodes:
        got = column_array(episode, dataset.features["observation.state"])
        assert got.tolist() == [[episode.index, f, 1] for f in range(episode.length)]


def test_clips_are_the_right_frames_of_the_joined_file(recorded: Path, deliveries) -> None:
    import av

    for episode in read_dataset(recorded).episodes:
        clip = episode.clips["observation.images.cam"]
        with av.open(str(clip.file)) as container:
            pictures = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
        shown = [deliveries.read_identity(p) for p in pictures[clip.start : clip.start + clip.count]]
        assert shown == [deliveries.identity(0, 0, episode.index, f) for f in range(episode.length)]


def test_it_can_be_written_again_with_the_same_content(recorded: Path, tmp_path: Path) -> None:
    dataset = read_dataset(recorded)
    write_v30(select_all(dataset), tmp_path / "out", jobs=1)
    assert content_digest(read_dataset(tmp_path / "out")) == content_digest(dataset)
