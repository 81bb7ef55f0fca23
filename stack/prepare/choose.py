"""What the manifest asks of one source's vectors: features and channels."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from stack.dataset.model import INDEX_FEATURES, Dataset, Feature
from stack.dataset.selection import Take
from stack.errors import BadRequest
from stack.manifests.dataset import DatasetManifest, Slice, Source
from stack.prepare.episodes import ranges

FIELD_PREFIXES = ("state/", "action/")
# GR00T's annotation columns hold task_index values of their own dataset's task table.
TASK_REFERENCE_PREFIX = "annotation."
DIMENSIONS_MAX = 5  # Array5D of `datasets`


@dataclass(frozen=True)
class Part:
    """One output feature as one source gives it.

    Attributes:
        names: None where the source names no channel.
        given: what the manifest calls the source's feature (the first, of several).
    """

    takes: tuple[Take, ...]
    names: tuple[str, ...] | None
    fields: Mapping[str, tuple[int, ...]]
    given: str

    @property
    def width(self) -> int:
        return sum(take.width for take in self.takes)

    @property
    def shape(self) -> tuple[int, ...]:
        """That of the source's feature where it has several dimensions, which only go whole."""
        own = self.takes[0].feature.shape
        return own if len(own) > 1 else (self.width,)

    @property
    def dtypes(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(take.feature.dtype for take in self.takes))


def known_features(dataset: Dataset, source: Source, where: str) -> dict[str, Feature]:
    """What the manifest may call each feature and camera of a source -> the source's own.

    Raises:
        BadRequest: `rename` names a feature that the source does not have, or gives one the name of another.
    """
    own = dataset.features
    for given, name in source.rename.items():
        if given not in own or given in INDEX_FEATURES:
            raise BadRequest(
                "prepare-rename-unknown",
                f"rename: source '{dataset.name}' has no feature or camera '{given}'{_nearest(given, own)}",
                where=where,
                do=f"it has: {', '.join(n for n in own if n not in INDEX_FEATURES)}",
            )
        if name in INDEX_FEATURES or (name in own and name not in source.rename):
            raise BadRequest(
                "prepare-rename-taken",
                f"rename: '{given}' of source '{dataset.name}' cannot be called '{name}', which it has too",
                where=where,
                do=f"choose another name, or rename its '{name}' too",
            )
    return {source.rename.get(name, name): feature for name, feature in own.items()}


def choose_features(
    dataset: Dataset,
    known: Mapping[str, Feature],
    manifest: DatasetManifest,
    shared: Iterable[str],
    where: str,
) -> dict[str, Part]:
    """Output feature -> what this source gives for it.

    Args:
        known: see `known_features`.

    Raises:
        BadRequest: a feature, field or channel that the source does not have.
    """
    if manifest.features is None:
        parts = {}
        for name in shared:
            feature = known[name]
            parts[name] = Part((Take(feature),), feature.names, feature.fields, name)
        return parts
    return {n: _resolve(dataset, known, n, slices, where) for n, slices in manifest.features.items()}


def why_not_kept(feature: Feature) -> str | None:
    """Why a feature cannot stand in a prepared dataset as it is; None if it can."""
    if feature.name.startswith(TASK_REFERENCE_PREFIX) and "int" in feature.dtype:
        return "it points into the source's task table, which is renumbered"
    if "/" in feature.name:
        return "its name contains '/', which lerobot refuses"
    if len(feature.shape) > DIMENSIONS_MAX or (feature.dtype == "string" and feature.shape != (1,)):
        return f"its shape {list(feature.shape)} of {feature.dtype} is nothing that lerobot reads"
    if not (feature.dtype in ("string", "bool") or feature.dtype.startswith(("float", "int", "uint"))):
        return f"its dtype '{feature.dtype}' is not known"
    return None


def _resolve(
    dataset: Dataset, known: Mapping[str, Feature], name: str, slices: tuple[Slice, ...], where: str
) -> Part:
    if name in INDEX_FEATURES:
        raise BadRequest(
            "prepare-index-feature",
            f"features.{name}: the index columns are always written and cannot be chosen",
            where=where,
            do=f"remove features.{name}",
        )
    takes: list[Take] = []
    names: list[str] = []
    named = False
    fields: dict[str, tuple[int, ...]] = {}
    for wanted in slices:
        feature = _source_feature(dataset, known, name, wanted.source, where)
        if len(feature.shape) > 1 and (len(slices) > 1 or wanted.field or wanted.at or wanted.names):
            raise BadRequest(
                "prepare-slice-of-array",
                f"features.{name}: '{feature.name}' of source '{dataset.name}' has shape "
                f"{list(feature.shape)}; features of several dimensions are taken whole and alone",
                where=where,
                do=f"write features.{name}: [{{from: {wanted.source}}}]",
            )
        channels, given, field = _channels(dataset, feature, name, wanted, where)
        offset = len(names)
        names.extend(given if given is not None else _numbered(feature, field, channels))
        named = named or given is not None
        if field is not None:
            fields[field] = tuple(range(offset, len(names)))
        elif channels is None:
            fields = {f: tuple(offset + i for i in at) for f, at in feature.fields.items()} | fields
        takes.append(Take(feature, channels))
    return Part(tuple(takes), tuple(names) if named else None, fields, slices[0].source)


def _source_feature(
    dataset: Dataset, known: Mapping[str, Feature], name: str, source: str, where: str
) -> Feature:
    feature = known.get(source)
    if feature is None:
        vectors = [n for n, f in known.items() if not f.is_camera and n not in INDEX_FEATURES]
        raise BadRequest(
            "prepare-no-such-feature",
            f"features.{name}: source '{dataset.name}' has no feature '{source}'{_nearest(source, vectors)}",
            where=where,
            do="if this source calls it otherwise, say so in its entry, such as:\n    rename: "
            f"{{{next(iter(vectors), 'its_name')}: {source}}}\nor leave features.{name} out, or the source",
        )
    reason = "it is a camera" if feature.is_camera else why_not_kept(feature)
    if reason is not None and "name contains" not in reason:
        raise BadRequest(
            "prepare-feature-unfit",
            f"features.{name}: '{source}' of source '{dataset.name}' cannot be kept: {reason}",
            where=where,
            do=f"leave features.{name} out",
        )
    return feature


def _channels(
    dataset: Dataset, feature: Feature, name: str, wanted: Slice, where: str
) -> tuple[tuple[int, ...] | None, tuple[str, ...] | None, str | None]:
    """(channels or None for all, their names if known, the field if addressed by one)."""
    if wanted.field is not None:
        field = _find_field(dataset, feature, name, wanted, wanted.field, where)
        channels = feature.fields[field]
        _check_position(dataset, feature, name, wanted, channels, where)
        return channels, _names_at(feature, channels), field
    if wanted.at is not None:
        start, stop = wanted.at
        if stop > feature.shape[0]:
            raise BadRequest(
                "prepare-slice-outside",
                f"features.{name}: at [{start}, {stop}] reaches beyond '{feature.name}' of source "
                f"'{dataset.name}', which is {feature.shape[0]} wide",
                where=where,
                do=f"correct features.{name}",
            )
        channels = tuple(range(start, stop))
        return channels, wanted.names or _names_at(feature, channels), None
    if wanted.names is not None:
        return _find_names(dataset, feature, name, wanted, wanted.names, where), wanted.names, None
    return None, feature.names, None


def _check_position(
    dataset: Dataset, feature: Feature, name: str, wanted: Slice, channels: tuple[int, ...], where: str
) -> None:
    """A manifest may pin where a field must be, so that a delivery with another layout is not mixed in."""
    if wanted.at is None or channels == tuple(range(*wanted.at)):
        return
    found = f"[{channels[0]}, {channels[-1] + 1}]"
    raise BadRequest(
        "prepare-field-moved",
        f"features.{name}: the field '{wanted.field}' of '{feature.name}' stands at {found} in source "
        f"'{dataset.name}', not at {list(wanted.at)}",
        where=where,
        do="check that the delivery has the layout that the manifest means; then correct or drop 'at'",
    )


def _find_field(dataset: Dataset, feature: Feature, name: str, wanted: Slice, field: str, where: str) -> str:
    if field in feature.fields:
        return field
    for prefix in FIELD_PREFIXES:
        if prefix + field in feature.fields:
            return prefix + field
    if not feature.fields:
        raise BadRequest(
            "prepare-no-field-table",
            f"features.{name}: '{feature.name}' of source '{dataset.name}' has no field table, so the field "
            f"'{field}' cannot be found",
            where=where,
            do=f"address the channels by position: {{from: {wanted.source}, at: [0, {feature.shape[0]}]}}",
        )
    raise BadRequest(
        "prepare-no-such-field",
        f"features.{name}: '{feature.name}' of source '{dataset.name}' has no field '{field}'"
        f"{_nearest(field, feature.fields)}",
        where=where,
        do=f"fields: {', '.join(feature.fields)}",
    )


def _find_names(
    dataset: Dataset, feature: Feature, name: str, wanted: Slice, channels: tuple[str, ...], where: str
) -> tuple[int, ...]:
    known = feature.names or ()
    for channel in channels:
        if known.count(channel) != 1:
            at = [place for place, name_there in enumerate(known) if name_there == channel]
            problem, hint, width = "is not a channel", _nearest(channel, known), len(channels)
            if at:
                problem, hint, width = "is the name of several channels", f" ({ranges(at)})", 1
            raise BadRequest(
                "prepare-no-such-channel",
                f"features.{name}: '{channel}' {problem} of '{feature.name}' in source '{dataset.name}'"
                f"{hint}",
                where=where,
                do="address the channels by position: "
                f"{{from: {wanted.source}, at: [{min(at, default=0)}, {min(at, default=0) + width}]}}",
            )
    return tuple(known.index(channel) for channel in channels)


def _names_at(feature: Feature, channels: tuple[int, ...]) -> tuple[str, ...] | None:
    return tuple(feature.names[i] for i in channels) if feature.names is not None else None


def _numbered(feature: Feature, field: str | None, channels: tuple[int, ...] | None) -> list[str]:
    if field is not None and channels is not None:
        return [f"{field}[{i}]" for i in range(len(channels))]
    return [f"{feature.name}[{i}]" for i in (channels if channels is not None else range(feature.shape[0]))]


def _nearest(given: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(given, list(known), n=1, cutoff=0.5)
    return f"; did you mean '{near[0]}'?" if near else ""
