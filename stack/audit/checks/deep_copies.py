"""Runs of pictures that another clip holds bit for bit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from stack.audit.checks.deep_files import Decoded, decoded
from stack.audit.checks.deep_scan import LEAST_FRAMES
from stack.audit.checks.deep_series import Clip, runs_of
from stack.audit.kinds import Case
from stack.audit.takes import Repeat
from stack.faults import Place

ALIKE_LEVELS, ALIKE_FRAC = 4.0, 0.95  # encoded again, a block's mean moves by a level or two of 255
DISTINCT_LEAST = 3  # a still scene may look the same in two takes; one in motion does not


@dataclass(frozen=True)
class Copy:
    """`frames` pictures that two clips share: `here` is the one under suspicion, the later where none is.

    A clip whose file is not as long as its rows has been given another one's file.
    """

    here: Place
    there: Place
    frames: int
    is_told: bool  # which of the two it is


def copies(found: Decoded) -> Iterator[Copy]:
    """Runs of at least `LEAST_FRAMES` pictures, in clip order."""
    files = [(file, clip) for file, clips in sorted(found.clips.items()) for clip in clips if clip[2] > 0]
    parts = [found.scans[file].digests[start : start + count] for file, (_, start, count) in files]
    if not parts:
        return
    digests = np.concatenate(parts)
    owner = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    starts = np.concatenate([[0], np.cumsum([len(part) for part in parts])])
    _, first, inverse = np.unique(digests, return_index=True, return_inverse=True)
    source = first[inverse.reshape(-1)]
    elsewhere = (digests != 0) & (owner[source] != owner)
    # A run goes on while both sides go on, in the same two clips.
    goes_on = np.zeros(len(digests), np.bool_)
    goes_on[1:] = (np.diff(source) == 1) & (np.diff(owner) == 0) & (np.diff(owner[source]) == 0)
    for start, stop in _runs(elsewhere, goes_on):
        if stop - start < LEAST_FRAMES or len(np.unique(digests[start:stop])) < DISTINCT_LEAST:
            continue
        ends = [(owner[start], start), (owner[source[start]], source[start])]
        places = [_place(found, files[own], int(at - starts[own])) for own, at in ends]
        odd = [not _fits(found, files[own][0]) for own, _ in ends]
        if odd == [False, True]:
            places.reverse()
        yield Copy(places[0], places[1], int(stop - start), is_told=odd[0] != odd[1])


def _place(found: Decoded, of: tuple[str, Clip], frame: int) -> Place:
    file, (episode, _, _) = of
    return Place(found.files[file], episode, frame, found.cameras[file])


def _fits(found: Decoded, file: str) -> bool:
    return found.scans[file].frames == sum(count for _, _, count in found.clips[file])


def _runs(flags: NDArray[np.bool_], goes_on: NDArray[np.bool_]) -> Iterator[tuple[int, int]]:
    for start, stop in runs_of(flags):
        cuts = [start, *(start + 1 + np.flatnonzero(~goes_on[start + 1 : stop])).tolist(), stop]
        yield from pairwise(cuts)


def same_pictures(case: Case, repeat: Repeat) -> bool | None:
    """Whether two takes show the same in every camera, also encoded again; None where none can be told."""
    found = decoded(case)
    answers = []
    for camera in dict.fromkeys(found.cameras.values()):
        sides = [_coarse(found, camera, episode) for episode in (repeat.earlier, repeat.later)]
        if any(side is None for side in sides):
            continue
        left, right = (np.asarray(side, np.float32) for side in sides)
        first = max(0, -repeat.lag)
        left, right = left[first + repeat.lag :][: repeat.frames], right[first:][: repeat.frames]
        count = min(len(left), len(right))
        if count:
            apart = np.abs(left[:count] - right[:count]).max(axis=1)
            answers.append(bool((apart <= ALIKE_LEVELS).mean() >= ALIKE_FRAC))
    return all(answers) if answers else None


def _coarse(found: Decoded, camera: str, episode: int) -> NDArray[np.uint8] | None:
    for name, clips in found.clips.items():
        for own, start, count in clips if found.cameras[name] == camera else ():
            if own == episode and name in found.scans:
                return found.scans[name].coarse[start : start + count]
    return None
