"""Which video file of a v3.0 dataset holds an episode's pictures, and from which frame on."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Container, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from stack.dataset.model import ClipRef, RowsRef
from stack.dataset.read_files import files_below, fill_template
from stack.dataset.read_meta import Notes, whole_number
from stack.dataset.video_index import probe
from stack.errors import BadRequest, StackError

VIDEO_PATH = "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4"
FOLDERS = ("videos", "video")
EPISODE = re.compile(r"^episode[_-](\d+)$")


class Videos:
    """Finds video files: where the template leads, else by camera and number, where only one can be meant.

    Hand-made datasets hold one video an episode, in `video/` in place of `videos/`, or named episode_NNNNNN
    under a template that says file-NNN.

    Args:
        cameras: all of the dataset.
        leave_out: episodes that need no file, so that none of them is worth an error.
    """

    def __init__(
        self, root: Path, info: Mapping[str, Any], cameras: Sequence[str], leave_out: Container[int]
    ) -> None:
        self.root = root
        self.info = info
        self.template = info.get("video_path")
        self._cameras = frozenset(cameras)
        self._leave_out = leave_out

    def file(self, camera: str, index: int, entry: Mapping[str, Any]) -> tuple[Path | None, bool]:
        """(the file that holds an episode, or None; whether the template leads to it).

        Args:
            entry: the episode's row in meta/episodes.

        Raises:
            BadRequest: two files could be meant, or a path leaves the dataset's folder.
        """
        chunk = whole_number(entry.get(f"videos/{camera}/chunk_index"))
        number = whole_number(entry.get(f"videos/{camera}/file_index"))
        if number is None and f"videos/{camera}/file_index" in entry:
            return None, True  # the table knows the column and has no file for this episode
        keys = {
            "video_key": camera,
            "chunk_index": chunk if chunk is not None else 0,
            "file_index": number if number is not None else index,
            "episode_index": index,
            "episode_chunk": chunk if chunk is not None else 0,
        }
        named = fill_template(self.root, "video_path", self.template, keys)
        if named is not None and named.is_file():
            return named, True
        usual = fill_template(self.root, "video_path", VIDEO_PATH, keys)
        likely = [path for path in (named, usual) if path is not None]
        likely += [path for path in map(self._in_other_folder, likely) if path is not None]
        found = [path for path in likely if path.is_file()] + self._numbered.get((camera, index), [])
        by_real = {os.path.realpath(path): path for path in reversed(found)}
        if len(by_real) > 1 and index not in self._leave_out:
            names = ", ".join(sorted(path.relative_to(self.root).as_posix() for path in by_real.values()))
            raise BadRequest(
                "dataset-files-ambiguous",
                f"{camera}: episode {index} has {len(by_real)} files and video_path '{self.template}' names "
                f"none of them: {names}",
                where=str(self.root),
                do="correct video_path in meta/info.json, or move the stray file out of the dataset",
            )
        return (found[0] if len(by_real) == 1 else None), False

    def _in_other_folder(self, path: Path) -> Path | None:
        parts = Path(os.path.relpath(path, self.root)).parts
        other = dict(zip(FOLDERS, reversed(FOLDERS), strict=True)).get(parts[0]) if parts else None
        return self.root.joinpath(other, *parts[1:]) if other is not None else None

    @cached_property
    def _numbered(self) -> dict[tuple[str, int], list[Path]]:
        """(camera, episode) -> files called so below a folder that is called as the camera."""
        found: dict[tuple[str, int], list[Path]] = {}
        for file in (f for top in FOLDERS for f in files_below(self.root / top, ".mp4")):
            own = self._cameras.intersection(file.relative_to(self.root).parts[:-1])
            match = EPISODE.match(file.stem)
            if match and len(own) == 1:
                found.setdefault((next(iter(own)), int(match[1])), []).append(file)
        return found


def clips_of(
    camera: str,
    videos: Videos,
    table: Mapping[int, Mapping[str, Any]],
    rows: Mapping[int, RowsRef],
    notes: Notes,
) -> dict[int, ClipRef]:
    """The clip of each episode that a file of the camera holds.

    Raises:
        BadRequest: two files could be meant, or a path leaves the dataset's folder.
    """
    by_file: dict[Path, list[tuple[float, int]]] = {}
    missing, elsewhere = [], []
    for index in sorted(rows):
        entry = table.get(index, {})
        file, is_named = videos.file(camera, index, entry)
        if file is None:
            missing.append(index)
            continue
        if not is_named:
            elsewhere.append((index, file))
        start_s = entry.get(f"videos/{camera}/from_timestamp")
        if not isinstance(start_s, (int, float)) or not math.isfinite(start_s):
            start_s = 0.0
        by_file.setdefault(file, []).append((float(start_s), index))
    if missing:
        code = "clips-missing" if by_file else "camera-without-files"
        notes.append((code, f"{camera} has no video file for episodes {missing}"))
    if elsewhere:
        index, file = elsewhere[0]
        notes.append(
            (
                "template-unresolved",
                f"{camera}: video_path '{videos.template}' does not lead to the files of {len(elsewhere)} "
                f"episodes; they were found by camera and number, the first: episode {index} in "
                f"{file.relative_to(videos.root).as_posix()}",
            )
        )
    clips: dict[int, ClipRef] = {}
    for file, starts in by_file.items():
        clips.update(_clips_of_file(camera, file, sorted(starts), float(videos.info["fps"]), rows, notes))
    return clips


def _clips_of_file(
    camera: str,
    file: Path,
    starts: list[tuple[float, int]],
    fps: float,
    rows: Mapping[int, RowsRef],
    notes: Notes,
) -> dict[int, ClipRef]:
    """The clips of one video file, in order of from_timestamp.

    Where a from_timestamp is not the frames before it over fps, the packets decide: if the file holds exactly
    one frame a row, the rows' counts are right and the seconds are not (running sums of container durations
    drift, and keep the order). Otherwise both stay in doubt: the seconds are kept and `clip-start-differs` is
    noted, which preparing refuses.
    """
    claimed: dict[int, ClipRef] = {}
    counted: dict[int, ClipRef] = {}
    wrong: list[str] = []
    position = 0
    for start_s, index in starts:
        start, count = round(start_s * fps), rows[index].count
        claimed[index] = ClipRef(file, start, count)
        counted[index] = ClipRef(file, position, count)
        if start != position:
            wrong.append(
                f"{camera}, episode {index}: from_timestamp {start_s:g} s is frame {start} of {file.name}, "
                f"but {position} frames lie before it"
            )
        position += count
    if not wrong:
        return claimed
    try:
        frames = probe(file).frames
    except StackError as error:
        notes.append(("clip-start-differs", f"{wrong[0]}; the file cannot be counted: {error.what}"))
        return claimed
    indices = [index for _, index in starts]
    if frames == position and indices == sorted(indices):
        notes.append(
            (
                "clip-start-mended",
                f"{wrong[0]} ({len(wrong)} such); the file holds exactly one frame a row ({frames}), so the "
                "frames are counted",
            )
        )
        return counted
    why = f"the file has {frames} frames and its episodes {position} rows"
    if frames == position:
        why = f"by from_timestamp the episodes come in the order {indices}, so counting does not settle it"
    notes.extend(("clip-start-differs", f"{text}; {why}") for text in wrong)
    return claimed
