"""Hand-made v3.0: one video an episode, in places that the template does not name."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import ModuleType

import av
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stack.audit import audit
from stack.dataset.model import ClipRef
from stack.dataset.read import read_dataset
from stack.errors import StackError

LENGTHS = (5, 7, 4)
CAMERAS = ("observation.images.head", "observation.images.hand")
BY_FILE = "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4"
BY_EPISODE = "videos/{video_key}/chunk-{chunk_index:03d}/episode_{episode_index:06d}.mp4"
CHUNK_FIRST = "videos/chunk-{chunk_index:03d}/{video_key}/episode_{episode_index:06d}.mp4"
# What info.json says, and where the files lie.
PLACES = [
    (BY_EPISODE, "video/{camera}/chunk-000/episode_{episode:06d}.mp4"),
    (CHUNK_FIRST, "video/chunk-000/{camera}/episode_{episode:06d}.mp4"),
    (BY_FILE, "videos/{camera}/chunk-000/episode_{episode:06d}.mp4"),
    (BY_FILE, "video/{camera}/chunk-000/episode_{episode:06d}.mp4"),
    (BY_FILE, "video/{camera}/chunk-000/file-{episode:03d}.mp4"),
    (BY_FILE, "videos/chunk-000/{camera}/episode_{episode:06d}.mp4"),
    ("videos/{camera}.mp4", "videos/{camera}/chunk-000/file-{episode:03d}.mp4"),
    (None, "videos/{camera}/chunk-000/episode_{episode:06d}.mp4"),
]


def write(root: Path, deliveries: ModuleType, template: str | None, place: str) -> Path:
    """One row file and one video an episode; the episode table names file N for episode N."""
    entries = []
    for episode, length in enumerate(LENGTHS):
        rows = {
            "observation.state": pa.array([[float(episode), float(n)] for n in range(length)]),
            "timestamp": pa.array([n / 10 for n in range(length)], pa.float32()),
            "frame_index": list(range(length)),
            "episode_index": [episode] * length,
            "index": [sum(LENGTHS[:episode]) + n for n in range(length)],
            "task_index": [0] * length,
        }
        file = root / f"data/chunk-000/file-{episode:03d}.parquet"
        file.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table(rows), file)
        entry = {"episode_index": episode, "length": length, "tasks": ["fold"]}
        entry |= {"data/chunk_index": 0, "data/file_index": episode}
        entry |= {
            "dataset_from_index": sum(LENGTHS[:episode]),
            "dataset_to_index": sum(LENGTHS[: episode + 1]),
        }
        for number, camera in enumerate(CAMERAS):
            entry |= {f"videos/{camera}/chunk_index": 0, f"videos/{camera}/file_index": episode}
            entry |= {f"videos/{camera}/from_timestamp": 0.0, f"videos/{camera}/to_timestamp": length / 10}
            pictures = [
                deliveries.paint(deliveries.identity(0, number, episode, n), 64, 64) for n in range(length)
            ]
            deliveries.write_video(root / place.format(camera=camera, episode=episode), pictures, 10)
        entries.append(entry)
    (root / "meta/episodes/chunk-000").mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist(entries), root / "meta/episodes/chunk-000/file-000.parquet")
    pq.write_table(pa.table({"task_index": [0], "task": ["fold"]}), root / "meta/tasks.parquet")
    features = {"observation.state": {"dtype": "float32", "shape": [2], "names": None}}
    features |= {
        c: {"dtype": "video", "shape": [64, 64, 3], "names": ["height", "width", "channels"]} for c in CAMERAS
    }
    features |= {"timestamp": {"dtype": "float32", "shape": [1], "names": None}}
    for name in ("frame_index", "episode_index", "index", "task_index"):
        features[name] = {"dtype": "int64", "shape": [1], "names": None}
    info = {"codebase_version": "v3.0", "fps": 10, "features": features, "chunks_size": 1000}
    info |= {
        "data_path": "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
        "video_path": template,
    }
    (root / "meta/info.json").write_text(json.dumps(info))
    return root


def shown(clip: ClipRef, deliveries: ModuleType) -> list[int]:
    """The numbers painted in a clip's pictures."""
    with av.open(str(clip.file)) as container:
        pictures = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
    return [deliveries.read_identity(picture) for picture in pictures[clip.start : clip.start + clip.count]]


@pytest.mark.parametrize(("template", "place"), PLACES)
def test_videos_are_found_by_camera_and_number(
    tmp_path: Path, deliveries: ModuleType, template: str | None, place: str
) -> None:
    root = write(tmp_path / "made", deliveries, template, place)
    dataset = read_dataset(root)
    for episode in dataset.episodes:
        for number, camera in enumerate(CAMERAS):
            meant = [deliveries.identity(0, number, episode.index, n) for n in range(episode.length)]
            assert shown(episode.clips[camera], deliveries) == meant
    told = [text for code, text in dataset.notes if code == "template-unresolved"]
    assert [place.format(camera=c, episode=0) in text for c, text in zip(CAMERAS, told, strict=True)] == [
        True
    ] * 2
    assert not [text for code, text in dataset.notes if code == "left-over-files"]


@pytest.mark.parametrize(("template", "place"), PLACES[:5])
def test_the_audit_finds_the_same_files(
    tmp_path: Path, deliveries: ModuleType, template: str | None, place: str
) -> None:
    root = write(tmp_path / "made", deliveries, template, place)
    shutil.move(root / "data/chunk-000/file-001.parquet", root / "data/chunk-000/episode_000001.parquet")
    codes = {fault.code for fault in audit(root).faults}
    assert "template-does-not-resolve" in codes
    assert not codes & {
        "camera-without-files",
        "file-missing",
        "video-missing",
        "file-unlisted",
        "left-over-file",
    }


@pytest.mark.parametrize("second", ["video/{camera}/chunk-000/episode_{episode:06d}.mp4", BY_FILE])
def test_two_files_that_could_be_meant_are_refused(
    tmp_path: Path, deliveries: ModuleType, second: str
) -> None:
    """Also by the audit; not where the template names one of them, nor for an episode that is left out."""
    first = "videos/{camera}/chunk-000/episode_{episode:06d}.mp4"
    root = write(tmp_path / "made", deliveries, "videos/{camera}.mp4", first)
    here, other = (
        p.format(camera=CAMERAS[0], video_key=CAMERAS[0], episode=1, chunk_index=0, file_index=1)
        for p in (first, second)
    )
    (root / other).parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(root / first.format(camera=CAMERAS[0], episode=2), root / other)
    with pytest.raises(StackError) as caught:
        read_dataset(root)
    assert caught.value.id == "dataset-files-ambiguous" and caught.value.do
    assert here in caught.value.what and other in caught.value.what and "episode 1" in caught.value.what
    assert any(here in fault.message and other in fault.message for fault in audit(root).faults)
    assert CAMERAS[0] not in read_dataset(root, leave_out={1}).episodes[1].clips
    deliveries.edit_info(root, lambda info: info.update(video_path=BY_EPISODE))
    dataset = read_dataset(root)
    assert shown(dataset.episodes[1].clips[CAMERAS[0]], deliveries)[0] == deliveries.identity(0, 0, 1, 0)


def test_links_to_one_file_are_one_file(tmp_path: Path, deliveries: ModuleType) -> None:
    root = write(tmp_path / "made", deliveries, "videos/{camera}.mp4", PLACES[2][1])
    (root / "video").symlink_to("videos")
    assert all(len(episode.clips) == 2 for episode in read_dataset(root).episodes)


def test_a_file_below_two_cameras_names_belongs_to_neither(tmp_path: Path, deliveries: ModuleType) -> None:
    root = write(
        tmp_path / "made", deliveries, BY_FILE, f"videos/{CAMERAS[0]}/{{camera}}/episode_{{episode:06d}}.mp4"
    )
    assert all(set(episode.clips) == {CAMERAS[0]} for episode in read_dataset(root).episodes)
