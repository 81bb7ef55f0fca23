"""Any LeRobot dataset on disk -> `Dataset`: lazy, tolerant, never a hub."""

from __future__ import annotations

from collections.abc import Container
from pathlib import Path

from stack.dataset.missing import note_undeclared_columns
from stack.dataset.model import Dataset
from stack.dataset.read_files import files_below
from stack.dataset.read_meta import Notes, read_features, read_info, read_tasks
from stack.dataset.read_v2 import read_episodes_v2
from stack.dataset.read_v30 import read_episodes_v30


def read_dataset(root: Path, *, name: str | None = None, leave_out: Container[int] = ()) -> Dataset:
    """Read a dataset of version v2.0, v2.1 or v3.0.

    Only meta files and parquet footers are read (for v3.0 also the rows' own episode numbers). Lengths are
    counted from rows, never taken from info.json. A clip's `count` is the number of rows that claim it; only
    probing the video tells whether it holds them.

    Args:
        root: the folder that holds meta/, data/ and videos/.
        name: what messages and provenance call it; the folder's name if not given.
        leave_out: episodes that the caller will not use: where their rows are missing, in two places, or
            cannot be read, they are in the result without rows instead of being an error.

    Raises:
        BadRequest: what cannot be read at all: no info.json, not JSON, no rows, a Git-LFS pointer, an empty
            or truncated parquet file. What was worked around is in the result's `notes`.
    """
    info = read_info(root)
    notes: Notes = []
    version = _version(root, info.get("codebase_version"), notes)
    features = read_features(info, notes)
    tasks = read_tasks(root, notes)
    source = name or root.resolve().name
    read_episodes = read_episodes_v30 if version == "v3.0" else read_episodes_v2
    episodes, absent = read_episodes(root, source, info, features, tasks, notes, leave_out)
    there = [episode for episode in episodes if episode.rows.file != root]
    note_undeclared_columns(there, features, notes)
    robot_type = info.get("robot_type")
    return Dataset(
        name=source,
        root=root,
        version=version,
        fps=float(info["fps"]),
        robot_type=robot_type if isinstance(robot_type, str) else None,
        features=features,
        episodes=episodes,
        tasks=tasks,
        info=info,
        notes=tuple(notes),
        absent=absent,
    )


def dataset_version(root: Path) -> str:
    """`v2.0`, `v2.1` or `v3.0`, as the layout shows.

    Raises:
        BadRequest: no dataset is there.
    """
    return _version(root, read_info(root).get("codebase_version"), [])


def _version(root: Path, declared: object, notes: Notes) -> str:
    """The version that the layout shows; a declaration that differs is noted."""
    meta = root / "meta"
    if files_below(meta / "episodes", ".parquet"):
        version = "v3.0"
    elif (meta / "episodes_stats.jsonl").is_file():
        version = "v2.1"
    elif (meta / "stats.json").is_file() and not str(declared).startswith("v3"):
        version = "v2.0"
    else:
        version = str(declared) if str(declared) in ("v2.0", "v2.1", "v3.0") else "v2.1"
    if declared != version:
        notes.append(
            ("version-differs", f"info.json says version {declared!r}, the layout is that of {version}")
        )
    return version
