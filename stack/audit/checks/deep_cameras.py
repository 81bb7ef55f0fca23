"""Cameras against one another: an episode whose two cameras changed places."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from stack.audit.checks.deep_files import Decoded, decoded
from stack.audit.kinds import Case, check, kind
from stack.faults import Fault, Place

SWAPPED = kind(
    "cameras-swapped",
    "warning",
    "video",
    title="in an episode two cameras show what the other one shows in all other episodes",
    consequence="the policy sees the hand's picture as the head's: right numbers, wrong pictures, no message",
    mend="look at the frames; exchange the two files, or exclude the episode",
)
LEAST_EPISODES = 4  # of three, two that were exchanged would outvote the right one
APART_LEVELS = 12.0  # of 255: the two cameras' usual pictures, in the block that differs most
RATIO = 3.0
Looks = NDArray[np.float64]


@check("cameras that changed places", SWAPPED, needs=["deep"])
def swapped_cameras(case: Case) -> Iterator[Fault]:
    found = decoded(case)
    looks = _looks(found)
    for one, other in combinations(sorted(looks), 2):
        both = sorted(looks[one].keys() & looks[other].keys())
        if len(both) < LEAST_EPISODES or len({len(looks[c][e]) for c in (one, other) for e in both}) > 1:
            continue
        for episode in _swapped(looks[one], looks[other], both):
            yield SWAPPED.fault(
                f"episode {episode}: {one} looks like {other} elsewhere, and {other} like {one}",
                places=tuple(Place(_file(found, c, episode), episode, 0, c) for c in (one, other)),
                data={"cameras": [one, other]},
            )


def _swapped(one: Mapping[int, Looks], other: Mapping[int, Looks], both: list[int]) -> Iterator[int]:
    usual = np.median([one[e] for e in both], axis=0), np.median([other[e] for e in both], axis=0)
    if _apart(*usual) < APART_LEVELS:
        return
    for episode in both:
        pairs = ((one[episode], usual[0], usual[1]), (other[episode], usual[1], usual[0]))
        if all(_apart(look, own) > RATIO * _apart(look, others) for look, own, others in pairs):
            yield episode


def _apart(one: Looks, other: Looks) -> float:
    return float(np.abs(one - other).max())


def _looks(found: Decoded) -> dict[str, dict[int, Looks]]:
    """camera -> episode -> its mean picture in coarse blocks; pictures that are lost or empty left out."""
    looks: dict[str, dict[int, Looks]] = {}
    for name, clips in found.clips.items():
        for episode, start, count in clips if name in found.scans else ():
            scan = found.scans[name]
            own = scan.coarse[start : start + count][scan.digests[start : start + count] != 0]
            if len(own):
                looks.setdefault(found.cameras[name], {})[episode] = own.mean(axis=0, dtype=np.float64)
    return looks


def _file(found: Decoded, camera: str, episode: int) -> str | None:
    for name, clips in found.clips.items():
        if found.cameras[name] == camera and any(own == episode for own, _, _ in clips):
            return found.files[name]
    return None
