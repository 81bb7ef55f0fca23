"""The meta folder of a v3.0 dataset: info.json, stats.json, the task table and the episode table."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, fields
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from stack.dataset.arrow import nested_of, values_of
from stack.dataset.memory import give_back
from stack.dataset.model import Feature
from stack.dataset.selection import Selected, Selection
from stack.dataset.stats import Stats
from stack.dataset.video import VideoInfo
from stack.dataset.write_files import INDEX_DTYPES
from stack.dataset.write_plan import DATA_PATH, EPISODES_PATH, VIDEO_PATH, FilePlan
from stack.files import write_json

CHANNELS_OF_GREY = ("gray", "gray10le", "gray12le")
EPISODES_AT_ONCE = 100


@dataclass(frozen=True)
class ClipPlace:
    """Where an episode's clip lies in the output: file numbers and first frame."""

    chunk: int
    file: int
    start: int


Infos: TypeAlias = Mapping[str, Sequence[VideoInfo]]  # camera -> each of its written files


def write_info(root: Path, selection: Selection, plan: FilePlan, infos: Infos) -> None:
    """info.json; totals and splits are counted, video entries come from the files that were written."""
    caps = plan.caps
    info = {
        "codebase_version": "v3.0",
        "robot_type": selection.robot_type,
        "total_episodes": len(selection.episodes),
        "total_frames": selection.frames,
        "total_tasks": len(selection.tasks),
        "chunks_size": caps.files_per_chunk,
        "data_files_size_in_mb": plain_number(caps.data_mb),
        "video_files_size_in_mb": plain_number(caps.video_mb),
        "fps": plain_number(selection.fps),
        "splits": {"train": f"0:{len(selection.episodes)}"},
        "data_path": DATA_PATH,
        "video_path": VIDEO_PATH if selection.cameras else None,
        "features": feature_entries(selection, infos),
    }
    write_json(root / "meta" / "info.json", info)


def feature_entries(selection: Selection, infos: Infos) -> dict[str, Any]:
    """info.json's `features`, which v2.1 and v3.0 write alike."""
    features: dict[str, Any] = {}
    for name, feature in selection.features.items():
        if feature.is_image:
            features[name] = _picture_entry(feature)
        else:
            features[name] = _camera_entry(infos[name]) if feature.is_camera else _vector_entry(feature)
    for name, dtype in INDEX_DTYPES.items():
        features[name] = {"dtype": dtype, "shape": [1], "names": None}
    return features


def plain_number(value: float) -> int | float:
    """Whole numbers without a fraction, as lerobot writes fps."""
    return int(value) if value == int(value) else value


def _vector_entry(feature: Feature) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "dtype": feature.dtype,
        "shape": list(feature.shape),
        "names": list(feature.names) if feature.names is not None else None,
    }
    if feature.fields:
        entry["field_descriptions"] = {
            name: {"indices": list(indices), "dimensions": len(indices)}
            for name, indices in feature.fields.items()
        }
    return entry


def _camera_entry(infos: Sequence[VideoInfo]) -> dict[str, Any]:
    """What is not true of all files is left out: no reader needs it, and each file says it of itself."""
    info = infos[0]
    entry: dict[str, Any] = {
        "dtype": "video",
        "shape": [info.height, info.width, 3],
        "names": ["height", "width", "channels"],
        "info": {
            "video.height": info.height,
            "video.width": info.width,
            "video.codec": info.codec,
            "video.pix_fmt": info.pix_fmt,
            "video.is_depth_map": False,
            "video.fps": plain_number(float(info.fps)),
            "video.channels": 1 if info.pix_fmt in CHANNELS_OF_GREY else 3,
            "has_audio": info.has_audio,
        },
    }
    for key, values in (("codec", {i.codec for i in infos}), ("pix_fmt", {i.pix_fmt for i in infos})):
        if len(values) > 1:
            del entry["info"][f"video.{key}"]
    return entry


def _picture_entry(feature: Feature) -> dict[str, Any]:
    return {"dtype": "image", "shape": list(feature.shape), "names": ["height", "width", "channels"]}


def write_stats(root: Path, stats: Mapping[str, Stats]) -> None:
    write_json(root / "meta" / "stats.json", {name: entry.to_json() for name, entry in stats.items()})


def write_tasks(root: Path, tasks: Sequence[str]) -> None:
    """tasks.parquet as every lerobot reads it: task text as the pandas index, row number = task_index.

    The index bears the name `task`, as lerobot writes it from 0.5 on; up to 0.4.4 it was nameless, and all
    of them look the text up by position.
    """
    columns = [
        {"name": "task_index", "pandas_type": "int64", "numpy_type": "int64"},
        {"name": "task", "pandas_type": "unicode", "numpy_type": "object"},
    ]
    pandas = {
        "index_columns": ["task"],
        "column_indexes": [{"name": None, "pandas_type": "unicode", "numpy_type": "object"}],
        "columns": [{**column, "field_name": column["name"], "metadata": None} for column in columns],
        "creator": {"library": "pyarrow", "version": pa.__version__},
        "pandas_version": "2.0.0",
    }
    schema = pa.schema(
        [("task_index", pa.int64()), ("task", pa.string())], metadata={"pandas": json.dumps(pandas)}
    )
    target = root / "meta" / "tasks.parquet"
    target.parent.mkdir(parents=True, exist_ok=True)
    columns_written = [values_of(range(len(tasks)), pa.int64()), values_of(tasks, pa.string())]
    pq.write_table(pa.Table.from_arrays(columns_written, schema=schema), target)


def write_episodes(
    root: Path,
    selection: Selection,
    plan: FilePlan,
    stats: Iterator[Mapping[str, Stats]],
) -> None:
    """meta/episodes: one row an episode in the converter's column order.

    A row group holds at most `EPISODES_AT_ONCE`: with all statistics of all episodes, memory would grow with
    their number. lerobot's recorder writes groups of ten.

    Args:
        stats: feature -> statistics, of each episode in order; taken as they are needed.
    """
    by_index = {selected.episode.index: selected for selected in selection.episodes}
    data_place = {
        selected.episode.index: (entry.chunk, entry.file)
        for entry in plan.data
        for selected in entry.episodes
    }
    clip_place = clip_places(plan)
    first = first_indices(selection)
    for number, group in enumerate(plan.episode_rows):
        chunk, file = divmod(number, plan.caps.files_per_chunk)
        target = root / EPISODES_PATH.format(chunk_index=chunk, file_index=file)
        target.parent.mkdir(parents=True, exist_ok=True)
        with ExitStack() as stack:
            writer = None
            for start in range(0, len(group), EPISODES_AT_ONCE):
                part = group[start : start + EPISODES_AT_ONCE]
                rows = [
                    _place_columns(by_index[index], first[index], data_place[index], selection, clip_place)
                    for index in part
                ]
                table = _episode_table(rows, list(islice(stats, len(part))), chunk, file)
                writer = writer or stack.enter_context(pq.ParquetWriter(target, table.schema))
                writer.write_table(table)
                give_back()  # or what one part needed is kept beside the next one's


def _episode_table(
    rows: Sequence[Mapping[str, Any]], stats: Sequence[Mapping[str, Stats]], chunk: int, file: int
) -> pa.Table:
    own = {name: [row[name] for row in rows] for name in rows[0]}
    columns = {name: values_of(values, _arrow_type(values[0])) for name, values in own.items()}
    columns |= _stats_columns(stats)
    for name, number in (("chunk", chunk), ("file", file)):
        columns[f"meta/episodes/{name}_index"] = values_of([number] * len(rows), pa.int64())
    return pa.Table.from_arrays([*columns.values()], names=[*columns])


def _stats_columns(entries: Sequence[Mapping[str, Stats]]) -> dict[str, pa.Array]:
    """`stats/FEATURE/STAT`, one value an episode. Never as Python numbers: there may be thousands of rows."""
    columns = {}
    for feature in entries[0]:
        for stat in (field.name for field in fields(Stats)):
            values = np.stack([getattr(entry[feature], stat) for entry in entries])
            columns[f"stats/{feature}/{stat}"] = nested_of(values)
    return columns


def _place_columns(
    selected: Selected,
    first: int,
    data_place: tuple[int, int],
    selection: Selection,
    clip_place: Mapping[tuple[str, int], ClipPlace],
) -> dict[str, Any]:
    episode = selected.episode
    row: dict[str, Any] = {
        "episode_index": episode.index,
        "data/chunk_index": data_place[0],
        "data/file_index": data_place[1],
        "dataset_from_index": first,
        "dataset_to_index": first + episode.length,
    }
    for camera in selection.cameras:
        place = clip_place[camera, episode.index]
        row[f"videos/{camera}/chunk_index"] = place.chunk
        row[f"videos/{camera}/file_index"] = place.file
        row[f"videos/{camera}/from_timestamp"] = place.start / selection.fps
        row[f"videos/{camera}/to_timestamp"] = (place.start + episode.length) / selection.fps
    row["tasks"] = list(episode.tasks)
    row["length"] = episode.length
    return row


def first_indices(selection: Selection) -> dict[int, int]:
    """Episode index -> global index of its first row."""
    first, starts = 0, {}
    for selected in selection.episodes:
        starts[selected.episode.index] = first
        first += selected.episode.length
    return starts


def clip_places(plan: FilePlan) -> dict[tuple[str, int], ClipPlace]:
    """(camera, episode index) -> place, from cumulative frame counts."""
    places = {}
    for entry in plan.videos:
        start = 0
        for index, clip in zip(entry.episodes, entry.clips, strict=True):
            places[entry.camera, index] = ClipPlace(entry.chunk, entry.file, start)
            start += clip.count
    return places


def _arrow_type(value: Any) -> pa.DataType:
    """int64 for whole numbers, double for the rest, however deep."""
    if isinstance(value, list):
        return pa.list_(_arrow_type(value[0]) if value else pa.string())
    if isinstance(value, str):
        return pa.string()
    return pa.int64() if isinstance(value, int) else pa.float64()
