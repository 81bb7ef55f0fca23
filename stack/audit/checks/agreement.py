"""State against action, and episodes against one another: what each alone would not show."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from stack.audit.between_units import FACTOR, RADIAN_DEGREES, ratios
from stack.audit.declared import channel_name, vector_features
from stack.audit.exact import ACTION, STATE, exact_stats
from stack.audit.kinds import Case, check, kind
from stack.audit.rows import Array
from stack.faults import Fault, Place

UNITS = kind(
    "episode-units-differ",
    "warning",
    "rows",
    title="an episode counts in other units than the others",
    consequence="statistics over all are right for none: the one's values are far outside, or the others' "
    "crowd in a corner of the range",
    mend="find out both units; exclude the episodes of one, or have them delivered in the other",
)
COPY = kind(
    "state-is-action",
    "warning",
    "rows",
    title="the state is the action of the same row, bit for bit",
    consequence="a recorder that wrote the command in place of what was measured: the policy is given the "
    "answer in training, and something else on the robot",
    mend="have the measured state recorded; where state and command are truly one, nothing",
)
EXCHANGED = kind(
    "names-exchanged",
    "warning",
    "columns",
    title="state and action name the same channels in different orders, and the values say otherwise",
    consequence="fields chosen by name take another channel's values",
    mend="find out which order is right and write it into info.json",
)
MOST, SPREAD, MOVING_LEAST = 0.8, np.log(4.0), 3
FEW = 20  # so many episodes are each compared with the others alone
SAMPLED_ROWS = 20_000
NEARER = 0.5


@check("units of episodes against one another", UNITS)
def episode_units(case: Case) -> Iterator[Fault]:
    for name in vector_features(case.evidence.features):
        column = case.evidence.rows.columns.get(name)
        if column is None or column.values is None or column.values.dtype.kind != "f":
            continue
        spans = [span for span in case.evidence.rows.spans if span.count > 1]
        if len(spans) < 2 or column.width < MOVING_LEAST:
            continue
        with np.errstate(invalid="ignore", over="ignore"):
            blocks = [column.values[s.start : s.start + s.count] for s in spans]
            low = np.array([block.min(axis=0) for block in blocks], np.float64)
            high = np.array([block.max(axis=0) for block in blocks], np.float64)
            size, extent = np.maximum(np.abs(low), np.abs(high)), high - low
        usual = np.median(extent, axis=0), np.median(size, axis=0)
        for at, span in enumerate(spans):
            if len(spans) <= FEW:
                others = np.arange(len(spans)) != at
                usual = np.median(extent[others], axis=0), np.median(size[others], axis=0)
            found = _other_unit((extent[at], size[at]), usual)
            if found is None:
                continue
            channels, factor = found
            times = f"{factor:.3g} times as large" if factor > 1 else f"{1 / factor:.3g} times smaller"
            near = RADIAN_DEGREES[0] <= max(factor, 1 / factor) <= RADIAN_DEGREES[1]
            yield UNITS.fault(
                f"{channels} channels of {name} are about {times} in episode {span.episode} than in the"
                f" others{' (57.3: degrees and radians)' if near else ''}",
                where=Place(span.file, span.episode, feature=name),
                data={"factor": factor, "channels": channels},
            )


def _other_unit(own: tuple[Array, Array], usual: tuple[Array, Array]) -> tuple[int, float] | None:
    """(channels, factor) where nearly all that move in one episode are apart from the others alike.

    Args:
        own, usual: (D,) extents and (D,) magnitudes.
    """
    if not all(np.isfinite(table).all() for table in (*own, *usual)):
        return None  # told as values that are not finite
    moving, ratio = ratios(usual[0], own[0], usual[1], own[1])
    far = moving & ((ratio >= FACTOR) | (ratio <= 1 / FACTOR))
    if far.sum() < max(MOVING_LEAST, MOST * moving.sum()):
        return None
    logs = np.log(ratio[far])
    if np.ptp(logs) > SPREAD:
        return None  # an episode with less motion, not with other units
    return int(far.sum()), float(np.exp(np.median(logs)))


@check("states against actions", COPY)
def state_is_action(case: Case) -> Iterator[Fault]:
    columns = [case.evidence.rows.columns.get(name) for name in (STATE, ACTION)]
    tables = [c.values for c in columns if c is not None and c.values is not None]
    if len(tables) < 2 or tables[0].shape != tables[1].shape or not tables[0].size:
        return
    state, action = tables
    sample = _sampled(len(state))
    if not np.array_equal(state[sample], action[sample]) or not np.array_equal(state, action):
        return
    exact = exact_stats(case.evidence, STATE)
    if exact is not None and (exact.max != exact.min).any():
        yield COPY.fault(
            f"all {len(state)} rows have the same values in {STATE} and {ACTION}",
            where=Place("meta/info.json", feature=STATE),
        )


def _sampled(rows: int) -> NDArray[np.int64]:
    return np.unique(np.linspace(0, rows - 1, min(rows, SAMPLED_ROWS)).astype(np.int64))


@check("names of state and action against their values", EXCHANGED)
def names_exchanged(case: Case) -> Iterator[Fault]:
    features = [case.evidence.features.get(name) for name in (STATE, ACTION)]
    columns = [case.evidence.rows.columns.get(name) for name in (STATE, ACTION)]
    names = [list(f.names or ()) for f in features if f is not None]
    tables = [c.values for c in columns if c is not None and c.values is not None]
    if len(names) < 2 or len(tables) < 2 or names[0] == names[1] or sorted(names[0]) != sorted(names[1]):
        return
    if len(set(names[0])) < len(names[0]) or any(table.shape[1] != len(names[0]) for table in tables):
        return
    sample = _sampled(len(tables[0]))
    state, action = (table[sample].astype(np.float64) for table in tables)
    scale = np.ptp(state, axis=0)
    for i, channel in enumerate(names[0]):
        j = names[1].index(channel)
        if i == j or not scale[i] > 0:
            continue
        by_name, by_place = (float(np.abs(state[:, i] - action[:, k]).mean()) for k in (j, i))
        if by_place < NEARER * by_name:
            feature = features[0]
            assert feature is not None
            yield EXCHANGED.fault(
                f"{channel} is channel {i} of the state and {j} of the action; the state's is on average"
                f" {by_name:.3g} from that, and {by_place:.3g} from channel {i} ({names[1][i]})",
                where=Place("meta/info.json", feature=STATE, channel=channel_name(feature, i)),
            )
