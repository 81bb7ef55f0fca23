"""Small meta files of any version: info.json, features, task tables, JSON lines, parquet footers."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from stack.dataset.model import Feature
from stack.errors import BadRequest

LFS_MARK = b"version https://git-lfs"
PARQUET_MARK = b"PAR1"
CHANNEL_COUNTS = (1, 3, 4)
AGAIN_OR_LINE = "fetch this file again, or correct the line"

Notes = list[tuple[str, str]]


def read_info(root: Path) -> dict[str, Any]:
    """Parse meta/info.json and make sure that fps and features can be used.

    Raises:
        BadRequest: missing, not JSON, a Git-LFS pointer, no features, no positive fps.
    """
    file = root / "meta" / "info.json"
    if not root.is_dir():
        raise BadRequest(
            "dataset-missing",
            "there is no such dataset folder",
            where=str(root),
            do="correct the path; a relative one counts from the manifest's folder, or on the command line "
            "from the current one",
        )
    if not file.is_file():
        raise BadRequest(
            "dataset-info-missing",
            "meta/info.json is not there, so this is no LeRobot dataset",
            where=str(root),
            do="name the folder that holds meta/, data/ and videos/",
        )
    refuse_pointer(file)
    try:
        info = json.loads(file.read_text(encoding="utf-8-sig"))
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadRequest(
            "dataset-info-not-json",
            f"meta/info.json is not JSON: {error}",
            where=str(file),
            do="fetch this file again, or correct it at that place",
        ) from error
    if not isinstance(info, dict) or not isinstance(info.get("features"), dict) or not info["features"]:
        raise BadRequest(
            "dataset-info-no-features",
            "meta/info.json declares no features",
            where=str(file),
            do="fetch this file again, or write dtype, shape and names of each column under 'features'",
        )
    fps = info.get("fps")
    if isinstance(fps, bool) or not isinstance(fps, (int, float)) or not 0 < fps < math.inf:
        raise BadRequest(
            "dataset-info-no-fps",
            f"fps must be a positive number, not {fps!r}",
            where=str(file),
            do="write the frames per second of the recording as 'fps' into this file",
        )
    return info


def read_features(info: Mapping[str, Any], notes: Notes) -> dict[str, Feature]:
    """All features of info.json, made regular; what had to be guessed goes to `notes`."""
    features = {}
    for name, raw in info["features"].items():
        if not isinstance(raw, dict) or not isinstance(raw.get("dtype"), str):
            notes.append(("feature-unreadable", f"{name}: no dtype; the feature is left out"))
            continue
        features[name] = _feature(name, raw, notes)
    return features


def _feature(name: str, raw: dict[str, Any], notes: Notes) -> Feature:
    shape = _shape(name, raw, notes)
    if raw["dtype"] in ("video", "image"):
        return Feature(name, raw["dtype"], _height_first(name, shape, notes), raw=raw)
    names = None
    if len(shape) == 1:
        given = flatten_names(raw.get("names"))
        if given is not None and len(given) == shape[0]:
            names = given
        elif given is not None:
            notes.append(
                ("names-length", f"{name}: {len(given)} names for {shape[0]} channels; they are not used")
            )
    return Feature(name, raw["dtype"], shape, names, _fields(name, shape, raw, notes), raw)


def _shape(name: str, raw: dict[str, Any], notes: Notes) -> tuple[int, ...]:
    shape = raw.get("shape")
    if isinstance(shape, int):
        shape = [shape]
    sizes = [whole_number(size) for size in shape] if isinstance(shape, (list, tuple)) else [None]
    if not all(size is not None and size > 0 for size in sizes):
        notes.append(("shape-unreadable", f"{name}: shape {shape!r}; taken as one value a frame"))
        return (1,)
    return tuple(size for size in sizes if size is not None) or (1,)


def _height_first(name: str, shape: tuple[int, ...], notes: Notes) -> tuple[int, ...]:
    if len(shape) == 3 and shape[0] in CHANNEL_COUNTS and shape[2] not in CHANNEL_COUNTS:
        notes.append(("camera-channel-first", f"{name}: shape {list(shape)} has the channels first"))
        return (shape[1], shape[2], shape[0])
    return shape


def flatten_names(names: Any) -> tuple[str, ...] | None:
    """Channel names in any of the forms in use: list, list of lists, dict of lists, dict name -> position."""
    if isinstance(names, str):
        return (names,)
    if isinstance(names, dict):
        if names and all(isinstance(v, int) and not isinstance(v, bool) for v in names.values()):
            return tuple(str(key) for key in sorted(names, key=lambda key: int(names[key])))
        names = list(names.values())
    if not isinstance(names, list):
        return None
    flat: list[str] = []
    for item in names:
        inner = flatten_names(item) if isinstance(item, (list, dict)) else (str(item),)
        flat.extend(inner or ())
    return tuple(flat)


def _fields(
    name: str, shape: tuple[int, ...], raw: dict[str, Any], notes: Notes
) -> dict[str, tuple[int, ...]]:
    table = raw.get("field_descriptions")
    if not isinstance(table, dict):
        return {}
    fields = {}
    for field, entry in table.items():
        indices = entry.get("indices") if isinstance(entry, dict) else None
        if not isinstance(indices, list) or not all(
            isinstance(i, int) and 0 <= i < shape[0] for i in indices
        ):
            notes.append(("field-unreadable", f"{name}: field '{field}' has no usable indices"))
            continue
        fields[field] = tuple(indices)
    return fields


def whole_number(value: object) -> int | None:
    """An integer, however it is stored; None for anything else, NaN and infinity included."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return int(value) if math.isfinite(value) and value == int(value) else None


def read_json_lines(file: Path) -> Iterator[dict[str, Any]]:
    """The objects of a JSON-lines file; blank lines are skipped.

    Raises:
        BadRequest: a line is not a JSON object; the line's number is named.
    """
    refuse_pointer(file)
    with file.open("rb") as raw:
        yield from _objects(raw, file)


def _objects(raw: Iterable[bytes], file: Path) -> Iterator[dict[str, Any]]:
    for number, coded in enumerate(raw, 1):  # line by line: statistics of thousands of episodes are long
        try:
            line = coded.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            raise BadRequest(
                "dataset-meta-not-text",
                f"not UTF-8 text: {error}",
                where=f"{file}:{number}",
                do=AGAIN_OR_LINE,
            ) from error
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
        except (json.JSONDecodeError, RecursionError) as error:
            raise BadRequest(
                "dataset-meta-not-json",
                f"this line is not JSON: {error}",
                where=f"{file}:{number}",
                do=AGAIN_OR_LINE,
            ) from error
        if not isinstance(entry, dict):
            raise BadRequest(
                "dataset-meta-not-json", "this line is no object", where=f"{file}:{number}", do=AGAIN_OR_LINE
            )
        yield entry


def read_tasks(root: Path, notes: Notes) -> dict[int, str]:
    """task_index -> text, by key, from tasks.jsonl or either layout of tasks.parquet."""
    parquet, lines = root / "meta" / "tasks.parquet", root / "meta" / "tasks.jsonl"
    if parquet.is_file():
        pairs = _tasks_of_parquet(parquet)
    elif lines.is_file():
        pairs = [(entry.get("task_index"), entry.get("task")) for entry in read_json_lines(lines)]
    else:
        notes.append(("tasks-missing", "there is no task table in meta/"))
        return {}
    tasks: dict[int, str] = {}
    for given, text in pairs:
        key = whole_number(given)
        if key is None or not isinstance(text, str):
            notes.append(("task-unreadable", f"task_index {given!r} with text {text!r} is left out"))
        elif tasks.setdefault(key, text) != text:
            notes.append(("task-index-twice", f"task_index {key} is both '{tasks[key]}' and '{text}'"))
    return tasks


def _tasks_of_parquet(file: Path) -> list[tuple[Any, Any]]:
    table = read_table(file)
    if "task_index" not in table.column_names:
        raise BadRequest(
            "dataset-tasks-no-key",
            "tasks.parquet has no task_index column",
            where=str(file),
            do="fetch this file again, or add the column: the number that the rows have for each text",
        )
    # lerobot up to 0.4.4 leaves the pandas index unnamed; hand-made files use a plain column.
    for column in ("task", "__index_level_0__"):
        if column in table.column_names:
            texts = table.column(column).to_pylist()
            return list(zip(table.column("task_index").to_pylist(), texts, strict=True))
    raise BadRequest(
        "dataset-tasks-no-text",
        "tasks.parquet has no column of task texts",
        where=str(file),
        do="fetch this file again, or add the texts as the column 'task'",
    )


def task_texts(entry: Mapping[str, Any], tasks: Mapping[int, str]) -> tuple[str, ...]:
    """The task texts of an episode's entry in meta/; the only task of the table where the entry has none."""
    given = entry.get("tasks")
    if isinstance(given, str):
        given = [given]
    if isinstance(given, list):
        return tuple(tasks.get(t, str(t)) if isinstance(t, int) else str(t) for t in given)
    return (next(iter(tasks.values())),) if len(tasks) == 1 else ()


def refuse_pointer(file: Path) -> None:
    """Refuse a Git-LFS pointer or an empty file where a payload is expected."""
    size = file.stat().st_size
    if size == 0:
        raise BadRequest(
            "dataset-file-empty", "the file has zero bytes", where=str(file), do="fetch this file again"
        )
    with file.open("rb") as handle:
        head = handle.read(len(LFS_MARK))
    if head == LFS_MARK:
        raise BadRequest(
            "dataset-lfs-pointer",
            "a Git-LFS pointer lies here in place of the file itself",
            where=str(file),
            do=f"run `git lfs pull` in {file.parent}",
        )


def open_parquet(file: Path) -> pq.ParquetFile:
    """Open a parquet file's footer; nothing else is read.

    Raises:
        BadRequest: missing, zero bytes, a Git-LFS pointer, truncated, not parquet.
    """
    if not file.is_file():
        if file.is_symlink():
            raise BadRequest(
                "dataset-file-missing",
                f"a link lies here, and what it leads to is not there: {file.readlink()}",
                where=str(file),
                do="fetch what the link leads to, or put the file itself in its place",
            )
        raise BadRequest(
            "dataset-file-missing", "the file is not there", where=str(file), do="fetch this file again"
        )
    refuse_pointer(file)
    size = file.stat().st_size
    with file.open("rb") as handle:
        starts = handle.read(4) == PARQUET_MARK
        handle.seek(max(0, size - 4))
        ends = handle.read(4) == PARQUET_MARK
    if starts and not (ends and size >= 12):
        raise BadRequest(
            "dataset-file-truncated",
            f"the parquet file ends early: its {size} bytes have no footer",
            where=str(file),
            do="fetch this file again",
        )
    try:
        return pq.ParquetFile(file)
    except (pa.ArrowException, OSError) as error:
        raise BadRequest(
            "dataset-file-not-parquet",
            f"not a parquet file: {error}",
            where=str(file),
            do="fetch this file again, or move it out of the dataset if it is none of its files",
        ) from error


def read_table(file: Path, *, leave_out: str | None = None) -> pa.Table:
    """A whole small parquet file; a column that occurs twice is kept once, the first.

    Args:
        leave_out: columns whose name begins so are not read.
    """
    with open_parquet(file) as parquet:
        names = parquet.schema_arrow.names
        kept = [name for name in names if leave_out is None or not name.startswith(leave_out)]
        try:
            table = parquet.read(columns=kept if len(kept) < len(names) else None, use_threads=False)
        except (pa.ArrowException, OSError) as error:
            raise BadRequest(
                "dataset-file-damaged",
                f"cannot be read: {error}",
                where=str(file),
                do="fetch this file again",
            ) from error
    seen: dict[str, int] = {}
    for position, column in enumerate(table.column_names):
        if column in kept:  # pyarrow takes `action.raw` for a part of `action`, too
            seen.setdefault(column, position)
    return table.select(list(seen.values()))
