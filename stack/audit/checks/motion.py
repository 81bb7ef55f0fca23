"""Rows that are well-formed and yet show that something stood still while the robot was recorded."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from stack.audit.exact import ACTION, STATE, exact_stats
from stack.audit.kinds import Case, check, kind
from stack.audit.rows import Array, Span
from stack.faults import Fault, Place

STILL = kind(
    "episode-still",
    "warning",
    "rows",
    title="nothing of state or action changes in an episode, as it does in others",
    consequence="a recorder that was not connected, or an episode in which nothing was done: the policy "
    "learns to stand still before the same pictures",
    mend="look at its pictures; exclude the episode (`exclude_episodes: [...]`) if the robot moves in them",
)
HELD = kind(
    "state-held",
    "warning",
    "rows",
    title="the state is one and the same, bit for bit, while the action goes on",
    consequence="sensors that had stopped: the policy learns actions for a state that was not the robot's",
    mend="look at its pictures; exclude the episode (`exclude_episodes: [...]`) if the robot moves in them",
)
REPEATED = kind(
    "rows-repeated",
    "warning",
    "rows",
    title="many rows repeat the row before, one or two at a time",
    consequence="the robot was read more slowly than fps says: every action chunk holds steps that stand "
    "still, and pictures and rows of one frame are of different instants",
    mend="record robot and cameras at one rate; what is there can be trained on, at a lower quality",
)
HELD_S, HELD_LEAST_FRAMES = 1.0, 10
MOVES_FRAC, MOVING_SHARE, MOVING_LEAST = 0.05, 0.25, 2
PAUSE_FRAMES = 4  # as many equal steps in a row are a pause, not a slow reader
REPEATED_SHARE = 0.25
SEVERAL = 3  # episodes, from which on "most" means something


def _vectors(case: Case) -> dict[str, Array]:
    """Of state and action, those that are numbers of two or more channels."""
    columns = {name: case.evidence.rows.columns.get(name) for name in (STATE, ACTION)}
    return {n: c.values for n, c in columns.items() if c is not None and c.values is not None and c.width > 1}


def _repeats(values: Array, span: Span) -> NDArray[np.bool_]:
    """(count - 1,) whether each row but the first is the one before, bit for bit; NaN is like nothing."""
    own = values[span.start : span.start + span.count]
    return np.asarray((own[1:] == own[:-1]).all(axis=1))


@check("episodes without motion", STILL)
def episode_still(case: Case) -> Iterator[Fault]:
    for name, values in _vectors(case).items():
        spans = [span for span in case.evidence.rows.spans if span.count > 1]
        still = [span for span in spans if _repeats(values, span).all()]
        if not still or len(still) > len(spans) / 2:
            continue  # of most episodes: told as constant channels, or the robot has no such part
        for span in still:
            yield STILL.fault(
                f"no channel of {name} changes in the {span.count} rows of episode {span.episode}; it does in"
                f" {len(spans) - len(still)} others",
                where=Place(span.file, span.episode, feature=name),
            )


@check("states held while actions go on", HELD)
def state_held(case: Case) -> Iterator[Fault]:
    vectors, exact = _vectors(case), exact_stats(case.evidence, ACTION)
    if len(vectors) < 2 or exact is None:
        return
    found: list[Fault] = []
    ranges = np.asarray(exact.max - exact.min, np.float64).reshape(-1)
    least = max(HELD_LEAST_FRAMES, round(HELD_S * (case.evidence.fps or 10.0)))
    for span in case.evidence.rows.spans:
        same = _repeats(vectors[STATE], span)
        if same.all():
            continue  # told as an episode that is still
        action = vectors[ACTION][span.start : span.start + span.count]
        runs = [(first, last) for first, last in _runs(same) if last - first >= least]
        held = [(first, last) for first, last in runs if _goes_on(action[first:last], ranges)]
        if held:
            first, last = max(held, key=lambda run: run[1] - run[0])
            found.append(
                HELD.fault(
                    f"the state of episode {span.episode} is the same from frame {first} to {last - 1}, while"
                    " the action moves",
                    where=Place(span.file, span.episode, first, STATE),
                    count=sum(last - first for first, last in held),
                    data={"frames": [[first, last] for first, last in held[:50]]},
                )
            )
    yield from _each_or_all(found, case)


def _each_or_all(found: list[Fault], case: Case) -> Iterator[Fault]:
    """What most episodes have is a matter of the recorder, and no reason to look at each."""
    episodes = len(case.evidence.rows.lengths)
    if len(found) <= episodes / 2 or episodes < SEVERAL:
        yield from found
        return
    worst = max(found, key=lambda fault: fault.count)
    yield replace(
        worst,
        message=f"in {len(found)} of {episodes} episodes; the worst: {worst.message}",
        where=Place(feature=worst.where.feature),
        places=(),
        count=sum(fault.count for fault in found),
    )


def _runs(same: NDArray[np.bool_]) -> list[tuple[int, int]]:
    """Half-open runs of rows that are all the same, of two rows or more."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], same, [False]]).astype(np.int8)))
    return [(int(a), int(b) + 1) for a, b in zip(edges[::2], edges[1::2], strict=True)]


def _goes_on(action: Array, ranges: NDArray[np.float64]) -> bool:
    """Whether a good part of the channels that move at all move here."""
    moves = np.ptp(action.astype(np.float64), axis=0) > MOVES_FRAC * ranges
    moving = int((ranges > 0).sum())
    return int((moves & (ranges > 0)).sum()) >= max(MOVING_LEAST, MOVING_SHARE * moving)


@check("rows that repeat the one before", REPEATED)
def rows_repeated(case: Case) -> Iterator[Fault]:
    """Of state and action together, so that a robot that waits for a slow command is not accused."""
    vectors, fps = _vectors(case), case.evidence.fps
    if len(vectors) < 2:
        return
    found: list[Fault] = []
    for span in case.evidence.rows.spans:
        same = _repeats(vectors[STATE], span) & _repeats(vectors[ACTION], span)
        steps = len(same)
        for first, last in _runs(same):
            if last - first > PAUSE_FRAMES:
                same[first : last - 1] = False
                steps -= last - first - 1
        if steps < HELD_LEAST_FRAMES or same.sum() < REPEATED_SHARE * steps:
            continue
        rate = f"; about {fps * (1 - same.sum() / steps):.3g} a second are new" if fps else ""
        found.append(
            REPEATED.fault(
                f"{int(same.sum())} of {span.count} rows of episode {span.episode} repeat state and action of"
                f" the row before{rate}",
                where=Place(span.file, span.episode, int(np.flatnonzero(same)[0]) + 1, STATE),
                count=int(same.sum()),
                data={"repeated": int(same.sum()), "rows": span.count},
            )
        )
    yield from _each_or_all(found, case)
