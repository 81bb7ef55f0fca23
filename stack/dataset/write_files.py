"""The workers of the writer: each writes one output file from its plan entry, or measures one thing."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from stack.dataset.arrow import array_of
from stack.dataset.model import ClipRef, Feature
from stack.dataset.pictures import PICTURE_TYPE
from stack.dataset.rows import hold_rows
from stack.dataset.selection import Column, Recipe, Selected, assemble, frame_tasks, needed_columns
from stack.dataset.stats import columns_stats
from stack.dataset.stats_table import StatsTable, put
from stack.dataset.video import VideoInfo, clip_digest, join, probe
from stack.dataset.write_check_video import VideoCheck, check_video_file
from stack.dataset.write_plan import PTS_TOLERANCE_S, DataFile, VideoFile, Videos
from stack.errors import BadRequest, WorkFailed
from stack.files import sha256_file

ARRAY_DIMENSIONS_MAX = 5
INDEX_DTYPES = {
    "timestamp": "float32",
    "frame_index": "int64",
    "episode_index": "int64",
    "index": "int64",
    "task_index": "int64",
}


@dataclass(frozen=True)
class WrittenFile:
    """A file as it was written; `path` is relative to the dataset."""

    path: str
    sha256: str
    size_bytes: int


@dataclass(frozen=True)
class DataJob:
    root: Path
    entry: DataFile
    features: Mapping[str, Feature]  # without cameras
    recipes: Mapping[str, Recipe]
    tasks: tuple[str, ...]
    fps: float


@dataclass(frozen=True)
class DataDone:
    """`stats`: of each episode's rows, in their order; None where its record is to be asked for them."""

    file: WrittenFile
    stats: StatsTable | None

    def light(self) -> DataDone:
        """Without the statistics, which all together would take memory for each episode."""
        return replace(self, stats=None)


@dataclass(frozen=True)
class VideoJob:
    root: Path
    entry: VideoFile
    fps: float
    videos: Videos


@dataclass(frozen=True)
class VideoDone:
    """`clips`: (first frame, number of frames, `clip_digest`) of each clip as it was written."""

    file: WrittenFile
    info: VideoInfo
    clips: tuple[tuple[int, int, str], ...]

    def light(self) -> VideoDone:
        """Without numbers of frames: nobody asks for those of a finished file, and each episode has some."""
        return replace(self, info=replace(self.info, key_frames=(), leading=()))


def timestamps(length: int, fps: float) -> NDArray[Any]:
    """(length,) float32: frame_index / fps, divided in float64."""
    return (np.arange(length, dtype=np.float64) / fps).astype(np.float32)


def write_data_file(job: DataJob) -> DataDone:
    """Write one data parquet: one row group an episode, fixed-size lists, `huggingface` schema metadata.

    The file's folder must be there: one that was cleared away after an error is not made again.

    Raises:
        WorkFailed: the disk is full, or writing fails otherwise.
    """
    target = job.root / job.entry.path
    schema = data_schema(job.features)
    stats: StatsTable = {}
    first = job.entry.first_index
    try:
        with pq.ParquetWriter(
            target, schema, compression="snappy", use_dictionary=_repeating(schema)
        ) as writer:
            for place, selected in enumerate(job.entry.episodes):
                columns = _episode_columns(selected, job, first)
                first += selected.episode.length
                numbers = {name: v for name, v in columns.items() if isinstance(v, np.ndarray)}
                own = columns_stats(numbers, where=f"episode {selected.episode.index}")
                put(stats, place, len(job.entry.episodes), own)
                arrays = [_to_arrow(columns[field.name], field.type) for field in schema]
                table = pa.Table.from_arrays(arrays, schema=schema)
                writer.write_table(table, row_group_size=max(1, len(table)))
    except (OSError, pa.ArrowException) as error:
        raise WorkFailed("write-failed", f"writing failed: {error}", where=str(target)) from error
    return DataDone(_seal(job.root, job.entry.path), stats)


def _repeating(schema: pa.Schema) -> list[str]:
    """Columns for which a dictionary pays: not measurements, which hardly repeat (six times the time, and
    larger files, on real recordings too), and not pictures."""
    whole = [field for field in schema if pa.types.is_integer(field.type) or pa.types.is_string(field.type)]
    return [field.name for field in whole]


def _episode_columns(selected: Selected, job: DataJob, first: int) -> dict[str, Column]:
    recipe = job.recipes[selected.recipe]
    length = selected.episode.length
    hold_rows(selected.episode.rows, needed_columns(recipe, job.features))
    columns = assemble(selected, recipe, job.features)
    numbers = {text: number for number, text in enumerate(job.tasks)}
    texts = frame_tasks(selected.episode, recipe)
    columns["timestamp"] = timestamps(length, job.fps)
    columns["frame_index"] = np.arange(length, dtype=np.int64)
    columns["episode_index"] = np.full(length, selected.episode.index, dtype=np.int64)
    columns["index"] = np.arange(first, first + length, dtype=np.int64)
    columns["task_index"] = np.array([numbers[text] for text in texts], dtype=np.int64)
    return columns


def _to_arrow(values: Column, kind: pa.DataType) -> pa.Array:
    if not isinstance(values, np.ndarray):
        return values
    if values.ndim > 2:
        # Lists of lists, each level with its own offsets: the storage of `datasets`' ArrayXD.
        array = array_of(values.reshape(-1), _innermost(kind))
        for axis in range(values.ndim - 1, 0, -1):
            count, size = int(np.prod(values.shape[:axis])), values.shape[axis]
            offsets = pa.array(np.arange(count + 1, dtype=np.int32) * size)
            array = pa.ListArray.from_arrays(offsets, array)
        return array.cast(kind)
    if pa.types.is_fixed_size_list(kind):
        flat = array_of(values.reshape(-1), kind.value_type)
        return pa.FixedSizeListArray.from_arrays(flat, type=kind)
    return array_of(values, kind)


def _innermost(kind: pa.DataType) -> pa.DataType:
    while pa.types.is_list(kind):
        kind = kind.value_type
    return kind


def data_schema(features: Mapping[str, Feature]) -> pa.Schema:
    """Columns in lerobot's customary order, with the metadata that `datasets` reads.

    `Sequence` rather than `List`: the former is read by every release of `datasets`, the latter from 4.0 on.
    """
    fields: list[pa.Field] = []
    described: dict[str, dict[str, Any]] = {}
    for name, feature in features.items():
        if feature.is_image:
            fields.append(pa.field(name, PICTURE_TYPE))
            described[name] = {"_type": "Image"}
            continue
        kind = pa.type_for_alias(feature.dtype)
        if len(feature.shape) > 1:
            fields.append(pa.field(name, _nested(kind, len(feature.shape))))
            described[name] = array_entry(name, feature)
            continue
        value = {"dtype": feature.dtype, "_type": "Value"}
        if feature.shape == (1,):
            fields.append(pa.field(name, kind))
            described[name] = value
        else:
            fields.append(pa.field(name, pa.list_(kind, feature.shape[0])))
            described[name] = {"feature": value, "length": feature.shape[0], "_type": "Sequence"}
    for name, dtype in INDEX_DTYPES.items():
        fields.append(pa.field(name, pa.type_for_alias(dtype)))
        described[name] = {"dtype": dtype, "_type": "Value"}
    metadata = {"huggingface": json.dumps({"info": {"features": described}})}
    return pa.schema(fields, metadata=metadata)


def _nested(kind: pa.DataType, depth: int) -> pa.DataType:
    for _ in range(depth):
        kind = pa.list_(kind)
    return kind


def array_entry(name: str, feature: Feature) -> dict[str, Any]:
    """What `datasets` calls a feature of two to five dimensions: Array2D to Array5D, stored as lists."""
    depth = len(feature.shape)
    if depth > ARRAY_DIMENSIONS_MAX or feature.dtype == "string":
        raise BadRequest(
            "write-feature-shape",
            f"{name} has shape {list(feature.shape)} of {feature.dtype}; lerobot reads numbers of at most "
            f"{ARRAY_DIMENSIONS_MAX} dimensions",
            do="leave the feature out",
        )
    return {"shape": list(feature.shape), "dtype": feature.dtype, "_type": f"Array{depth}D"}


def write_video_file(job: VideoJob) -> VideoDone:
    """Write one MP4: joined by stream copy, or linked where the source is one whole, well-timed file.

    It is brought to the disk, read back, and compared with its sources; see `check_video_file`. The file's
    folder must be there, as for `write_data_file`.

    Raises:
        BadRequest: a clip cannot be cut or joined.
        WorkFailed: the file does not hold exactly the frames of its clips, or writing failed.
    """
    target = job.root / job.entry.path
    clips = job.entry.clips
    is_linked = False
    if job.videos == "link" and len(clips) == 1 and _is_whole(clips[0], job.fps):
        is_linked = _link(clips[0].file, target)
        info = probe(target)
    else:
        info = join(clips, target, job.fps)
    meant = sum(clip.count for clip in clips)
    if info.frames != meant:
        raise WorkFailed(
            "write-video-frames", f"{meant} frames were meant, {info.frames} are there", where=str(target)
        )
    # The bytes of a link are the source's; its name comes to the disk with the folder.
    sealed = _seal(job.root, job.entry.path, sync=not is_linked)
    check_video_file(VideoCheck(job.root, job.entry, job.fps))
    return VideoDone(sealed, info, tuple(_digests(target, clips)))


def _digests(file: Path, clips: tuple[ClipRef, ...]) -> Iterator[tuple[int, int, str]]:
    place = 0
    for clip in clips:
        try:
            digest = clip_digest(ClipRef(file, place, clip.count))
        except BadRequest as error:
            try:  # what is wrong with the copy is wrong with its source, and told of that
                clip_digest(clip)
            except BadRequest as own:
                if own.id == error.id:
                    raise own from error
            raise
        yield place, clip.count, digest
        place += clip.count


def _is_whole(clip: ClipRef, fps: float) -> bool:
    """Whether the clip is all of a file that starts clean and holds no more, frame n shown at n / fps."""
    info = probe(clip.file)
    if clip.start != 0 or clip.count != info.frames:
        return False
    if info.has_audio or info.tracks > 1 or info.is_turned or not info.is_key(0):  # what no written file has
        return False
    times = info.times_s()
    return bool(np.abs(times - np.arange(len(times)) / fps).max() < PTS_TOLERANCE_S / 2)


def _link(source: Path, target: Path) -> bool:
    """Says whether it is a hard link; it is a copy where there can be none."""
    try:
        os.link(source.resolve(), target)
        return True
    except OSError:
        # Another file system, or one without hard links.
        try:
            shutil.copyfile(source, target)
        except OSError as error:
            raise WorkFailed("write-failed", f"copying failed: {error}", where=str(target)) from error
        return False


def _seal(root: Path, path: str, *, sync: bool = True) -> WrittenFile:
    """Bring a finished file to the disk and hash it."""
    file = root / path
    if sync:
        with file.open("rb") as handle:
            os.fsync(handle.fileno())
    return WrittenFile(path, sha256_file(file), file.stat().st_size)
