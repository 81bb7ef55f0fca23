"""Which files a dataset's folder holds, and where info.json's path templates lead."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from stack.dataset.read_meta import Notes
from stack.errors import BadRequest

LEFT_OVERS_SHOWN = 5


def files_below(folder: Path, suffix: str | tuple[str, ...] = "") -> list[Path]:
    """All files below a folder whose names end so, sorted by path; linked folders are entered, once each."""
    found: list[str] = []
    entered: set[str] = set()
    for here, folders, names in os.walk(folder, followlinks=True):
        real = os.path.realpath(here)
        if real in entered:  # a link to a folder above it
            folders.clear()
            continue
        entered.add(real)
        folders.sort()
        found.extend(os.path.join(here, name) for name in names if name.endswith(suffix))
    there = (file for file in found if os.path.isfile(file) or os.path.islink(file))
    return [Path(file) for file in sorted(there, key=lambda file: file.split(os.sep))]


def video_suffixes(template: object) -> tuple[str, ...]:
    """How names of video files end: lerobot writes .mp4, and opens whatever `video_path` leads to."""
    own = PurePosixPath(template).suffix if isinstance(template, str) else ""
    return (".mp4", own) if own else (".mp4",)


def fill_template(root: Path, key: str, template: object, values: Mapping[str, Any]) -> Path | None:
    """The file that a path template of info.json leads to; None where it cannot be filled in.

    Raises:
        BadRequest: the path leaves the dataset's folder. (Links that lie inside it are their owner's choice.)
    """
    try:
        given = str(template).format(**values)
        path = root / given
    except (KeyError, ValueError, IndexError, AttributeError, TypeError, MemoryError):
        return None  # MemoryError: {episode_index:0999999999999d}
    if not _is_inside(os.path.normpath(path), os.path.normpath(root)):
        raise BadRequest(
            "dataset-path-outside",
            f"{key} '{template}' of info.json leads to '{given}', which leaves the dataset's folder",
            where=str(root / "meta" / "info.json"),
            do=f"correct {key}, or the camera's name",
        )
    return path


def _is_inside(path: str, folder: str) -> bool:
    """Of two normal paths, as `Path.is_relative_to`, which takes ten times as long."""
    if folder == os.curdir:
        return not os.path.isabs(path) and path.split(os.sep, 1)[0] != os.pardir
    return path == folder or path.startswith(folder.rstrip(os.sep) + os.sep)


def note_left_overs(root: Path, used: set[Path], notes: Notes) -> None:
    """Note files below data/ and videos/, and whole folders of scratch pictures, that nothing refers to."""
    below = [file for top in ("data", "videos", "video") for file in files_below(root / top)]
    left = [file.relative_to(root).as_posix() for file in below if file not in used]
    if pictures := len(files_below(root / "images")):
        left.append(f"images/ ({pictures} files)")
    if left:
        shown = ", ".join(left[:LEFT_OVERS_SHOWN])
        more = f" and {len(left) - LEFT_OVERS_SHOWN} more" if len(left) > LEFT_OVERS_SHOWN else ""
        notes.append(("left-over-files", f"{shown}{more}: nothing refers to them; they are left out"))
