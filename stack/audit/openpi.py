"""openpi's running estimate of quantiles, rebuilt from its description, to compare with the exact ones.

openpi (shared/normalize.py, class RunningStats) keeps, for each channel, a histogram of 5000 bins over the
range seen so far. When any channel leaves its range, the histograms of all are filled into new bins by the
old bins' left edges. A quantile is the left edge of the bin in which the cumulated count reaches it. One far
value makes the bins so wide that all others share one: q01 = q99, a range of 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

BINS = 5000
MARGIN = 1e-10  # added at both ends of the first batch's range
BATCH_FRAMES = 256  # of the configuration pi05_libero


@dataclass
class RunningQuantiles:
    """Histograms (D, 5000) over edges that grow with the data."""

    low: NDArray[np.float64]
    high: NDArray[np.float64]
    first_edge: NDArray[np.float64]
    last_edge: NDArray[np.float64]
    histogram: NDArray[np.float64]

    @classmethod
    def over(cls, first: NDArray[np.float64]) -> RunningQuantiles:
        """Empty histograms over the range of the first batch (B, D)."""
        low, high = first.min(axis=0), first.max(axis=0)
        return cls(low, high, low - MARGIN, high + MARGIN, np.zeros((first.shape[1], BINS)))

    def update(self, batch: NDArray[np.float64], weights: NDArray[np.float64] | None = None) -> None:
        """Add a batch (B, D); `weights` (B,) says how often each row counts, once if not given."""
        low, high = batch.min(axis=0), batch.max(axis=0)
        if (low < self.low).any() or (high > self.high).any():
            self.low, self.high = np.minimum(self.low, low), np.maximum(self.high, high)
            self._grow()
        counts: NDArray[np.float64] = np.ones(len(batch)) if weights is None else weights
        at = self._bins(batch.T, self.first_edge, self.last_edge)
        channels = np.arange(len(at))[:, None] * BINS
        np.add.at(self.histogram.reshape(-1), (at + channels).reshape(-1), np.tile(counts, len(at)))

    def _grow(self) -> None:
        """Fill all histograms into new bins over the whole range, by the old bins' left edges."""
        lefts = (
            self.first_edge[:, None] + np.arange(BINS) * ((self.last_edge - self.first_edge) / BINS)[:, None]
        )
        self.first_edge, self.last_edge = self.low.copy(), self.high.copy()
        at = self._bins(lefts, self.first_edge, self.last_edge)
        flat = (at + np.arange(len(at))[:, None] * BINS).reshape(-1)
        filled = np.bincount(flat, weights=self.histogram.reshape(-1), minlength=self.histogram.size)
        self.histogram = filled.astype(np.float64).reshape(self.histogram.shape)

    @staticmethod
    def _bins(
        values: NDArray[np.float64], first: NDArray[np.float64], last: NDArray[np.float64]
    ) -> NDArray[np.int64]:
        """The bin (D, N) of each value (D, N)."""
        span = np.maximum(last - first, np.finfo(np.float64).tiny)[:, None]
        return np.asarray(np.clip((values - first[:, None]) / span * BINS, 0, BINS - 1), np.int64)

    def quantile(self, q: float) -> NDArray[np.float64]:
        """(D,) left edge of the bin in which the cumulated count reaches q."""
        cumulated = self.histogram.cumsum(axis=1)
        at = (cumulated < q * cumulated[:, -1:]).sum(axis=1)
        return np.asarray(self.first_edge + at * (self.last_edge - self.first_edge) / BINS)


def running_quantiles(
    values: NDArray[np.floating], weights: NDArray[np.float64] | None = None, batch: int = BATCH_FRAMES
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """(q01, q99), each (D,), as openpi's statistics step would write them for rows (N, D) in this order.

    The last batch is dropped where it is not full, as its loader does; fewer rows than one batch are taken
    as one.
    """
    stop = len(values) - len(values) % batch if len(values) >= batch else len(values)
    running: RunningQuantiles | None = None
    for start in range(0, stop, batch):
        rows = values[start : min(start + batch, stop)].astype(np.float64)
        running = running or RunningQuantiles.over(rows)
        running.update(rows, None if weights is None else weights[start : start + len(rows)])
    if running is None:
        raise ValueError("no rows")
    return running.quantile(0.01), running.quantile(0.99)


def chunk_weights(lengths: Sequence[int], horizon: int) -> NDArray[np.float64]:
    """How often each row's action is in some frame's chunk: chunks repeat the last action past the end."""
    parts = []
    for length in lengths:
        weights = np.minimum(np.arange(1, length + 1), horizon).astype(np.float64)
        if length:
            weights[-1] += length * horizon - weights.sum()
        parts.append(weights)
    return np.concatenate(parts) if parts else np.zeros(0)
