"""Figures for the report's plots and pictures, taken once while the evidence is at hand."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from stack.audit.rows import Span, in_episode

if TYPE_CHECKING:
    from stack.audit.evidence import Evidence

CURVE_POINTS = 400
CURVES = 3


@dataclass(frozen=True)
class ClockCurve:
    """timestamp - frame_index / fps over an episode, in frames; at most `CURVE_POINTS` points."""

    episode: int
    frames: tuple[int, ...]
    off_frames: tuple[float, ...]
    worst_frames: float


@dataclass(frozen=True)
class ClipAt:
    """Where an episode's pictures are: frames from `start` of `file` (relative to the dataset's root)."""

    file: str
    start: int
    count: int


@dataclass(frozen=True)
class Measures:
    """What the plots show.

    Attributes:
        lengths: (episode, rows) in order.
        clock_off: (episode, largest |timestamp - frame_index / fps| in frames).
        clock_curves: of the episodes that are off most; empty where none is off by 1/100 frame.
        key_distances: camera -> frames from each key frame to the next, to the file's end for the last one,
            over all files.
        clips: camera -> episode -> where its pictures are.
        decoded: pictures decoded and seconds taken; None without `--deep`.
    """

    lengths: tuple[tuple[int, int], ...] = ()
    clock_off: tuple[tuple[int, float], ...] = ()
    clock_curves: tuple[ClockCurve, ...] = ()
    key_distances: dict[str, tuple[int, ...]] = field(default_factory=dict)
    clips: dict[str, dict[int, ClipAt]] = field(default_factory=dict)
    decoded: tuple[int, float] | None = None


def measure(evidence: Evidence) -> Measures:
    off = list(_clock(evidence))
    worst = sorted(off, key=lambda pair: -pair[1])[:CURVES]
    done = evidence.decoded
    return Measures(
        lengths=tuple(sorted(evidence.rows.lengths.items())),
        clock_off=tuple(sorted((span.episode, frames) for (span, _), frames in off)),
        clock_curves=tuple(_curve(evidence, *place, frames) for place, frames in worst if frames > 0.01),
        key_distances={camera: tuple(_key_distances(evidence, camera)) for camera in evidence.clips},
        clips={camera: _clips(evidence, camera) for camera in evidence.clips},
        decoded=(done.pictures, done.seconds) if done and done.pictures else None,
    )


def _clock(evidence: Evidence) -> Iterator[tuple[tuple[Span, int], float]]:
    """Rows one after another, the number of the first in its episode, and how many frames they are off."""
    column = evidence.rows.columns.get("timestamp")
    if column is None or column.values is None or column.width != 1 or evidence.fps is None:
        return
    for span, offset in in_episode(evidence.rows.spans):
        off = _frames_off(evidence, span, offset)
        finite = off[np.isfinite(off)]
        if len(finite):
            yield (span, offset), float(np.abs(finite).max())


def _curve(evidence: Evidence, span: Span, offset: int, worst: float) -> ClockCurve:
    off = _frames_off(evidence, span, offset)
    finite = np.flatnonzero(np.isfinite(off))
    shown = finite[np.unique(np.linspace(0, len(finite) - 1, CURVE_POINTS).astype(np.int64))]
    return ClockCurve(span.episode, tuple(shown.tolist()), tuple(off[shown].tolist()), worst)


def _frames_off(evidence: Evidence, span: Span, offset: int) -> NDArray[np.float64]:
    """(span.count,) the timestamp less frame_index / fps, in frames."""
    values, fps = evidence.rows.columns["timestamp"].values, evidence.fps
    assert values is not None and fps is not None
    own = values[span.start : span.start + span.count, 0].astype(np.float64)
    return own * fps - np.arange(offset, offset + span.count)


def _key_distances(evidence: Evidence, camera: str) -> Iterator[int]:
    for file in dict.fromkeys(span.file for span in evidence.clips[camera]):
        video = evidence.videos.get(file)
        if video is not None and video.key_frames:
            yield from (b - a for a, b in pairwise((*video.key_frames, video.frames)))


def _clips(evidence: Evidence, camera: str) -> dict[int, ClipAt]:
    from stack.audit.checks.deep_files import placed

    by_file: dict[str, list[int]] = {}
    found: dict[int, ClipAt] = {}
    spans = evidence.clips[camera]
    for position, span in enumerate(spans):
        if span.file in evidence.videos:
            by_file.setdefault(span.file, []).append(position)
    for file, positions in by_file.items():
        for episode, start, count in placed([spans[p] for p in positions], evidence.fps or 30.0):
            found[episode] = ClipAt(file, start, min(count, evidence.videos[file].frames - start))
    return found
