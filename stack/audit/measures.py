"""Figures for the report's plots and pictures, taken once while the evidence is at hand."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from stack.audit.rows import in_episode

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
    curves = sorted(_clock(evidence), key=lambda curve: -curve.worst_frames)
    done = evidence.decoded
    return Measures(
        lengths=tuple(sorted(evidence.rows.lengths.items())),
        clock_off=tuple(sorted((curve.episode, curve.worst_frames) for curve in curves)),
        clock_curves=tuple(curve for curve in curves[:CURVES] if curve.worst_frames > 0.01),
        key_distances={camera: tuple(_key_distances(evidence, camera)) for camera in evidence.clips},
        clips={camera: _clips(evidence, camera) for camera in evidence.clips},
        decoded=(done.pictures, done.seconds) if done and done.pictures else None,
    )


def _clock(evidence: Evidence) -> Iterator[ClockCurve]:
    column, fps = evidence.rows.columns.get("timestamp"), evidence.fps
    if column is None or column.values is None or column.width != 1 or fps is None:
        return
    for span, offset in in_episode(evidence.rows.spans):
        own = column.values[span.start : span.start + span.count, 0].astype(np.float64)
        off = own * fps - np.arange(offset, offset + span.count)
        finite = np.flatnonzero(np.isfinite(off))
        if not len(finite):
            continue
        worst = float(np.abs(off[finite]).max())
        shown = finite[np.unique(np.linspace(0, len(finite) - 1, CURVE_POINTS).astype(np.int64))]
        yield ClockCurve(span.episode, tuple(shown.tolist()), tuple(off[shown].tolist()), worst)


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
