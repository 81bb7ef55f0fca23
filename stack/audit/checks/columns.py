"""Columns as stored against features as declared."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from stack.audit.declared import flat_names
from stack.audit.kinds import Case, check, kind
from stack.dataset.model import INDEX_FEATURES, Feature
from stack.faults import Fault, Place

INFO = "meta/info.json"
LIST_TYPED = kind(
    "list-typed-scalar",
    "error",
    "columns",
    title="a one-wide feature is stored as lists of one element",
    consequence="loading fails: cannot cast list to the declared type",
    mend="flatten the column to plain values; `stack prepare` does",
)
DTYPE = kind(
    "dtype-differs",
    "error",
    "columns",
    title="a column's stored type is not the declared one",
    consequence="the loader cannot cast it and fails",
    mend="store the declared type, or declare the stored one; `stack prepare` writes what it declares",
    also={
        "note": "where the loader casts without loss of whole numbers: float64, narrower or wider integers"
    },
)
WIDTH = kind(
    "width-differs",
    "error",
    "columns",
    title="rows are wider or narrower than the declared shape",
    consequence="loading fails with a DatasetGenerationError, or batches cannot be stacked",
    mend="correct the shape in info.json, or exclude the episodes with odd rows",
)
MISSING = kind(
    "column-missing",
    "error",
    "columns",
    title="a declared feature has no column",
    consequence="it loads as None and the first item fails with a TypeError",
    mend="add the column, or take the feature out of info.json",
)
UNKNOWN = kind(
    "column-unknown",
    "error",
    "columns",
    title="a column that info.json does not declare",
    consequence="lerobot's v3.0 loader fails at once (DatasetGenerationError)",
    mend="declare the feature, or drop the column; `stack prepare` keeps declared features only",
)
DOUBLED = kind(
    "column-doubled",
    "error",
    "columns",
    title="a row file holds a column twice",
    consequence="readers take the first, the last, or fail; the two may differ",
    mend="drop one of the two",
)
INDEX_MISSING = kind(
    "index-column-missing",
    "error",
    "columns",
    title="an index column is not there",
    consequence="loaders address rows, tasks and pictures by it",
    mend="write the column; `stack prepare` derives timestamp, frame_index, episode_index and index",
    also={"warning": "where it can be derived without guessing when a v2.x delivery is prepared"},
)
NAMES = kind(
    "names-do-not-fit",
    "warning",
    "columns",
    title="names do not give one name for each channel",
    consequence="channels cannot be chosen by name, and reports can only number them",
    mend="write as many names as the shape is wide",
    also={
        "error": "for a camera in v3.0, where the policy cannot be built (lerobot issue 3786)",
        "note": "where the names fit but are nested in another list",
    },
)
AXES = kind(
    "camera-axes-differ",
    "warning",
    "columns",
    title="a camera's shape has its axes in another order than its names say",
    consequence="lerobot goes by the names: it exchanges the axes of a shape that needed no exchange, and "
    "the policy is built for pictures of a shape that never comes",
    mend="in info.json write the shape as height, width, channels, and these words as its names",
    also={"note": "where names do not contradict it, but channels come first: recorders write them last"},
)
FPS_ENTRY = kind(
    "feature-fps-entry",
    "warning",
    "columns",
    title="features carry an fps entry of their own",
    consequence="recorded datasets lack it, and lerobot's merge refuses with 'Same features is "
    "expected' (lerobot issue 2679)",
    mend="take `fps` out of each feature in info.json; `stack prepare` does",
)
NAME = kind(
    "feature-name-unfit",
    "warning",
    "columns",
    title="a feature's name holds a slash",
    consequence="lerobot refuses to write or merge such a dataset ('Feature names should not contain'), and "
    "takes its statistics apart at the slash",
    mend="rename the feature in info.json, the rows and the statistics",
)
EXTRA = kind(
    "extra-policy-feature",
    "warning",
    "columns",
    title="a further feature begins with action or observation",
    consequence="lerobot takes every action* feature for an output and every observation* one for a "
    "state: the policy's inputs and outputs are not those that were meant, and each needs statistics",
    mend="in the dataset manifest list under `features:` only those that the policy shall see",
)
CHANNELS = (1, 3, 4)
_NUMPY_NAMES = {"halffloat": "float16", "float": "float32", "double": "float64"}  # by arrow's names
_NUMPY_NUMBERS = {
    "float16",
    "float32",
    "float64",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "bool",
}


@check("columns against features", MISSING, UNKNOWN, DOUBLED, INDEX_MISSING)
def columns_declared(case: Case) -> Iterator[Fault]:
    evidence, rows = case.evidence, case.evidence.rows
    if not rows.files or not evidence.features:
        return
    for name, feature in evidence.features.items():
        if feature.dtype == "video" or name in INDEX_FEATURES:
            continue
        column = rows.columns.get(name)
        absent = [file for file, _, _ in rows.files] if column is None else column.absent_in
        if absent:
            yield MISSING.fault(
                f"{name} is declared, but {len(absent)} of {len(rows.files)} row files lack it",
                where=Place(absent[0], feature=name),
                count=len(absent),
            )
    derivable = {"timestamp", "frame_index", "episode_index", "index"}
    if len(evidence.tasks.entries) == 1:
        derivable.add("task_index")
    for name in INDEX_FEATURES:
        column = rows.columns.get(name)
        absent = [file for file, _, _ in rows.files] if column is None else column.absent_in
        if absent:
            mild = not evidence.is_v3 and name in derivable
            yield INDEX_MISSING.fault(
                f"{name} is not in {len(absent)} of {len(rows.files)} row files",
                where=Place(absent[0], feature=name),
                severity="warning" if mild else "error",
                count=len(absent),
            )
    for name, column in rows.columns.items():
        declared = evidence.features.get(name)
        # An index column that nobody declares is as unknown to the loader as any other.
        if declared is None:
            yield UNKNOWN.fault(
                f"the column {name} is not declared in info.json",
                where=Place(next(iter(column.types.values())), feature=name),
            )
    for file, name in rows.doubled:
        yield DOUBLED.fault(f"{file} holds {name} twice", where=Place(file, feature=name))


@check("stored types and widths", LIST_TYPED, DTYPE, WIDTH)
def columns_typed(case: Case) -> Iterator[Fault]:
    rows = case.evidence.rows
    for name, column in rows.columns.items():
        feature = case.evidence.features.get(name)
        if feature is None or feature.dtype == "video":
            continue
        for stored, file in column.types.items():
            yield from _typed(feature, stored, file)
        want = int(np.prod(feature.shape)) if feature.shape else None
        if want is None or column.values is None or feature.is_camera:
            continue
        if column.width != want and rows.count:
            yield WIDTH.fault(
                f"{name} is declared {want} wide; its rows hold {column.width} values",
                where=rows.place(0, name),
                data={"declared": want, "stored": column.width},
            )
        elif column.odd_widths:
            _row, width = column.odd_widths[0]
            yield WIDTH.fault(
                f"{name} is declared {want} wide; {len(column.odd_widths)} rows are not (here: {width})",
                places=tuple(rows.place(row, name) for row, _ in column.odd_widths[:5]),
                count=len(column.odd_widths),
            )


def _typed(feature: Feature, stored: pa.DataType, file: str) -> Iterator[Fault]:
    place = Place(file, feature=feature.name)
    leaf, lists = stored, 0
    while pa.types.is_list(leaf) or pa.types.is_large_list(leaf) or pa.types.is_fixed_size_list(leaf):
        leaf, lists = leaf.value_type, lists + 1
    if feature.shape == (1,) and lists and not feature.is_camera:
        yield LIST_TYPED.fault(
            f"{feature.name} is declared {feature.dtype} of shape [1], but stored as {stored}", where=place
        )
    elif pa.types.is_null(stored):
        return
    declared = feature.dtype
    if declared in _NUMPY_NUMBERS:
        numeric = pa.types.is_integer(leaf) or pa.types.is_floating(leaf) or pa.types.is_boolean(leaf)
        got = _NUMPY_NAMES.get(str(leaf), str(leaf))
        if not numeric:
            yield DTYPE.fault(f"{feature.name} is declared {declared}, but stored as {stored}", where=place)
        elif got != declared:
            lossy = pa.types.is_floating(leaf) and "float" not in declared
            yield DTYPE.fault(
                f"{feature.name} is declared {declared}, but stored as {stored}"
                + ("; the values are cast" if not lossy else "; fractions would be lost"),
                where=place,
                severity="note",
            )
    elif declared == "image":
        usual = pa.types.is_struct(stored) and {f.name for f in stored} >= {"bytes", "path"}
        if not usual:
            yield DTYPE.fault(
                f"{feature.name} is an image, but stored as {stored}, not as a struct of bytes and path",
                where=place,
            )
    elif declared == "string" and not (pa.types.is_string(leaf) or pa.types.is_large_string(leaf)):
        yield DTYPE.fault(f"{feature.name} is declared string, but stored as {stored}", where=place)


@check("names and further entries of features", NAMES, NAME, AXES, FPS_ENTRY, EXTRA)
def features_described(case: Case) -> Iterator[Fault]:
    evidence = case.evidence
    with_fps = []
    for name, feature in evidence.features.items():
        yield from _names(case, feature)
        if "/" in name:
            yield NAME.fault(f"the feature is called {name}", where=Place(INFO, feature=name))
        if "fps" in feature.raw:
            with_fps.append(name)
        actions = name.startswith("action") and name != "action"
        states = name.startswith("observation") and name != "observation.state" and not feature.is_camera
        if (actions or states) and not name.startswith("observation.images."):
            becomes = "an action output" if actions else "a state input"
            yield EXTRA.fault(f"{name} becomes {becomes} of the policy", where=Place(INFO, feature=name))
    if with_fps:
        yield FPS_ENTRY.fault(
            f"{len(with_fps)} of {len(evidence.features)} features have an fps entry: "
            + ", ".join(with_fps[:6])
            + (", ..." if len(with_fps) > 6 else ""),
            places=tuple(Place(INFO, feature=name) for name in with_fps),
        )


def _names(case: Case, feature: Feature) -> Iterator[Fault]:
    raw, place = feature.raw.get("names"), Place(INFO, feature=feature.name)
    names = flat_names(raw)
    if feature.is_camera:
        if names is None or len(names) != len(feature.shape):
            yield NAMES.fault(
                f"names of the camera {feature.name} are {raw!r}, its shape has {len(feature.shape)} axes",
                where=place,
                severity="error" if case.evidence.is_v3 else "warning",
            )
        yield from _axes(feature, names, place)
        return
    if names is None or len(feature.shape) != 1 or feature.name in INDEX_FEATURES:
        return
    if len(names) != feature.shape[0]:
        # A single name for one entry of a wide vector, such as ["motors"], is as much a misfit.
        yield NAMES.fault(f"{len(names)} names for a shape of {feature.shape[0]}", where=place)
    elif isinstance(raw, list) and any(isinstance(item, (list, dict)) for item in raw):
        yield NAMES.fault("the names are nested in another list", where=place, severity="note")


def _axes(feature: Feature, names: list[str] | None, place: Place) -> Iterator[Fault]:
    if len(feature.shape) != 3:
        return
    first, last = (feature.shape[axis] in CHANNELS for axis in (0, 2))
    if first == last:  # a picture of three pixels, or no picture
        return
    named = [(names or [""] * 3)[axis : axis + 1] for axis in (0, 2)]
    says_first, says_last = (bool(own) and own[0].startswith("channel") for own in named)
    if (first and says_last) or (last and says_first):
        yield AXES.fault(f"{feature.name} has shape {list(feature.shape)} and names {names}", where=place)
    elif first:
        said = f"{feature.name} has shape {list(feature.shape)}, channels first"
        yield AXES.fault(said, where=place, severity="note")
