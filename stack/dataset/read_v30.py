"""Episodes of v3.0 datasets in all dialects: many episodes a file, addressed by key."""

from __future__ import annotations

import re
from collections.abc import Container, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from stack.dataset.arrow import numbers_of
from stack.dataset.memory import give_back
from stack.dataset.missing import absent_episodes, left_out, note_missing_columns
from stack.dataset.model import Absent, ClipRef, Episode, Feature, Origin, RowsRef
from stack.dataset.read_clips import Videos, clips_of
from stack.dataset.read_files import files_below, fill_template, note_left_overs
from stack.dataset.read_meta import (
    Notes,
    open_parquet,
    read_json_lines,
    read_table,
    task_texts,
    whole_number,
)
from stack.errors import BadRequest

DATA_PATH = "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
NUMBERS = (
    "write each row's episode number into the column episode_index; or remove the column, and "
    "dataset_from_index of meta/episodes counts"
)
MANY_GROUPS = 50  # from here on, what a footer and its columns needed is worth giving back


def read_episodes_v30(
    root: Path,
    source: str,
    info: Mapping[str, Any],
    features: Mapping[str, Feature],
    tasks: Mapping[int, str],
    notes: Notes,
    leave_out: Container[int] = (),
) -> tuple[tuple[Episode, ...], tuple[Absent, ...]]:
    """All episodes that have rows, ascending by episode_index, and those that are listed and have none.

    Rows are found by their own episode_index (or, without that column, by dataset_from_index), never by the
    file numbers of the episode table: several releases of the official converter write those wrong.
    """
    table = _episode_table(root, notes)
    rows = _rows_by_episode(root, table, leave_out)
    if gone := sorted(set(table) - set(rows)):
        notes.append(("episodes-without-rows", f"listed in meta/ but without rows: {gone}"))
    if extra := sorted(set(rows) - set(table)):
        notes.append(("episodes-not-listed", f"have rows but are not in the episode table: {extra}"))
    for index in sorted(set(rows) & set(table)):
        listed = whole_number(table[index].get("length"))
        if listed not in (None, rows[index].count):
            notes.append(
                ("length-differs", f"episode {index}: {listed} frames listed, {rows[index].count} rows")
            )
    scattered = [index for index, ref in rows.items() if ref.file == root]
    notes.extend(left_out(index) for index in sorted(scattered))
    present = {index: ref for index, ref in rows.items() if ref.file != root}
    for index in gone:
        # As long as listed, so that its pictures are counted in the files that it shares with others.
        if index in leave_out:
            rows[index] = RowsRef(root, 0, whole_number(table[index].get("length")) or 0)
            notes.append(left_out(index))
    clips: dict[int, dict[str, ClipRef]] = {index: {} for index in rows}
    cameras = [name for name, feature in features.items() if feature.dtype == "video"]
    videos = Videos(root, info, cameras, leave_out)
    for camera in cameras:
        for index, clip in clips_of(camera, videos, table, rows, notes).items():
            clips[index][camera] = clip
    episodes = tuple(
        Episode(
            index=index,
            length=ref.count,
            tasks=task_texts(table.get(index, {}), tasks),
            rows=ref,
            clips=clips[index],
            origin=Origin(source, index),
        )
        for index, ref in sorted(rows.items())
    )
    note_missing_columns([episode for episode in episodes if episode.index in present], notes)
    used = {ref.file for ref in present.values()}
    used |= {clip.file for episode in episodes for clip in episode.clips.values()}
    note_left_overs(root, used, notes)
    absent = absent_episodes(
        table,
        present.keys() | set(scattered),
        leave_out,
        root=root,
        data_file=lambda index: _data_file(root, info, table[index]),
        has_video=lambda index: any(videos.file(c, index, table[index])[0] for c in cameras),
    )
    return episodes, absent


def _data_file(root: Path, info: Mapping[str, Any], entry: Mapping[str, Any]) -> Path | None:
    """Where the episode table says that an episode's rows are: for messages, as it is often wrong."""
    numbers = {key: whole_number(entry.get(f"data/{key}")) for key in ("chunk_index", "file_index")}
    if None in numbers.values():
        return None
    keys = numbers | {"episode_index": whole_number(entry.get("episode_index"))}
    return fill_template(root, "data_path", info.get("data_path") or DATA_PATH, keys)


def _episode_table(root: Path, notes: Notes) -> dict[int, dict[str, Any]]:
    """episode_index -> its row, over all files of meta/episodes; statistics columns are left out."""
    files = files_below(root / "meta" / "episodes", ".parquet")
    entries: list[dict[str, Any]] = []
    for file in files:
        entries.extend(read_table(file, leave_out="stats/").to_pylist())
    if not files:
        lines = root / "meta" / "episodes.jsonl"
        if not lines.is_file():
            raise BadRequest(
                "dataset-no-episodes",
                "there is no file meta/episodes/**/*.parquet, which says where each episode's pictures are",
                where=str(root),
                do="fetch the folder meta/episodes of this dataset again",
            )
        entries = list(read_json_lines(lines))
    by_key: dict[int, dict[str, Any]] = {}
    for entry in entries:
        index = whole_number(entry.get("episode_index"))
        if index is None:
            notes.append(
                ("episode-unreadable", f"an episode entry has episode_index {entry.get('episode_index')!r}")
            )
        elif index not in by_key:
            by_key[index] = entry
        elif by_key[index] != entry:
            notes.append(("episode-listed-twice", f"episode {index} is listed twice; the first one counts"))
    return by_key


def _rows_by_episode(
    root: Path, table: Mapping[int, Mapping[str, Any]], leave_out: Container[int]
) -> dict[int, RowsRef]:
    files = files_below(root / "data", ".parquet")
    if not files:
        raise BadRequest(
            "dataset-no-rows",
            "there is no parquet file below data/, so there are no rows",
            where=str(root),
            do="fetch the data folder of this dataset",
        )
    rows: dict[int, RowsRef] = {}
    position = 0
    for file in files:
        try:
            count, column = _episode_column(file)
        except (BadRequest, pa.ArrowException, OSError):
            own = _episodes_of(file, table)
            if not own or not all(index in leave_out for index in own):
                raise
            position += sum(whole_number(table[index].get("length")) or 0 for index in own)
            continue
        numbers = _numbers_by_position(table, position, count) if column is None else _flat(column, file)
        position += count
        _add_runs(file, numbers, rows, root, leave_out)
    return rows


def _episode_column(file: Path) -> tuple[int, pa.ChunkedArray | None]:
    """(rows, the column episode_index or None where there is none)."""
    with open_parquet(file) as parquet:
        count = int(parquet.metadata.num_rows)
        if "episode_index" not in parquet.schema_arrow.names:
            return count, None
        groups = parquet.num_row_groups
        table = parquet.read(columns=["episode_index"], use_threads=False)
    # A file may hold a column twice; pyarrow takes `episode_index.x` for it, too.
    column = table.column(table.column_names.index("episode_index"))
    if groups >= MANY_GROUPS:
        del parquet, table
        give_back()
    return count, column


def _episodes_of(file: Path, table: Mapping[int, Mapping[str, Any]]) -> set[int]:
    """The episodes that the table says are in a row file, by the numbers in its path."""
    digits = [re.findall(r"\d+", name)[-1:] for name in (file.parent.name, file.stem)]
    if not all(digits):
        return set()
    place = tuple(int(found[0]) for found in digits)
    named = {
        index: tuple(whole_number(entry.get(f"data/{key}_index")) for key in ("chunk", "file"))
        for index, entry in table.items()
    }
    return {index for index, own in named.items() if own == place}


def _flat(column: pa.ChunkedArray, file: Path) -> NDArray[Any]:
    """The episode number of each row; one-element lists are opened."""
    count = len(column)
    while pa.types.is_list(column.type) or pa.types.is_fixed_size_list(column.type):
        import pyarrow.compute as pc

        column = pc.list_flatten(column)
    if len(column) != count or not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type)):
        raise BadRequest(
            "dataset-rows-unowned",
            f"episode_index is stored as {column.type}, not one number a row",
            where=str(file),
            do=NUMBERS,
        )
    if not len(column):
        return np.empty(0, dtype=np.int64)
    return np.concatenate([numbers_of(chunk) for chunk in column.chunks])


def _numbers_by_position(table: Mapping[int, Mapping[str, Any]], position: int, count: int) -> NDArray[Any]:
    numbers = np.full(count, -1, dtype=np.int64)
    for index, entry in table.items():
        start, stop = (
            whole_number(entry.get("dataset_from_index")),
            whole_number(entry.get("dataset_to_index")),
        )
        if start is not None and stop is not None:
            numbers[max(0, start - position) : max(0, min(count, stop - position))] = index
    return numbers


def _add_runs(
    file: Path, numbers: NDArray[Any], rows: dict[int, RowsRef], root: Path, leave_out: Container[int]
) -> None:
    """`root` in place of a file stands for rows in several places, of an episode that nobody will use."""
    cuts = np.flatnonzero(np.diff(numbers)) + 1
    bounds = [0, *cuts.tolist(), len(numbers)]
    for start, stop in pairwise(bounds):
        if start == stop:
            continue
        number = float(numbers[start])
        if whole_number(number) is None or number < 0:
            raise BadRequest(
                "dataset-rows-unowned",
                f"rows {start} to {stop} belong to no episode (episode_index "
                f"{'missing or null' if np.isnan(number) else number})",
                where=str(file),
                do=NUMBERS,
            )
        index = int(number)
        if index in rows and index in leave_out:
            rows[index] = RowsRef(root, 0, rows[index].count + stop - start)
            continue
        if index in rows:
            first = rows[index]
            raise BadRequest(
                "dataset-rows-scattered",
                f"the rows of episode {index} lie in two places: {first.file.name} from row {first.start} "
                f"({first.count} rows) and {file.name} from row {start} ({stop - start} rows)",
                where=str(file),
                do="remove the file that does not belong here, or exclude the episode (exclude_episodes)",
            )
        rows[index] = RowsRef(file, start, stop - start)
