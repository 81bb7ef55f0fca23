"""Exact statistics: pooled over all rows or sampled pixels in float64, never averaged over episodes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stack.dataset.model import ClipRef
from stack.dataset.stats_order import QUANTILES, interpolated, quantile_ranks
from stack.dataset.video_decode import decode_frames
from stack.errors import BadRequest

VALUES_AT_ONCE = 1_250_000  # bounds the float64 copy: 10 MB, 4 channels of 305,425 rows
LARGEST = 1e150  # squares of what is larger are infinite in float64, or their sum over many rows is

# lerobot/datasets/compute_stats.py: estimate_num_samples and auto_downsample_height_width.
SAMPLES_MIN, SAMPLES_MAX, SAMPLES_POWER = 100, 10_000, 0.75
DOWNSAMPLE_FROM_PX, DOWNSAMPLE_TO_PX = 300, 150
LEVELS = 256


@dataclass(frozen=True, slots=True)
class Stats:
    """One feature's entry in stats.json.

    All but `count` have the same shape: (D,) for vectors, (1,) for scalars, (3, 1, 1) for cameras in [0, 1].
    float64; `min` and `max` are int64 for integer features. `count` is int64 (1,): rows, or sampled frames.
    `std` is the population's. Quantiles are `numpy.percentile`'s linear definition.
    """

    min: NDArray[Any]
    max: NDArray[Any]
    mean: NDArray[np.float64]
    std: NDArray[np.float64]
    count: NDArray[np.int64]
    q01: NDArray[np.float64]
    q10: NDArray[np.float64]
    q50: NDArray[np.float64]
    q90: NDArray[np.float64]
    q99: NDArray[np.float64]

    def reshaped(self, shape: tuple[int, ...]) -> Stats:
        """The same statistics in a feature's own shape; `count` stays (1,)."""
        own = {f.name: getattr(self, f.name).reshape(shape) for f in fields(self) if f.name != "count"}
        return Stats(count=self.count, **own)

    def to_json(self) -> dict[str, Any]:
        """Nested lists, as in stats.json."""
        return {f.name: getattr(self, f.name).tolist() for f in fields(self)}


def side_by_side(parts: Sequence[Stats]) -> Stats:
    """One entry from those of neighbouring channels, each (D_n,), over the same rows."""
    if len(parts) == 1:
        return parts[0]
    own = [f.name for f in fields(Stats) if f.name != "count"]
    return Stats(
        count=parts[0].count, **{name: np.concatenate([getattr(p, name) for p in parts]) for name in own}
    )


def columns_stats(columns: Mapping[str, NDArray[Any]], *, where: str = "") -> dict[str, Stats]:
    """`vector_stats` of each column over the same rows; narrow ones of whole numbers are counted together.

    Args:
        columns: feature -> (N,) or (N, D...).
        where: what error messages call the place; the feature's name is added.

    Raises:
        BadRequest: as `vector_stats`.
    """
    together: dict[np.dtype[Any], list[str]] = {}
    for name, values in columns.items():
        if values.ndim == 1 and values.dtype.kind in "iu" and len(values):  # these have no NaN to tell of
            together.setdefault(values.dtype, []).append(name)
    found: dict[str, Stats] = {}
    for names in together.values():
        found |= zip(names, _apart(vector_stats(np.stack([columns[n] for n in names], axis=1))), strict=True)
    return {
        name: found.get(name) or vector_stats(values, where=", ".join(filter(None, (where, name))))
        for name, values in columns.items()
    }


def _apart(stats: Stats) -> Iterator[Stats]:
    """One entry for each channel, the inverse of `side_by_side`."""
    own = {f.name: getattr(stats, f.name) for f in fields(stats) if f.name != "count"}
    for n in range(len(stats.min)):
        yield Stats(count=stats.count, **{name: array[n : n + 1] for name, array in own.items()})


def vector_stats(values: NDArray[Any], *, where: str = "") -> Stats:
    """Statistics over rows, exact in float64 also where the mean is far from zero.

    Args:
        values: (N,) or (N, D...), integer, boolean or floating.
        where: what error messages call the place, such as the feature's name.

    Raises:
        BadRequest: no rows, not numeric, or a value that is not finite.
    """
    return joined_stats([np.asarray(values)], where=where)


def joined_stats(parts: Sequence[NDArray[Any]], *, where: str = "") -> Stats:
    """As `vector_stats` over parts one after another, of one dtype; a few channels at a time are joined."""
    tables, rows = [], 0
    for part in parts:
        check_numeric(part, where)
        table = part.reshape(len(part), -1) if part.ndim and len(part) else part.reshape(0, 1)
        if not can_count(table):
            raise not_finite(table, where, first_row=rows)
        tables.append(table.astype(np.int64) if table.dtype.kind == "b" else table)
        rows += len(table)
    if not rows:
        raise BadRequest("stats-no-rows", "statistics over no rows do not exist", where=where)
    wide = max(1, VALUES_AT_ONCE // rows)
    blocks = [
        channels_stats(_joined([t[:, start : start + wide] for t in tables]))
        for start in range(0, tables[0].shape[1], wide)
    ]
    return side_by_side(blocks).reshaped(parts[0].shape[1:] or (1,))


def _joined(tables: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """(C, rows), each channel in one run."""
    channels = np.empty((tables[0].shape[1], sum(map(len, tables))), dtype=tables[0].dtype)
    first = 0
    for table in tables:
        channels[:, first : first + len(table)] = table.T
        first += len(table)
    return channels


def check_numeric(rows: NDArray[Any], where: str) -> None:
    """Refuse texts and objects."""
    if rows.dtype.kind not in "biuf":
        raise BadRequest("stats-not-numeric", f"statistics need numbers, not {rows.dtype}", where=where)


def uncountable(values: NDArray[Any]) -> NDArray[np.bool_]:
    """Where a float is NaN, infinite, or so large that a standard deviation would be infinite."""
    if values.dtype.itemsize < np.dtype(np.float64).itemsize:
        return np.asarray(~np.isfinite(values))
    return np.asarray(~(np.abs(values) <= LARGEST))


def can_count(values: NDArray[Any]) -> bool:
    """Whether all values are numbers that statistics can be taken of."""
    if values.dtype.kind != "f":
        return True
    if values.dtype.itemsize < np.dtype(np.float64).itemsize:  # as `uncountable`, in less time and memory
        return bool(np.isfinite(values).all())
    return not uncountable(values).any()


def not_finite(table: NDArray[Any], where: str, *, first_row: int = 0) -> BadRequest:
    """The error for a table (n, C) in which `can_count` finds a value that it cannot."""
    bad = uncountable(table)
    row, channel = (int(i) for i in np.argwhere(bad)[0])
    too_large = f", or beyond {LARGEST:g}" if table.dtype == np.float64 else ""
    return BadRequest(
        "stats-not-finite",
        f"{int(bad.sum())} of {bad.size} values are NaN or infinite as {table.dtype}{too_large}, the first "
        f"in row {first_row + row}, channel {channel}",
        where=where,
        do="leave the episode out (exclude_episodes), or mend its rows",
    )


def as_extremes(values: NDArray[Any]) -> NDArray[Any]:
    """Minima or maxima in the dtype that stats.json gets them in: float64, or int64 for integers."""
    if values.dtype.kind == "f":
        return values.astype(np.float64)
    return values if values.dtype.kind == "u" else values.astype(np.int64)


def channels_stats(channels: NDArray[Any]) -> Stats:
    """`vector_stats` of (C, rows), each channel in one run, all values finite; sorts them in place."""
    exact = channels.astype(np.float64)
    mean = exact.mean(axis=1)
    exact -= mean[:, None]
    shift = exact.mean(axis=1)
    mean += shift
    exact -= shift[:, None]
    std = np.sqrt(np.square(exact, out=exact).mean(axis=1))
    channels.sort(axis=1)
    low, high = as_extremes(channels[:, 0]), as_extremes(channels[:, -1])
    constant = low == high
    mean[constant], std[constant] = low[constant], 0.0
    rows = channels.shape[1]
    quantiles = interpolated(rows, channels[:, list(quantile_ranks(rows))])
    count = np.array([rows], dtype=np.int64)
    return Stats(min=low, max=high, mean=mean, std=std, count=count, **quantiles)


def sampled_frames(length: int) -> list[int]:
    """The frames of an episode that camera statistics look at: lerobot's `sample_indices`, ascending."""
    return [int(i) for i in np.round(np.linspace(0, length - 1, sample_count(length)))]


def sample_count(length: int) -> int:
    """How many of so many frames camera statistics look at: lerobot's `estimate_num_samples`."""
    return max(min(SAMPLES_MIN, length), min(int(length**SAMPLES_POWER), SAMPLES_MAX))


@dataclass(frozen=True, slots=True)
class CameraSample:
    """How often each level occurs in the sampled pixels: (3, 256) integers, and from how many frames.

    uint8 pixels have 256 levels, so pooled histograms lose nothing.
    """

    histogram: NDArray[Any]
    frames: int

    def packed(self) -> CameraSample:
        """The same counts in the fewest bytes: there may be one sample for each of thousands of clips."""
        return CameraSample(self.histogram.astype(np.min_scalar_type(self.histogram.max())), self.frames)

    def merge(self, *others: CameraSample) -> CameraSample:
        histogram = self.histogram.astype(np.int64)
        for other in others:
            histogram += other.histogram
        return CameraSample(histogram, self.frames + sum(other.frames for other in others))

    def stats(self) -> Stats:
        """Levels / 255 in shape (3, 1, 1)."""
        channels = [_level_stats(counts) for counts in self.histogram]
        joined = {
            key: np.array([channel[key] for channel in channels], dtype=np.float64).reshape(-1, 1, 1)
            for key in channels[0]
        }
        return Stats(count=np.array([self.frames], dtype=np.int64), **joined)


def sample_camera(clip: ClipRef) -> CameraSample:
    """Look at the pictures of an episode that lerobot 0.4 to 0.6 looks at, in one forward pass.

    Those are `sampled_frames`, at least 100 of an episode that has so many. Pictures whose longer side is
    300 px or more are thinned to about 150 px by taking every n-th row and column, as there.
    """
    histogram = np.zeros((3, LEVELS), dtype=np.int64)
    numbers = [clip.start + n for n in sampled_frames(clip.count)]
    pictures = decode_frames(clip.file, numbers)
    for frame in pictures:
        picture = frame.to_ndarray(format="rgb24")
        step = thinning(*picture.shape[:2])
        thin = picture[::step, ::step]
        for channel in range(3):
            histogram[channel] += np.bincount(thin[..., channel].ravel(), minlength=LEVELS)
    return CameraSample(histogram, len(numbers)).packed()


def thinning(height: int, width: int) -> int:
    """Every how many rows and columns are looked at."""
    longer = max(height, width)
    return 1 if longer < DOWNSAMPLE_FROM_PX else int(longer / DOWNSAMPLE_TO_PX)


def camera_stats(clips: Sequence[ClipRef], *, samples: Iterable[CameraSample] | None = None) -> Stats:
    """Statistics of one camera over episodes, pooled over all sampled pixels.

    Args:
        clips: one an episode.
        samples: what `sample_camera` gave for each clip, where the caller has it already.

    Raises:
        BadRequest: no clips, or one that cannot be decoded.
    """
    taken = list(samples) if samples is not None else [sample_camera(clip) for clip in clips]
    if not taken:
        raise BadRequest("stats-no-rows", "statistics over no clips do not exist")
    return taken[0].merge(*taken[1:]).stats()


def pooled_levels(histogram: NDArray[np.int64]) -> dict[str, NDArray[np.float64]]:
    """`mean`, `std`, and the levels that 1 % of the pixels lie below and above, of (3, 256) counts.

    Each (3,), levels / 255; float64 sums of at most 2**53 / 255**2 pixels, so exact.
    """
    levels = np.arange(LEVELS, dtype=np.float64)
    pixels = histogram.sum(axis=1)
    mean = histogram @ levels / pixels
    std = np.sqrt(np.maximum(histogram @ levels**2 / pixels - mean**2, 0.0))
    shares = np.cumsum(histogram, axis=1) / pixels[:, None]
    low = np.array([np.searchsorted(own, 0.01, side="right") for own in shares])
    high = np.array([np.searchsorted(own, 0.99) for own in shares])
    found = {"mean": mean, "std": std, "level_low": low, "level_high": high}
    return {name: np.asarray(value, dtype=np.float64) / 255 for name, value in found.items()}


def _level_stats(counts: NDArray[np.int64]) -> dict[str, float]:
    levels = [(level, int(n)) for level, n in enumerate(counts) if n]
    pixels = sum(n for _, n in levels)
    # Whole numbers, so that nothing is rounded before the last division.
    total = sum(level * n for level, n in levels)
    squares = sum(level * level * n for level, n in levels)
    variance = (squares * pixels - total * total) / (pixels * pixels)
    ranks = np.cumsum(counts)
    stats = {
        "min": levels[0][0] / 255,
        "max": levels[-1][0] / 255,
        "mean": total / pixels / 255,
        "std": variance**0.5 / 255,
    }
    for name, q in QUANTILES.items():
        rank = q * (pixels - 1)
        below, above = np.searchsorted(ranks, [int(rank), min(int(rank) + 1, pixels - 1)], side="right")
        stats[name] = float(below + (above - below) * (rank - int(rank))) / 255
    return stats
