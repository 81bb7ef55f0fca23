"""A dataset as plain data: references to rows and clips, nothing loaded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

INDEX_FEATURES = ("timestamp", "frame_index", "episode_index", "index", "task_index")


@dataclass(frozen=True)
class Feature:
    """One entry of info.json's `features`, made regular.

    Attributes:
        dtype: a numpy name, `video`, `image` or `string`.
        shape: as info.json has it; `(D,)` for vectors, `(H, W, C)` for cameras.
        names: one name a channel for 1-D features, whatever form info.json gave them in; None where they
            are absent or do not fit the shape.
        fields: the feature's own field table (AgiBot's `field_descriptions`): field name, such as
            `state/joint/position`, to channel indices. Empty where there is none.
        raw: the entry as it stands in info.json, for evidence.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    names: tuple[str, ...] | None = None
    fields: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    raw: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_camera(self) -> bool:
        return self.dtype in ("video", "image")

    @property
    def is_image(self) -> bool:
        """A camera whose pictures lie in the rows."""
        return self.dtype == "image"


@dataclass(frozen=True, slots=True)
class RowsRef:
    """Rows `start` to `start + count` (half-open) of a parquet file."""

    file: Path
    start: int
    count: int


@dataclass(frozen=True, slots=True)
class ClipRef:
    """Frames `start` to `start + count` (half-open) of a video file, counted from its first frame."""

    file: Path
    start: int
    count: int


@dataclass(frozen=True, slots=True)
class Origin:
    """Where an episode came from: the source dataset's name and its episode index there."""

    dataset: str
    episode: int


@dataclass(frozen=True, slots=True)
class Episode:
    """One episode. `clips` has an entry for each video camera that this episode really has a file for."""

    index: int
    length: int
    tasks: tuple[str, ...]
    rows: RowsRef
    clips: Mapping[str, ClipRef]
    origin: Origin


@dataclass(frozen=True, slots=True)
class Absent:
    """An episode that meta/ lists and that has no rows.

    Attributes:
        file: where its rows should lie, relative to the dataset's folder; empty where that cannot be told.
        is_lost: rows of a later episode or a video of this one are there. Otherwise the list only goes on
            behind the last one that is there, as it does where the first episodes of a dataset were taken.
    """

    index: int
    file: str
    is_lost: bool


@dataclass(frozen=True)
class Dataset:
    """A dataset of any version.

    Attributes:
        version: `v2.0`, `v2.1` or `v3.0`, as the layout on disk shows.
        fps: frames per second.
        features: all features by name, index features included.
        tasks: task_index -> text.
        info: info.json as it stands: evidence, not truth.
        notes: what reading had to derive or work around, as (code, message).
        absent: listed episodes that have no rows, without those that were to be left out.
    """

    name: str
    root: Path
    version: str
    fps: float
    robot_type: str | None
    features: Mapping[str, Feature]
    episodes: tuple[Episode, ...]
    tasks: Mapping[int, str]
    info: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[tuple[str, str], ...] = ()
    absent: tuple[Absent, ...] = ()

    @property
    def cameras(self) -> tuple[str, ...]:
        return tuple(name for name, feature in self.features.items() if feature.is_camera)

    @property
    def given(self) -> int:
        """Episodes that have rows, are listed, or both."""
        return len(self.episodes) + len(self.absent)

    @property
    def frames(self) -> int:
        return sum(episode.length for episode in self.episodes)
