"""Sources while they are read: that they do not change, and that nothing is written over them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from stack.dataset.model import Episode
from stack.dataset.selection import Selection
from stack.errors import BadRequest, WorkFailed


@dataclass(frozen=True)
class Mark:
    """What tells a changed file; links are followed."""

    size_bytes: int
    mtime_ns: int


@dataclass(frozen=True)
class Snapshot:
    """Files as they were before they were read."""

    marks: Mapping[Path, Mark]

    def only(self, files: Iterable[Path]) -> Snapshot:
        """Those of `files` that are in the snapshot; the rest is taken now."""
        later = [file for file in files if file not in self.marks]
        kept = {file: self.marks[file] for file in files if file in self.marks}
        return Snapshot({**kept, **take_snapshot(later).marks})

    def check(self) -> None:
        """Raise `WorkFailed` where a file has changed or is gone, naming the first and how many."""
        changed = [(file, mark, _mark(file)) for file, mark in sorted(self.marks.items())]
        changed = [(file, before, now) for file, before, now in changed if before != now]
        if not changed:
            return
        file, before, now = changed[0]
        more = f" ({len(changed)} files of the sources changed)" if len(changed) > 1 else ""
        got = "it is gone" if now is None else f"it has {_text(now)}"
        raise WorkFailed(
            "source-changed",
            f"a source changed while it was read: the file had {_text(before)}, now {got}{more}; "
            "nothing was written",
            where=str(file),
            do="let the recording or copy end, then run the same command again",
        )


def take_snapshot(files: Iterable[Path]) -> Snapshot:
    """Size and time of each file that is there."""
    marks = ((file, _mark(file)) for file in files)
    return Snapshot({file: mark for file, mark in marks if mark is not None})


def _mark(file: Path) -> Mark | None:
    try:
        stat = file.stat()
    except OSError:
        return None
    return Mark(stat.st_size, stat.st_mtime_ns)


def _text(mark: Mark) -> str:
    written = datetime.fromtimestamp(mark.mtime_ns / 1e9, tz=timezone.utc)
    return f"{mark.size_bytes:,} bytes, written {written:%Y-%m-%d %H:%M:%S.%f} UTC"


def episode_files(episode: Episode) -> tuple[Path, ...]:
    return (episode.rows.file, *(clip.file for clip in episode.clips.values()))


def selection_files(selection: Selection) -> list[Path]:
    """Every row and video file that a selection reads, each once."""
    return list(
        dict.fromkeys(file for selected in selection.episodes for file in episode_files(selected.episode))
    )


def refuse_overlap(out: Path, selection: Selection) -> None:
    """Refuse a target that holds a source's files, or lies in one of their folders, wherever links lead.

    Raises:
        BadRequest: naming the source.
    """
    refuse_overlap_with(out, {file.parent for file in selection_files(selection)})


def refuse_overlap_with(out: Path, folders: Iterable[Path]) -> None:
    """Refuse a target that holds one of these folders of sources, or lies in one: they are never modified.

    Raises:
        BadRequest: naming the source.
    """
    target = _real(out)
    for folder in sorted(set(folders)):
        source = _real(folder)
        if target.is_relative_to(source):
            raise BadRequest(
                "target-in-source",
                "the target lies within a source, which must stay as it is",
                where=f"{out}, in {folder}",
                do="name a folder outside of it",
            )
        if source.is_relative_to(target) or folder.absolute().is_relative_to(out.absolute()):
            raise BadRequest(
                "target-holds-source",
                "the target holds a source, which must stay as it is",
                where=f"{folder}, in {out}",
                do="name another folder",
            )


def refuse_odd_names(paths: Iterable[Path]) -> None:
    """Refuse folders whose names are not UTF-8: neither Parquet's reader nor JSON can say them.

    Raises:
        BadRequest: naming the first.
    """
    for path in paths:
        try:
            str(path.absolute()).encode()
        except UnicodeEncodeError:
            raise BadRequest(
                "path-not-utf8",
                "the name of the folder is not UTF-8 (an archive from another system, or another locale)",
                where=repr(os.fsencode(path.absolute()))[1:],
                do="rename the folder, or run in a UTF-8 locale",
            ) from None


def _real(path: Path) -> Path:
    return Path(os.path.realpath(path))  # unlike Path.resolve, no error where links go round in a circle
