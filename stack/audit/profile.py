"""What of a dataset is compared with others: small, so that many can be compared without their rows."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from stack.audit.exact import exact_stats
from stack.audit.takes import Takes, takes_of
from stack.dataset.model import INDEX_FEATURES, Feature

if TYPE_CHECKING:
    from stack.audit.evidence import Evidence

LEAST_FRAMES = 2


@dataclass(frozen=True)
class Range:
    """Per channel (D,), over all rows."""

    q01: NDArray[np.float64]
    q99: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]


@dataclass(frozen=True)
class Profile:
    """One dataset as others see it.

    Attributes:
        name: as messages call it, different for each of those compared.
        features: as declared, index features left out.
        stored: feature -> arrow type of the single values, in words.
        widths: feature -> channels as stored.
        videos: camera -> (codec, size, pixel format) -> an episode that has it.
        takes: digest of an episode's state and action -> its index; takes in which nothing moves are left
            out.
        numbers: of all episodes, for takes that are the same to rounding.
    """

    name: str
    root: Path
    version: str | None
    fps: float | None
    robot_type: Any
    features: Mapping[str, Feature]
    stored: Mapping[str, str] = field(default_factory=dict)
    widths: Mapping[str, int] = field(default_factory=dict)
    ranges: Mapping[str, Range] = field(default_factory=dict)
    videos: Mapping[str, Mapping[tuple[str, str, str], int]] = field(default_factory=dict)
    tasks: tuple[str, ...] = ()
    takes: Mapping[str, int] = field(default_factory=dict)
    numbers: Takes | None = None

    @property
    def info(self) -> str:
        return f"{self.name}/meta/info.json"


def profile_of(evidence: Evidence, name: str) -> Profile:
    features = {n: f for n, f in evidence.features.items() if n not in INDEX_FEATURES}
    columns = {n: c for n, c in evidence.rows.columns.items() if n in features}
    ranges = {}
    for feature, column in columns.items():
        exact = exact_stats(evidence, feature) if column.values is not None else None
        if exact is not None:
            flat = (
                np.asarray(a, np.float64).reshape(-1) for a in (exact.q01, exact.q99, exact.min, exact.max)
            )
            ranges[feature] = Range(*flat)
    return Profile(
        name=name,
        root=evidence.root,
        version=evidence.version,
        fps=evidence.fps,
        robot_type=evidence.info.get("robot_type"),
        features=features,
        stored={n: _leaf(next(iter(c.types))) for n, c in columns.items() if c.types},
        widths={n: c.width for n, c in columns.items() if c.values is not None},
        ranges=ranges,
        videos=_videos(evidence),
        tasks=tuple(e.text for e in evidence.tasks.entries if isinstance(e.text, str)),
        takes=_takes(evidence),
        numbers=takes_of(evidence),
    )


def _leaf(stored: pa.DataType) -> str:
    """The type of the single values: how vectors are packed matters to no reader."""
    while pa.types.is_list(stored) or pa.types.is_large_list(stored) or pa.types.is_fixed_size_list(stored):
        stored = stored.value_type
    return str(stored)


def _videos(evidence: Evidence) -> dict[str, dict[tuple[str, str, str], int]]:
    found: dict[str, dict[tuple[str, str, str], int]] = {}
    for (camera, episode), file in evidence.layout.video_of.items():
        video = evidence.videos.get(file)
        if video is not None:
            key = (video.codec, f"{video.width}x{video.height}", video.pix_fmt or "unknown")
            found.setdefault(camera, {}).setdefault(key, episode)
    return found


def _takes(evidence: Evidence) -> dict[str, int]:
    """Digests over float32 values, so that another stored precision does not hide the same take."""
    columns = [evidence.rows.columns.get(name) for name in ("observation.state", "action")]
    arrays = [c.values for c in columns if c is not None and c.values is not None]
    takes: dict[str, int] = {}
    for span in evidence.rows.spans if arrays else ():
        blocks = [a[span.start : span.start + span.count].astype(np.float32) for a in arrays]
        if span.count < LEAST_FRAMES or all((block == block[0]).all() for block in blocks):
            continue
        digest = hashlib.sha256()
        for block in blocks:
            digest.update(f"{block.shape}".encode() + np.ascontiguousarray(block).tobytes())
        takes.setdefault(digest.hexdigest(), span.episode)
    return takes
