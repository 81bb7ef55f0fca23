"""Statistics computed again from the rows; those of cameras from pictures where they are unusable."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from stack.audit.checks.stats import expected_shape
from stack.audit.evidence import Evidence
from stack.audit.exact import as_numbers
from stack.audit.mend_step import Left, Step
from stack.audit.report import AuditReport
from stack.dataset.model import ClipRef, Feature
from stack.dataset.stats import camera_stats, vector_stats
from stack.errors import StackError
from stack.files import write_json, write_text

STATS, EPISODES_STATS = "meta/stats.json", "meta/episodes_stats.jsonl"
CODES = (
    "stats-missing",
    "stats-count-zero",
    "stats-count-differs",
    "stats-nested",
    "stats-shape-mismatch",
    "stats-not-finite",
    "stats-differ",
    "stats-foreign",
    "stats-index-stale",
    "stats-quantiles-missing",
    "stats-quantiles-wrong",
    "stats-quantiles-averaged",
)


def stats_steps(evidence: Evidence, before: AuditReport, rows_change: bool) -> Iterator[Step | Left]:
    """One step where statistics are at fault, or rows change that they are taken over."""
    found = tuple(code for code in CODES if before.of(code))
    if not found and not rows_change:
        return
    if evidence.rows.unread or not evidence.rows.count:
        yield Left(found[0] if found else CODES[0], "statistics of all rows need all rows")
        return
    file = EPISODES_STATS if evidence.version == "v2.1" else STATS
    text = f"statistics of every feature over {evidence.rows.count} rows, exact, with quantiles"
    yield Step(found, file, text, _write)


def _write(root: Path) -> None:
    evidence = Evidence(root)
    if evidence.version == "v2.1":
        _write_lines(evidence)
    if evidence.version != "v2.1" or STATS in evidence.files:
        whole = _entries(evidence, None, (evidence.stats or {}))
        write_json(root / STATS, _writable(whole))
    if evidence.is_v3:
        _write_episode_columns(evidence)


def _write_lines(evidence: Evidence) -> None:
    stored = {of.episode: of.stats for of in evidence.episode_stats}
    lines = []
    for entry in evidence.episodes:
        if entry.index is not None:
            stats = _writable(_entries(evidence, entry.index, stored.get(entry.index, {})))
            lines.append(json.dumps({"episode_index": entry.index, "stats": stats}) + "\n")
    write_text(evidence.root / EPISODES_STATS, "".join(lines))


def _writable(entries: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Without entries that JSON cannot hold: NaN is no statistic."""
    kept = {}
    for name, entry in entries.items():
        plain = {k: v.tolist() if isinstance(v, np.ndarray) else v for k, v in entry.items()}
        try:
            json.dumps(plain, allow_nan=False)
        except ValueError:
            continue
        kept[name] = plain
    return kept


def _entries(
    evidence: Evidence, episode: int | None, stored: Mapping[str, Mapping[str, Any]]
) -> dict[str, Mapping[str, Any]]:
    """Feature -> statistics of one episode, or of all; what cannot be computed stays as it is."""
    entries: dict[str, Mapping[str, Any]] = dict(stored)
    for name, feature in evidence.features.items():
        if feature.dtype in ("string", "language", ""):
            continue
        if feature.is_camera:
            if not _usable(feature, stored.get(name, {})):
                made = _of_camera(evidence, name, episode)
                if made is not None:
                    entries[name] = made
            continue
        values = _values(evidence, name, episode)
        if values is not None:
            try:
                entries[name] = vector_stats(values, where=name).to_json()
            except StackError:
                continue  # NaN in the rows: the audit of the copy says so
    return entries


def _values(evidence: Evidence, name: str, episode: int | None) -> NDArray[Any] | None:
    column = evidence.rows.columns.get(name)
    if column is None or column.values is None or not column.present.all():
        return None
    if episode is None:
        return column.values
    own = [s for s in evidence.rows.spans if s.episode == episode]
    return np.concatenate([column.values[s.start : s.start + s.count] for s in own]) if own else None


def _usable(feature: Feature, entry: Mapping[str, Any]) -> bool:
    """Whether a camera's stored entry has the right form and counts something; pictures are not compared."""
    want = expected_shape(feature) or (3, 1, 1)
    for stat in ("min", "max", "mean", "std", "count"):
        array = as_numbers(entry.get(stat))
        if array is None or not np.isfinite(array).all():
            return False
        if array.shape != ((1,) if stat == "count" else want) or (stat == "count" and (array <= 0).any()):
            return False
    return True


def _of_camera(evidence: Evidence, camera: str, episode: int | None) -> Mapping[str, Any] | None:
    """From sampled pictures; None where there are none or they cannot be decoded."""
    clips = []
    for span in evidence.clips.get(camera, []):
        if episode in (None, span.episode):
            start = round((span.start_s or 0.0) * (evidence.fps or 1.0))
            clips.append(ClipRef(evidence.root / span.file, start, span.length or 0))
    clips = [clip for clip in clips if clip.count]
    try:
        return camera_stats(clips).to_json() if clips else None
    except StackError:
        return None


def _write_episode_columns(evidence: Evidence) -> None:
    """The stats/... columns of meta/episodes, where there are any."""
    stored = {of.episode: of.stats for of in evidence.episode_stats}
    for file in sorted({entry.file for entry in evidence.episodes}):
        table = pq.ParquetFile(evidence.root / file).read()
        columns = [name for name in table.column_names if name.startswith("stats/")]
        if not columns:
            continue
        numbers = [entry.index for entry in evidence.episodes if entry.file == file]
        made = {n: _entries(evidence, n, stored.get(n, {})) for n in numbers if n is not None}
        for column in columns:
            name, _, stat = column.removeprefix("stats/").rpartition("/")
            values = [(made.get(n, {}) if n is not None else {}).get(name, {}).get(stat) for n in numbers]
            at = table.column_names.index(column)
            table = table.set_column(at, column, _array(values, table.schema.field(column).type))
        pq.write_table(table, evidence.root / file)


def _array(values: Sequence[Any], stored: pa.DataType) -> pa.Array:
    """In the stored type where the values have its depth; nested or flat ones get a type of their own."""
    values = [v.tolist() if isinstance(v, np.ndarray) else v for v in values]
    try:
        return pa.array(values, stored)
    except (pa.ArrowException, TypeError, ValueError):
        return pa.array(values)
