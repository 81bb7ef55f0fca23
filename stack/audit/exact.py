"""Exact figures of the rows, worked out once and shared by the checks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from stack.audit.declared import channel_name, field_of
from stack.audit.rows import Column, finite
from stack.dataset.stats import Stats, vector_stats

if TYPE_CHECKING:
    from stack.audit.evidence import Evidence
    from stack.audit.kinds import PolicyNeeds

STATE, ACTION = "observation.state", "action"
EPSILON = np.float32(1e-8)  # what lerobot puts in place of a range that is exactly 0


def usable_rows(evidence: Evidence, name: str) -> NDArray[np.int64]:
    """Rows of a column that are there and finite in every channel."""
    if name not in evidence.usable:
        evidence.usable[name] = _usable_rows(evidence.rows.columns.get(name))
    return evidence.usable[name]


def _usable_rows(column: Column | None) -> NDArray[np.int64]:
    if column is None or column.values is None or not column.width:
        return np.zeros(0, np.int64)
    good = column.present.copy()
    if column.values.dtype.kind == "f":
        good &= finite(column.values).all(axis=1)
    return np.flatnonzero(good)


def whole_column(evidence: Evidence, name: str) -> bool:
    """Whether every row of the column is usable."""
    return len(usable_rows(evidence, name)) == evidence.rows.count


def exact_stats(evidence: Evidence, name: str) -> Stats | None:
    """Pooled statistics over all usable rows, flat (D,); None where there are no numbers."""
    if name not in evidence.exact:
        rows = usable_rows(evidence, name)
        column = evidence.rows.columns.get(name)
        if column is None or column.values is None or not len(rows):
            return None
        values = column.values if len(rows) == len(column.values) else column.values[rows]
        evidence.exact[name] = vector_stats(values, where=name)
    return evidence.exact[name]


def stored_vector(entry: Mapping[str, Any], stat: str, width: int) -> NDArray[np.float64] | None:
    """A stored statistic as (width,), whatever its nesting; None where absent or of another size."""
    array = as_numbers(entry.get(stat))
    if array is None or array.size != width:
        return None
    return array.reshape(-1)


def as_numbers(value: Any) -> NDArray[np.float64] | None:
    """A stored value as an array; None where it is absent, ragged or holds what is no number."""
    if value is None or isinstance(value, (str, bool, dict)):
        return None
    try:
        array = np.asarray(value, dtype=np.float64)
    except (ValueError, TypeError, OverflowError):
        return None
    return array


@dataclass(frozen=True)
class Channel:
    """One channel of a policy's state or action under QUANTILES normalisation.

    Attributes:
        source: where q01 and q99 come from: `stats.json`, as training will read them, or `rows`.
        largest: the largest |y| of any row, y = 2 (x - q01) / (q99 - q01) - 1 in float32, the range
            replaced by 1e-8 only where it is exactly 0, not clipped; as lerobot's normaliser.
        row: the row of the largest.
        outside_frac: share of rows with |y| > 1.
        chunk_loss: for actions: this channel's part, sum of y^2 over the horizon divided by horizon and
            width, in the worst sample. A flow-matching loss starts at about 1 to 2 in all. None for states.
    """

    feature: str
    index: int
    name: str
    field: str | None
    source: str
    q01: float
    q99: float
    low: float
    high: float
    largest: float
    row: int
    outside_frac: float
    chunk_loss: float | None = None

    @property
    def is_constant(self) -> bool:
        return self.low == self.high


def normalise(
    values: NDArray[Any], q01: NDArray[Any], q99: NDArray[Any], span_added: float | None = None
) -> NDArray[np.float32]:
    """QUANTILES normalisation in float32: lerobot's, or with `span_added` (1e-6) openpi's."""
    low, high = q01.astype(np.float32), q99.astype(np.float32)
    span = high - low
    span = np.where(span == 0, EPSILON, span) if span_added is None else span + np.float32(span_added)
    with np.errstate(over="ignore"):
        return np.asarray(np.float32(2.0) * (values.astype(np.float32) - low) / span - np.float32(1.0))


def _magnitudes(values: NDArray[Any], q01: Any, q99: Any, span_added: float | None) -> NDArray[np.float32]:
    """|y| of finite values; infinite where float32 cannot hold it, also where infinities cancel to NaN."""
    with np.errstate(over="ignore", invalid="ignore"):
        y = np.abs(normalise(values, q01, q99, span_added))
    return np.where(np.isnan(y), np.float32(np.inf), y)


def quantiles_for_training(
    evidence: Evidence, name: str, needs: PolicyNeeds
) -> tuple[str, NDArray[Any], NDArray[Any]] | None:
    """(source, q01, q99): those that training will read in stats.json, else the exact ones of the rows."""
    exact = exact_stats(evidence, name)
    if exact is None:
        return None
    entry = (evidence.stats or {}).get(name, {}) if needs.reads_stats_json else {}
    q01, q99 = (stored_vector(entry, stat, exact.q01.size) for stat in ("q01", "q99"))
    if q01 is not None and q99 is not None and np.isfinite(q01).all() and np.isfinite(q99).all():
        return "stats.json", q01, q99
    return "rows", exact.q01.reshape(-1), exact.q99.reshape(-1)


def channels(evidence: Evidence, needs: PolicyNeeds) -> list[Channel]:
    """Every channel of state and action, in order."""
    if evidence.channels is None:
        evidence.channels = [
            channel for name in (STATE, ACTION) for channel in _channels(evidence, name, needs)
        ]
    return evidence.channels


def _channels(evidence: Evidence, name: str, needs: PolicyNeeds) -> list[Channel]:
    exact, chosen = exact_stats(evidence, name), quantiles_for_training(evidence, name, needs)
    column, feature = evidence.rows.columns.get(name), evidence.features.get(name)
    if exact is None or chosen is None or column is None or column.values is None:
        return []
    source, q01, q99 = chosen
    rows = usable_rows(evidence, name)
    values = column.values if len(rows) == len(column.values) else column.values[rows]
    losses = _worst_chunks(evidence, rows, values, q01, q99, needs) if name == ACTION else None
    found = []
    for c in range(column.width):
        y = _magnitudes(values[:, c], q01[c : c + 1], q99[c : c + 1], needs.span_added)
        worst = int(y.argmax())
        found.append(
            Channel(
                feature=name,
                index=c,
                name=channel_name(feature, c) if feature else f"[{c}]",
                field=field_of(feature, c) if feature else None,
                source=source,
                q01=float(q01[c]),
                q99=float(q99[c]),
                low=float(exact.min.reshape(-1)[c]),
                high=float(exact.max.reshape(-1)[c]),
                largest=float(y[worst]),
                row=int(rows[worst]),
                outside_frac=float((y > 1 + 1e-6).mean()),
                chunk_loss=float(losses[c]) / column.width if losses is not None else None,
            )
        )
    return found


def _worst_chunks(
    evidence: Evidence,
    rows: NDArray[np.int64],
    values: NDArray[Any],
    q01: NDArray[Any],
    q99: NDArray[Any],
    needs: PolicyNeeds,
) -> NDArray[np.float64]:
    """(D,) the largest mean of y^2 over any frame's chunk; chunks repeat the last action past the end."""
    horizon = needs.action_horizon
    worst = np.zeros(values.shape[1])
    for span in evidence.rows.spans:
        first, last = np.searchsorted(rows, [span.start, span.start + span.count])
        if not span.count or first == last:
            continue
        y = _magnitudes(values[first:last], q01, q99, needs.span_added).astype(np.float64)
        squares = np.zeros((span.count, values.shape[1]))
        squares[rows[first:last] - span.start] = y**2
        padded = np.concatenate([squares, np.repeat(squares[-1:], horizon - 1, axis=0)])
        sums = np.concatenate([np.zeros((1, values.shape[1])), np.cumsum(padded, axis=0)])
        worst = np.maximum(worst, (sums[horizon:] - sums[:-horizon]).max(axis=0))
    return worst / horizon
