"""The content digest of a dataset: values and pictures only, never packing or a writer's version."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from stack.dataset.model import INDEX_FEATURES, ClipRef, Dataset, Episode, Feature
from stack.dataset.pictures import episode_pictures
from stack.dataset.pool import Jobs, Pool, open_pool
from stack.dataset.rows import column_array, column_names, hold_rows, stored_array, text_column
from stack.dataset.selection import Recipe, frame_tasks
from stack.dataset.video import clip_digest
from stack.errors import BadRequest

FORMAT = "stack/content/2"


@dataclass(frozen=True)
class _EpisodeJob:
    episode: Episode
    features: Mapping[str, Feature]
    tasks: Mapping[int, str]
    clips: Mapping[str, str]  # camera -> digest, where it is known


EPISODES_TOGETHER = 8


def content_digest(dataset: Dataset, *, jobs: Jobs = 1, clips: Mapping[ClipRef, str] | None = None) -> str:
    """sha256 over fps, features and episodes in order.

    Of each episode count: its length; each feature's name, dtype, shape and values, little-endian, frame by
    frame; the timestamps; the task text of each frame; and of each camera the coded pictures. File sizes, row
    groups, compression, index columns, channel names and where a clip lies in its file do not.

    Args:
        jobs: processes; not given takes all cores.
        clips: `clip_digest` of clips whose files were read just now; those of others are read here.

    Raises:
        BadRequest: rows or clips that cannot be read, or a feature that episodes store in other forms.
    """
    with open_pool(jobs) as pool:
        return begin_content_digest(dataset, pool, clips or {})()


def begin_content_digest(dataset: Dataset, pool: Pool, clips: Mapping[ClipRef, str]) -> Callable[[], str]:
    """Begin `content_digest`; returns a function that waits for it."""
    features = {
        name: feature
        for name, feature in sorted(dataset.features.items())
        if name not in INDEX_FEATURES and feature.dtype != "video"
    }
    cameras = sorted(name for name in dataset.cameras if any(name in e.clips for e in dataset.episodes))
    digest = hashlib.sha256()
    digest.update(f"{FORMAT}\nfps {float(dataset.fps)!r}\ncameras {cameras!r}\n".encode())
    for name, feature in features.items():
        shape = "" if feature.is_image else f" {list(feature.shape)!r}"  # the pictures tell their own size
        digest.update(f"feature {name!r} {feature.dtype}{shape}\n".encode())
    work = [
        _EpisodeJob(
            e, features, dataset.tasks, {c: clips[clip] for c, clip in e.clips.items() if clip in clips}
        )
        for e in dataset.episodes
    ]
    parts = pool.begin(_episode_digest, work, together=EPISODES_TOGETHER)

    def finish() -> str:
        for part in parts:
            digest.update(part.encode())
        return digest.hexdigest()

    return finish


def _episode_digest(job: _EpisodeJob) -> str:
    episode = job.episode
    digest = hashlib.sha256(f"length {episode.length}\n".encode())
    columns = column_names(episode.rows)
    hold_rows(episode.rows, (*job.features, "timestamp", "task_index"))
    for name, feature in job.features.items():
        digest.update(f"\n{name}\n".encode())
        digest.update(_values(episode, feature))
    digest.update(b"\ntimestamp\n")
    if "timestamp" in columns:
        times = column_array(episode, Feature("timestamp", "float32", (1,)))
        digest.update(times.astype("<f4").tobytes())
    texts = frame_tasks(episode, Recipe({}, job.tasks))
    coded = {text: f"\ntask {len(text.encode())} {text}".encode() for text in set(texts)}
    digest.update(b"".join(coded[text] for text in texts))
    for camera, clip in sorted(episode.clips.items()):
        digest.update(f"\n{camera} {job.clips.get(camera) or clip_digest(clip)}".encode())
    return digest.hexdigest()


def _values(episode: Episode, feature: Feature) -> bytes:
    if feature.dtype == "string":
        texts = [(text or "").encode() for text in text_column(episode, feature.name)]
        return b"".join(f"{len(text)} ".encode() + text for text in texts)
    if feature.is_image:
        return b"".join(f"{len(cell)} ".encode() + cell for cell in episode_pictures(episode, feature))
    try:
        little = np.dtype(feature.dtype).newbyteorder("<")
    except TypeError:
        raise BadRequest(
            "digest-dtype", f"{feature.name} has dtype '{feature.dtype}', which cannot be digested"
        ) from None
    return stored_array(episode, feature).astype(little, copy=False).tobytes()
