"""Sources compared with one another: what differs only in form is unified, what really differs is refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from stack.dataset.model import Dataset, Feature
from stack.dataset.selection import written_feature
from stack.dataset.video import VideoInfo
from stack.errors import BadRequest
from stack.manifests.dataset import DatasetManifest
from stack.prepare.choose import Part
from stack.prepare.problems import Problems

VALUES_SHOWN_CHARS = 60


@dataclass(frozen=True)
class Reconciled:
    """One key in which sources differ in form only, each one's value, and what is written."""

    key: str
    values: tuple[tuple[str, str], ...]
    result: str

    def __str__(self) -> str:
        values = "; ".join(f"{source}: {value}" for source, value in self.values)
        return f"{self.key}: {values} -> {self.result}"

    def to_json(self) -> dict[str, Any]:
        return {"key": self.key, "values": dict(self.values), "result": self.result}


def common_fps(datasets: Sequence[Dataset], where: str, problems: Problems) -> float:
    fps = {dataset.name: dataset.fps for dataset in datasets}
    if len(set(fps.values())) > 1:
        problems.add(
            BadRequest(
                "prepare-fps-differs",
                f"fps differs: {_pairs(fps)}; frames are not resampled",
                where=where,
                do="leave one of these sources out",
            )
        )
    return datasets[0].fps


def common_robot_type(
    datasets: Sequence[Dataset], manifest: DatasetManifest, where: str, problems: Problems
) -> str | None:
    if manifest.robot_type is not None:
        return manifest.robot_type
    types = {dataset.name: dataset.robot_type for dataset in datasets}
    if len(set(types.values())) > 1:
        problems.add(
            BadRequest(
                "prepare-robot-type-differs",
                f"robot_type differs: {_pairs(types)}",
                where=where,
                do=f"if they are the same robot, add to the manifest:\n  robot_type: "
                f"{next(t for t in types.values() if t is not None)}",
            )
        )
    return datasets[0].robot_type


def common_features(
    parts: Mapping[str, Mapping[str, Part]],
    where: str,
    problems: Problems,
    cast: Mapping[str, str] | None = None,
) -> tuple[dict[str, Feature], list[Reconciled]]:
    """Output features from each source's part of them.

    Args:
        parts: source name -> output feature -> part. All sources have the same output features.
        cast: output feature -> dtype that the manifest asks for.
    """
    features: dict[str, Feature] = {}
    reconciled: list[Reconciled] = []
    first = next(iter(parts.values()))
    casts = _known_casts(cast or {}, first, where, problems)
    for name in first:
        by_source = {source: group[name] for source, group in parts.items()}
        if _shapes_differ(name, by_source, where, problems):
            continue
        names = _common_names(name, by_source, where, problems, reconciled)
        dtype = casts.get(name) or _common_dtype(name, by_source, where, problems)
        tables = [part.fields for part in by_source.values()]
        fields = tables[0] if all(table == tables[0] for table in tables) else {}
        feature = Feature(name, dtype, first[name].shape, names, fields)
        feature = feature if name in casts else written_feature(feature)
        features[name] = feature
        stored = {s: "/".join(dict.fromkeys(p.dtypes)) for s, p in by_source.items()}
        if set(stored.values()) != {feature.dtype}:
            reconciled.append(Reconciled(f"{name}.dtype", tuple(stored.items()), feature.dtype))
        reconciled.extend(_raw_differences(name, by_source))
    return features, reconciled


def _known_casts(
    cast: Mapping[str, str], first: Mapping[str, Part], where: str, problems: Problems
) -> dict[str, str]:
    for name in cast:
        part = first.get(name)
        if part is None or "string" in part.dtypes:
            reason = "holds text" if part is not None else f"is not kept; kept are: {', '.join(first)}"
            problems.add(
                BadRequest(
                    "prepare-cast-unfit",
                    f"cast.{name}: the feature {reason}",
                    where=where,
                    do=f"remove cast.{name}, or name a feature of numbers",
                )
            )
    return {name: dtype for name, dtype in cast.items() if name in first}


def _shapes_differ(name: str, parts: Mapping[str, Part], where: str, problems: Problems) -> bool:
    shapes = {source: part.shape for source, part in parts.items()}
    if len(set(shapes.values())) == 1:
        return False
    widths = {source: part.width for source, part in parts.items()}
    if any(len(shape) > 1 for shape in shapes.values()):
        problems.add(
            BadRequest(
                "prepare-features-differ",
                f"features.{name} differs in shape: {_pairs({s: list(v) for s, v in shapes.items()})}",
                where=where,
                do=f"leave features.{name} out, or leave one of these sources out",
            )
        )
        return True
    narrow = min(widths.values())
    problems.add(
        BadRequest(
            "prepare-features-differ",
            f"features.{name} differs in width: {_pairs(widths)}",
            where=where,
            do=f"take the channels that all sources share, such as:\n  features:\n    {name}: "
            f"[{{from: {name}, at: [0, {narrow}]}}]",
        )
    )
    return True


def _common_names(
    name: str, parts: Mapping[str, Part], where: str, problems: Problems, reconciled: list[Reconciled]
) -> tuple[str, ...] | None:
    given = {source: part.names for source, part in parts.items() if part.names is not None}
    if not given:
        return None
    first_source, first = next(iter(given.items()))
    for source, names in given.items():
        if names == first:
            continue
        at = next(i for i, (a, b) in enumerate(zip(first, names, strict=True)) if a != b)
        problems.add(
            BadRequest(
                "prepare-names-differ",
                f"features.{name}: channel {at} is '{first[at]}' in {first_source} and "
                f"'{names[at]}' in {source}",
                where=where,
                do=_settling_names(name, parts[first_source].given, first, names),
            )
        )
        return first
    if len(given) < len(parts):
        values = tuple((s, "named" if p.names is not None else "no names") for s, p in parts.items())
        reconciled.append(Reconciled(f"{name}.names", values, f"the names of {first_source}"))
    return first


def _settling_names(name: str, given: str, first: tuple[str, ...], other: tuple[str, ...]) -> str:
    """By name where a name stands in two places: by position, channels would get one another's names."""
    shared = [channel for channel in first if first.count(channel) == other.count(channel) == 1]
    if all(first.index(channel) == other.index(channel) for channel in shared):
        listed = ", ".join(first)
        return (
            "if the channels mean the same, name them in the manifest:\n  features:\n    "
            f"{name}: [{{from: {given}, at: [0, {len(first)}], names: [{listed}]}}]"
        )
    which = "the channels" if len(shared) == len(first) else "the channels that both have"
    return (
        f"if the names are right, take {which} by name, in one order:\n  features:\n    "
        f"{name}: [{{from: {given}, names: [{', '.join(shared)}]}}]"
    )


def _common_dtype(name: str, parts: Mapping[str, Part], where: str, problems: Problems) -> str:
    dtypes = {source: part.dtypes for source, part in parts.items()}
    flat = [dtype for group in dtypes.values() for dtype in group]
    kinds = {"text" if dtype == "string" else np.dtype(dtype).kind for dtype in flat}
    if len({"i" if kind == "u" else kind for kind in kinds}) > 1:
        shown = {source: "/".join(group) for source, group in dtypes.items()}
        problems.add(
            BadRequest(
                "prepare-dtype-differs",
                f"features.{name} differs in kind of value: {_pairs(shown)}",
                where=where,
                do=f"say what to write, such as:\n  cast: {{{name}: float32}}\nor leave features.{name} out",
            )
        )
        return flat[0]
    if "text" in kinds:
        return flat[0]
    common = np.result_type(*(np.dtype(d) for d in flat))
    # NumPy goes to float64 for int64 with uint64, which lose their last digits by it; rows of uint64 beyond
    # int64 are refused where they are read.
    return "int64" if common.kind == "f" and kinds <= {"i", "u"} else common.name


def _raw_differences(name: str, parts: Mapping[str, Part]) -> list[Reconciled]:
    """Keys of info.json's entry that do not change what is written: `fps`, and the form of `names`."""
    found = []
    for key, describe in (("fps", _shown), ("names", _form)):
        values = {source: describe(part.takes[0].feature.raw.get(key)) for source, part in parts.items()}
        if len(set(values.values())) > 1:
            result = "not written" if key == "fps" else "one list"
            found.append(Reconciled(f"{name}.{key} entry", tuple(values.items()), result))
    return found


def _form(value: Any) -> str:
    if isinstance(value, list):
        return "list of lists" if any(isinstance(item, list) for item in value) else "list"
    return {dict: "mapping", type(None): "none"}.get(type(value), type(value).__name__)


def _shown(value: Any) -> str:
    text = "none" if value is None else str(value)
    return text if len(text) <= VALUES_SHOWN_CHARS else text[: VALUES_SHOWN_CHARS - 3] + "..."


def compare_camera(
    camera: str,
    clips: Sequence[tuple[str, int, VideoInfo]],
    declared: Mapping[str, Feature],
    where: str,
    problems: Problems,
    *,
    is_copied: bool = True,
) -> list[Reconciled]:
    """All files of a camera must have one size; what info.json says need not agree.

    Files of different codec or pixel format stand beside one another, as a decoder is opened for each file.

    Args:
        clips: (source, its episode, the file) for each selected episode.
        declared: source -> its camera feature.
        is_copied: whether packets are copied; pictures that are encoded anew may differ in all these.
    """
    first_source, first_episode, first = clips[0]
    size = f"{first.width}x{first.height}"
    for source, episode, info in clips if is_copied else ():
        if (info.width, info.height) != (first.width, first.height):
            problems.add(
                BadRequest(
                    "prepare-camera-differs",
                    f"{camera}: size differs: {size} in {first_source} episode {first_episode}, "
                    f"{info.width}x{info.height} in {source} episode {episode}",
                    where=where,
                    do="encode all pictures anew in one size (videos: transcode); or name the cameras to "
                    f"keep under 'cameras', without {camera}; or leave out the episodes with the other size",
                )
            )
            return []
    found = []
    real = f"[{first.height}, {first.width}, 3]"
    shapes = {source: str(list(feature.shape)) for source, feature in declared.items()}
    if set(shapes.values()) != {real}:
        found.append(Reconciled(f"{camera}.shape", tuple(shapes.items()), f"{real}, as the videos are"))
    entries = {source: _encoder(feature) for source, feature in declared.items()}
    if len(set(entries.values())) > 1:
        found.append(Reconciled(f"{camera}.info", tuple(entries.items()), "re-read from the files written"))
    kinds: dict[str, dict[str, None]] = {}
    for source, _, info in clips if is_copied else ():
        kinds.setdefault(source, {})[f"{info.codec} {info.pix_fmt}"] = None
    if len({kind for own in kinds.values() for kind in own}) > 1:
        told = tuple((source, " and ".join(own)) for source, own in kinds.items())
        found.append(Reconciled(f"{camera}.codec", told, "as they are, in files of their own"))
    return found


def _encoder(feature: Feature) -> str:
    entry = feature.raw.get("info") or feature.raw.get("video_info") or {}
    return _shown(
        ", ".join(f"{key}={entry[key]}" for key in sorted(entry)) if isinstance(entry, dict) else entry
    )


def _pairs(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{value} in {source}" for source, value in values.items())
