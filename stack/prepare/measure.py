"""Exact statistics of a dataset as it stands: shown, written into its meta folder, or for openpi."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stack.dataset.model import INDEX_FEATURES, Dataset, Episode, Feature
from stack.dataset.pictures import PictureJob, sample_pictures
from stack.dataset.pool import Jobs, Pool, open_pool
from stack.dataset.progress import byte_count
from stack.dataset.read import read_dataset
from stack.dataset.rows import column_array, column_names, hold_rows
from stack.dataset.stats import CameraSample, Stats, camera_stats, sample_camera, vector_stats
from stack.dataset.stats_columns import PIECE_BYTES, Turning
from stack.dataset.stats_pooled import HELD_BYTES_MAX, TURNED_BYTES_MAX, block_stats
from stack.dataset.write_v21 import stats_entries
from stack.errors import BadRequest, NotAble
from stack.files import read_json, sha256_file, write_json, write_text
from stack.folders import DISK_TROUBLE
from stack.scratch import scratch_folder, scratch_place

Log = Callable[[str], None]
STATE_NAMES = ("observation.state", "state")
ACTION_NAMES = ("action", "actions")
NORM_KEYS = ("mean", "std", "q01", "q99")


@dataclass(frozen=True)
class Measured:
    """What a dataset's values are.

    Attributes:
        features: feature -> statistics over all rows, cameras over sampled frames.
        samples: camera -> sample of each episode that has it, by its place in `dataset.episodes`.
    """

    dataset: Dataset
    features: Mapping[str, Stats]
    samples: Mapping[str, Mapping[int, CameraSample]]


@dataclass(frozen=True)
class _Job:
    """One feature over all episodes."""

    episodes: tuple[Episode, ...]
    feature: Feature


def measure(root: Path, *, jobs: Jobs = None, log: Log = lambda _: None) -> Measured:
    """Exact statistics of every feature of numbers, and of cameras as lerobot samples them.

    Values count in the dtype that info.json declares, whatever the files hold them in: it is what a reader of
    the dataset gets.

    Raises:
        BadRequest: the dataset cannot be read, or a value is not finite.
    """
    dataset = read_dataset(root)
    if not dataset.frames:
        raise BadRequest(
            "stats-no-rows",
            "none of its episodes has a row: there is nothing to measure",
            where=str(root),
            do="fetch the dataset again, or record it",
        )
    held = [set(column_names(episode.rows)) for episode in dataset.episodes]
    everywhere = set.intersection(*held)
    vectors = []
    for feature in dataset.features.values():
        if feature.is_camera or (feature.name in INDEX_FEATURES and feature.name not in everywhere):
            continue
        if feature.dtype == "bool" or feature.dtype.startswith(("float", "int", "uint")):
            vectors.append(feature)
        else:
            log(f"{feature.name}: {feature.dtype} has no statistics")
    with open_pool(jobs) as pool:
        groups, rest = _groups(dataset, vectors)
        counted = _one_by_one(dataset, rest, pool, log)
        for group in groups:
            counted |= _turned(dataset, group, pool, log)
        found = {feature.name: counted[feature.name] for feature in vectors}
        samples = {name: _samples(dataset, name, pool) for name in dataset.cameras}
    samples = {name: taken for name, taken in samples.items() if taken}
    for name, taken in samples.items():
        found[name] = camera_stats([], samples=list(taken.values()))
        log(f"{name}: {found[name].count[0]} sampled frames")
    return Measured(dataset, found, samples)


@dataclass(frozen=True)
class _Piece:
    """Neighbouring episodes; see `stack.dataset.stats_columns.RowsOf`."""

    episodes: tuple[Episode, ...]
    features: tuple[Feature, ...]

    def blocks(self) -> Iterator[dict[str, NDArray[Any]]]:
        for episode in self.episodes:
            hold_rows(episode.rows, [feature.name for feature in self.features])
            yield {feature.name: _written(episode, feature) for feature in self.features}


def _groups(dataset: Dataset, vectors: Sequence[Feature]) -> tuple[list[list[Feature]], list[Feature]]:
    """Features that can be laid out anew on disk together, and those that are too large for it alone."""
    try:
        room = min(TURNED_BYTES_MAX, shutil.disk_usage(scratch_place()).free // 2)
    except OSError:  # nowhere to write: all are read several times
        room = 0
    groups: list[list[Feature]] = []
    rest: list[Feature] = []
    left = 0
    for feature in vectors:
        size = _row(feature).itemsize * dataset.frames
        if size > room or _row(feature).base.itemsize * dataset.frames > HELD_BYTES_MAX:
            rest.append(feature)
            continue
        if size > left:
            groups.append([])
            left = room
        groups[-1].append(feature)
        left -= size
    return groups, rest


def _turned(dataset: Dataset, vectors: Sequence[Feature], pool: Pool, log: Log) -> dict[str, Stats]:
    """All these features from one reading."""
    kinds = {feature.name: _row(feature) for feature in vectors}
    size = sum(kind.itemsize for kind in kinds.values()) * dataset.frames
    try:
        with scratch_folder() as folder:
            log(f"reading {dataset.frames} rows of {', '.join(kinds)}")
            pieces = _pieces(dataset, tuple(vectors), PIECE_BYTES * dataset.frames // size)
            turning = Turning(pieces, kinds, pool, folder / "turned", is_long=size > PIECE_BYTES)
            turning.go_on()
            log(f"counting {byte_count(size)} of values")
            found = turning.result()
    except OSError as error:
        if error.errno not in DISK_TROUBLE:
            raise
        log(f"{scratch_place()}: {error.strerror}: the values are read several times instead")
        return _one_by_one(dataset, vectors, pool, log)
    return {f.name: found[f.name].reshaped(f.shape) if len(f.shape) > 1 else found[f.name] for f in vectors}


def _row(feature: Feature) -> np.dtype[Any]:
    return np.dtype((_kind(feature), feature.shape))


def _pieces(
    dataset: Dataset, features: tuple[Feature, ...], rows_at_least: int
) -> Iterator[tuple[_Piece, int]]:
    together: list[Episode] = []
    rows = 0
    for episode in dataset.episodes:
        together.append(episode)
        rows += episode.length
        if rows >= rows_at_least or episode is dataset.episodes[-1]:
            yield _Piece(tuple(together), features), rows
            together, rows = [], 0


def _one_by_one(dataset: Dataset, vectors: Sequence[Feature], pool: Pool, log: Log) -> dict[str, Stats]:
    """Each feature from readings of its own, in blocks."""
    work = [_Job(dataset.episodes, feature) for feature in vectors]
    found: dict[str, Stats] = {}
    for feature, stats in zip(vectors, pool.map(_vector, work), strict=True):
        found[feature.name] = stats
        log(f"{feature.name}: {stats.count[0]} rows")
    return found


def _vector(job: _Job) -> Stats:
    def blocks() -> Iterator[NDArray[Any]]:
        for episode in job.episodes:
            yield _written(episode, job.feature)

    stats = block_stats(blocks, where=job.feature.name)
    return stats.reshaped(job.feature.shape) if len(job.feature.shape) > 1 else stats


def _written(episode: Episode, feature: Feature) -> NDArray[Any]:
    with np.errstate(over="ignore"):  # what float32 cannot hold becomes infinite, which is refused
        return column_array(episode, feature).astype(_kind(feature), copy=False)


def _kind(feature: Feature) -> str:
    if feature.name == "timestamp":
        return "float32"
    return feature.dtype if np.dtype(feature.dtype).kind == "f" else "int64"


def _samples(dataset: Dataset, camera: str, pool: Pool) -> dict[int, CameraSample]:
    feature = dataset.features[camera]
    if feature.is_image:
        jobs = [PictureJob(episode, feature) for episode in dataset.episodes]
        return dict(enumerate(pool.map(sample_pictures, jobs)))
    places = [n for n, episode in enumerate(dataset.episodes) if camera in episode.clips]
    clips = [dataset.episodes[n].clips[camera] for n in places]
    return dict(zip(places, pool.map(sample_camera, clips), strict=True))


def write_into(measured: Measured) -> Path:
    """Write statistics into the dataset's own meta folder, where its version keeps them; says where.

    v3.0 and v2.0: meta/stats.json. v2.1: meta/episodes_stats.jsonl. Nothing else is touched, but the hash
    that meta/provenance.json gives for the file.

    Raises:
        NotAble: the file cannot be written.
    """
    dataset = measured.dataset
    meta = dataset.root / "meta"
    file = meta / ("episodes_stats.jsonl" if dataset.version == "v2.1" else "stats.json")
    try:
        if dataset.version == "v2.1":
            lines = [json.dumps(entry, allow_nan=False) for entry in _episodes(measured)]
            write_text(file, "".join(f"{line}\n" for line in lines))
        else:
            write_json(file, {name: stats.to_json() for name, stats in measured.features.items()})
        _note_hash(meta / "provenance.json", dataset.root, file)
    except OSError as error:
        raise NotAble("stats-not-written", f"cannot write: {error}", where=str(file)) from error
    return file


def _episodes(measured: Measured) -> Iterator[dict[str, Any]]:
    dataset = measured.dataset
    vectors = [dataset.features[name] for name in measured.features if name not in measured.samples]
    for place, episode in enumerate(dataset.episodes):
        stats = {f.name: vector_stats(_written(episode, f), where=f.name) for f in vectors}
        stats |= {name: taken[place].stats() for name, taken in measured.samples.items() if place in taken}
        yield {"episode_index": episode.index, "stats": stats_entries(stats)}


def _note_hash(provenance: Path, root: Path, file: Path) -> None:
    if not provenance.is_file():
        return
    told = read_json(provenance, what="provenance")
    name = file.relative_to(root).as_posix()
    if isinstance(told, dict) and name in told.get("files", {}):
        told["files"][name] = {"sha256": sha256_file(file), "size": file.stat().st_size}
        write_json(provenance, told)


def norm_stats(measured: Measured) -> dict[str, Any]:
    """openpi's norm_stats.json: `{"norm_stats": {"state": ..., "actions": ...}}`, raw dimensions.

    Keys and file as `openpi.shared.normalize` saves and loads them: mean, std, q01, q99. openpi's own script
    counts actions in chunks (the last of an episode repeated) after its transforms, with histogram quantiles;
    these are exact, over each frame once, of the values as stored: for configurations that keep actions
    absolute.

    Raises:
        BadRequest: the dataset has no state or no action.
    """
    entries = {}
    for key, names in (("state", STATE_NAMES), ("actions", ACTION_NAMES)):
        name = next((n for n in names if n in measured.features), None)
        if name is None or len(measured.dataset.features[name].shape) != 1:
            raise BadRequest(
                "norm-stats-no-feature",
                f"openpi needs '{key}', and no vector is called {' or '.join(names)}; there are: "
                f"{', '.join(measured.features)}",
                where=str(measured.dataset.root),
                do="prepare the dataset with a feature of that name (features: in a manifest)",
            )
        stats = measured.features[name].to_json()
        entries[key] = {stat: stats[stat] for stat in NORM_KEYS}
    return {"norm_stats": entries}


def table(measured: Measured) -> str:
    """One line a channel: count, mean, std, min, q01, q50, q99, max."""
    shown = ("mean", "std", "min", "q01", "q50", "q99", "max")
    rows: list[tuple[str, ...]] = [("feature", "channel", "count", *shown)]
    for name, stats in measured.features.items():
        values = stats.to_json()
        columns = [np.ravel(values[key]).tolist() for key in shown]
        names = measured.dataset.features[name].names
        channels = len(columns[0])
        for channel in range(channels):
            label = names[channel] if names is not None and channels > 1 else str(channel)
            numbers = (f"{column[channel]:.6g}" for column in columns)
            rows.append((name, label, str(values["count"][0]), *numbers))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )
