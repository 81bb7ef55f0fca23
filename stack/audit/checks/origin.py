"""Whose statistics these are: of these rows, of another episode, or of another dataset."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from stack.audit.checks.stats import EPISODES_STATS, PREPARE, STATS_JSON, entries
from stack.audit.declared import vector_features
from stack.audit.exact import as_numbers, exact_stats, stored_vector, whole_column
from stack.audit.kinds import Case, check, kind
from stack.faults import Fault, Place

COUNT_DIFFERS = kind(
    "stats-count-differs",
    "warning",
    "statistics",
    title="a stored count is not the number of rows",
    consequence="merging weights by count: this dataset, or this episode, gets another share of the merged "
    "statistics than of the rows",
    mend=PREPARE,
)
FOREIGN = kind(
    "stats-foreign",
    "error",
    "statistics",
    title="the statistics are those of another dataset or episode",
    consequence="every channel is normalised by another recording's scale, also where the numbers look sane",
    mend=PREPARE,
)
RTOL, ATOL = 1e-4, 1e-6  # means that agree so well are the same
FAR_STDS = 0.25  # a mean this many standard deviations away is not rounding
FAR_SHARE = 0.5  # in more than this share of the channels, in every feature


@check("counts of the statistics", COUNT_DIFFERS)
def stats_counts(case: Case) -> Iterator[Fault]:
    rows = case.evidence.rows
    lengths = rows.lengths
    for entry in entries(case):
        if rows.unread and (entry.episode is None or case.evidence.is_v3):
            continue
        count = as_numbers(entry.stats.get("count"))
        right = rows.count if entry.episode is None else lengths.get(entry.episode)
        if entry.feature.is_camera or count is None or not count.size or right is None:
            continue
        if np.isfinite(count).all() and (count > 0).any() and (count != right).any():
            got = int(count.reshape(-1)[0])
            yield COUNT_DIFFERS.fault(
                f"{entry.feature.name}: count is {got}; there are {right} rows", where=entry.place
            )


@check("whose statistics these are", FOREIGN)
def stats_own(case: Case) -> Iterator[Fault]:
    evidence = case.evidence
    if evidence.rows.unread:
        return
    yield from _of_dataset(case)
    yield from _of_episodes(case)


def _of_dataset(case: Case) -> Iterator[Fault]:
    evidence = case.evidence
    shares = {}
    for name in vector_features(evidence.features):
        exact = exact_stats(evidence, name) if whole_column(evidence, name) else None
        stored = (
            stored_vector((evidence.stats or {}).get(name, {}), "mean", exact.mean.size) if exact else None
        )
        if exact is not None and stored is not None and np.isfinite(stored).all():
            moving = exact.std.reshape(-1) > 0
            off = np.abs(stored - exact.mean.reshape(-1)) > FAR_STDS * exact.std.reshape(-1)
            if moving.any():
                shares[name] = (int((off & moving).sum()), int(moving.sum()))
    if len(shares) > 1 and all(far > FAR_SHARE * of for far, of in shares.values()):
        said = ", ".join(f"{name} {far} of {of}" for name, (far, of) in list(shares.items())[:6])
        yield FOREIGN.fault(
            f"in every feature most channels' means lie more than {FAR_STDS:g} std from the rows': {said}",
            where=Place(STATS_JSON),
            data={"channels_far": {name: far for name, (far, _) in shares.items()}},
        )


def _of_episodes(case: Case) -> Iterator[Fault]:
    """Per-episode means that are, to rounding, those of another episode."""
    evidence = case.evidence
    name = next((n for n in ("observation.state", "action") if n in evidence.rows.columns), None)
    column = evidence.rows.columns.get(name or "")
    if name is None or column is None or column.values is None or not whole_column(evidence, name):
        return
    means = {
        span.episode: column.values[span.start : span.start + span.count].astype(np.float64).mean(axis=0)
        for span in evidence.rows.spans
        if span.count
    }
    episodes, table = list(means), np.array(list(means.values()))
    told_by = int(np.ptp(table, axis=0).argmax()) if len(table) else 0
    order = np.argsort(table[:, told_by], kind="stable") if len(table) else np.zeros(0, np.int64)
    for of in evidence.episode_stats:
        stored = stored_vector(of.stats.get(name, {}), "mean", column.width)
        if of.episode not in means or stored is None or _near(stored, means[of.episode]):
            continue
        alike = _alike(table, order, told_by, stored)
        other = next((episodes[i] for i in alike if episodes[i] != of.episode), None)
        if other is not None:
            yield FOREIGN.fault(
                f"the {name} statistics of episode {of.episode} are those of episode {other}",
                where=Place(of.file or EPISODES_STATS, of.episode, feature=name),
                data={"of": other},
            )


def _alike(
    table: NDArray[np.float64], order: NDArray[np.int64], channel: int, mean: NDArray[np.float64]
) -> list[int]:
    """Rows of `table` near to `mean`. Only those near in one channel, which `order` sorts, are looked at."""
    span = 2 * (RTOL * abs(mean[channel]) + ATOL)
    first, last = np.searchsorted(
        table[:, channel], [mean[channel] - span, mean[channel] + span], sorter=order
    )
    return sorted(int(i) for i in order[first:last] if _near(mean, table[i]))


def _near(a: NDArray[np.float64], b: NDArray[np.float64]) -> bool:
    return bool(np.allclose(a, b, rtol=RTOL, atol=ATOL))
