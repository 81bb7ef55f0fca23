"""Camera statistics that a source carries for each episode: read, judged, checked against pictures, pooled.

lerobot's own convert and merge take these over unseen. Here they are kept only where they are sound and the
pictures do not speak against them; any other clip is sampled by decoding (`stack.dataset.stats`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from stack.dataset.model import ClipRef
from stack.dataset.read_files import files_below
from stack.dataset.read_meta import open_parquet, read_json_lines, whole_number
from stack.dataset.stats import LEVELS, CameraSample, Stats, pooled_levels, sample_count
from stack.dataset.stats_order import QUANTILES
from stack.dataset.video_glance import glance, glance_frames
from stack.errors import BadRequest, StackError

MOMENTS = ("min", "max", "mean", "std")
CHANNELS = 3
ROWS_AT_ONCE = 100
ROUNDING = 1e-5  # float32 sums in the tools that wrote them
# Recorders measure pictures before these are encoded; 8 of 255 levels is more than an encoder shifts.
TOLERANCE = 8 / 255


Raw: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class KeptCamera:
    """Statistics of one clip as its source stored them, and the pictures that they were checked against.

    There is one for each clip of a dataset, so they are kept small.

    Attributes:
        table: (9, 3) float64 in [0, 1]: `min`, `max`, `mean`, `std`, `q01` to `q99`, a column a channel.
            Quantiles are the stored ones, else those of the pictures that were seen.
        frames: how many pictures they were taken of.
        seen: the pictures that were decoded.
    """

    table: NDArray[np.float64]
    frames: int
    seen: CameraSample

    @property
    def moments(self) -> dict[str, NDArray[np.float64]]:
        """`min`, `max`, `mean`, `std`, each (3,)."""
        return dict(zip(MOMENTS, self.table, strict=False))

    def stats(self) -> Stats:
        """In shape (3, 1, 1)."""
        return _stats(dict(zip((*MOMENTS, *QUANTILES), self.table, strict=True)), self.frames)


Evidence: TypeAlias = CameraSample | KeptCamera


@dataclass(frozen=True)
class NotKept:
    """Why a clip's stored statistics are not used. `kind`: `absent`, `unsound` or `contradicted`."""

    kind: str
    why: str


def stored_camera_stats(root: Path, version: str, cameras: Iterable[str]) -> dict[str, dict[int, Raw]]:
    """Camera -> episode -> its stored statistics, as they stand; without those that are not there.

    v2.1 keeps them in meta/episodes_stats.jsonl, v3.0 in `stats/CAMERA/*` of the episode table; v2.0 has none
    for single episodes.

    Raises:
        BadRequest: the file that should hold them cannot be read.
    """
    found: dict[str, dict[int, Raw]] = {camera: {} for camera in cameras}
    if version == "v2.1":
        file = root / "meta" / "episodes_stats.jsonl"
        entries = read_json_lines(file) if file.is_file() else iter(())
        for entry in entries:
            episode, told = whole_number(entry.get("episode_index")), entry.get("stats")
            if episode is None or not isinstance(told, dict):
                continue
            for camera, own in found.items():
                if isinstance(told.get(camera), dict):
                    own.setdefault(episode, _packed(told[camera]))
    elif version == "v3.0":
        for file in files_below(root / "meta" / "episodes", ".parquet"):
            _add_columns(file, found)
    return found


def _packed(raw: Raw) -> Raw:
    """The same with arrays in place of nested lists of the right form, which take four times the memory."""
    arrays = {name: _vector(value) for name, value in raw.items() if name in (*MOMENTS, *QUANTILES)}
    return {**raw, **{name: value.reshape(-1, 1, 1) for name, value in arrays.items() if value is not None}}


def _add_columns(file: Path, found: dict[str, dict[int, Raw]]) -> None:
    with open_parquet(file) as parquet:
        names = list(parquet.schema_arrow.names)
        wanted = {f"stats/{c}/{s}": (c, s) for c in found for s in ("count", *MOMENTS, *QUANTILES)}
        there = [name for name in dict.fromkeys(names) if name in wanted and names.count(name) == 1]
        if not there or names.count("episode_index") != 1:
            return
        try:
            for columns in _plain_columns(parquet, ["episode_index", *there]):
                _add_rows(columns, {name: wanted[name] for name in there}, found)
        except (pa.ArrowException, OSError) as error:
            raise BadRequest("dataset-file-damaged", f"cannot be read: {error}", where=str(file)) from error


def _add_rows(
    columns: Mapping[str, list[Any]], wanted: Mapping[str, tuple[str, str]], found: dict[str, dict[int, Raw]]
) -> None:
    """`wanted`: column -> (camera, statistic)."""
    for place, number in enumerate(columns["episode_index"]):
        episode = whole_number(number)
        if episode is None:
            continue
        told: dict[str, dict[str, Any]] = {}
        for name, (camera, stat) in wanted.items():
            if columns[name][place] is not None:
                told.setdefault(camera, {})[stat] = columns[name][place]
        for camera, own in told.items():
            found[camera][episode] = {**_packed(own), **found[camera].get(episode, {})}


def _plain_columns(parquet: pq.ParquetFile, names: Sequence[str]) -> Iterator[dict[str, list[Any]]]:
    """The columns as Python values, of some rows at a time: nested lists take many times what is stored."""
    for batch in parquet.iter_batches(ROWS_AT_ONCE, columns=list(names), use_threads=False):
        held = batch.schema.names
        yield {name: batch.column(held.index(name)).to_pylist() for name in names}


def keep_or_why(raw: Raw | None, clip: ClipRef) -> KeptCamera | NotKept:
    """A clip's stored statistics where they are sound and its pictures agree, else why not."""
    if raw is None:
        return NotKept("absent", "the source has none")
    sound = _sound(raw, clip.count)
    if isinstance(sound, str):
        return NotKept("unsound", sound)
    pictures: list[NDArray[np.int64]] = []
    try:
        for numbers in glance_frames(clip):
            pictures += [_levels(picture) for picture in glance(clip, numbers)]
            reason = _contradiction(sound, pictures)
            if reason is None:
                break
    except StackError as error:
        return NotKept("contradicted", f"no picture can be held against them: {error.what}")
    if reason is not None:
        return NotKept("contradicted", reason)
    seen = CameraSample(np.sum(pictures, axis=0), len(pictures)).packed()
    stored = {name: _vector(raw[name]) for name in QUANTILES if name in raw}
    given = {name: value for name, value in stored.items() if value is not None}
    quantiles = _sound_quantiles(sound, given) or _within(sound, quantiles_of([(seen, 1.0)]))
    table = np.stack([*(sound[name] for name in MOMENTS), *(quantiles[name] for name in QUANTILES)])
    return KeptCamera(table, sample_count(clip.count), seen)


def _sound(raw: Raw, length: int) -> dict[str, NDArray[np.float64]] | str:
    """The moments, or what is wrong with them."""
    count = raw.get("count")
    number = whole_number(count[0]) if isinstance(count, list) and len(count) == 1 else None
    meant = sample_count(length)
    if number is None:
        return f"count is {_short(count)}, not one number"
    if number != meant:
        return f"count is {number}; of {length} frames {meant} are sampled"
    found: dict[str, NDArray[np.float64]] = {}
    for name in MOMENTS:
        value = _vector(raw.get(name))
        if value is None:
            return f"{name} is {_short(raw.get(name))}, not one number a channel in shape (3, 1, 1)"
        if not np.isfinite(value).all():
            return f"{name} is not finite"
        found[name] = value
    low, high, mean, std = (found[name] for name in MOMENTS)
    if (low < -ROUNDING).any() or (high > 1 + ROUNDING).any():
        return f"values lie between {low.min():g} and {high.max():g}, not within 0 and 1"
    if (low > mean + ROUNDING).any() or (mean > high + ROUNDING).any():
        return f"mean {_list(mean)} lies outside min {_list(low)} to max {_list(high)}"
    # Bhatia and Davis (2000): no distribution between two bounds has a larger variance.
    if (std < 0).any() or (std**2 > (high - mean) * (mean - low) + ROUNDING).any():
        return f"std {_list(std)} is not possible between min {_list(low)} and max {_list(high)}"
    return found


def _vector(value: Any) -> NDArray[np.float64] | None:
    """(3,) from nested lists of shape (3, 1, 1); None for anything else."""
    try:
        array = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError):
        return None
    return array.reshape(CHANNELS) if array.shape == (CHANNELS, 1, 1) else None


def _sound_quantiles(
    moments: Mapping[str, NDArray[np.float64]], quantiles: Mapping[str, NDArray[np.float64]]
) -> dict[str, NDArray[np.float64]] | None:
    """All five where they ascend between min and max, else none."""
    if set(quantiles) != set(QUANTILES):
        return None
    chain = np.stack([moments["min"], *(quantiles[name] for name in QUANTILES), moments["max"]])
    rises = np.isfinite(chain).all() and (np.diff(chain, axis=0) >= -ROUNDING).all()
    return {name: quantiles[name] for name in QUANTILES} if rises else None


def _levels(picture: NDArray[np.uint8]) -> NDArray[np.int64]:
    """(3, 256): how often each level occurs in a picture (H, W, 3)."""
    channels = [np.bincount(picture[..., c].ravel(), minlength=LEVELS) for c in range(CHANNELS)]
    return np.stack(channels).astype(np.int64)


def _contradiction(
    stored: Mapping[str, NDArray[np.float64]], pictures: Sequence[NDArray[np.int64]]
) -> str | None:
    """What the pictures say against stored statistics.

    The mean and std of all pictures seen may differ from the stored ones by `TOLERANCE` and by as much as the
    pictures differ among themselves: in a scene that hardly changes, a small difference tells.
    """
    each = [pooled_levels(picture) for picture in pictures]
    means = np.array([moments["mean"] for moments in each])
    stds = np.array([moments["std"] for moments in each])
    together = each[0] if len(each) == 1 else pooled_levels(np.sum(pictures, axis=0))
    allowed = TOLERANCE + np.maximum(np.ptp(means, axis=0), np.ptp(stds, axis=0))
    for name in ("mean", "std"):
        got = together[name]
        if (np.abs(got - stored[name]) > allowed).any():
            return (
                f"{name} {_list(stored[name])} is stored, {len(pictures)} decoded pictures have {_list(got)}"
            )
    low, high = (together[f"level{side}"] for side in ("_low", "_high"))
    if (low < stored["min"] - TOLERANCE).any() or (high > stored["max"] + TOLERANCE).any():
        return (
            f"min {_list(stored['min'])} and max {_list(stored['max'])} are stored, {len(pictures)} decoded "
            f"pictures reach from {_list(low)} to {_list(high)}"
        )
    return None


def pool_cameras(parts: Sequence[Evidence]) -> Stats:
    """Statistics of one camera over clips, each counting with as many pictures as it was measured by.

    Where all clips were sampled, everything is exact over the sampled pixels. Else count, min, max, mean and
    std are pooled exactly from each clip's (Chan, Golub and LeVeque 1979), and quantiles are those of the
    pictures that were decoded.
    """
    sampled = [part for part in parts if isinstance(part, CameraSample)]
    kept = [part for part in parts if isinstance(part, KeptCamera)]
    if not kept:
        return sampled[0].merge(*sampled[1:]).stats()
    entries = [(part.moments, part.frames) for part in kept]
    looked = [(part.seen, part.frames / part.seen.frames) for part in kept]
    if sampled:
        together = sampled[0].merge(*sampled[1:])
        exact = together.stats()
        entries.append(({name: getattr(exact, name).reshape(-1) for name in MOMENTS}, together.frames))
        looked.append((together, 1.0))
    pooled = _pool_moments(entries)
    quantiles = _within(pooled, quantiles_of(looked))
    return _stats({**pooled, **quantiles}, sum(frames for _, frames in entries))


def _pool_moments(
    entries: Sequence[tuple[Mapping[str, NDArray[np.float64]], int]],
) -> dict[str, NDArray[np.float64]]:
    total = sum(frames for _, frames in entries)
    mean, std = np.empty(CHANNELS), np.empty(CHANNELS)
    for channel in range(CHANNELS):
        own = [(float(m["mean"][channel]), float(m["std"][channel]), n) for m, n in entries]
        mean[channel] = math.fsum(n * a for a, _, n in own) / total
        std[channel] = math.sqrt(math.fsum(n * (s * s + (a - mean[channel]) ** 2) for a, s, n in own) / total)
    low = np.min([m["min"] for m, _ in entries], axis=0)
    high = np.max([m["max"] for m, _ in entries], axis=0)
    return {"min": low, "max": high, "mean": mean, "std": std}


def quantiles_of(looked: Sequence[tuple[CameraSample, float]]) -> dict[str, NDArray[np.float64]]:
    """`q01` to `q99`, each (3,): the level up to which that share of the weighted pixels lies."""
    weighted: NDArray[np.float64] = np.zeros((CHANNELS, LEVELS))
    for sample, weight in looked:
        weighted += sample.histogram * weight
    shares = np.cumsum(weighted, axis=1) / weighted.sum(axis=1, keepdims=True)
    wanted = np.array(list(QUANTILES.values())) - 1e-12
    levels = np.array([np.searchsorted(own, wanted) for own in shares], dtype=np.float64) / 255
    return dict(zip(QUANTILES, levels.T, strict=True))


def _within(
    moments: Mapping[str, NDArray[np.float64]], quantiles: Mapping[str, NDArray[np.float64]]
) -> dict[str, NDArray[np.float64]]:
    # Stored extremes may be those of the pictures before encoding.
    return {name: np.clip(value, moments["min"], moments["max"]) for name, value in quantiles.items()}


def _stats(values: Mapping[str, NDArray[np.float64]], frames: int) -> Stats:
    shaped = {name: np.asarray(value, dtype=np.float64).reshape(-1, 1, 1) for name, value in values.items()}
    return Stats(count=np.array([frames], dtype=np.int64), **shaped)


def _list(values: NDArray[np.float64]) -> str:
    return "[" + ", ".join(f"{value:.3g}" for value in values) + "]"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
