from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stack.dataset.pool import Pool, open_pool
from stack.dataset.read import read_dataset
from stack.dataset.selection import select_all
from stack.dataset.video import probe
from stack.dataset.write import write_v30
from stack.dataset.write_plan import Caps, plan_files
from stack.dataset.write_resume import Workshop
from stack.dataset.write_work import plan_works
from stack.errors import StackError
from stack.files import tree_digest

SMALL = Caps(data_mb=0.0015, video_mb=0.004, files_per_chunk=2)


@pytest.fixture(scope="module")
def written(delivery: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("v30") / "out"
    selection = select_all(read_dataset(delivery))
    write_v30(selection, out, plan=plan_files(selection, caps=SMALL), jobs=1)
    return out


@pytest.mark.parametrize("videos", ["join", "link"])
@pytest.mark.parametrize("kind", ["data", "videos", "samples"])
def test_work_begun_late_does_not_bring_a_cleared_folder_back(
    delivery: Path, tmp_path: Path, kind: str, videos: Any
) -> None:
    selection = select_all(read_dataset(delivery))
    works = plan_works(selection, plan_files(selection, videos=videos), videos)
    root = tmp_path / "partial"
    root.mkdir()
    shop = Workshop(root, Pool(1), getattr(works, kind), lambda _: None)
    shutil.rmtree(root)
    assert getattr(works, kind)
    with pytest.raises(StackError):
        list(shop.run("frames", {kind: getattr(works, kind)}))
    assert list(tmp_path.iterdir()) == []


def test_files_roll_and_number_without_gaps(written: Path) -> None:
    data = sorted(p.relative_to(written / "data").as_posix() for p in (written / "data").glob("*/*"))
    assert len(data) >= 3
    assert data == [f"chunk-{i // 2:03d}/file-{i % 2:03d}.parquet" for i in range(len(data))]
    for camera in ("observation.images.head", "observation.images.hand"):
        folder = written / "videos" / camera
        videos = sorted(p.relative_to(folder).as_posix() for p in folder.glob("*/*"))
        assert len(videos) >= 2
        assert videos == [f"chunk-{i // 2:03d}/file-{i % 2:03d}.mp4" for i in range(len(videos))]


def test_rows_follow_the_contract(written: Path, deliveries) -> None:
    """Ten-point contract of a v3.0 writer, points 2 to 4, with plain pyarrow."""
    spec = deliveries.Delivery()
    index = 0
    episode = 0
    for file in sorted((written / "data").glob("*/*.parquet")):
        parquet = pq.ParquetFile(file)
        schema = parquet.schema_arrow
        assert schema.field("observation.state").type == pa.list_(pa.float32(), 8)
        assert schema.field("action").type == pa.list_(pa.float32(), 4)
        assert schema.field("ts").type == pa.int64()
        assert schema.field("timestamp").type == pa.float32()
        assert all(schema.field(n).type == pa.int64() for n in ("index", "episode_index", "task_index"))
        features = json.loads(schema.metadata[b"huggingface"])["info"]["features"]
        assert list(features) == schema.names and b"pandas" not in schema.metadata
        for group in range(parquet.num_row_groups):
            rows = parquet.read_row_group(group).to_pylist()
            assert len(rows) == spec.lengths[episode]
            for frame, row in enumerate(rows):
                assert (row["index"], row["episode_index"], row["frame_index"]) == (index, episode, frame)
                assert row["timestamp"] == np.float32(frame / 10)
                assert row["observation.state"] == deliveries.state_of(spec, episode, frame)
                assert row["action"] == deliveries.action_of(spec, episode, frame)
                assert row["ts"] == 1_700_000_000_000_000_000 + episode * 1000 + frame
                index += 1
            episode += 1
    assert (episode, index) == (5, 31)


def test_the_episode_table_points_to_the_real_places(written: Path, deliveries) -> None:
    spec = deliveries.Delivery()
    table = pa.concat_tables(pq.read_table(f) for f in sorted((written / "meta/episodes").glob("*/*")))
    ends: dict[str, int] = {}
    for position, row in enumerate(table.to_pylist()):
        assert row["episode_index"] == position and row["length"] == spec.lengths[position]
        assert row["dataset_from_index"] == sum(spec.lengths[:position])
        assert row["dataset_to_index"] == sum(spec.lengths[: position + 1])
        file = written / f"data/chunk-{row['data/chunk_index']:03d}/file-{row['data/file_index']:03d}.parquet"
        assert position in pq.read_table(file).column("episode_index").to_pylist()
        assert row["tasks"] == [spec.tasks[spec.task_of[position]]]
        for camera, _, _ in spec.cameras:
            key = f"videos/{camera}"
            name = f"{camera}/chunk-{row[f'{key}/chunk_index']:03d}/file-{row[f'{key}/file_index']:03d}.mp4"
            start = ends.get(name, 0)
            assert row[f"{key}/from_timestamp"] == start / 10
            assert row[f"{key}/to_timestamp"] == (start + row["length"]) / 10
            ends[name] = start + row["length"]
    for name, frames in ends.items():
        info = probe(written / "videos" / name)
        assert info.frames == frames
        assert [float(t * info.time_base) for t in info.pts] == pytest.approx([n / 10 for n in range(frames)])
    assert sum(ends.values()) == 2 * 31


def test_info_is_counted_and_describes_the_files(written: Path) -> None:
    info = json.loads((written / "meta/info.json").read_text())
    assert (info["codebase_version"], info["fps"], info["robot_type"]) == ("v3.0", 10, "toy")
    assert (info["total_episodes"], info["total_frames"], info["total_tasks"]) == (5, 31, 2)
    assert info["splits"] == {"train": "0:5"}
    head = info["features"]["observation.images.head"]
    assert head["shape"] == [64, 96, 3]
    assert (head["info"]["video.codec"], head["info"]["video.pix_fmt"]) == ("h264", "yuv420p")
    assert not any("fps" in entry for entry in info["features"].values())


def test_statistics_are_exact_over_all_rows(written: Path, deliveries) -> None:
    spec = deliveries.Delivery()
    stats = json.loads((written / "meta/stats.json").read_text())
    state = np.array([deliveries.state_of(spec, e, f) for e, n in enumerate(spec.lengths) for f in range(n)])
    got = stats["observation.state"]
    for key, meant in (
        ("min", state.min(0)),
        ("max", state.max(0)),
        ("mean", state.mean(0)),
        ("std", state.std(0)),
        ("q01", np.percentile(state, 1, axis=0)),
        ("q99", np.percentile(state, 99, axis=0)),
    ):
        np.testing.assert_allclose(got[key], meant, rtol=1e-12)
    assert got["count"] == [31]
    assert (stats["index"]["min"], stats["index"]["max"]) == ([0], [30])
    assert stats["episode_index"]["max"] == [4]
    head = stats["observation.images.head"]
    assert head["count"] == [31] and np.shape(head["mean"]) == (3, 1, 1)
    assert 0 < head["min"][0][0][0] < head["max"][0][0][0] < 1
    files = sorted((written / "meta/episodes").glob("*/*"))
    row = pa.concat_tables(pq.read_table(file) for file in files).to_pylist()[2]
    second = state[12:21]
    np.testing.assert_allclose(row["stats/observation.state/q90"], np.percentile(second, 90, axis=0))
    assert row["stats/observation.images.hand/count"] == [9]


def test_tasks_are_read_by_pandas_as_lerobot_does(written: Path) -> None:
    pandas = pytest.importorskip("pandas")
    tasks = pandas.read_parquet(written / "meta/tasks.parquet")
    assert [tasks.iloc[i].name for i in range(2)] == ["fold the shirt", "把毛巾放进盒子"]
    assert tasks["task_index"].tolist() == [0, 1] and list(tasks.columns) == ["task_index"]


def test_the_output_does_not_depend_on_jobs(delivery: Path, written: Path, tmp_path: Path) -> None:
    selection = select_all(read_dataset(delivery))
    write_v30(selection, tmp_path / "two", plan=plan_files(selection, caps=SMALL), jobs=2)
    assert tree_digest(tmp_path / "two") == tree_digest(written)


def test_our_own_output_is_read_back_without_notes(written: Path) -> None:
    dataset = read_dataset(written)
    assert dataset.version == "v3.0" and dataset.notes == ()
    assert [e.length for e in dataset.episodes] == [7, 5, 9, 4, 6]


def test_link_keeps_one_file_an_episode_and_copies_no_bytes(delivery: Path, tmp_path: Path) -> None:
    selection = select_all(read_dataset(delivery))
    write_v30(selection, tmp_path / "out", videos="link", jobs=1)
    files = sorted((tmp_path / "out/videos/observation.images.head").glob("*/*.mp4"))
    sources = sorted((delivery / "videos").glob("*/observation.images.head/*.mp4"))
    assert len(files) == 5
    assert [f.stat().st_ino for f in files] == [s.stat().st_ino for s in sources]


def test_a_full_target_is_not_touched(delivery: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out/mine").write_text("keep")
    with pytest.raises(StackError) as caught:
        write_v30(select_all(read_dataset(delivery)), tmp_path / "out", jobs=1)
    assert caught.value.id == "target-exists"
    assert (tmp_path / "out/mine").read_text() == "keep"


def test_a_writer_that_stamps_wrongly_is_caught(
    delivery: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check after writing is real: rows that are not what was planned never get a name."""
    from stack.dataset import write_files

    monkeypatch.setattr(
        write_files, "timestamps", lambda n, fps: (np.arange(n) / fps + 0.01).astype("float32")
    )
    with pytest.raises(StackError, match="timestamp is not what was meant"):
        write_v30(select_all(read_dataset(delivery)), tmp_path / "out", jobs=1)
    assert list(tmp_path.iterdir()) == []


def test_an_episode_without_its_video_is_refused_before_writing(delivery: Path, tmp_path: Path) -> None:
    root = Path(shutil.copytree(delivery, tmp_path / "copy"))
    (root / "videos/chunk-001/observation.images.head/episode_000004.mp4").unlink()
    with pytest.raises(StackError, match=r"episode 4 of 'copy' has no video of observation.images.head"):
        write_v30(select_all(read_dataset(root)), tmp_path / "out", jobs=1)
    assert not (tmp_path / "out").exists()


def test_a_pool_keeps_the_order_and_starts_processes_only_for_work_that_lasts() -> None:
    # A built-in, because workers cannot import a test's own functions.
    items = [f"(__import__('os').getpid(), {number})" for number in range(20)]
    with open_pool(None) as pool:
        assert {pid for pid, _ in pool.map(eval, items)} == {os.getpid()}
    with open_pool(2) as pool:
        done = list(pool.map(eval, items))
    assert [number for _, number in done] == list(range(20))
    assert os.getpid() not in {pid for pid, _ in done}
