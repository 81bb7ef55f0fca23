"""Where each episode's pictures lie, as the metadata say, and what the video files really hold."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stack.audit.shelter import READ_BYTES_A_SECOND, in_shelter, reading, reading_together
from stack.audit.trouble import Problem, Trouble, classify_file
from stack.dataset.pool import Pool, open_pool
from stack.errors import StackError, WorkFailed

if TYPE_CHECKING:
    from stack.audit.evidence import Evidence
    from stack.dataset.video import VideoInfo

    _Probed = tuple[VideoInfo | None, Trouble | None, str]

_TROUBLES = {
    "video-empty": Trouble.EMPTY,
    "video-is-lfs-pointer": Trouble.LFS_POINTER,
    "video-truncated": Trouble.TRUNCATED,
}


@dataclass(frozen=True)
class ClipSpan:
    """The pictures of one episode and camera.

    Attributes:
        start_s, stop_s: seconds in the file; None in v2.x, where a file is one episode.
        length: rows of the episode as counted, or as listed where rows cannot be read.
    """

    episode: int
    file: str
    length: int | None
    start_s: float | None = None
    stop_s: float | None = None


def probe_videos(evidence: Evidence) -> dict[str, VideoInfo]:
    """Facts of each video file that an episode names and that can be read, by relative path."""
    facts: dict[str, VideoInfo] = {}
    files = evidence.layout.video_files
    waiting = list(files)
    size = sum(evidence.files.get(relative, 0) for relative in files)
    try:
        with (
            reading_together(f"{evidence.root}: videos", size, bytes_a_second=READ_BYTES_A_SECOND),
            open_pool(None) as pool,
        ):
            for relative, found in _probe_all(evidence.root, files, pool):
                waiting.remove(relative)
                _take(evidence, facts, relative, found)
    except (WorkFailed, OSError) as error:
        # A file at which the demuxer itself crashes or hangs takes its process along; it is one of these.
        why = f"not read: {error.what if isinstance(error, WorkFailed) else error}"
        for relative in list(waiting):
            if in_shelter():
                _take(evidence, facts, relative, _probe(evidence.root / relative))
            else:
                evidence.problems.append(Problem(relative, Trouble.UNREADABLE, why))
    return facts


def _probe_all(root: Path, files: list[str], pool: Pool) -> Iterator[tuple[str, _Probed]]:
    yield from zip(files, pool.map(_probe, [root / relative for relative in files]), strict=True)


def _take(evidence: Evidence, facts: dict[str, VideoInfo], relative: str, found: _Probed) -> None:
    info, trouble, why = found
    if info is not None:
        facts[relative] = info
    elif trouble is not None:
        evidence.problems.append(Problem(relative, trouble, why))
    else:
        evidence.problems.append(classify_file(evidence.root, relative, RuntimeError(why)))


def _probe(file: Path) -> _Probed:
    """The facts of one file, or why there are none."""
    from stack.dataset.video import probe

    try:
        with reading(file):
            return probe(file), None, ""
    except StackError as error:
        return None, _TROUBLES.get(error.id, Trouble.UNREADABLE), error.what
    except Exception as error:  # damaged files find new ways to fail inside the demuxer
        return None, None, f"{type(error).__name__}: {error}"


def clip_spans(evidence: Evidence) -> dict[str, list[ClipSpan]]:
    lengths = evidence.rows.lengths
    listed = {entry.index: entry for entry in evidence.episodes if entry.index is not None}
    spans: dict[str, list[ClipSpan]] = {camera: [] for camera in evidence.cameras}
    for (camera, episode), file in evidence.layout.video_of.items():
        entry = listed.get(episode)
        length = lengths.get(episode, entry.length if entry else None)
        start, stop = None, None
        if evidence.is_v3 and entry is not None:
            start = _seconds(entry.raw.get(f"videos/{camera}/from_timestamp"))
            stop = _seconds(entry.raw.get(f"videos/{camera}/to_timestamp"))
        spans[camera].append(ClipSpan(episode, file, length, start, stop))
    return spans


def _seconds(value: Any) -> float | None:
    if isinstance(value, (int, float)) and not isinstance(value, bool) and value == value:
        return float(value)
    return None
