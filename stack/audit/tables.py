"""Line-based and parquet metadata, read line by line and by position."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from stack.audit.shelter import reading
from stack.audit.trouble import Problem, Trouble, classify_file, parse_json

if TYPE_CHECKING:
    from stack.audit.evidence import Evidence

TaskLayout = Literal["lines", "pandas-index", "plain-column", "none"]


@dataclass(frozen=True)
class TaskEntry:
    """A row of the task table as stored; `text` and `index` may be anything."""

    position: int
    index: Any
    text: Any


@dataclass(frozen=True)
class TaskTable:
    """The task table.

    Attributes:
        layout: how text is stored: json lines, the pandas index (what lerobot's v3.0 loader looks up), or a
            plain column (which that loader takes for the row number).
    """

    file: str
    layout: TaskLayout
    entries: tuple[TaskEntry, ...]


def read_json_lines(evidence: Evidence, relative: str) -> Iterator[Any]:
    """One value a line; a line that is not JSON becomes a problem and is passed over."""
    if not evidence.files.get(relative):
        return
    try:
        lines = (evidence.root / relative).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        evidence.problems.append(classify_file(evidence.root, relative, error))
        return
    if lines and lines[0].startswith("version https://git-lfs"):
        evidence.problems.append(classify_file(evidence.root, relative))
        return
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        doubts: list[str] = []
        try:
            value = parse_json(line, doubts=doubts)
        except ValueError as error:
            evidence.problems.append(Problem(relative, Trouble.NOT_JSON, str(error)[:200], line=number))
        else:
            yield value
        evidence.doubt(relative, doubts, number)


def read_parquet(evidence: Evidence, relative: str, *, without: str | None = None) -> pa.Table | None:
    """A whole parquet file, or None with a problem noted.

    Args:
        without: columns whose name begins so are left out.
    """
    if not evidence.files.get(relative):
        return None
    try:
        with reading(evidence.root / relative):
            parquet = pq.ParquetFile(evidence.root / relative)
            names = parquet.schema_arrow.names
            wanted = None if without is None else [name for name in names if not name.startswith(without)]
            table = parquet.read(wanted, use_threads=wanted is None)
            # A damaged page can give offsets beyond the values, at which a later look would crash.
            table.validate(full=True)
            return table
    except Exception as error:  # pyarrow raises OSError, ArrowInvalid and more on damaged files
        evidence.problems.append(classify_file(evidence.root, relative, error))
        return None


def table_rows(table: pa.Table) -> list[dict[str, Any]]:
    """One mapping a row; the figures of statistics as arrays."""
    names = table.column_names
    if len(set(names)) < len(names):
        return list(table.to_pylist())
    light = table.select([name for name in names if not name.startswith("stats/")])
    rows = light.to_pylist() if light.num_columns else [{} for _ in range(table.num_rows)]
    for name in names:
        if name.startswith("stats/"):
            for row, value in zip(rows, table.column(name).to_pylist(), strict=True):
                row[name] = compact(value)
    return rows


def compact(value: Any) -> Any:
    """Lists of fractions as float64 arrays of the same shape, a quarter of the memory; all else as it is."""
    if not isinstance(value, list):
        return value
    try:
        array = np.asarray(value)
    except ValueError:  # ragged
        return value
    return array if array.dtype == np.float64 else value


def task_table(evidence: Evidence) -> TaskTable:
    if evidence.is_v3:
        return _task_parquet(evidence)
    file = "meta/tasks.jsonl"
    rows = [row if isinstance(row, dict) else {} for row in read_json_lines(evidence, file)]
    entries = tuple(TaskEntry(i, row.get("task_index"), row.get("task")) for i, row in enumerate(rows))
    return TaskTable(file, "lines" if entries else "none", entries)


def _task_parquet(evidence: Evidence) -> TaskTable:
    file = "meta/tasks.parquet"
    table = read_parquet(evidence, file)
    if table is None or "task_index" not in table.column_names:
        return TaskTable(file, "none", ())
    indexed = _pandas_index(table.schema)
    text_column = indexed if indexed in table.column_names else None
    layout: TaskLayout = "pandas-index"
    if text_column is None:
        layout = "plain-column"
        text_column = "task" if "task" in table.column_names else None
    indices = table.column("task_index").to_pylist()
    texts = table.column(text_column).to_pylist() if text_column else [None] * len(indices)
    pairs = enumerate(zip(indices, texts, strict=True))
    entries = tuple(TaskEntry(i, index, text) for i, (index, text) in pairs)
    return TaskTable(file, layout, entries)


def _pandas_index(schema: pa.Schema) -> str | None:
    """The column that pandas restores as the index, as the schema metadata says."""
    try:
        columns = json.loads((schema.metadata or {})[b"pandas"])["index_columns"]
    except (KeyError, ValueError, TypeError):
        return None
    return columns[0] if columns and isinstance(columns[0], str) else None
