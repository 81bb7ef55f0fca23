"""The writer of v2.1: one file an episode, for readers that know nothing newer (openpi, lerobot up to 0.3.3).

Layout and meta files after lerobot 0.3.3: `LeRobotDatasetMetadata` reads info.json, tasks.jsonl,
episodes.jsonl and episodes_stats.jsonl, and formats `data_path` and `video_path` with `episode_chunk`,
`episode_index` and `video_key`; `episode_chunk = episode_index // chunks_size`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stack.dataset.model import ClipRef, Dataset, Episode
from stack.dataset.read import read_dataset
from stack.dataset.selection import Selection
from stack.dataset.stats import Stats
from stack.dataset.write import Pooled, Version
from stack.dataset.write_meta import Infos, feature_entries, plain_number
from stack.dataset.write_plan import FILES_PER_CHUNK, Caps, DataFile, FilePlan, VideoFile
from stack.dataset.write_work import Made
from stack.errors import BadRequest, WorkFailed
from stack.files import write_json, write_text

DATA_PATH = "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet"
VIDEO_PATH = "videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4"
# lerobot 0.3.3 asserts the shape of whatever stands in an entry; quantiles came later.
STATS_KEYS = ("min", "max", "mean", "std", "count")


@dataclass(frozen=True)
class EpisodeRows(DataFile):
    """The data parquet of one episode; `file` is the episode's index."""

    @property
    def path(self) -> str:
        return DATA_PATH.format(episode_chunk=self.chunk, episode_index=self.file)


@dataclass(frozen=True)
class EpisodeVideo(VideoFile):
    """The MP4 of one episode and camera; `file` is the episode's index."""

    @property
    def path(self) -> str:
        return VIDEO_PATH.format(episode_chunk=self.chunk, episode_index=self.file, video_key=self.camera)


def plan_v21(selection: Selection, *, chunks_size: int = FILES_PER_CHUNK) -> FilePlan:
    """One file an episode, and one an episode and camera.

    Args:
        chunks_size: episodes a chunk folder.

    Raises:
        BadRequest: an episode lacks the video of a camera.
    """
    data: list[DataFile] = []
    videos: list[VideoFile] = []
    first = 0
    for selected in selection.episodes:
        episode = selected.episode
        chunk = episode.index // chunks_size
        data.append(EpisodeRows(chunk, episode.index, (selected,), first))
        first += episode.length
        for camera in selection.cameras:
            clip = _clip(episode, camera)
            videos.append(EpisodeVideo(camera, chunk, episode.index, (episode.index,), (clip,)))
    return FilePlan(tuple(data), tuple(videos), (), Caps(files_per_chunk=chunks_size))


def _clip(episode: Episode, camera: str) -> ClipRef:
    if camera not in episode.clips:
        raise BadRequest(
            "write-clip-missing",
            f"episode {episode.origin.episode} of '{episode.origin.dataset}' has no video of {camera}",
            do="leave the episode or the camera out",
        )
    return episode.clips[camera]


def _write_meta(root: Path, selection: Selection, plan: FilePlan, made: Made, _: Pooled) -> None:
    meta = root / "meta"
    write_json(meta / "info.json", _info(selection, plan, made.infos(plan)))
    _write_lines(meta / "tasks.jsonl", ({"task_index": n, "task": t} for n, t in enumerate(selection.tasks)))
    episodes = [selected.episode for selected in selection.episodes]
    _write_lines(
        meta / "episodes.jsonl",
        ({"episode_index": e.index, "tasks": list(e.tasks), "length": e.length} for e in episodes),
    )
    stats = made.stats(selection, plan)
    _write_lines(
        meta / "episodes_stats.jsonl",
        ({"episode_index": e.index, "stats": stats_entries(next(stats))} for e in episodes),
    )


def stats_entries(stats: Mapping[str, Stats]) -> dict[str, dict[str, Any]]:
    """Feature -> its entry in episodes_stats.jsonl."""
    return {
        feature: {key: value for key, value in entry.to_json().items() if key in STATS_KEYS}
        for feature, entry in stats.items()
    }


def _info(selection: Selection, plan: FilePlan, infos: Infos) -> dict[str, Any]:
    episodes = len(selection.episodes)
    return {
        "codebase_version": "v2.1",
        "robot_type": selection.robot_type,
        "total_episodes": episodes,
        "total_frames": selection.frames,
        "total_tasks": len(selection.tasks),
        "total_videos": len(plan.videos),
        "total_chunks": 1 + (episodes - 1) // plan.caps.files_per_chunk,
        "chunks_size": plan.caps.files_per_chunk,
        "fps": plain_number(selection.fps),
        "splits": {"train": f"0:{episodes}"},
        "data_path": DATA_PATH,
        "video_path": VIDEO_PATH if selection.cameras else None,
        "features": feature_entries(selection, infos),
    }


def _write_lines(file: Path, entries: Iterable[Mapping[str, Any]]) -> None:
    lines = (json.dumps(entry, ensure_ascii=False, allow_nan=False) for entry in entries)
    write_text(file, "".join(f"{line}\n" for line in lines))


def _check(root: Path, selection: Selection, plan: FilePlan) -> Dataset:
    """Read back as any other v2.1 dataset."""
    written = read_dataset(root)
    if written.notes:
        raise _wrong("reading back", "no note", written.notes[0][1], str(root))
    meant = [
        (s.episode.index, s.episode.length, s.episode.tasks, sorted(selection.cameras))
        for s in selection.episodes
    ]
    got = [(e.index, e.length, e.tasks, sorted(e.clips)) for e in written.episodes]
    for a, b in zip(meant, got, strict=False):
        if a != b:
            raise _wrong("episode", a, b, "meta/episodes.jsonl")
    if len(meant) != len(got) or list(written.tasks.values()) != list(selection.tasks):
        raise _wrong(
            "episodes and tasks",
            (len(meant), list(selection.tasks)),
            (len(got), list(written.tasks.values())),
            "meta",
        )
    return written


def _wrong(what: str, meant: object, got: object, where: str) -> WorkFailed:
    return WorkFailed("write-check-failed", f"{what}: {meant} was meant, {got} is there", where=where)


V21 = Version(lambda selection, videos: plan_v21(selection), _write_meta, _check, is_pooled=False)
write_v21 = V21.write
