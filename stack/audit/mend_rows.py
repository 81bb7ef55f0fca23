"""Repairs in row files: numbering, types, and timestamps where asked."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from stack.audit.evidence import Evidence
from stack.audit.mend_step import Left, Step
from stack.audit.rows import Span

HF_METADATA = b"huggingface"  # names the columns' types; wrong once one of them is another
NUMBERED = ("frame_index", "episode_index", "index")


def row_steps(evidence: Evidence, restamp: bool) -> Iterator[Step | Left]:
    """A step for each row file that needs one."""
    rows = evidence.rows
    numbering, why_not = _numbering(evidence)
    if why_not and any(_wrong(evidence, name, right) for name, right in numbering.items()):
        yield Left("index-gaps", why_not)
        numbering = {}
    new: dict[str, NDArray[np.int64] | NDArray[np.float32]] = {}
    for name, right in numbering.items():
        if _wrong(evidence, name, right):
            new[name] = right
    if restamp and evidence.fps is not None and not why_not:
        frames = numbering["frame_index"].astype(np.float64)
        new["timestamp"] = (frames / evidence.fps).astype(np.float32)
    for file, start, count in rows.files:
        columns = {name: values[start : start + count] for name, values in new.items()}
        columns = {
            name: values for name, values in columns.items() if _differs(evidence, name, values, start)
        }
        flat = _list_typed(evidence, file)
        if not columns and not flat:
            continue
        spans = [span.count for span in rows.spans if span.file == file]
        said = [f"{name} numbered again" for name in columns if name != "timestamp"]
        said += ["timestamp = frame_index / fps"] if "timestamp" in columns else []
        said += [f"{name} from one-element lists to plain values" for name in flat]
        codes = (("index-gaps", "index-column-missing") if set(columns) & set(NUMBERED) else ()) + (
            ("list-typed-scalar",) if flat else ()
        )
        codes += ("timestamps-off", "timestamps-not-rising", "clock-drift") if "timestamp" in columns else ()
        apply = partial(
            _rewrite, file=file, columns=columns, flat=flat, groups=spans if evidence.is_v3 else []
        )
        yield Step(codes, file, "; ".join(said), apply)


def _numbering(evidence: Evidence) -> tuple[dict[str, NDArray[np.int64]], str]:
    """The right numbers of every row (N,), and why they cannot be told if so."""
    rows = evidence.rows
    right: dict[str, NDArray[np.int64]] = {name: np.full(rows.count, -1, np.int64) for name in NUMBERED}
    right["index"] = np.arange(rows.count, dtype=np.int64)
    for span in rows.spans:
        own = slice(span.start, span.start + span.count)
        right["frame_index"][own] = np.arange(span.count)
        right["episode_index"][own] = span.episode
    if not rows.count:
        return {}, ""
    if rows.unread or any(miss.template == "data_path" and not miss.found for miss in evidence.layout.misses):
        return right, "row files are missing or unreadable, so the rows' numbers over all files are unknown"
    episodes = [span.episode for span in rows.spans]
    if sum(span.count for span in rows.spans) != rows.count or len(set(episodes)) < len(episodes):
        return right, "which rows belong to which episode cannot be told"
    if episodes != sorted(episodes):
        return right, "episodes do not lie one after another; moving rows is left to `stack prepare`"
    for span in rows.spans:
        if why := _disordered(evidence, span):
            return right, why
    return right, ""


def _disordered(evidence: Evidence, span: Span) -> str:
    """Rows may be in another order than they were recorded in: then numbering them would hide it."""
    for name in ("frame_index", "timestamp"):
        column = evidence.rows.columns.get(name)
        if column is None or column.values is None or column.width != 1:
            continue
        own = column.values[span.start : span.start + span.count, 0].astype(np.float64)
        steps = np.diff(own[np.isfinite(own)])
        if len(steps) and (steps < 0).sum() > 1 and len(np.unique(own)) == len(own):
            return f"{name} of episode {span.episode} runs backwards: the rows may be out of order"
    return ""


def _wrong(evidence: Evidence, name: str, right: NDArray[np.int64]) -> bool:
    column = evidence.rows.columns.get(name)
    numbers = column.whole_numbers() if column is not None else None
    if column is None or numbers is None or not column.present.all():
        return name in evidence.features or column is not None
    return bool((numbers != right).any())


def _differs(
    evidence: Evidence, name: str, values: NDArray[np.int64] | NDArray[np.float32], start: int
) -> bool:
    column = evidence.rows.columns.get(name)
    if column is None or column.values is None or column.width != 1:
        return True
    own = column.values[start : start + len(values), 0]
    with np.errstate(invalid="ignore"):  # NaN in a column of whole numbers differs as well
        return not np.array_equal(own.astype(values.dtype), values) or not column.present.all()


def _list_typed(evidence: Evidence, file: str) -> list[str]:
    """One-wide declared features that this file stores as lists of exactly one element each."""
    schema = pq.read_schema(evidence.root / file)
    found = []
    for name, feature in evidence.features.items():
        column = evidence.rows.columns.get(name)
        if feature.shape != (1,) or feature.is_camera or schema.names.count(name) != 1 or column is None:
            continue
        if _is_list(schema.field(name).type) and column.width == 1 and not column.odd_widths:
            found.append(name)
    return found


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _rewrite(
    root: Path,
    *,
    file: str,
    columns: dict[str, NDArray[np.int64] | NDArray[np.float32]],
    flat: list[str],
    groups: list[int],
) -> None:
    with pq.ParquetFile(root / file) as parquet:
        table = parquet.read()
    for name in flat:
        array = table.column(name).combine_chunks()
        while _is_list(array.type):
            array = array.flatten()
        table = table.set_column(table.column_names.index(name), name, array)
    for name, values in columns.items():
        if name in table.column_names:
            table = table.set_column(table.column_names.index(name), name, pa.array(values))
        else:
            table = table.append_column(name, pa.array(values))
    metadata = {k: v for k, v in (table.schema.metadata or {}).items() if k != HF_METADATA}
    table = table.replace_schema_metadata(metadata or None)
    sizes = groups if sum(groups) == len(table) else [len(table)]
    with pq.ParquetWriter(root / file, table.schema) as writer:
        start = 0
        for size in sizes:
            writer.write_table(table.slice(start, size), row_group_size=max(size, 1))
            start += size
