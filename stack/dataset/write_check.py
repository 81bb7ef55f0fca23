"""Read back what was written and compare it with what was meant, before it gets its name."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from stack.dataset.arrow import numbers_of
from stack.dataset.model import ClipRef, Dataset, Episode, Feature, Origin, RowsRef
from stack.dataset.pool import Pool
from stack.dataset.read import read_dataset
from stack.dataset.selection import Selection
from stack.dataset.write_files import INDEX_DTYPES, timestamps
from stack.dataset.write_meta import clip_places, first_indices
from stack.dataset.write_plan import DataFile, FilePlan
from stack.errors import WorkFailed


@dataclass(frozen=True)
class DataCheck:
    """A written data parquet, `root / entry.path`; `tasks`: how many the task table has."""

    root: Path
    entry: DataFile
    fps: float
    tasks: int


def check_written(root: Path, selection: Selection, plan: FilePlan) -> Dataset:
    """Check the numbers of files, the episode table and totals; the files themselves are checked elsewhere.

    Returns:
        The dataset as it was read back.

    Raises:
        WorkFailed: something differs; the place and both values are named.
    """
    _check_numbering(root, plan)
    return _check_episodes(root, selection, plan)


def begin_data_checks(root: Path, selection: Selection, plan: FilePlan, pool: Pool) -> Iterator[None]:
    """Begin `check_data_file` of each data file, of any version; what is given raises as it does."""
    tasks = len(selection.tasks)
    return pool.begin(check_data_file, [DataCheck(root, entry, selection.fps, tasks) for entry in plan.data])


def check_data_file(check: DataCheck) -> None:
    """One row group an episode, and index columns that run on.

    Raises:
        WorkFailed: something differs.
    """
    entry = check.entry
    file = check.root / entry.path
    with pq.ParquetFile(file) as parquet:
        _same(entry.path, "row groups", parquet.num_row_groups, len(entry.episodes))
        first = entry.first_index
        for group, selected in enumerate(entry.episodes):
            episode = selected.episode
            length = episode.length
            where = f"{entry.path}, episode {episode.index}"
            table = parquet.read_row_group(group, columns=list(INDEX_DTYPES), use_threads=False)
            _same(where, "rows", len(table), length)
            got = {name: numbers_of(table.column(name).combine_chunks()) for name in INDEX_DTYPES}
            _same_array(where, "index", got["index"], np.arange(first, first + length))
            _same_array(where, "episode_index", got["episode_index"], np.full(length, episode.index))
            _same_array(where, "frame_index", got["frame_index"], np.arange(length))
            _same_array(where, "timestamp", got["timestamp"], timestamps(length, check.fps))
            inside = (got["task_index"] >= 0) & (got["task_index"] < check.tasks)
            _same(where, "rows with a task of the table", int(inside.sum()), length)
            first += length


def meant_dataset(root: Path, selection: Selection, plan: FilePlan) -> Dataset:
    """What reading the finished dataset must give, but for what info.json says beside it."""
    features = dict(selection.features)
    features |= {name: Feature(name, dtype, (1,)) for name, dtype in INDEX_DTYPES.items()}
    places = clip_places(plan)
    files = {(entry.camera, entry.chunk, entry.file): root / entry.path for entry in plan.videos}
    episodes = []
    for entry in plan.data:
        start = 0
        for selected in entry.episodes:
            episode, clips = selected.episode, {}
            for camera in selection.cameras:
                place = places[camera, episode.index]
                file = files[camera, place.chunk, place.file]
                clips[camera] = ClipRef(file, place.start, episode.length)
            rows = RowsRef(root / entry.path, start, episode.length)
            origin = Origin(root.name, episode.index)
            episodes.append(Episode(episode.index, episode.length, episode.tasks, rows, clips, origin))
            start += episode.length
    return Dataset(
        root.name,
        root,
        "",
        selection.fps,
        selection.robot_type,
        features,
        tuple(episodes),
        dict(enumerate(selection.tasks)),
    )


def check_same(got: Dataset, meant: Dataset) -> None:
    """Refuse a dataset that was read back and is not what its files were planned to hold.

    Raises:
        WorkFailed: naming the first place that differs.
    """
    where = "meta/info.json"
    _same(where, "fps", got.fps, meant.fps)
    _same(where, "robot_type", got.robot_type, meant.robot_type)
    for name in got.features.keys() | meant.features.keys():
        pair = [owner.features.get(name) for owner in (got, meant)]
        a, b = ((f.dtype, f.shape if f.dtype != "video" else ()) if f else None for f in pair)
        _same(where, f"features.{name}", a, b)
    _same("meta/tasks", "tasks", dict(got.tasks), dict(meant.tasks))
    _same("meta/episodes", "episodes", len(got.episodes), len(meant.episodes))
    for own, other in zip(got.episodes, meant.episodes, strict=True):
        where = f"meta/episodes, episode {other.index}"
        for what in ("index", "tasks", "rows", "clips"):
            _same(where, what, getattr(own, what), getattr(other, what))


def _check_numbering(root: Path, plan: FilePlan) -> None:
    # lerobot sorts data files by path and addresses rows by position.
    found = sorted(p.relative_to(root).as_posix() for p in (root / "data").glob("*/*.parquet"))
    _same("data", "files in order of path", found, [entry.path for entry in plan.data])
    found = sorted(p.relative_to(root).as_posix() for p in (root / "videos").glob("**/*.mp4"))
    _same("videos", "files", found, sorted(entry.path for entry in plan.videos))


def _check_episodes(root: Path, selection: Selection, plan: FilePlan) -> Dataset:
    """The written dataset, read as any other v3.0 dataset, must be the one that was planned."""
    written = read_dataset(root)
    if written.notes:
        raise WorkFailed("write-check-failed", f"reading back: {written.notes[0][1]}", where=str(root))
    first = first_indices(selection)
    _same("meta/episodes", "episodes", len(written.episodes), len(selection.episodes))
    _same("meta/tasks.parquet", "tasks", list(written.tasks.values()), list(selection.tasks))
    data_file = {s.episode.index: entry for entry in plan.data for s in entry.episodes}
    video_file = {(e.camera, i): e for e in plan.videos for i in e.episodes}
    for got, selected in zip(written.episodes, selection.episodes, strict=True):
        meant = selected.episode
        where = f"meta/episodes, episode {meant.index}"
        entry = data_file[meant.index]
        _same(where, "index", got.index, meant.index)
        _same(where, "length", got.length, meant.length)
        _same(where, "tasks", got.tasks, meant.tasks)
        _same(where, "data file", got.rows.file, root / entry.path)
        _same(where, "first row", entry.first_index + got.rows.start, first[meant.index])
        _same(where, "cameras", sorted(got.clips), sorted(selection.cameras))
        for camera, clip in got.clips.items():
            _same(where, f"{camera} file", clip.file, root / video_file[camera, meant.index].path)
    return written


def _same(where: str, what: str, got: object, meant: object) -> None:
    if got != meant:
        raise WorkFailed("write-check-failed", f"{what}: {meant} was meant, {got} is there", where=where)


def _same_array(where: str, what: str, got: NDArray[Any], meant: NDArray[Any]) -> None:
    if len(got) != len(meant) or not (got == meant).all():
        at = int(np.argmax(got != meant)) if len(got) == len(meant) else 0
        raise WorkFailed(
            "write-check-failed", f"{what} is not what was meant, first at row {at}", where=where
        )
