"""A plan as data and as text: what each source gives, what is reconciled, what will be written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path

from stack.dataset.model import Dataset, Episode
from stack.dataset.selection import Selection, Take
from stack.dataset.video import VideoInfo
from stack.dataset.write_plan import Caps
from stack.prepare.cameras import Filled
from stack.prepare.episodes import ranges
from stack.prepare.reconcile import Reconciled


@dataclass(frozen=True)
class SourcePlan:
    """One source and what is taken of it.

    Attributes:
        given: the path as the manifest gives it.
        cameras: output camera -> the source's camera.
        dropped: features and cameras that are left out, with the reason.
        restamped: the worst timestamp difference in seconds where timestamps are replaced.
    """

    dataset: Dataset
    given: str
    episodes: tuple[Episode, ...]
    cameras: Mapping[str, str]
    dropped: Mapping[str, str]
    restamped_s: float | None = None


@dataclass(frozen=True)
class Plan:
    """A prepared dataset before it is written.

    Attributes:
        videos: how videos will be written.
        infos: source video file -> what probing it gave.
        notes: what was derived or worked around.
        version: the format to write.
        filled: cameras that get black pictures somewhere.
        casts: feature -> dtype that the manifest asks for.
        camera_statistics: `stored` or `sampled`: whether what sources store was asked for.
        caps: sizes at which files roll.
    """

    name: str
    selection: Selection
    sources: tuple[SourcePlan, ...]
    reconciled: tuple[Reconciled, ...]
    task_edits: Mapping[str, str]
    videos: str
    infos: Mapping[Path, VideoInfo]
    notes: tuple[str, ...]
    version: str = "v3.0"
    filled: tuple[Filled, ...] = ()
    casts: Mapping[str, str] = field(default_factory=dict)
    camera_statistics: str = "stored"
    caps: Caps = field(default_factory=Caps)

    def text(self) -> str:
        """Field by field what is reconciled and what each source gives."""
        return "\n".join(_text(self)) + "\n"

    @property
    def widths(self) -> dict[str, int]:
        return {n: prod(f.shape) for n, f in self.selection.vectors.items() if f.dtype != "string"}

    @property
    def checked_pictures(self) -> int:
        """How many pictures were decoded to check stored camera statistics."""
        return sum(kept.seen.frames for s in self.selection.episodes for kept in s.kept.values())

    @property
    def kept_clips(self) -> int:
        """Clips whose stored statistics are kept."""
        return sum(len(s.kept) for s in self.selection.episodes)

    @property
    def sampled_clips(self) -> int:
        """Clips whose statistics are taken of decoded pictures, those in rows among them."""
        return len(self.cameras) * len(self.selection.episodes) - self.kept_clips

    @property
    def cameras(self) -> tuple[str, ...]:
        """All cameras, those whose pictures lie in the rows among them."""
        return (*self.selection.cameras, *self.selection.pictures)


def _text(made: Plan) -> list[str]:
    selection = made.selection
    lines = [f"dataset {made.name}"]
    lines.append(
        f"  {len(selection.episodes)} episodes, {selection.frames} frames, {selection.fps:g} fps, "
        f"{len(made.cameras)} cameras, robot_type {selection.robot_type}, videos {made.videos}"
        + (f", version {made.version}" if made.version != "v3.0" else "")
    )
    first = 0
    for source in made.sources:
        dataset = source.dataset
        taken, frames = len(source.episodes), sum(e.length for e in source.episodes)
        lines.append(f"source {dataset.name} ({dataset.version}): {source.given}")
        lines.append(
            f"  {taken} of {dataset.given} episodes ({ranges(e.index for e in source.episodes)}), "
            f"{frames} frames -> episodes {first}-{first + taken - 1}"
        )
        first += taken
        for out, given in source.cameras.items():
            if out != given:
                lines.append(f"  renamed: camera {given} -> {out}")
        for out, takes in selection.recipes[dataset.name].columns.items():
            if (given_as := renamed_from(out, takes)) and out not in source.cameras:
                lines.append(f"  renamed: {given_as} -> {out}")
        lines.extend(f"  dropped: {name}: {reason}" for name, reason in source.dropped.items())
    lines.append("features")
    for name, feature in selection.features.items():
        lines.append(f"  {name}: {feature.dtype} {list(feature.shape)}{_origin(made, name)}")
    if made.cameras:
        lines.append(
            f"  camera statistics: of {made.kept_clips} clips as stored, checked against "
            f"{made.checked_pictures} decoded pictures; of {made.sampled_clips} sampled"
        )
    lines.append("tasks")
    lines.extend(f"  {number}: {text}" for number, text in enumerate(selection.tasks))
    lines.extend(f"  edited: {a} -> {b}" for a, b in made.task_edits.items())
    if made.filled:
        lines.append("filled")
        lines.extend(f"  {entry}" for entry in made.filled)
    if made.reconciled:
        lines.append("reconciled")
        lines.extend(f"  {entry}" for entry in made.reconciled)
    if made.notes:
        lines.append("notes")
        lines.extend(f"  {note}" for note in made.notes)
    return lines


def renamed_from(out: str, takes: Sequence[Take]) -> str | None:
    """What an output feature is called in a source that gives it whole; None where it is the same name."""
    if len(takes) != 1 or takes[0].channels is not None or takes[0].feature.name == out:
        return None
    return takes[0].feature.name


def _origin(made: Plan, name: str) -> str:
    """Which channels a feature takes from each source, where not all."""
    shown = {}
    for source, recipe in made.selection.recipes.items():
        takes = recipe.columns.get(name, ())
        if any(take.channels is not None for take in takes):
            shown[source] = " + ".join(
                f"{take.feature.name}[{'all' if take.channels is None else ranges(take.channels)}]"
                for take in takes
            )
    if not shown:
        return ""
    if len(set(shown.values())) == 1:
        return f" = {next(iter(shown.values()))}"
    return " = " + "; ".join(f"{source}: {text}" for source, text in shown.items())
