"""Runs of pictures that another clip holds bit for bit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from stack.audit.checks.deep_files import Decoded
from stack.audit.checks.deep_scan import LEAST_FRAMES, runs_of

DISTINCT_LEAST = 3  # a still scene may look the same in two takes; one in motion does not


@dataclass(frozen=True)
class Copy:
    """`frames` pictures from `frame` of an episode on, and where they are found first."""

    file: str
    camera: str
    episode: int
    frame: int
    frames: int
    of_camera: str
    of_episode: int
    of_frame: int


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
        (file, clip), (of_file, of_clip) = files[owner[start]], files[owner[source[start]]]
        yield Copy(
            file=file,
            camera=found.cameras[file],
            episode=clip[0],
            frame=int(start - starts[owner[start]]),
            frames=int(stop - start),
            of_camera=found.cameras[of_file],
            of_episode=of_clip[0],
            of_frame=int(source[start] - starts[owner[source[start]]]),
        )


def _runs(flags: NDArray[np.bool_], goes_on: NDArray[np.bool_]) -> Iterator[tuple[int, int]]:
    for start, stop in runs_of(flags):
        cuts = [start, *(start + 1 + np.flatnonzero(~goes_on[start + 1 : stop])).tolist(), stop]
        yield from pairwise(cuts)
