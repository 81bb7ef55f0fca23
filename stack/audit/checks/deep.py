"""Every picture decoded (`--deep`)."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from functools import partial

import numpy as np
from numpy.typing import NDArray

from stack.audit.checks.deep_copies import copies
from stack.audit.checks.deep_files import decoded
from stack.audit.checks.deep_scan import BLACK_FRAMES, LEAST_S, Scan
from stack.audit.checks.deep_series import (
    CUT_WINDOW_FRAMES,
    SAME_LEVELS,
    Border,
    Clip,
    Run,
    runs_of,
)
from stack.audit.exact import STATE, exact_stats
from stack.audit.kinds import Case, check, kind
from stack.faults import Fault, Place

MOVED_EXACT_FRAC, MOVED_NEAR_FRAC = 0.01, 0.05
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
FLAT = kind(
    "video-one-colour",
    "warning",
    "video",
    title="pictures are of one colour",
    consequence="the policy learns to act without seeing",
    mend="look at the frames; exclude the episode if the camera gave no signal",
)
FROZEN = kind(
    "video-frozen",
    "warning",
    "video",
    title="the picture stands still while the robot moves",
    consequence="the policy learns motion that no picture shows",
    mend="look at the frames; exclude the episode if the camera had stopped",
)
REPEATED = kind(
    "video-repeated",
    "warning",
    "video",
    title="a run of pictures comes twice",
    consequence="the second time the rows have the pictures of another moment, or another episode's",
    mend="look at the frames; exclude the episode, or deliver its own video",
)
BORDER = kind(
    "clip-picture-wrong",
    "error",
    "video",
    title="the scene changes beside the place where a clip begins, not at it",
    consequence="the episode takes its neighbour's pictures at its edge; where frames were lost or added "
    "before it, every picture of it is another row's",
    mend="cut the video where the scene changes and count frames again, or prepare from the v2.1 delivery",
    also={"warning": "where it is so at one border of a file only"},
)


SIZE_CHANGES = kind(
    "video-size-changes",
    "error",
    "video",
    title="pictures within one file differ in size",
    consequence="a loader gets pictures of two sizes from one camera: batches cannot be stacked, or a "
    "decoder that is set up for the first size gives garbage",
    mend="exclude the episode, or encode the file anew at one size",
)


@check("every picture decoded", UNDECODABLE, SIZE_CHANGES, needs=["deep"])
def pictures(case: Case) -> Iterator[Fault]:
    for scan, at in _files(case):
        if scan.resized:
            frame, height, width = scan.resized[0]
            yield SIZE_CHANGES.fault(
                f"{len(scan.resized)} pictures of {scan.name} are of another size than the first, from frame"
                f" {frame} on ({width}x{height})",
                where=at(frame),
                count=len(scan.resized),
            )
        for start, stop in runs_of(_flags(scan.frames, scan.lost)):
            many = f"{stop - start} pictures, frames {start} to {stop - 1}" if stop - start > 1 else "picture"
            what = many if stop - start > 1 else f"frame {start}"
            yield UNDECODABLE.fault(
                f"{scan.name}: {what} of {scan.frames} cannot be decoded"
                + (f" ({scan.why_lost})" if scan.why_lost else ""),
                where=at(start),
                count=stop - start,
            )
        if not scan.frames:
            yield UNDECODABLE.fault(f"{scan.name}: {scan.why_lost}", where=at(0))


@check("black and empty pictures", BLACK, FLAT, needs=["deep"])
def dark_pictures(case: Case) -> Iterator[Fault]:
    for scan, at in _files(case):
        for found, runs, said in ((BLACK, scan.black, "black"), (FLAT, scan.flat, "of one colour")):
            for run in runs:
                yield found.fault(
                    f"{run.stop - run.start} pictures of {scan.name} are {said},"
                    f" frames {run.start} to {run.stop - 1} of the file ({BLACK_FRAMES} or more are told)",
                    where=at(run.start),
                    count=run.stop - run.start,
                    data={"frames": run.stop - run.start},
                )


@check("pictures that stand still", FROZEN, needs=["deep"])
def frozen_pictures(case: Case) -> Iterator[Fault]:
    for scan, at in _files(case):
        for run in scan.still:
            place = at(run.start + 1)
            if not _moves(case, place, run):
                continue
            how = "one and the same" if run.exact else f"the same within {SAME_LEVELS:g} levels of 255"
            yield FROZEN.fault(
                f"{run.stop - run.start} pictures of {scan.name} are {how}, from frame {run.start} on"
                f" (more than {LEAST_S:g} s are told)",
                where=place,
                count=run.stop - run.start - 1,
                data={"frames": run.stop - run.start, "exact": run.exact},
            )


@check("pictures that come twice", REPEATED, needs=["deep"])
def repeated_pictures(case: Case) -> Iterator[Fault]:
    for scan, at in _files(case):
        for repeat in scan.repeats:
            later = at(repeat.run.start + repeat.lag)
            if not _states_differ(case, later, repeat.run, repeat.lag):
                continue
            count = repeat.run.stop - repeat.run.start
            yield REPEATED.fault(
                f"{count} pictures of {scan.name} from frame {repeat.run.start} on come again from frame"
                f" {repeat.run.start + repeat.lag} on, while the state is another",
                where=later,
                count=count,
                data={"frames": count, "lag_frames": repeat.lag},
            )
    yield from _across_clips(case)


@check("pictures where clips meet (v3.0)", BORDER, needs=["deep"])
def clip_borders(case: Case) -> Iterator[Fault]:
    for scan, at in _files(case):
        # At one border a lamp that is switched on looks the same; an exporter's mistake is not made once.
        for border in scan.borders:
            yield BORDER.fault(
                f"{scan.name}: the clip of episode {border.episode} begins at frame {border.start},"
                f" the scene changes at frame {border.start + border.off} ({border.off:+d}): by"
                f" {border.change:.1f} levels of 255 there, by {border.at_border:.1f} where the clip begins",
                where=_border_place(border, at(border.start)),
                severity="error" if len(scan.borders) > 1 else "warning",
                data={"off_frames": border.off, "window_frames": CUT_WINDOW_FRAMES},
            )


def _border_place(border: Border, place: Place) -> Place:
    return Place(place.file, border.episode, 0, place.feature)


def _files(case: Case) -> Iterator[tuple[Scan, partial[Place]]]:
    """Each file's scan, and how to say where one of its frames is."""
    found = decoded(case)
    for name, placed in found.clips.items():
        if name in found.scans:
            yield found.scans[name], partial(_place, placed, found.files[name], found.cameras[name])


def _place(placed: tuple[Clip, ...], file: str, camera: str, frame: int) -> Place:
    at = bisect_right([first for _, first, _ in placed], frame) - 1
    episode, first, _ = placed[max(0, at)]
    return Place(file, episode, frame - first, camera)


def _flags(frames: int, numbers: tuple[int, ...]) -> NDArray[np.bool_]:
    flags = np.zeros(frames, np.bool_)
    flags[list(numbers)] = True
    return flags


def _across_clips(case: Case) -> Iterator[Fault]:
    for copy in copies(decoded(case)):
        here, there = copy.here, copy.there
        yield REPEATED.fault(
            f"{copy.frames} pictures of {here.feature}, episode {here.episode}, from frame {here.frame} on"
            f" are bit for bit those of {there.feature}, episode {there.episode}, from frame"
            f" {there.frame} on" + (", whose video fits its rows" if copy.is_told else ""),
            places=(here,) if copy.is_told else (here, there),
            count=copy.frames,
            data={"frames": copy.frames, "of": [there.feature, there.episode, there.frame]},
        )


def _moves(case: Case, place: Place, run: Run) -> bool:
    """Whether the state moves while the picture stands; yes where there is no state to ask.

    More than 1 % of a channel's range where the pictures are bit-identical, 5 % where they are only near:
    a slow move far away from a camera changes less than that.
    """
    states = _states(case, place)
    if states is None or place.frame is None:
        return True
    values, ranges = states
    own = values[place.frame - 1 : place.frame - 1 + run.stop - run.start]
    if len(own) < 2:
        return False
    least = MOVED_EXACT_FRAC if run.exact else MOVED_NEAR_FRAC
    return bool((np.nanmax(own, axis=0) - np.nanmin(own, axis=0) > least * ranges).any())


def _states_differ(case: Case, later: Place, run: Run, lag: int) -> bool:
    """Whether the rows of the second time are others than those of the first; yes where unknown."""
    states = _states(case, later)
    if states is None or later.frame is None:
        return True
    values, ranges = states
    second = values[later.frame : later.frame + run.stop - run.start]
    first = values[later.frame - lag : later.frame - lag + len(second)]
    return len(first) == len(second) > 0 and bool(
        (np.nanmax(np.abs(first - second), axis=0) > MOVED_EXACT_FRAC * ranges).any()
    )


def _states(case: Case, place: Place) -> tuple[NDArray[np.float64], NDArray[np.float64]] | None:
    """The episode's states (L, D) and each channel's range over the dataset (D,)."""
    rows = case.evidence.rows
    column = rows.columns.get(STATE)
    span = next((s for s in rows.spans if s.episode == place.episode), None)
    if column is None or column.values is None or not column.width or span is None:
        return None
    own = column.values[span.start : span.start + span.count].astype(np.float64)
    exact = exact_stats(case.evidence, STATE)
    if exact is None or not np.isfinite(own).all(axis=1).any():
        return None
    return own, (exact.max - exact.min).reshape(-1).astype(np.float64)
