"""Stored statistics: there, of the right form, and those of these rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stack.audit.exact import as_numbers, exact_stats, stored_vector, whole_column
from stack.audit.kinds import Case, check, kind
from stack.audit.rows import finite
from stack.dataset.model import INDEX_FEATURES, Feature
from stack.faults import Fault, Place, Severity

STATS_JSON, EPISODES_STATS = "meta/stats.json", "meta/episodes_stats.jsonl"
PREPARE = "`stack prepare` computes all statistics again, exact, from the rows"
MISSING = kind(
    "stats-missing",
    "error",
    "statistics",
    title="statistics of a feature, or all of them, are absent",
    consequence="training stops with a KeyError; camera entries are needed too, even where pictures are not "
    "normalised by them (lerobot issues 2975, 3786)",
    mend=PREPARE,
    also={"warning": "in v2.x, where they are computed when the delivery is prepared"},
)
COUNT_ZERO = kind(
    "stats-count-zero",
    "error",
    "statistics",
    title="statistics are placeholders over 0 samples",
    consequence="merging weights by count: division by zero, then NaN in every merged statistic",
    mend="remove the placeholders, or compute them; " + PREPARE,
)
NESTED = kind(
    "stats-nested",
    "error",
    "statistics",
    title="statistics are nested in more lists than the feature has axes",
    consequence="merging fails or writes arrays into JSON ('ndarray is not JSON serializable')",
    mend="flatten them to one number a channel; " + PREPARE,
)
SHAPE = kind(
    "stats-shape-mismatch",
    "error",
    "statistics",
    title="statistics do not have the feature's shape",
    consequence="merging stops ('all input arrays must have the same shape'), or values broadcast wrongly",
    mend="store one number a channel, (3, 1, 1) for cameras, and a count of one number; " + PREPARE,
)
NOT_FINITE = kind(
    "stats-not-finite",
    "error",
    "statistics",
    title="stored statistics are NaN, infinite or null",
    consequence="every normalised value of the channel is NaN, and so is the loss from the first step on",
    mend="find the rows that caused it (rows-not-finite), then: " + PREPARE,
)
DIFFER = kind(
    "stats-differ",
    "error",
    "statistics",
    title="stored mean, std, min or max are not those of the rows",
    consequence="values are normalised by another dataset's scale",
    mend=PREPARE,
)
INDEX_STALE = kind(
    "stats-index-stale",
    "warning",
    "statistics",
    title="statistics of an index column are not those of the rows",
    consequence="none for training; it shows that rows were renumbered or merged after statistics were taken",
    mend=PREPARE,
)
_BASIC = ("min", "max", "mean", "std")


@dataclass(frozen=True)
class _Entry:
    """Statistics stored for one feature, of one episode or of all."""

    feature: Feature
    episode: int | None
    file: str
    stats: Mapping[str, Any]

    @property
    def place(self) -> Place:
        return Place(self.file, self.episode, feature=self.feature.name)


def entries(case: Case) -> Iterator[_Entry]:
    evidence = case.evidence
    for name, stats in (evidence.stats or {}).items():
        if name in evidence.features:
            yield _Entry(evidence.features[name], None, STATS_JSON, stats)
    for of_episode in evidence.episode_stats:
        for name, stats in of_episode.stats.items():
            if name in evidence.features:
                yield _Entry(evidence.features[name], of_episode.episode, of_episode.file, stats)


def _wants_stats(feature: Feature) -> bool:
    return feature.dtype not in ("string", "language", "")


@check("statistics there", MISSING)
def stats_there(case: Case) -> Iterator[Fault]:
    evidence = case.evidence
    severity: Severity = "error" if evidence.is_v3 else "warning"
    wanted = [feature.name for feature in evidence.features.values() if _wants_stats(feature)]
    if not wanted:
        return
    if evidence.version in ("v2.0", "v3.0"):
        if evidence.stats is None:
            yield MISSING.fault(
                "meta/stats.json is absent or unreadable", severity=severity, where=Place(STATS_JSON)
            )
            return
        for name in wanted:
            if not evidence.stats.get(name):
                yield MISSING.fault(
                    f"stats.json has no entry for {name}",
                    severity=severity,
                    where=Place(STATS_JSON, feature=name),
                )
        return
    stored = {of.episode: of.stats for of in evidence.episode_stats}
    for entry in evidence.episodes:
        own = stored.get(entry.index)
        absent = wanted if own is None else [name for name in wanted if not own.get(name)]
        if own is None or len(absent) == len(wanted):
            yield MISSING.fault(
                f"episode {entry.index} has no statistics",
                severity=severity,
                where=Place(EPISODES_STATS, entry.index),
            )
            continue
        for name in absent:
            yield MISSING.fault(
                f"episode {entry.index} has no statistics of {name}",
                severity=severity,
                where=Place(EPISODES_STATS, entry.index, feature=name),
            )


def expected_shape(feature: Feature) -> tuple[int, ...] | None:
    """Shape of each statistic but count: (C, 1, 1) for cameras, else the feature's own; None if unknown."""
    if feature.is_camera:
        return None if len(feature.shape) != 3 else (min(feature.shape[0], feature.shape[2]), 1, 1)
    return feature.shape or None


@check("form of the statistics", COUNT_ZERO, NESTED, SHAPE, NOT_FINITE)
def stats_form(case: Case) -> Iterator[Fault]:
    for entry in entries(case):
        name, want = entry.feature.name, expected_shape(entry.feature)
        nested: list[str] = []
        misshapen: list[str] = []
        broken: list[str] = []
        for stat, value in entry.stats.items():
            array = as_numbers(value)
            right = (1,) if stat == "count" else want
            if array is None:
                nulls = value is None or (isinstance(value, list) and None in value)
                (broken if nulls else misshapen).append(f"{stat} is {str(value)[:40]}")
                continue
            if not np.isfinite(array).all():
                broken.append(f"{stat} holds {int((~np.isfinite(array)).sum())} such values")
            if right is None or array.shape == right:
                continue
            text = f"{stat} is {_shape(array)}, not {list(right)}"
            deeper = stat != "count" and array.size == np.prod(right) and array.ndim > len(right)
            (nested if deeper else misshapen).append(text)
        count = as_numbers(entry.stats.get("count"))
        if count is not None and count.size and (count <= 0).all():
            yield COUNT_ZERO.fault(f"{name}: count is {entry.stats['count']}", where=entry.place)
        for found, texts in ((NESTED, nested), (SHAPE, misshapen), (NOT_FINITE, broken)):
            if texts:
                yield found.fault(f"{name}: " + "; ".join(texts), where=entry.place)


def _shape(array: NDArray[np.float64]) -> list[int]:
    return list(array.shape)


@check("statistics against rows", DIFFER, INDEX_STALE)
def stats_true(case: Case) -> Iterator[Fault]:
    evidence = case.evidence
    spans: dict[int, list[tuple[int, int]]] = {}
    for span in evidence.rows.spans:
        spans.setdefault(span.episode, []).append((span.start, span.start + span.count))
    for entry in entries(case):
        name = entry.feature.name
        column = evidence.rows.columns.get(name)
        count = as_numbers(entry.stats.get("count"))
        if column is None or column.values is None or entry.feature.is_camera:
            continue
        if evidence.rows.unread and (entry.episode is None or evidence.is_v3):
            continue  # told as unchecked-rows; statistics of half the rows would accuse the wrong file
        if count is not None and count.size and (count <= 0).all():
            continue
        if entry.episode is None:
            # Rows that are not finite are told as such; the rest would differ from the statistics of all.
            exact = exact_stats(evidence, name) if whole_column(evidence, name) else None
            right = {stat: getattr(exact, stat).reshape(-1) for stat in _BASIC} if exact else None
        else:
            own = spans.get(entry.episode, [])
            right = _basic([column.values[start:stop] for start, stop in own])
        if right is None:
            continue
        if wrong := _wrong(entry, right):
            found = INDEX_STALE if name in INDEX_FEATURES else DIFFER
            of = "" if entry.episode is None else f" of episode {entry.episode}"
            yield found.fault(f"{name}{of}: " + "; ".join(wrong), where=entry.place)


def _basic(blocks: list[NDArray[Any]]) -> dict[str, NDArray[np.float64]] | None:
    """min, max, mean and std (D,) in float64; None where there are no rows or some are not finite."""
    if not blocks:
        return None
    values = np.concatenate(blocks).astype(np.float64)
    if not len(values) or not finite(values).all():
        return None
    return {"min": values.min(0), "max": values.max(0), "mean": values.mean(0), "std": values.std(0)}


def _wrong(entry: _Entry, right: Mapping[str, NDArray[Any]]) -> list[str]:
    """Statistics beyond what float32 sums explain, worst channel each.

    Writers compute std as sqrt(E[x^2] - E[x]^2) in float32, which is off by up to 3.5e-4 of the magnitude.
    """
    scale = np.maximum(np.abs(right["min"]), np.abs(right["max"])).astype(np.float64)
    spread = right["std"].astype(np.float64)
    allowed = {
        "min": 1e-5 * scale + 1e-6,
        "max": 1e-5 * scale + 1e-6,
        "mean": 1e-3 * spread + 1e-5 * scale + 1e-6,
        "std": 1e-2 * spread + 5e-4 * scale + 1e-6,
    }
    texts = []
    for stat in _BASIC:
        got = stored_vector(entry.stats, stat, scale.size)
        if got is None or not np.isfinite(got).all():
            continue
        off = np.abs(got - right[stat])
        if (off > allowed[stat]).any():
            c = int((off / np.maximum(allowed[stat], 1e-12)).argmax())
            texts.append(f"{stat}[{c}] is {got[c]:.6g}, the rows give {float(right[stat][c]):.6g}")
    return texts
