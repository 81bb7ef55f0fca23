"""The proof that counts: lerobot's own reader loads what was prepared, and every frame is the right one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from stack.prepare import prepare

pytestmark = pytest.mark.lerobot


@pytest.fixture
def open_dataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """lerobot's reader on a local folder, with its caches below tmp_path and no hub."""
    for name, folder in (("HF_HOME", "hf"), ("HF_DATASETS_CACHE", "hf/datasets"), ("HF_LEROBOT_HOME", "lr")):
        monkeypatch.setenv(name, str(tmp_path / folder))
    pytest.importorskip("lerobot")
    import datasets
    import torch
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    torch.set_num_threads(1)
    # Read at import, which an earlier test may have done.
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "hf/datasets")

    def load(root: Path, **options: Any) -> Any:
        return LeRobotDataset(f"local/{root.name}", root=root, video_backend="pyav", **options)

    return load


def picture(item: dict[str, Any], camera: str) -> np.ndarray:
    """(H, W, 3) uint8."""
    return (item[camera].numpy().transpose(1, 2, 0) * 255).round().astype(np.uint8)


def test_every_frame_of_every_camera(open_dataset, merged: Path, merged_episodes, deliveries) -> None:
    dataset = open_dataset(merged)
    assert (len(dataset), dataset.meta.total_episodes) == (42, 7)
    claims = [(n, d, e, f, t) for n, (d, e, frames, t) in enumerate(merged_episodes) for f in range(frames)]
    for index, (number, delivery, episode, frame, task) in enumerate(claims):
        item = dataset[index]
        assert (int(item["episode_index"]), int(item["frame_index"]), int(item["index"])) == (
            number,
            frame,
            index,
        )
        assert float(item["timestamp"]) == pytest.approx(frame / 10)
        for camera, name in enumerate(("observation.images.head", "observation.images.wrist")):
            shown = deliveries.read_identity(picture(item, name))
            assert shown == deliveries.identity(delivery, camera, episode, frame), (index, name)
        state = [deliveries.value(delivery, episode, frame, c) for c in range(8)]
        assert item["observation.state"].tolist() == (state if delivery == 0 else state[2:] + state[:2])
        assert item["action"].tolist() == [deliveries.value(delivery, episode, frame, c) for c in (101, 102)]
        assert item["task"] == task


def test_action_chunks_stop_at_the_episode_s_end(open_dataset, merged: Path, deliveries) -> None:
    dataset = open_dataset(merged, delta_timestamps={"action": [0.0, 0.1, 0.2]})
    item = dataset[7 + 7]  # frame 7 of the second episode, which has 9
    assert item["action"][:, 0].tolist() == [deliveries.value(0, 2, f, 101) for f in (7, 8, 8)]
    assert item["action_is_pad"].tolist() == [False, False, True]


def test_statistics_reach_lerobot(open_dataset, merged: Path) -> None:
    dataset = open_dataset(merged)
    rows = np.array([dataset.hf_dataset[i]["observation.state"].numpy() for i in range(42)], dtype=np.float64)
    stats = dataset.meta.stats["observation.state"]
    np.testing.assert_allclose(stats["q01"], np.percentile(rows, 1, axis=0), rtol=1e-6)
    np.testing.assert_allclose(stats["q99"], np.percentile(rows, 99, axis=0), rtol=1e-6)
    for camera in dataset.meta.camera_keys:
        assert dataset.meta.stats[camera]["mean"].shape == (3, 1, 1)


def test_link_mode_loads_too(open_dataset, merged_manifest, deliveries, tmp_path: Path) -> None:
    prepare(merged_manifest, out=tmp_path / "link", videos="link", jobs=1)
    dataset = open_dataset(tmp_path / "link")
    for index, number in ((0, (0, 0, 0)), (25, (0, 4, 5)), (26, (1, 0, 0)), (41, (1, 2, 4))):
        delivery, episode, frame = number
        shown = deliveries.read_identity(picture(dataset[index], "observation.images.wrist"))
        assert shown == deliveries.identity(delivery, 1, episode, frame)


DECISIONS = {
    "cr5_tcp_v21": "decide: {timestamps: restamp}",
    "g1_inspire_v21": "",
    "gr00t_picknplace_v20": "decide: {timestamps: restamp, missing_cameras: drop}",
    "ioai_v21_video": "",
    "ioai_v30_video": "",
}


@pytest.mark.parametrize("name", DECISIONS)
def test_real_recordings(name: str, load, open_dataset, real_datasets: Path, tmp_path: Path) -> None:
    """Chosen frames against the source file, decoded by PyAV by frame number."""
    pytest.importorskip("lerobot")
    source = real_datasets / name
    prepare(load(f"sources:\n  - path: {source}\n    {DECISIONS[name]}\n"), out=tmp_path / "out", jobs=1)
    dataset = open_dataset(tmp_path / "out")
    told = json.loads((tmp_path / "out/meta/provenance.json").read_text())
    assert len(dataset) == sum(entry["frames"] for entry in told["episodes"])
    camera = dataset.meta.camera_keys[0]
    first = 0
    for entry in told["episodes"]:
        length = entry["frames"]
        wanted = sorted({0, 1, length // 2, length - 2, length - 1})
        pictures = source_pictures(source, camera, entry["source_episode"], set(wanted))
        states = source_states(source, entry["source_episode"])
        for frame in wanted:
            item = dataset[first + frame]
            assert (int(item["episode_index"]), int(item["frame_index"])) == (entry["episode"], frame)
            got = picture(item, camera).astype(int)
            assert np.abs(got - pictures[frame]).mean() < 1.0, (entry, frame)
            np.testing.assert_allclose(item["observation.state"].numpy().ravel(), states[frame], rtol=1e-6)
        first += length


def source_pictures(source: Path, camera: str, episode: int, wanted: set[int]) -> dict[int, np.ndarray]:
    import av

    found = sorted(source.glob(f"videos/**/{camera}/episode_{episode:06d}.mp4"))
    found = found or sorted(source.glob(f"videos/{camera}/*/file-{episode:03d}.mp4"))
    with av.open(str(found[0])) as container:
        return {
            n: frame.to_ndarray(format="rgb24").astype(int)
            for n, frame in enumerate(container.decode(video=0))
            if n in wanted
        }


def source_states(source: Path, episode: int) -> np.ndarray:
    import pyarrow.parquet as pq

    found = sorted(source.glob(f"data/**/episode_{episode:06d}.parquet"))
    rows = pq.read_table(found or sorted(source.glob("data/**/file-*.parquet"))).to_pylist()
    rows = [row for row in rows if int(row["episode_index"]) == episode]
    return np.array([np.ravel(row["observation.state"]) for row in rows], dtype=np.float64)


def test_real_recordings_that_need_a_decision_say_so(load, real_datasets: Path) -> None:
    from stack.errors import StackError
    from stack.prepare import plan

    with pytest.raises(StackError) as caught:
        plan(load(f"sources: [{{path: {real_datasets}/cr5_tcp_v21}}]"))
    assert "timestamps are not frame_index / fps (10) in 8 of 8 episodes" in caught.value.what
    assert "decide: {timestamps: restamp}" in caught.value.do
    with pytest.raises(StackError) as caught:
        plan(load(f"sources: [{{path: {real_datasets}/gr00t_picknplace_v20}}]"))
    assert "declares camera 'observation.images.egoview', but no file holds it" in caught.value.what
    # Its clock is not that of its frames either: both answers stand in one line that can be pasted.
    assert "decide: {missing_cameras: drop, timestamps: restamp}" in caught.value.do


def test_every_frame_of_av1_cut_off_a_key_frame(open_dataset, load, tmp_path: Path, deliveries) -> None:
    """Pictures at its head are encoded anew, under a sequence header of their own; the others are copied."""
    camera, lengths = "observation.images.head", (7, 6, 9, 4, 5)
    given = deliveries.Delivery(lengths=lengths, cameras=((camera, 96, 64),))
    plain = deliveries.write_delivery(tmp_path / "plain", given)
    prepare(load(f"sources: [{{path: {plain}}}]"), out=tmp_path / "packed", jobs=1)
    [file] = (tmp_path / "packed/videos").rglob("*.mp4")
    frames = [(episode, frame) for episode, length in enumerate(lengths) for frame in range(length)]
    with av.open(str(file), "w") as container:
        options = {"g": "4", "cpu-used": "8", "lag-in-frames": "4", "crf": "20"}
        stream = container.add_stream("libaom-av1", rate=10, options=options)
        stream.height, stream.width, stream.pix_fmt = 64, 96, "yuv420p"
        for number, place in enumerate(frames):
            shown = deliveries.paint(deliveries.identity(0, 0, *place), 96, 64)
            one = av.VideoFrame.from_ndarray(shown, format="rgb24")
            one.pts = number
            container.mux(stream.encode(one))
        container.mux(stream.encode(None))
    # Episodes begin at frames 0, 7, 13, 22, 26; every fourth one is a key frame.
    asked = f"sources: [{{path: {tmp_path}/packed, exclude_episodes: [3]}}]"
    got = prepare(load(asked), out=tmp_path / "out", jobs=1)
    assert any(f"{camera}: 6 of 20 pictures of episodes 1-2, 4 are encoded anew" in n for n in got.notes)
    dataset = open_dataset(tmp_path / "out")
    kept = [place for place in frames if place[0] != 3]
    assert len(dataset) == len(kept) == 27
    for index in np.random.default_rng(0).permutation(len(kept)).tolist():
        seen = deliveries.read_identity(picture(dataset[index], camera))
        assert seen == deliveries.identity(0, 0, *kept[index]), index
