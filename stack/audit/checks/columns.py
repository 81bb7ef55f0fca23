"""Columns as stored against features as declared."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

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
