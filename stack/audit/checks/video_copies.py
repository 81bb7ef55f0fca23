"""Video files that are the same, bit for bit."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from stack.audit.evidence import Evidence
from stack.audit.kinds import Case, check, kind
from stack.faults import Fault, Place
from stack.files import sha256_file

COPIED = kind(
    "video-copied",
    "warning",
    "video",
    title="two video files are the same, bit for bit",
    consequence="one of them shows another take, or another camera: its rows are trained with pictures that "
    "are not theirs",
    mend="find out which of the two it belongs to; deliver the other's own video, or exclude that episode",
)


@check("equal video files", COPIED)
def videos_equal(case: Case) -> Iterator[Fault]:
    evidence = case.evidence
    owner = {file: (camera, episode) for (camera, episode), file in evidence.layout.video_of.items()}
    files = [file for file in evidence.videos if file in owner]
    # A file whose episode has another number of rows is the one that was overwritten.
    files.sort(key=lambda file: not _fits(evidence, file, owner[file][1]))
    for file, first in _copies(evidence.root, {file: evidence.files[file] for file in files}):
        camera, episode = owner[file]
        yield COPIED.fault(
            f"{file} is the same as {first}",
            where=Place(file, None if evidence.is_v3 else episode, feature=camera),
            data={"same_as": first},
        )


def _fits(evidence: Evidence, file: str, episode: int) -> bool:
    return evidence.is_v3 or evidence.videos[file].frames == evidence.rows.lengths.get(episode)


def _copies(root: Path, sizes: dict[str, int]) -> Iterator[tuple[str, str]]:
    """(file, the first one that equals it). Only files of one size are read."""
    by_size: dict[int, list[str]] = {}
    for file, size in sizes.items():
        by_size.setdefault(size, []).append(file)
    for own in by_size.values():
        first: dict[str, str] = {}
        for file in own if len(own) > 1 else ():
            known = first.setdefault(_digest(root / file), file)
            if known != file:
                yield file, known


def _digest(path: Path) -> str:
    try:
        return sha256_file(path)
    except OSError:  # told by the check that opens every file
        return str(path)
