"""Episodes of v2.0 and v2.1 datasets: one parquet file an episode, one video file an episode and camera."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from stack.dataset.missing import absent_episodes, left_out, note_missing_columns
from stack.dataset.model import Absent, ClipRef, Episode, Feature, Origin, RowsRef
from stack.dataset.read_files import files_below, fill_template, note_left_overs, video_suffixes
from stack.dataset.read_meta import (
    Notes,
    open_parquet,
    read_json_lines,
    task_texts,
    whole_number,
)
from stack.dataset.rows import row_count
from stack.errors import BadRequest

DATA_PATH = "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet"
VIDEO_PATH = "videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4"
_EPISODE = re.compile(r"^episode[_-](\d+)$")

Found = dict[int, list[Path]]


def read_episodes_v2(
    root: Path,
    source: str,
    info: Mapping[str, Any],
    features: Mapping[str, Feature],
    tasks: Mapping[int, str],
    notes: Notes,
    leave_out: Container[int] = (),
) -> tuple[tuple[Episode, ...], tuple[Absent, ...]]:
    """All episodes that have rows, ascending, and those that are listed and have none.

    Lengths are counted from the parquet footers.
    """
    files = _data_files(root, info, notes, leave_out)
    listed = _listed_episodes(root, notes)
    copies = _copies(root, files, listed, notes, leave_out)
    files = {index: file for index, file in files.items() if index not in copies}
    if gone := sorted(set(listed) - set(files)):
        notes.append(("episodes-without-rows", f"listed in meta/ but without a data file: {gone}"))
    if listed and (extra := sorted(set(files) - set(listed))):
        notes.append(("episodes-not-listed", f"have a data file but are not in episodes.jsonl: {extra}"))
    cameras = [name for name, feature in features.items() if feature.dtype == "video"]
    endings = video_suffixes(info.get("video_path"))
    tops = ("videos", "video") if cameras else ()
    below = [file for top in tops for file in files_below(root / top, endings)]
    clips = {c: _video_files(root, info, c, below, sorted(files), notes, leave_out) for c in cameras}
    episodes = []
    for index, file in sorted(files.items()):
        try:
            length = row_count(file)
        except BadRequest:
            if index not in leave_out:
                raise
            gone.append(index)
            continue
        entry = listed.get(index, {})
        if whole_number(entry.get("length")) not in (None, length):
            notes.append(
                ("length-differs", f"episode {index}: {entry['length']} frames listed, {length} rows")
            )
        episodes.append(
            Episode(
                index=index,
                length=length,
                tasks=task_texts(entry, tasks),
                rows=RowsRef(file, 0, length),
                clips={c: ClipRef(found[index], 0, length) for c, found in clips.items() if index in found},
                origin=Origin(source, index),
            )
        )
    note_missing_columns(episodes, notes)
    for index in gone:
        if index in leave_out:
            notes.append(left_out(index))
            episodes.append(Episode(index, 0, (), RowsRef(root, 0, 0), {}, Origin(source, index)))
    episodes.sort(key=lambda episode: episode.index)
    used = set(files.values()) | {file for found in clips.values() for file in found.values()}
    used |= set(copies.values())
    note_left_overs(root, used, notes)
    template = info.get("data_path") or DATA_PATH
    absent = absent_episodes(
        listed,
        files,
        leave_out,
        root=root,
        data_file=lambda index: _resolve(root, "data_path", template, info, index, ""),
        has_video=lambda index: any(index in found for found in clips.values()),
    )
    return tuple(episodes), absent


def _copies(
    root: Path,
    files: Mapping[int, Path],
    listed: Mapping[int, Any],
    notes: Notes,
    leave_out: Container[int],
) -> dict[int, Path]:
    """Row files that nothing lists and whose rows say that they are of a listed episode: left-overs."""
    copies = {}
    for index in sorted(set(files) - set(listed)) if listed else ():
        own = None if index in leave_out else _own_number(files[index])
        if own is None or own == index or own not in listed:
            continue
        copies[index] = files[index]
        notes.append(
            (
                "left-over-rows",
                f"{files[index].relative_to(root).as_posix()}: episode {index} is not listed, and its rows "
                f"say that they are of episode {own}, which is; the file is left out",
            )
        )
    return copies


def _own_number(file: Path) -> int | None:
    """The one episode that the rows of a file name; None where they do not agree, or cannot be read."""
    try:
        with open_parquet(file) as parquet:
            if "episode_index" not in parquet.schema_arrow.names:
                return None
            table = parquet.read(columns=["episode_index"], use_threads=False)
        numbers = set(table.column(table.column_names.index("episode_index")).to_pylist())
    except (BadRequest, pa.ArrowException, OSError, TypeError):  # TypeError: lists are not hashable
        return None
    return whole_number(next(iter(numbers))) if len(numbers) == 1 else None


def _data_files(
    root: Path, info: Mapping[str, Any], notes: Notes, leave_out: Container[int]
) -> dict[int, Path]:
    found = _by_number(files_below(root / "data", ".parquet"))
    if not found:
        raise BadRequest(
            "dataset-no-rows",
            "there is no file data/**/episode_NNNNNN.parquet, so there are no rows",
            where=str(root),
            do="fetch the data folder of this dataset",
        )
    template = info.get("data_path") or DATA_PATH
    return _choose(root, "data_path", template, info, "", found, notes, leave_out)


def _video_files(
    root: Path,
    info: Mapping[str, Any],
    camera: str,
    below: list[Path],
    episodes: list[int],
    notes: Notes,
    leave_out: Container[int],
) -> dict[int, Path]:
    found = _by_number(file for file in below if file.parent.name == camera)
    if not found:
        notes.append(("camera-without-files", f"{camera} is declared but has no video file"))
        return {}
    template = info.get("video_path") or VIDEO_PATH
    files = _choose(root, "video_path", template, info, camera, found, notes, leave_out)
    if missing := [episode for episode in episodes if episode not in files]:
        notes.append(("clips-missing", f"{camera} has no video file for episodes {missing}"))
    return files


def _by_number(files: Iterable[Path]) -> Found:
    found: Found = {}
    for file in files:
        if match := _EPISODE.match(file.stem):
            found.setdefault(int(match[1]), []).append(file)
    return found


def _choose(
    root: Path,
    key: str,
    template: object,
    info: Mapping[str, Any],
    camera: str,
    found: Found,
    notes: Notes,
    leave_out: Container[int],
) -> dict[int, Path]:
    """One file an episode: the template's where it exists, else the only one with that number."""
    chosen, elsewhere = {}, []
    for index, candidates in sorted(found.items()):
        expected = _resolve(root, key, template, info, index, camera)
        if expected is not None and expected in candidates:
            chosen[index] = expected
            if len(candidates) > 1:
                others = [str(c.relative_to(root)) for c in candidates if c != expected]
                notes.append(("stray-files", f"episode {index}: not named by the template: {others}"))
            continue
        if len(candidates) > 1 and index in leave_out:
            continue
        if len(candidates) > 1:
            names = ", ".join(str(c.relative_to(root)) for c in candidates)
            raise BadRequest(
                "dataset-files-ambiguous",
                f"episode {index} has {len(candidates)} files and the template names none of them: {names}",
                where=str(root),
                do="correct the path template in info.json, or move the stray file away",
            )
        chosen[index] = candidates[0]
        elsewhere.append(index)
    if elsewhere:
        what = f"{camera}: " if camera else ""
        notes.append(
            (
                "template-unresolved",
                f"{what}template '{template}' does not lead to the files of {len(elsewhere)} episodes; "
                "they were found by their number",
            )
        )
    return chosen


def _resolve(
    root: Path, key: str, template: object, info: Mapping[str, Any], episode: int, camera: str
) -> Path | None:
    size = whole_number(info.get("chunks_size"))
    chunk = episode // size if size is not None and size >= 1 else 0
    keys = {"episode_chunk": chunk, "chunk_index": chunk, "episode_index": episode, "video_key": camera}
    return fill_template(root, key, template, keys)


def _listed_episodes(root: Path, notes: Notes) -> dict[int, dict[str, Any]]:
    file = root / "meta" / "episodes.jsonl"
    if not file.is_file():
        notes.append(
            ("episodes-list-missing", "meta/episodes.jsonl is not there; episodes come from the files")
        )
        return {}
    listed: dict[int, dict[str, Any]] = {}
    for entry in read_json_lines(file):
        index = whole_number(entry.get("episode_index"))
        if index is None:
            given = entry.get("episode_index")
            notes.append(("episode-unreadable", f"episodes.jsonl has an entry with episode_index {given!r}"))
        elif index in listed:
            notes.append(("episode-listed-twice", f"episode {index} is listed twice; the first one counts"))
        else:
            listed[index] = entry
    return listed
