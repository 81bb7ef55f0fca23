"""Where each episode's pictures lie, as the metadata say, and what the video files really hold."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stack.audit.trouble import Problem, Trouble, classify_file
from stack.dataset.pool import open_pool
from stack.errors import StackError

if TYPE_CHECKING:
    from stack.audit.evidence import Evidence
    from stack.dataset.video import VideoInfo

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
    with open_pool(None) as pool:
        probed = pool.map(_probe, [evidence.root / relative for relative in files])
        for relative, (info, trouble, why) in zip(files, probed, strict=True):
            if info is not None:
                facts[relative] = info
            elif trouble is not None:
                evidence.problems.append(Problem(relative, trouble, why))
            else:
                evidence.problems.append(classify_file(evidence.root, relative, RuntimeError(why)))
    return facts


def _probe(file: Path) -> tuple[VideoInfo | None, Trouble | None, str]:
    """The facts of one file, or why there are none."""
    from stack.dataset.video import probe

    try:
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
