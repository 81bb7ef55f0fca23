"""Features as info.json declares them, in all the forms that writers use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stack.dataset.model import INDEX_FEATURES, Feature


def declared_features(info: Mapping[str, Any]) -> dict[str, Feature]:
    """Every entry of `features` that is an object; what does not fit a form becomes empty, not an error."""
    entries = info.get("features")
    if not isinstance(entries, dict):
        return {}
    features = {}
    for name, raw in entries.items():
        if not isinstance(raw, dict):
            continue
        dtype = raw.get("dtype")
        shape = shape_of(raw.get("shape"))
        names = flat_names(raw.get("names"))
        fits = names is not None and len(shape) == 1 and len(names) == shape[0]
        features[name] = Feature(
            name=name,
            dtype=dtype if isinstance(dtype, str) else "",
            shape=shape,
            names=tuple(names) if names is not None and fits else None,
            fields=field_table(raw),
            raw=raw,
        )
    return features


def shape_of(raw: Any) -> tuple[int, ...]:
    if isinstance(raw, int) and not isinstance(raw, bool):
        return (raw,)
    if not isinstance(raw, (list, tuple)):
        return ()
    sizes = [size for size in raw if isinstance(size, int) and not isinstance(size, bool) and size >= 0]
    return tuple(sizes) if len(sizes) == len(raw) else ()


def flat_names(raw: Any) -> list[str] | None:
    """Names from null, a list, a list of lists, or an object of lists, in order; None if there are none."""
    if raw is None:
        return None
    if isinstance(raw, dict):
        raw = [item for value in raw.values() for item in (value if isinstance(value, list) else [value])]
    if not isinstance(raw, list):
        return [str(raw)]
    flat: list[str] = []
    for item in raw:
        flat.extend(flat_names(item) or [] if isinstance(item, (list, dict)) else [str(item)])
    return flat


def field_table(raw: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """AgiBot's `field_descriptions`: field name -> channel indices."""
    table = raw.get("field_descriptions")
    fields: dict[str, tuple[int, ...]] = {}
    for name, entry in table.items() if isinstance(table, dict) else ():
        indices = entry.get("indices") if isinstance(entry, dict) else None
        if isinstance(indices, list) and all(isinstance(i, int) and i >= 0 for i in indices):
            fields[name] = tuple(indices)
    return fields


def field_of(feature: Feature, channel: int) -> str | None:
    for name, indices in feature.fields.items():
        if channel in indices:
            return name
    return None


def short_field(field: str) -> str:
    """`state/joint/position` -> `joint/position`, which the manifest takes as well."""
    head, slash, rest = field.partition("/")
    return rest if slash and head in ("state", "action") else field


def channel_name(feature: Feature, channel: int) -> str:
    """`name [index]`, after the field where the name does not say it."""
    name = feature.names[channel] if feature.names and channel < len(feature.names) else ""
    field = field_of(feature, channel) or ""
    if name.startswith(short_field(field).replace("/", "_")):
        field = ""  # the name says it already
    known = " ".join(part for part in (field, name) if part)
    return f"{known} [{channel}]" if known else f"[{channel}]"


def vector_features(features: Mapping[str, Feature]) -> dict[str, Feature]:
    """Features with numbers in their rows, index columns left out."""
    return {
        name: feature
        for name, feature in features.items()
        if not feature.is_camera
        and feature.dtype not in ("string", "language")
        and name not in INDEX_FEATURES
    }
