"""Quantiles from order statistics: which ranks they need, and finding these without holding the values."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

QUANTILES: dict[str, float] = {"q01": 0.01, "q10": 0.10, "q50": 0.50, "q90": 0.90, "q99": 0.99}

# The bits of a value that each pass looks at: the first few tell most values apart, and as many counters as
# there are patterns of that many bits stay in a core's cache.
DIGITS = {32: (12, 10, 10), 64: (12, 13, 13, 13, 13)}


@lru_cache(maxsize=64)
def quantile_ranks(rows: int) -> tuple[int, ...]:
    """The ranks (0 is the smallest value) whose values `interpolated` needs, ascending."""
    ranks = set()
    for place in _places(rows):
        ranks |= {int(place), min(int(place) + 1, rows - 1)}
    return tuple(sorted(ranks))


def interpolated(rows: int, values: NDArray[Any]) -> dict[str, NDArray[np.float64]]:
    """Quantiles as `numpy.percentile`'s linear definition gives them, bit for bit.

    Args:
        values: (C, R): for each of C channels the values at `quantile_ranks(rows)`.

    Returns:
        (C,) for each quantile.
    """
    at = {rank: values[:, n].astype(np.float64) for n, rank in enumerate(quantile_ranks(rows))}
    found = {}
    for name, place in zip(QUANTILES, _places(rows), strict=True):
        low, high = at[int(place)], at[min(int(place) + 1, rows - 1)]
        part, step = place - int(place), high - low
        # numpy/lib/_function_base_impl.py, _lerp: from the nearer end, so that rounding is symmetric.
        found[name] = high - step * (1 - part) if part >= 0.5 else low + step * part
    return found


def _places(rows: int) -> list[float]:
    return [(rows - 1) * ((100 * q) / 100) for q in QUANTILES.values()]


def ordered_keys(values: NDArray[Any]) -> NDArray[Any]:
    """Unsigned integers of the same width that are in order as the values are.

    Positive IEEE 754 numbers are in order as their bit patterns are, negative ones in reverse; integers need
    their sign turned.
    """
    bits = 8 * values.dtype.itemsize
    unsigned = values.view(f"u{values.dtype.itemsize}")
    top = unsigned.dtype.type(1 << (bits - 1))
    if values.dtype.kind == "f":
        negative = (values.view(f"i{values.dtype.itemsize}") >> (bits - 1)).view(unsigned.dtype)
        unsigned = unsigned ^ (negative | top)
    elif values.dtype.kind == "i":
        unsigned = unsigned ^ top
    keys: NDArray[Any] = unsigned
    return keys


def values_of(keys: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """The values whose `ordered_keys` these are."""
    bits = 8 * dtype.itemsize
    unsigned = keys.astype(f"u{dtype.itemsize}")
    top = unsigned.dtype.type(1 << (bits - 1))
    if dtype.kind == "f":
        unsigned = np.where(unsigned & top, unsigned ^ top, ~unsigned)
    elif dtype.kind == "i":
        unsigned = unsigned ^ top
    values: NDArray[Any] = unsigned.view(dtype)
    return values


class RankSearch:
    """Finds the values at given ranks of a sequence that is seen several times, a few bits a pass.

    Each pass counts how the values that begin with the bits found so far go on; the counts say how each rank
    goes on. The memory is the counters', however long the sequence is.
    """

    def __init__(self, bits: int) -> None:
        self._bits, self._digits = bits, list(DIGITS[bits])
        self._prefix = np.zeros(1, dtype=np.uint64)
        self._below = np.zeros(1, dtype=np.int64)  # values with a smaller prefix
        self._known = 0  # bits found so far
        self._lut: NDArray[Any] | None = None
        self._begin()

    def _begin(self) -> None:
        self._slots = np.unique(self._prefix)
        self._counts = np.zeros((len(self._slots), 1 << self._digits[0]), dtype=np.int64)

    def add(self, keys: NDArray[Any]) -> None:
        """Count a part of the sequence; every pass must see all of it, in any order."""
        digit = self._digits[0]
        shift = self._bits - self._known - digit
        if self._known == 0:
            places = (keys >> keys.dtype.type(shift)).astype(np.intp)
        else:
            keys, slot = self._beginning_with_a_prefix(keys)
            mask = keys.dtype.type((1 << digit) - 1)
            places = (slot << digit) | ((keys >> keys.dtype.type(shift)) & mask).astype(np.intp)
        if len(places):
            self._counts += np.bincount(places, minlength=self._counts.size).reshape(self._counts.shape)

    def _beginning_with_a_prefix(self, keys: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.intp]]:
        first = DIGITS[self._bits][0]
        if self._lut is None:
            self._lut = np.zeros(1 << first, dtype=bool)
            self._lut[(self._slots >> np.uint64(self._known - first)).astype(np.intp)] = True
        keys = keys[self._lut[(keys >> keys.dtype.type(self._bits - first)).astype(np.intp)]]
        slots = self._slots.astype(keys.dtype)
        prefix = keys >> keys.dtype.type(self._bits - self._known)
        slot = np.minimum(np.searchsorted(slots, prefix), len(slots) - 1)
        if self._known == first:
            return keys, slot
        right = slots[slot] == prefix
        return keys[right], slot[right]

    def end_pass(self, ranks: tuple[int, ...]) -> bool:
        """Take the counts in; says whether the values at all ranks, the same after each pass, are found."""
        digit = self._digits.pop(0)
        if self._known == 0:
            self._prefix, self._below = np.zeros(len(ranks), np.uint64), np.zeros(len(ranks), np.int64)
        sums = self._counts.cumsum(axis=1)
        for n, slot in enumerate(np.searchsorted(self._slots, self._prefix).tolist()):
            within = ranks[n] - self._below[n]
            found = int(np.searchsorted(sums[slot], within, side="right"))
            self._below[n] += sums[slot][found - 1] if found else 0
            self._prefix[n] = (self._prefix[n] << np.uint64(digit)) | np.uint64(found)
        self._known += digit
        self._lut = None
        if self._digits:
            self._begin()
        return not self._digits

    def keys(self) -> NDArray[np.uint64]:
        """The keys at the ranks, when all is found."""
        return self._prefix
