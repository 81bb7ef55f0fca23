"""Stored quantiles against true ones."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stack.audit.declared import channel_name, vector_features
from stack.audit.exact import exact_stats, stored_vector, whole_column
from stack.audit.kinds import Case, check, kind
from stack.dataset.stats import Stats
from stack.faults import Fault, Place

STATS_JSON = "meta/stats.json"
PREPARE = "`stack prepare` computes exact pooled quantiles from the rows, in seconds"
MISSING = kind(
    "stats-quantiles-missing",
    "warning",
    "statistics",
    title="there are no q01 and q99",
    consequence="policies with QUANTILES normalisation, pi0.5 among them, refuse to start",
    mend=PREPARE,
    also={"error": "for a policy that needs them, in v3.0"},
)
WRONG = kind(
    "stats-quantiles-wrong",
    "warning",
    "statistics",
    title="stored quantiles are not those of the rows",
    consequence="values far outside [-1, 1] where about 2 % are right: states are cut off, actions are "
    "learnt at a wrong scale. Most tools average the quantiles of episodes, which gives no quantile",
    mend=PREPARE,
    also={"error": "for a policy that normalises by them"},
)
AVERAGED = kind(
    "stats-quantiles-averaged",
    "note",
    "statistics",
    title="the stored quantiles are averages of the episodes' quantiles",
    consequence="the average of quantiles is no quantile: the range is too narrow where episodes differ",
    mend=PREPARE,
)
ALLOWED_SPAN_FRAC = 0.02
AVERAGED_SHARE = 0.8


def _reads(case: Case) -> bool:
    """Whether the policy that is judged for takes its quantiles from the dataset."""
    return case.policy is not None and case.policy.reads_stats_json


@check("quantiles there", MISSING)
def quantiles_there(case: Case) -> Iterator[Fault]:
    evidence = case.evidence
    if evidence.version is None or (case.policy is not None and not _reads(case)):
        return
    names = vector_features(evidence.features)
    stats = evidence.stats or {}
    per_episode = evidence.episode_stats if evidence.version == "v2.1" else []
    absent = []
    for name, feature in names.items():
        width = int(np.prod(feature.shape)) if feature.shape else 1
        stored = [stats.get(name, {})] if not per_episode else [of.stats.get(name, {}) for of in per_episode]
        if not all(
            stored_vector(entry, stat, width) is not None for entry in stored for stat in ("q01", "q99")
        ):
            absent.append(name)
    if absent:
        yield MISSING.fault(
            f"{len(absent)} of {len(names)} features have no q01 and q99: "
            + ", ".join(absent[:6])
            + (", ..." if len(absent) > 6 else ""),
            where=Place(STATS_JSON if evidence.version != "v2.1" else "meta/episodes_stats.jsonl"),
            severity="error" if evidence.is_v3 and _reads(case) else "warning",
            data={"features": absent},
        )


@check("quantiles against rows", WRONG, AVERAGED)
def quantiles_true(case: Case) -> Iterator[Fault]:
    evidence = case.evidence
    if evidence.rows.unread:
        return
    for name, feature in vector_features(evidence.features).items():
        exact = exact_stats(evidence, name)
        entry = (evidence.stats or {}).get(name, {})
        if exact is None or not whole_column(evidence, name):
            continue
        q01, q99 = (stored_vector(entry, stat, exact.q01.size) for stat in ("q01", "q99"))
        if q01 is None or q99 is None or not (np.isfinite(q01).all() and np.isfinite(q99).all()):
            continue
        off = _off(exact, q01, q99)
        bad = np.flatnonzero(off > ALLOWED_SPAN_FRAC)
        if not len(bad):
            continue
        c = int(off.argmax())
        column = evidence.rows.columns[name]
        outside = [_outside(column.values, int(b), q01, q99) for b in bad]
        right = exact.q01.reshape(-1)[c], exact.q99.reshape(-1)[c]
        yield WRONG.fault(
            f"{name}: {len(bad)} of {off.size} channels are off, at worst by {off[c]:.1%} of the true span in"
            f" {channel_name(feature, c)}: stored {q01[c]:.4g} to {q99[c]:.4g}, true {right[0]:.4g} to"
            f" {right[1]:.4g}; {np.mean(outside):.1%} of these channels' values lie outside, 2 % are right",
            where=Place(STATS_JSON, feature=name, channel=channel_name(feature, c)),
            severity="error" if _reads(case) else "warning",
            data={"channels": [int(b) for b in bad], "outside_frac": float(np.mean(outside))},
        )
        averages = _averages(case, name, bad)
        same = _off_from(averages[0], averages[1], q01[bad], q99[bad]) <= ALLOWED_SPAN_FRAC
        if same.mean() >= AVERAGED_SHARE:
            yield AVERAGED.fault(
                f"{name}: {int(same.sum())} of the {len(bad)} wrong channels are averages over"
                f" {len(evidence.rows.lengths)} episodes",
                where=Place(STATS_JSON, feature=name),
            )


def _off(exact: Stats, q01: NDArray[np.float64], q99: NDArray[np.float64]) -> NDArray[np.float64]:
    """(D,) how far the stored quantiles are off, as a share of the true span.

    A span of 0 is compared at float32 precision of the value instead.
    """
    return _off_from(exact.q01.reshape(-1), exact.q99.reshape(-1), q01, q99)


def _averages(case: Case, name: str, channels: NDArray[Any]) -> tuple[NDArray[np.float64], NDArray[Any]]:
    """(len(channels),) twice: q01 and q99 of each episode, averaged with its number of rows as weight."""
    rows = case.evidence.rows
    values = rows.columns[name].values
    assert values is not None
    pieces: dict[int, list[NDArray[Any]]] = {}
    for span in rows.spans:
        if span.count:
            own = values[span.start : span.start + span.count]
            pieces.setdefault(span.episode, []).append(own[:, channels])
    each = [np.percentile(np.concatenate(own).astype(np.float64), [1, 99], axis=0) for own in pieces.values()]
    weights = [rows.lengths[episode] for episode in pieces]
    mean = np.average(np.stack(each), axis=0, weights=weights)
    return mean[0], mean[1]


def _off_from(
    low: NDArray[np.float64], high: NDArray[np.float64], q01: NDArray[np.float64], q99: NDArray[np.float64]
) -> NDArray[np.float64]:
    off = np.maximum(np.abs(q01 - low), np.abs(q99 - high))
    rounding = 1e-6 * np.maximum(np.abs(low), np.abs(high)) + 1e-9
    span = np.maximum(high - low, rounding)
    return np.where(off <= rounding, 0.0, off / span)


def _outside(values: object, c: int, q01: NDArray[np.float64], q99: NDArray[np.float64]) -> float:
    own = np.asarray(values)[:, c].astype(np.float64)
    own = own[np.isfinite(own)]
    rounding = 1e-6 * max(abs(q01[c]), abs(q99[c]))
    return float(((own < q01[c] - rounding) | (own > q99[c] + rounding)).mean())
