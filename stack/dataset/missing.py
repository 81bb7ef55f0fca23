"""Index columns that rows lack, columns that nobody declared, and episodes whose rows are not there."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Container, Mapping, Sequence
from pathlib import Path
from typing import Any

from stack.dataset.model import INDEX_FEATURES, Absent, Episode
from stack.dataset.read_meta import Notes, whole_number
from stack.dataset.rows import column_names


def note_missing_columns(episodes: Sequence[Episode], notes: Notes) -> None:
    """Note each index column that some episode lacks; writing derives them."""
    missing: dict[str, list[int]] = {}
    for episode in episodes:
        columns = set(column_names(episode.rows))
        for column in INDEX_FEATURES:
            if column not in columns:
                missing.setdefault(column, []).append(episode.index)
    for column, where in missing.items():
        shown = "all episodes" if len(where) == len(episodes) else f"episodes {where}"
        notes.append(("column-missing", f"{column} is missing in {shown}; it is derived when writing"))


def note_undeclared_columns(episodes: Sequence[Episode], declared: Container[str], notes: Notes) -> None:
    """Note each column that info.json does not list: no reader sees it, and nothing of it is written."""
    found: dict[str, list[int]] = {}
    for episode in episodes:
        for column in column_names(episode.rows):
            if column not in declared and column not in INDEX_FEATURES:
                found.setdefault(column, []).append(episode.index)
    for column, where in found.items():
        shown = "all episodes" if len(where) == len(episodes) else f"episodes {where}"
        notes.append(
            (
                "column-undeclared",
                f"the rows of {shown} have a column '{column}' that info.json does not list; it is left out",
            )
        )


def absent_episodes(
    listed: Mapping[int, Mapping[str, Any]],
    there: Collection[int],
    leave_out: Container[int],
    *,
    root: Path,
    data_file: Callable[[int], Path | None],
    has_video: Callable[[int], bool],
) -> tuple[Absent, ...]:
    """Listed episodes without rows, ascending.

    Args:
        there: episodes that have rows.
        data_file: where the rows of an episode should lie.
        has_video: whether a video of an episode is there.
    """
    last = max(there, default=-1)
    absent = []
    for index in sorted(set(listed) - set(there)):
        if index in leave_out:
            continue
        file = data_file(index)
        is_empty = whole_number(listed[index].get("length")) == 0
        absent.append(
            Absent(
                index,
                "" if file is None else Path(os.path.relpath(file, root)).as_posix(),
                not is_empty and (index < last or has_video(index)),
            )
        )
    return tuple(absent)


def left_out(index: int) -> tuple[str, str]:
    """The note of an episode whose rows cannot be read and that nobody will use."""
    return "episode-left-out", f"episode {index} has no rows that can be read, and is left out"
