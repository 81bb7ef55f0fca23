"""Repairs of what info.json declares and the files prove wrong: cameras that never were, types, shapes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from stack.audit.declared import flat_names
from stack.audit.evidence import Evidence
from stack.audit.rows import Column
from stack.dataset.model import INDEX_FEATURES, Feature

Info = dict[str, Any]
# (fault code, what is done or empty, how, or why it is left)
Change = tuple[str, str, Callable[[Info], None] | str]
_NUMPY_OF = {"float": "float32", "double": "float64", "halffloat": "float16", "bool": "bool"}


def declared_changes(evidence: Evidence) -> Iterator[Change]:
    yield from _phantoms(evidence)
    if evidence.rows.unread or not evidence.rows.count:
        return
    for name, feature in evidence.features.items():
        column = evidence.rows.columns.get(name)
        if column is None or feature.is_camera or name in INDEX_FEATURES or column.absent_in:
            continue
        yield from _dtype(feature, column)
        yield from _shape(feature, column)


def _phantoms(evidence: Evidence) -> Iterator[Change]:
    """Cameras without any file. Statistics of one show that it was recorded, so its files were lost."""
    with_files = {camera for camera, _ in evidence.layout.video_of}
    for camera in evidence.cameras:
        if camera in with_files:
            continue
        code = "camera-without-files"
        spoken_of = camera in (evidence.stats or {}) or any(camera in e.stats for e in evidence.episode_stats)
        if spoken_of or any(f"videos/{camera}/" in key for e in evidence.episodes for key in e.raw):
            why = f"{camera} was recorded once, as its statistics or the episode table show: ask for it,"
            yield code, "", f"{why} or leave it out in the manifest (`decide: {{missing_cameras: drop}}`)"
        else:
            text = f"{camera}: taken out; no file, statistic or episode of this dataset speaks of it"
            yield code, text, _without(camera)


def _without(camera: str) -> Callable[[Info], None]:
    def change(info: Info) -> None:
        info["features"].pop(camera, None)

    return change


def _dtype(feature: Feature, column: Column) -> Iterator[Change]:
    """The stored type, where all files agree on it and it is another kind of number than the declared one.

    Two precisions of one kind are left: every loader casts them, and which was meant cannot be told.
    """
    leaves = {_leaf(kind) for kind in column.types}
    stored = {_NUMPY_OF.get(str(leaf), str(leaf)) for leaf in leaves}
    if stored == {feature.dtype} or _kind(feature.dtype) is None:
        return
    kinds = {_kind(name) for name in stored}
    if None in kinds:
        yield "dtype-differs", "", f"{feature.name}: the rows hold {', '.join(sorted(stored))}, no numbers"
    elif len(stored) > 1:
        said = ", ".join(sorted(stored))
        yield "dtype-differs", "", f"{feature.name}: files differ in the stored type: {said}"
    elif kinds != {_kind(feature.dtype)}:
        (right,) = stored
        text = f"{feature.name}: dtype {feature.dtype} becomes {right}, as every row is stored"
        yield "dtype-differs", text, _updated(feature.name, dtype=right)


def _leaf(kind: pa.DataType) -> pa.DataType:
    while pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        kind = kind.value_type
    return kind


def _kind(dtype: str) -> str | None:
    """`f`, `i` or `b` of a numpy name; None where it names no number."""
    try:
        kind = np.dtype(dtype).kind
    except TypeError:
        return None
    return {"u": "i"}.get(kind, kind) if kind in "fiub" else None


def _shape(feature: Feature, column: Column) -> Iterator[Change]:
    """The stored width, where every row has it; names that then fit no more are taken out."""
    declared = int(np.prod(feature.shape)) if feature.shape else 0
    if column.values is None or not column.width or declared == column.width:
        return
    if column.odd_widths or not column.present.all():
        yield "width-differs", "", f"{feature.name}: its rows differ in width"
        return
    if len(feature.shape) > 1:
        yield "width-differs", "", f"{feature.name}: how {column.width} values fill {len(feature.shape)} axes"
        return
    names = flat_names(feature.raw.get("names"))
    kept = names is None or len(names) == column.width
    new: dict[str, Any] = {"shape": [column.width]} if kept else {"shape": [column.width], "names": None}
    said = "" if kept else f"; its {len(names or ())} names are taken out, for they fit no more"
    text = f"{feature.name}: shape {list(feature.shape)} becomes [{column.width}], as every row has it{said}"
    yield "width-differs", text, _updated(feature.name, **new)


def _updated(name: str, **values: Any) -> Callable[[Info], None]:
    def change(info: Info) -> None:
        info["features"][name].update(values)

    return change
