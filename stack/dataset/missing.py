"""Index columns that rows lack, columns that nobody declared, and episodes whose rows are not there."""

from __future__ import annotations

from collections.abc import Container, Sequence

from stack.dataset.model import INDEX_FEATURES, Episode
from stack.dataset.read_meta import Notes
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


def left_out(index: int) -> tuple[str, str]:
    """The note of an episode whose rows cannot be read and that nobody will use."""
    return "episode-left-out", f"episode {index} has no rows that can be read, and is left out"
