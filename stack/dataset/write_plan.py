"""The plan of output files, computed before anything is written."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar

import numpy as np

from stack.dataset.model import ClipRef, Feature
from stack.dataset.pictures import picture_bytes
from stack.dataset.selection import Selected, Selection
from stack.dataset.video import VideoInfo, probe, why_not_together
from stack.errors import BadRequest

FILES_PER_CHUNK = 1000
DATA_FILE_MB = 100
VIDEO_FILE_MB = 200
MB = 1 << 20
DATA_PATH = "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
VIDEO_PATH = "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4"
PTS_TOLERANCE_S = 1e-4
EPISODES_PATH = "meta/episodes/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
INDEX_BYTES = 4 + 4 * 8  # timestamp float32, four int64
TEXT_BYTES = 64  # an estimate: texts have no fixed width
STATS_PER_FEATURE = 10

Videos = Literal["join", "link"]
T = TypeVar("T")


@dataclass(frozen=True)
class Caps:
    """File sizes at which a new file begins, in units of 2**20 bytes, and files per chunk folder."""

    data_mb: float = DATA_FILE_MB
    video_mb: float = VIDEO_FILE_MB
    files_per_chunk: int = FILES_PER_CHUNK


@dataclass(frozen=True)
class DataFile:
    """One data parquet: these episodes, the first of whose rows has global index `first_index`."""

    chunk: int
    file: int
    episodes: tuple[Selected, ...]
    first_index: int

    @property
    def path(self) -> str:
        return DATA_PATH.format(chunk_index=self.chunk, file_index=self.file)


@dataclass(frozen=True)
class VideoFile:
    """One MP4 of a camera: these clips one after another; `episodes` are their output indices."""

    camera: str
    chunk: int
    file: int
    episodes: tuple[int, ...]
    clips: tuple[ClipRef, ...]

    @property
    def path(self) -> str:
        return VIDEO_PATH.format(video_key=self.camera, chunk_index=self.chunk, file_index=self.file)


@dataclass(frozen=True)
class FilePlan:
    """All output files. Each is a pure function of its entry, so any number of workers may write them.

    Attributes:
        data: in order of global index.
        videos: camera by camera, in order of episodes.
        episode_rows: episode indices of each meta/episodes file.
        rolled: why a video file ended before its cap, as sentences.
    """

    data: tuple[DataFile, ...]
    videos: tuple[VideoFile, ...]
    episode_rows: tuple[tuple[int, ...], ...]
    caps: Caps
    rolled: tuple[str, ...] = ()


def plan_files(
    selection: Selection,
    *,
    caps: Caps | None = None,
    videos: Videos = "join",
    infos: Mapping[Path, VideoInfo] | None = None,
) -> FilePlan:
    """Distribute episodes over files.

    A file rolls when the next episode would bring it to its cap, as in lerobot (PR #1412). Sizes are known
    beforehand: rows at their uncompressed width, clips at their share of the source file. A video file also
    rolls where two clips cannot share one stream, and after each episode for `link`.

    Args:
        infos: what probing the source videos gave, where the caller has it already.

    Raises:
        BadRequest: a video is missing or cannot be read.
    """
    caps = caps or Caps()
    for selected in selection.episodes:
        if missing := [c for c in selection.cameras if c not in selected.episode.clips]:
            origin = selected.episode.origin
            raise BadRequest(
                "write-clip-missing",
                f"episode {origin.episode} of '{origin.dataset}' has no video of {missing[0]}",
                do="leave the episode or the camera out",
            )
    data = _plan_data(selection, caps)
    files: list[VideoFile] = []
    rolled: list[str] = []
    for camera in selection.cameras:
        files.extend(_plan_camera(selection, camera, caps, videos, infos or {}, rolled))
    episode_bytes = 8 * STATS_PER_FEATURE * sum(_values(f) for f in selection.features.values()) + 1000
    groups = _roll(selection.episodes, lambda _: episode_bytes, caps.data_mb * MB)
    rows = tuple(tuple(s.episode.index for s in group) for group in groups)
    return FilePlan(tuple(data), tuple(files), rows, caps, tuple(rolled))


def _plan_data(selection: Selection, caps: Caps) -> list[DataFile]:
    bytes_per_row = INDEX_BYTES + sum(row_bytes(f) for f in selection.vectors.values())

    def size_bytes(selected: Selected) -> float:
        shown = (selection.source_feature(selected, name).name for name in selection.pictures)
        pictures = sum(picture_bytes(selected.episode.rows, name) for name in shown)
        return selected.episode.length * bytes_per_row + pictures

    groups = _roll(selection.episodes, size_bytes, caps.data_mb * MB)
    files, first = [], 0
    for number, group in enumerate(groups):
        chunk, file = divmod(number, caps.files_per_chunk)
        files.append(DataFile(chunk, file, tuple(group), first))
        first += sum(selected.episode.length for selected in group)
    return files


def _plan_camera(
    selection: Selection,
    camera: str,
    caps: Caps,
    videos: Videos,
    infos: Mapping[Path, VideoInfo],
    rolled: list[str],
) -> list[VideoFile]:
    def info(file: Path) -> VideoInfo:
        return infos[file] if file in infos else probe(file)

    def apart(a: Selected, b: Selected) -> bool:
        if videos == "link":
            return True
        left, right = a.episode.clips[camera], b.episode.clips[camera]
        reason = why_not_together(left, right, infos)
        if reason is not None:
            rolled.append(f"{camera}: a new file begins at episode {b.episode.index}: {reason}")
        return reason is not None

    groups = _roll(
        selection.episodes,
        lambda s: clip_bytes(s.episode.clips[camera], info),
        caps.video_mb * MB,
        apart,
    )
    files = []
    for number, group in enumerate(groups):
        chunk, file = divmod(number, caps.files_per_chunk)
        clips = tuple(selected.episode.clips[camera] for selected in group)
        indices = tuple(selected.episode.index for selected in group)
        files.append(VideoFile(camera, chunk, file, indices, clips))
    return files


def _roll(
    items: Iterable[T],
    size_bytes: Callable[[T], float],
    cap_bytes: float,
    apart: Callable[[T, T], bool] | None = None,
) -> list[list[T]]:
    groups: list[list[T]] = []
    held = 0.0
    for item in items:
        size = size_bytes(item)
        if not groups or held + size >= cap_bytes or (apart is not None and apart(groups[-1][-1], item)):
            groups.append([])
            held = 0.0
        groups[-1].append(item)
        held += size
    return groups


def clip_bytes(clip: ClipRef, info: Callable[[Path], VideoInfo]) -> float:
    """A clip's share of its file."""
    return clip.file.stat().st_size * min(1.0, clip.count / info(clip.file).frames)


def _values(feature: Feature) -> int:
    if feature.dtype == "string":
        return 0
    return 3 if feature.is_camera else int(np.prod(feature.shape))


def row_bytes(feature: Feature) -> int:
    """Bytes of one row's cell, not compressed."""
    if feature.dtype == "string":
        return TEXT_BYTES
    return int(np.prod(feature.shape)) * np.dtype(feature.dtype).itemsize
