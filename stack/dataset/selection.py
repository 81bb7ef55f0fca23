"""What is to be written: references to source episodes, and how each source's rows become output rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from stack.dataset.model import INDEX_FEATURES, Dataset, Episode, Feature
from stack.dataset.pictures import picture_column, picture_shape
from stack.dataset.rows import column_names, decode_column, read_rows
from stack.dataset.stats_stored import KeptCamera
from stack.errors import BadRequest

Column: TypeAlias = NDArray[Any] | pa.Array
TASK_INDEX = Feature("task_index", "int64", (1,))


@dataclass(frozen=True)
class Take:
    """Channels of a source feature, in this order; None takes the feature whole."""

    feature: Feature
    channels: tuple[int, ...] | None = None

    @property
    def width(self) -> int:
        if self.channels is not None:
            return len(self.channels)
        return prod(self.feature.shape)


@dataclass(frozen=True)
class Recipe:
    """How the rows of one source become output rows.

    Attributes:
        columns: output feature -> takes that are joined in order.
        tasks: the source's task_index -> text to write.
    """

    columns: Mapping[str, tuple[Take, ...]]
    tasks: Mapping[int, str]


@dataclass(frozen=True, slots=True)
class Selected:
    """An episode of the output.

    Attributes:
        episode: `index` is the new one; `rows`, `clips` (by output camera) and `origin` point to the source;
            `tasks` are the texts to write.
        recipe: key into `Selection.recipes`.
        kept: camera -> statistics that the source stored of its clip and that were found good; the clips of
            other cameras are sampled.
    """

    episode: Episode
    recipe: str
    kept: Mapping[str, KeptCamera] = field(default_factory=dict)


@dataclass(frozen=True)
class Selection:
    """A whole output dataset before it is written.

    Attributes:
        features: output features without the index features, which are always there.
        tasks: row number = task_index.
    """

    name: str
    fps: float
    robot_type: str | None
    features: Mapping[str, Feature]
    episodes: tuple[Selected, ...]
    recipes: Mapping[str, Recipe]
    tasks: tuple[str, ...]
    notes: tuple[str, ...] = field(default=())

    @property
    def frames(self) -> int:
        return sum(selected.episode.length for selected in self.episodes)

    @property
    def cameras(self) -> tuple[str, ...]:
        """Cameras that have video files."""
        return tuple(n for n, feature in self.features.items() if feature.is_camera and not feature.is_image)

    @property
    def pictures(self) -> tuple[str, ...]:
        """Cameras whose pictures lie in the rows."""
        return tuple(name for name, feature in self.features.items() if feature.is_image)

    @property
    def vectors(self) -> dict[str, Feature]:
        """Features that have a column of numbers or texts."""
        return {name: feature for name, feature in self.features.items() if not feature.is_camera}

    @property
    def columns(self) -> dict[str, Feature]:
        """Features that have a column in the rows: vectors, and cameras that lie there."""
        return {n: feature for n, feature in self.features.items() if n not in self.cameras}

    def source_feature(self, selected: Selected, name: str) -> Feature:
        """The source's feature behind a camera whose pictures lie in the rows."""
        return self.recipes[selected.recipe].columns[name][0].feature


def select_all(dataset: Dataset) -> Selection:
    """The whole dataset as it is, episodes renumbered without gaps: what a conversion writes.

    Raises:
        BadRequest: frames whose task is not known, or pictures in rows that cannot be decoded.
    """
    columns = {
        name: (Take(feature),)
        for name, feature in dataset.features.items()
        if feature.dtype != "video" and name not in INDEX_FEATURES
    }
    recipe = Recipe(columns, dict(dataset.tasks))
    used: dict[str, None] = {}
    episodes = []
    for index, episode in enumerate(dataset.episodes):
        texts = tuple(dict.fromkeys(frame_tasks(episode, recipe)))
        used.update(dict.fromkeys(texts))
        episodes.append(Selected(replace(episode, index=index, tasks=texts), dataset.name))
    features = {
        name: written_feature(feature)
        for name, feature in dataset.features.items()
        if name not in INDEX_FEATURES
    }
    for name in [name for name, feature in features.items() if feature.is_image]:
        # What info.json declares may be channels first, or another size.
        shape = picture_shape(dataset.episodes[0], dataset.features[name])
        features[name] = replace(features[name], shape=shape)
    return Selection(
        dataset.name,
        dataset.fps,
        dataset.robot_type,
        features,
        tuple(episodes),
        {dataset.name: recipe},
        tuple(used),
    )


def written_feature(feature: Feature) -> Feature:
    """The feature as v3.0 gets it: vectors of floats, states and actions are float32, the rest stays."""
    is_float = feature.dtype.startswith("float")
    shrink = is_float and (feature.shape != (1,) or feature.name.startswith(("observation", "action")))
    return Feature(
        feature.name, "float32" if shrink else feature.dtype, feature.shape, feature.names, feature.fields
    )


def needed_columns(recipe: Recipe, features: Iterable[str]) -> list[str]:
    """Source columns that these output features are made of, and those that tell of an episode's frames."""
    taken = [take.feature.name for name in features for take in recipe.columns[name]]
    return list(dict.fromkeys((*taken, *INDEX_FEATURES)))


def assemble(selected: Selected, recipe: Recipe, features: Mapping[str, Feature]) -> dict[str, Column]:
    """Output columns of one episode, in the written dtype, index columns not among them.

    Returns:
        For each feature (L,), (L, D) or (L, *shape) in its dtype; a pyarrow string array for texts, a struct
        array of bytes and path for pictures.

    Raises:
        BadRequest: what `column_array` raises, or texts that are to be sliced.
    """
    episode = selected.episode
    takes = {name: recipe.columns[name] for name in features}
    needed = list(dict.fromkeys(take.feature.name for group in takes.values() for take in group))
    table = read_rows(episode.rows, needed)
    columns: dict[str, Column] = {}
    for name, group in takes.items():
        if features[name].dtype == "string":
            columns[name] = table.column(group[0].feature.name).combine_chunks().cast(pa.string())
            continue
        if features[name].is_image:
            source = group[0].feature
            columns[name] = picture_column(table.column(source.name), episode, source)
            continue
        parts: list[NDArray[Any]] = []
        for take in group:
            column = table.column(take.feature.name)
            values = decode_column(column, episode, take.feature, as_stored=True)
            flat = values.reshape(episode.length, -1)
            taken = flat if take.channels is None else flat[:, list(take.channels)]
            # One by one: what they have in common may hold less than what is written.
            parts.append(_cast(taken, features[name], episode, sum(part.shape[1] for part in parts)))
        joined = np.concatenate(parts, axis=1) if len(parts) > 1 else parts[0]
        shape = features[name].shape
        columns[name] = joined[:, 0] if shape == (1,) else joined.reshape(episode.length, *shape)
    return columns


def _cast(values: NDArray[Any], feature: Feature, episode: Episode, first: int) -> NDArray[Any]:
    """To the written dtype; integers and booleans must be able to hold every value.

    Args:
        values: (L, D), channels `first` and following of `feature`.
    """
    kind = np.dtype(feature.dtype)
    if kind.kind == "f":
        with np.errstate(over="ignore"):
            return values.astype(kind, copy=False)
    low, high = (0, 1) if kind.kind == "b" else (np.iinfo(kind).min, np.iinfo(kind).max)
    if values.dtype.kind == "f":
        # A float has no number such as 2**31 - 1 and would take the next one for it; powers of two it has.
        fits = (values >= np.float64(low)) & (values < np.float64(high + 1)) & (values == np.round(values))
    else:
        fits = (values >= low) & (values <= high)
    if not fits.all():
        frame, channel = (int(i) for i in np.argwhere(~fits)[0])
        raise BadRequest(
            "rows-cast-lossy",
            f"{feature.name} holds {values[frame, channel]} at frame {frame}, channel {first + channel}, "
            f"which {feature.dtype} cannot hold; {int((~fits).sum())} such values are in this episode",
            where=f"{episode.rows.file}, episode {episode.origin.episode}",
            do=f"write {feature.name} in another dtype (cast), or leave it out",
        )
    return values.astype(kind)


def frame_tasks(episode: Episode, recipe: Recipe) -> list[str]:
    """The task text of each frame: by the rows' task_index, else the episode's only task.

    Raises:
        BadRequest: a task_index without a text, or no task_index and not exactly one task.
    """
    if "task_index" not in column_names(episode.rows):
        if len(episode.tasks) != 1:
            raise BadRequest(
                "rows-no-task",
                f"episode {episode.origin.episode} has no task_index column and {len(episode.tasks)} tasks, "
                "so the text of its frames is not known",
                where=str(episode.rows.file),
                do="exclude the episode, or give it exactly one task in meta/episodes",
            )
        return [episode.tasks[0]] * episode.length
    numbers = decode_column(read_rows(episode.rows, ["task_index"]).column("task_index"), episode, TASK_INDEX)
    unknown = sorted(set(numbers.tolist()) - set(recipe.tasks))
    if unknown:
        raise BadRequest(
            "rows-task-unknown",
            f"episode {episode.origin.episode} uses task_index {unknown[0]}, and the task table has only "
            f"{sorted(recipe.tasks)}",
            where=str(episode.rows.file),
            do="exclude the episode, or complete the task table",
        )
    return [recipe.tasks[number] for number in numbers.tolist()]
