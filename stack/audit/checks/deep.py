"""Every picture decoded (`--deep`)."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from stack.audit.clips import ClipSpan
from stack.audit.exact import STATE
from stack.audit.kinds import Case, check, kind
from stack.dataset.video import decode
from stack.errors import StackError
from stack.faults import Fault, Place

BLACK_LEVEL = 24  # of 255; limited-range black with noise stays below
BLACK_FRAMES = 3
FROZEN_S = 0.5
MOVED_FRAC = 0.01
UNDECODABLE = kind(
    "video-undecodable",
    "error",
    "video",
    title="a picture cannot be decoded",
    consequence="the loader stops when it reaches the frame, perhaps after hours",
    mend="copy the file again; if the source is damaged too, exclude the episode",
)
BLACK = kind(
    "video-black",
    "warning",
    "video",
    title="pictures are black",
    consequence="the policy learns to act without seeing",
    mend="look at the frames; exclude the episode if the camera was off or covered",
)
FROZEN = kind(
    "video-frozen",
    "warning",
    "video",
    title="the picture stands still while the robot moves",
    consequence="the policy learns motion that no picture shows",
    mend="look at the frames; exclude the episode if the camera had stopped",
)


@check("every picture decoded", UNDECODABLE, BLACK, FROZEN, needs=["deep"])
def pictures(case: Case) -> Iterator[Fault]:
    evidence = case.evidence
    for camera, spans in evidence.clips.items():
        by_file: dict[str, list[ClipSpan]] = {}
        for span in spans:
            by_file.setdefault(span.file, []).append(span)
        for file, own in by_file.items():
            if file in evidence.videos:
                yield from _file(case, camera, file, _placed(own))


def _placed(spans: list[ClipSpan]) -> list[tuple[int, int]]:
    """(first frame in the file, episode), ascending, by counted lengths."""
    placed, before = [], 0
    for span in sorted(spans, key=lambda s: (s.start_s or 0.0, s.episode)):
        placed.append((before, span.episode))
        before += span.length or 0
    return placed


def _file(case: Case, camera: str, file: str, placed: list[tuple[int, int]]) -> Iterator[Fault]:
    evidence = case.evidence
    frames = evidence.videos[file].frames
    black, same = np.zeros(frames, np.bool_), np.zeros(frames, np.bool_)
    before: NDArray[np.uint8] | None = None
    at = 0
    try:
        for at, picture in enumerate(decode(evidence.root / file, range(frames))):
            black[at] = picture.max() <= BLACK_LEVEL
            same[at] = before is not None and bool(np.array_equal(picture, before))
            before = picture
    except StackError as error:
        yield UNDECODABLE.fault(
            f"{file}: {error.what}", where=_place(placed, file, camera, at + 1 if at else 0)
        )
        return
    for start, stop in _runs(black):
        if stop - start >= BLACK_FRAMES:
            yield BLACK.fault(
                f"{stop - start} pictures of {file} are black, frames {start} to {stop - 1} of the file",
                where=_place(placed, file, camera, start),
                count=stop - start,
            )
    least = max(2, round(FROZEN_S * (evidence.fps or 30)))
    for start, stop in _runs(same):
        place = _place(placed, file, camera, start)
        if stop - start >= least and not black[start] and _moves(case, place, stop - start):
            yield FROZEN.fault(
                f"{stop - start + 1} pictures of {file} are one and the same, from frame {start - 1} on",
                where=place,
                count=stop - start,
            )


def _runs(flags: NDArray[np.bool_]) -> Iterator[tuple[int, int]]:
    edges = np.flatnonzero(np.diff(np.concatenate([[False], flags, [False]]).astype(np.int8)))
    yield from zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True)


def _place(placed: list[tuple[int, int]], file: str, camera: str, frame: int) -> Place:
    at = bisect_right([first for first, _ in placed], frame) - 1
    first, episode = placed[max(0, at)]
    return Place(file, episode, frame - first, camera)


def _moves(case: Case, place: Place, frames: int) -> bool:
    """Whether the state changes by more than 1 % of its range while the picture stands; yes where unknown."""
    rows = case.evidence.rows
    column = rows.columns.get(STATE)
    span = next((s for s in rows.spans if s.episode == place.episode), None)
    if column is None or column.values is None or span is None or place.frame is None:
        return True
    start = span.start + place.frame
    own = column.values[start : min(start + frames, span.start + span.count)].astype(np.float64)
    whole = np.nanmax(column.values, axis=0) - np.nanmin(column.values, axis=0)
    if len(own) < 2:
        return False
    return bool((np.nanmax(own, axis=0) - np.nanmin(own, axis=0) > MOVED_FRAC * whole).any())
