"""Memory against batch size: a straight line through the points so far, and how far off it has been.

Weights, gradients and the optimiser's state are there at any batch; activations grow with the batch.
Allocators round and fragment, so that the line predicts and a measurement decides.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class MemoryModel:
    """`fixed_bytes + sample_bytes * batch`, by least squares over `points` measurements.

    Attributes:
        error_bytes: the largest distance of a measurement from the line.
    """

    fixed_bytes: float
    sample_bytes: float
    points: int
    error_bytes: float

    def predict(self, batch: int) -> int:
        return round(self.fixed_bytes + self.sample_bytes * batch)

    def largest(self, room_bytes: int) -> int | None:
        """The largest batch that it sees within `room_bytes`, at least 0; None where memory does not grow."""
        if self.sample_bytes <= 0:
            return None
        return max(0, math.floor((room_bytes - self.fixed_bytes) / self.sample_bytes + 1e-9))


def fit(measured: Sequence[tuple[int, int]]) -> MemoryModel | None:
    """The line through (batch, bytes); None for fewer than two different batches."""
    batches = [float(batch) for batch, _ in measured]
    if len({*batches}) < 2:
        return None
    sizes = [float(size) for _, size in measured]
    mean_batch, mean_size = sum(batches) / len(batches), sum(sizes) / len(sizes)
    spread = sum((batch - mean_batch) ** 2 for batch in batches)
    together = sum((b - mean_batch) * (s - mean_size) for b, s in zip(batches, sizes, strict=True))
    slope = together / spread
    fixed = mean_size - slope * mean_batch
    error = max(abs(fixed + slope * b - s) for b, s in zip(batches, sizes, strict=True))
    return MemoryModel(fixed, slope, len(measured), error)
