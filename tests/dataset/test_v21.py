"""v2.1 output: one file an episode, meta files as lerobot 0.3.3 reads them, and there and back again."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import av
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stack.dataset.digest import content_digest
from stack.dataset.read import read_dataset
from stack.dataset.selection import select_all
from stack.dataset.write import write_v30
from stack.dataset.write_plan import Caps, plan_files
from stack.dataset.write_v21 import plan_v21, write_v21
from stack.errors import StackError
from stack.files import tree_digest

CAMERAS = ("observation.images.head", "observation.images.hand")
LENGTHS = (7, 5, 9, 4, 6)


@pytest.fixture(scope="module")
def v30(delivery: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("v30") / "out"
    write_v30(select_all(read_dataset(delivery)), out, jobs=1)
    return out


@pytest.fixture(scope="module")
def back(v30: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """v2.1 again, two episodes a chunk folder."""
    out = tmp_path_factory.mktemp("v21") / "out"
    selection = select_all(read_dataset(v30))
    write_v21(selection, out, plan=plan_v21(selection, chunks_size=2), jobs=1)
    return out


def lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_there_and_back_again_is_the_same_content(delivery: Path, v30: Path, back: Path) -> None:
    digests = {content_digest(read_dataset(root)) for root in (delivery, v30, back)}
    assert len(digests) == 1
    assert read_dataset(back).version == "v2.1" and read_dataset(back).notes == ()


def test_files_lie_where_a_v21_loader_formats_their_paths(back: Path) -> None:
    """As `LeRobotDatasetMetadata.get_data_file_path` and `get_video_file_path` of 0.3.3 do."""
    info = json.loads((back / "meta/info.json").read_text())
    assert info["codebase_version"] == "v2.1" and info["chunks_size"] == 2
    assert (info["total_episodes"], info["total_frames"], info["total_tasks"]) == (5, 31, 2)
    assert (info["total_videos"], info["total_chunks"], info["splits"]) == (10, 3, {"train": "0:5"})
    rows, videos = [], []
    for episode in range(info["total_episodes"]):
        chunk = episode // info["chunks_size"]
        rows.append(info["data_path"].format(episode_chunk=chunk, episode_index=episode))
        videos += [
            info["video_path"].format(episode_chunk=chunk, video_key=key, episode_index=episode)
            for key in CAMERAS
        ]
    # 0.3.3 asserts that there are exactly as many files as episodes.
    assert sorted(p.relative_to(back).as_posix() for p in back.rglob("*.parquet")) == sorted(rows)
    assert sorted(p.relative_to(back).as_posix() for p in back.rglob("*.mp4")) == sorted(videos)


def test_rows_keep_every_value_and_time_runs_from_zero(back: Path, deliveries) -> None:
    spec = deliveries.Delivery()
    first = 0
    for episode, length in enumerate(LENGTHS):
        file = back / f"data/chunk-{episode // 2:03d}/episode_{episode:06d}.parquet"
        table = pq.read_table(file)
        assert pq.ParquetFile(file).num_row_groups == 1
        assert table.column("observation.state").to_pylist() == [
            deliveries.state_of(spec, episode, f) for f in range(length)
        ]
        assert table.column("index").to_pylist() == list(range(first, first + length))
        assert table.column("episode_index").to_pylist() == [episode] * length
        np.testing.assert_allclose(table.column("timestamp").to_numpy(), np.arange(length) / 10, atol=1e-7)
        assert table.schema.field("timestamp").type == pa.float32()
        first += length
        features = json.loads(table.schema.metadata[b"huggingface"])["info"]["features"]
        # `List` is not known to the releases of `datasets` that openpi and 0.3.3 pin (up to 3.6).
        assert features["action"]["_type"] == "Sequence"
        assert set(features) == set(table.column_names)


def test_each_video_holds_its_episode_s_pictures(back: Path, deliveries) -> None:
    for number, camera in enumerate(CAMERAS):
        for episode, length in enumerate(LENGTHS):
            file = back / f"videos/chunk-{episode // 2:03d}/{camera}/episode_{episode:06d}.mp4"
            with av.open(str(file)) as container:
                frames = list(container.decode(video=0))
                times = [float(frame.pts * frame.time_base) for frame in frames]
            shown = [deliveries.read_identity(f.to_ndarray(format="rgb24")) for f in frames]
            assert shown == [deliveries.identity(0, number, episode, f) for f in range(length)]
            np.testing.assert_allclose(times, np.arange(length) / 10, atol=1e-4)


def test_meta_lines(back: Path, deliveries) -> None:
    assert lines(back / "meta/tasks.jsonl") == [
        {"task_index": 0, "task": "fold the shirt"},
        {"task_index": 1, "task": "把毛巾放进盒子"},
    ]
    episodes = lines(back / "meta/episodes.jsonl")
    assert [(e["episode_index"], e["length"]) for e in episodes] == list(enumerate(LENGTHS))
    assert episodes[1]["tasks"] == ["把毛巾放进盒子"]
    spec = deliveries.Delivery()
    for episode, entry in enumerate(lines(back / "meta/episodes_stats.jsonl")):
        assert entry["episode_index"] == episode
        rows = np.array([deliveries.action_of(spec, episode, f) for f in range(LENGTHS[episode])])
        stats = entry["stats"]["action"]
        assert set(stats) == {"min", "max", "mean", "std", "count"}
        np.testing.assert_allclose(stats["mean"], rows.mean(axis=0), rtol=1e-12)
        np.testing.assert_allclose(stats["std"], rows.std(axis=0), rtol=1e-9)
        assert stats["count"] == [LENGTHS[episode]]


def test_statistics_pass_the_checks_of_lerobot_0_3_3(back: Path) -> None:
    """`_assert_type_and_shape` of its compute_stats: no 0-d arrays, count (1,), cameras (3, 1, 1)."""
    for entry in lines(back / "meta/episodes_stats.jsonl"):
        assert set(entry["stats"]) >= {*CAMERAS, "action", "index", "timestamp", "task_index"}
        for feature, stats in entry["stats"].items():
            for key, value in stats.items():
                array = np.array(value)
                assert array.ndim > 0
                if key == "count":
                    assert array.shape == (1,) and array[0] > 0
                elif "image" in feature:
                    assert array.shape == (3, 1, 1) and (array >= 0).all() and (array <= 1).all()


def test_a_cut_inside_a_group_of_pictures(v30: Path, tmp_path: Path, deliveries) -> None:
    """v3.0 as others pack it: one H.264 stream with one key frame, cut open at every episode."""
    camera, lengths = "observation.images.head", (9, 6, 8)
    spec = deliveries.Delivery(lengths=lengths, cameras=((camera, 96, 64),), chunks_size=1000)
    root = deliveries.write_delivery(tmp_path / "made", spec)
    write_v30(select_all(read_dataset(root)), tmp_path / "packed", jobs=1)
    [file] = (tmp_path / "packed/videos").rglob("*.mp4")
    pictures = [
        deliveries.paint(deliveries.identity(0, 0, e, f), 96, 64)
        for e, n in enumerate(lengths)
        for f in range(n)
    ]
    file.unlink()
    with av.open(str(file), "w") as container:
        stream = container.add_stream(
            "libx264", rate=10, options={"g": "250", "bf": "2", "sc_threshold": "0", "crf": "12"}
        )
        stream.width, stream.height, stream.pix_fmt = 96, 64, "yuv420p"
        for number, picture in enumerate(pictures):
            frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
            frame.pts = number
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    with av.open(str(file)) as container:
        assert [packet.is_keyframe for packet in container.demux(video=0) if packet.size].count(True) == 1
    write_v21(select_all(read_dataset(tmp_path / "packed")), tmp_path / "out", jobs=1)
    for episode, length in enumerate(lengths):
        written = tmp_path / f"out/videos/chunk-000/{camera}/episode_{episode:06d}.mp4"
        with av.open(str(written)) as container:
            shown = [
                deliveries.read_identity(f.to_ndarray(format="rgb24")) for f in container.decode(video=0)
            ]
        assert shown == [deliveries.identity(0, 0, episode, f) for f in range(length)]


def test_jobs_do_not_change_a_byte(v30: Path, back: Path, tmp_path: Path) -> None:
    selection = select_all(read_dataset(v30))
    write_v21(selection, tmp_path / "out", plan=plan_v21(selection, chunks_size=2), jobs=2)
    assert tree_digest(tmp_path / "out") == tree_digest(back)


def test_the_source_s_packing_does_not_change_the_content(delivery: Path, back: Path, tmp_path: Path) -> None:
    selection = select_all(read_dataset(delivery))
    write_v30(selection, tmp_path / "v30", plan=plan_files(selection, caps=Caps(0.0015, 0.004, 2)), jobs=1)
    write_v21(select_all(read_dataset(tmp_path / "v30")), tmp_path / "out", jobs=1)
    assert content_digest(read_dataset(tmp_path / "out")) == content_digest(read_dataset(back))


def test_linked_files_share_their_bytes_with_the_source(delivery: Path, tmp_path: Path) -> None:
    write_v21(select_all(read_dataset(delivery)), tmp_path / "out", videos="link", jobs=1)
    for camera in CAMERAS:
        name = f"{camera}/episode_000002.mp4"
        source, written = delivery / "videos/chunk-000" / name, tmp_path / "out/videos/chunk-000" / name
        assert source.stat().st_ino == written.stat().st_ino


def test_what_cannot_be_written_leaves_nothing(delivery: Path, tmp_path: Path) -> None:
    root = Path(shutil.copytree(delivery, tmp_path / "copy"))
    file = root / "videos/chunk-001/observation.images.head/episode_000004.mp4"
    selection = select_all(read_dataset(root))
    file.unlink()
    with pytest.raises(StackError):
        write_v21(selection, tmp_path / "out", jobs=1)
    with pytest.raises(StackError, match="episode 4 of 'copy' has no video"):
        write_v21(select_all(read_dataset(root)), tmp_path / "out", jobs=1)
    assert sorted(p.name for p in tmp_path.iterdir() if not p.name.endswith(".lock")) == ["copy"]
