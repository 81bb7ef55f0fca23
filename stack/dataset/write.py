"""The one writer of v3.0 datasets: planned, written in parallel, verified, then renamed into place."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from stack.dataset.model import ClipRef
from stack.dataset.pictures import PictureJob, sample_pictures
from stack.dataset.pool import Jobs, Pool, open_pool
from stack.dataset.selection import Recipe, Selected, Selection
from stack.dataset.stats import CameraSample, Stats, camera_stats, sample_camera
from stack.dataset.video import VideoInfo
from stack.dataset.write_check import check_written
from stack.dataset.write_files import (
    INDEX_DTYPES,
    DataDone,
    DataJob,
    PooledJob,
    VideoDone,
    VideoJob,
    WrittenFile,
    pooled_stats,
    write_data_file,
    write_video_file,
)
from stack.dataset.write_meta import write_episodes, write_info, write_stats, write_tasks
from stack.dataset.write_plan import FilePlan, Videos, plan_files
from stack.errors import BadRequest
from stack.files import sha256_file, tree_files, whole_folder

Log = Callable[[str], None]


@dataclass(frozen=True)
class Written:
    """A dataset on disk; `files` are all of its files in order of path."""

    root: Path
    plan: FilePlan
    files: tuple[WrittenFile, ...]


def write_v30(
    selection: Selection,
    out: Path,
    *,
    plan: FilePlan | None = None,
    videos: Videos = "join",
    jobs: Jobs = None,
    log: Log = lambda _: None,
    finish: Callable[[Path, tuple[WrittenFile, ...]], None] | None = None,
) -> Written:
    """Write a selection as a v3.0 dataset by the contract that lerobot's reader relies on.

    Files are numbered without gaps; `index` runs over the sorted files; one row group an episode; statistics
    are exact over all rows; seconds are frame counts over fps. The output does not depend on `jobs`. All is
    read back and checked before the folder gets its name; a kill leaves no target folder.

    Args:
        out: must not exist.
        plan: from `plan_files`; made here if not given.
        videos: `join` or `link`.
        finish: called with the partial folder and its files before the rename, to add files of its own.

    Raises:
        BadRequest: `out` exists, nothing is selected, or a source cannot be read.
        WorkFailed: writing failed, or what was written is not what was meant.
    """
    if not selection.episodes:
        raise BadRequest("write-no-episodes", "no episode is selected, so there is nothing to write")
    plan = plan or plan_files(selection, videos=videos)
    with whole_folder(out) as root, open_pool(jobs) as pool:
        log(f"writing {len(plan.data)} data files and {len(plan.videos)} video files")
        data = _write_data(root, selection, plan, pool, log)
        movies = _write_videos(root, selection, plan, videos, pool, log)
        samples = _sample_cameras(selection, pool, log)
        _write_meta(root, selection, plan, data, movies, samples, pool)
        log("checking what was written")
        check_written(root, selection, plan, pool)
        files = _all_files(root, [d.file for d in data] + [m.file for m in movies])
        if finish is not None:
            finish(root, files)
    return Written(out, plan, files)


def _write_data(root: Path, selection: Selection, plan: FilePlan, pool: Pool, log: Log) -> list[DataDone]:
    jobs = [
        DataJob(
            root, entry, selection.columns, _used(selection, entry.episodes), selection.tasks, selection.fps
        )
        for entry in plan.data
    ]
    done = []
    for job, result in zip(jobs, pool.map(write_data_file, jobs), strict=True):
        done.append(result)
        log(f"{result.file.path}: {len(job.entry.episodes)} episodes, {result.file.size_bytes} bytes")
    return done


def _used(selection: Selection, episodes: tuple[Selected, ...]) -> dict[str, Recipe]:
    keys = {selected.recipe for selected in episodes}
    return {key: recipe for key, recipe in selection.recipes.items() if key in keys}


def _write_videos(
    root: Path, selection: Selection, plan: FilePlan, videos: Videos, pool: Pool, log: Log
) -> list[VideoDone]:
    jobs = [VideoJob(root, entry, selection.fps, videos) for entry in plan.videos]
    done = []
    for result in pool.map(write_video_file, jobs):
        done.append(result)
        log(f"{result.file.path}: {result.info.frames} frames, {result.file.size_bytes} bytes")
    return done


def _sample_cameras(selection: Selection, pool: Pool, log: Log) -> dict[tuple[str, int], CameraSample]:
    keys = [(camera, s.episode.index) for camera in selection.cameras for s in selection.episodes]
    clips: list[ClipRef] = [
        s.episode.clips[camera] for camera in selection.cameras for s in selection.episodes
    ]
    samples = dict(zip(keys, pool.map(sample_camera, clips), strict=True))
    pictured = [(name, s) for name in selection.pictures for s in selection.episodes]
    work = [PictureJob(s.episode, selection.source_feature(s, name)) for name, s in pictured]
    for (name, s), sample in zip(pictured, pool.map(sample_pictures, work), strict=True):
        samples[name, s.episode.index] = sample
    if samples:
        frames = sum(sample.frames for sample in samples.values())
        log(f"camera statistics from {frames} sampled frames")
    return samples


def _write_meta(
    root: Path,
    selection: Selection,
    plan: FilePlan,
    data: list[DataDone],
    movies: list[VideoDone],
    samples: Mapping[tuple[str, int], CameraSample],
    pool: Pool,
) -> None:
    infos: dict[str, VideoInfo] = {}
    for entry, movie in zip(plan.videos, movies, strict=True):
        infos.setdefault(entry.camera, movie.info)
    write_info(root, selection, plan, infos)
    write_tasks(root, selection.tasks)
    episodes = {index: dict(stats) for done in data for index, stats in done.stats.items()}
    for (camera, index), sample in samples.items():
        episodes[index][camera] = sample.stats()
    write_episodes(root, selection, plan, episodes)
    names = [n for n, f in selection.vectors.items() if f.dtype != "string"] + list(INDEX_DTYPES)
    paths = tuple(entry.path for entry in plan.data)
    jobs = [PooledJob(root, paths, name) for name in names]
    pooled: dict[str, Stats] = dict(zip(names, pool.map(pooled_stats, jobs), strict=True))
    for name, feature in selection.vectors.items():
        if len(feature.shape) > 1:
            pooled[name] = pooled[name].reshaped(feature.shape)
    for camera in (*selection.cameras, *selection.pictures):
        taken = [sample for (name, _), sample in samples.items() if name == camera]
        pooled[camera] = camera_stats([], samples=taken)
    write_stats(root, pooled)


def _all_files(root: Path, hashed: list[WrittenFile]) -> tuple[WrittenFile, ...]:
    known = {file.path: file for file in hashed}
    files = []
    for path in tree_files(root):
        name = path.relative_to(root).as_posix()
        files.append(known.get(name) or WrittenFile(name, sha256_file(path), path.stat().st_size))
    return tuple(files)
