"""Repairs in the episode table and the task table: only what can be counted in rows and packets."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from stack.audit.clips import ClipSpan
from stack.audit.evidence import Evidence, whole
from stack.audit.layout import named_data_file
from stack.audit.mend_step import Left, Step
from stack.files import write_text

TASKS = "meta/tasks.parquet"


def table_steps(evidence: Evidence) -> Iterator[Step | Left]:
    """The episode table from the counted rows, the task table in order."""
    changes = list(_entry_changes(evidence))
    if changes and not evidence.rows.unread:
        codes = tuple(dict.fromkeys(code for code, *_ in changes))
        files = sorted({file for _, file, *_ in changes})
        for file in files:
            own = [change for change in changes if change[1] == file]
            said = "; ".join(
                f"episode {episode}: {key} {old!r:.40} becomes {new!r:.40}"
                for _, _, episode, key, old, new in own[:4]
            )
            more = f"; and {len(own) - 4} more" if len(own) > 4 else ""
            edits = {(episode, key): new for _, _, episode, key, _, new in own}
            apply = _edit_table if evidence.is_v3 else _edit_lines
            yield Step(codes, file, said + more, partial(apply, file=file, edits=edits))
    yield from _task_table(evidence)


def _entry_changes(evidence: Evidence) -> Iterator[tuple[str, str, int, str, Any, Any]]:
    """(code, file, episode, key, old, new)."""
    numbers = [entry.index for entry in evidence.episodes]
    if None in numbers or len(set(numbers)) < len(numbers):
        return
    rows = evidence.rows
    first = {span.episode: span for span in reversed(rows.spans)}
    texts = _texts_of_rows(evidence)
    for entry in evidence.episodes:
        index = entry.index
        if index is None or index not in rows.lengths:
            continue
        length = rows.lengths[index]
        if entry.length != length:
            yield "episode-length-differs", entry.file, index, "length", entry.length, length
        own = texts.get(index)
        if own and (not isinstance(entry.tasks, list) or not set(own) <= set(map(str, entry.tasks))):
            yield "task-differs", entry.file, index, "tasks", entry.tasks, own
        if not evidence.is_v3:
            continue
        start = first[index].start
        for key, right in (("dataset_from_index", start), ("dataset_to_index", start + length)):
            if whole(entry.raw.get(key)) != right:
                yield "rows-range-wrong", entry.file, index, key, entry.raw.get(key), right
        named = named_data_file(evidence, evidence.layout, entry.raw)
        place = _chunk_and_file(evidence, first[index].file)
        if named is not None and named != first[index].file and place is not None:
            for key, right in zip(("data/chunk_index", "data/file_index"), place, strict=True):
                yield "data-file-index-wrong", entry.file, index, key, entry.raw.get(key), right
    yield from _clip_changes(evidence)


def _texts_of_rows(evidence: Evidence) -> dict[int, list[str]]:
    column = evidence.rows.columns.get("task_index")
    numbers = column.whole_numbers() if column is not None and column.present.all() else None
    texts = {whole(entry.index): entry.text for entry in evidence.tasks.entries}
    found: dict[int, list[str]] = {}
    for span in evidence.rows.spans if numbers is not None else ():
        assert numbers is not None
        own = [texts.get(int(n)) for n in np.unique(numbers[span.start : span.start + span.count])]
        found[span.episode] = [text for text in own if isinstance(text, str)] if None not in own else []
    return found


def _chunk_and_file(evidence: Evidence, file: str) -> tuple[int, int] | None:
    chunk, _, name = file.removeprefix("data/").partition("/")
    numbers = chunk.removeprefix("chunk-"), name.removeprefix("file-").removesuffix(".parquet")
    return (int(numbers[0]), int(numbers[1])) if all(n.isdigit() for n in numbers) else None


def _clip_changes(evidence: Evidence) -> Iterator[tuple[str, str, int, str, Any, Any]]:
    if not evidence.is_v3:
        return
    entries = {entry.index: entry for entry in evidence.episodes}
    for camera, spans in evidence.clips.items():
        for span, right in _right_times(evidence, spans):
            entry = entries.get(span.episode)
            for key, got, want in zip(("from", "to"), (span.start_s, span.stop_s), right, strict=True):
                if entry is not None and (got is None or abs(got - want) > 1e-4):
                    column = f"videos/{camera}/{key}_timestamp"
                    yield "clip-times-wrong", entry.file, span.episode, column, got, want


def _right_times(evidence: Evidence, spans: list[ClipSpan]) -> Iterator[tuple[ClipSpan, tuple[float, float]]]:
    """Each clip's true times, in files that hold exactly the frames of their episodes, in order."""
    by_file: dict[str, list[ClipSpan]] = {}
    for span in spans:
        by_file.setdefault(span.file, []).append(span)
    for file, own in by_file.items():
        video, fps = evidence.videos.get(file), evidence.fps
        lengths = [span.length for span in own]
        if video is None or fps is None or None in lengths or video.frames != sum(n or 0 for n in lengths):
            continue
        own = sorted(own, key=lambda span: span.episode)
        known = [span.start_s for span in own if span.start_s is not None]
        if known != sorted(known):
            continue  # clips may lie in another order than the episodes
        before = 0
        for span in own:
            after = before + (span.length or 0)
            yield span, (before / fps, after / fps)
            before = after


def _edit_lines(root: Path, *, file: str, edits: dict[tuple[int, str], Any]) -> None:
    of_episode: dict[int, dict[str, Any]] = {}
    for (episode, key), value in edits.items():
        of_episode.setdefault(episode, {})[key] = value
    lines = []
    for line in (root / file).read_text(encoding="utf-8").splitlines():
        try:
            entry = json.loads(line)
        except ValueError:
            entry = None
        if isinstance(entry, dict) and (index := whole(entry.get("episode_index"))) is not None:
            entry.update(of_episode.get(index, {}))
            line = json.dumps(entry, ensure_ascii=False)
        lines.append(line + "\n")
    write_text(root / file, "".join(lines))


def _edit_table(root: Path, *, file: str, edits: dict[tuple[int, str], Any]) -> None:
    table = pq.ParquetFile(root / file).read()
    numbers = [whole(n) for n in table.column("episode_index").to_pylist()]
    for key in dict.fromkeys(key for _, key in edits):
        if key not in table.column_names:
            continue
        values = table.column(key).to_pylist()
        for row, episode in enumerate(numbers):
            if episode is not None and (episode, key) in edits:
                values[row] = edits[episode, key]
        at = table.column_names.index(key)
        table = table.set_column(at, key, pa.array(values, table.schema.field(key).type))
    pq.write_table(table, root / file)


def _task_table(evidence: Evidence) -> Iterator[Step | Left]:
    tasks = evidence.tasks
    numbers = [whole(entry.index) for entry in tasks.entries]
    texts = [entry.text for entry in tasks.entries]
    if not evidence.is_v3 or not numbers or not all(isinstance(text, str) for text in texts):
        return
    in_order = numbers == list(range(len(numbers)))
    if in_order and tasks.layout == "pandas-index":
        return
    if sorted(n for n in numbers if n is not None) != list(range(len(numbers))) or len(set(texts)) < len(
        texts
    ):
        yield Left("task-order", "the task numbers have holes or doubles: rows would have to change too")
        return
    right = [text for _, text in sorted(zip(numbers, texts, strict=True))]
    said = [] if in_order else ["sorted by task_index"]
    said += [] if tasks.layout == "pandas-index" else ["texts as the pandas index"]
    codes = ("task-order",) * (not in_order) + ("task-not-text",) * (tasks.layout != "pandas-index")
    yield Step(codes, TASKS, "; ".join(said), partial(_write_tasks, texts=right))


def _write_tasks(root: Path, *, texts: list[Any]) -> None:
    from stack.dataset.write_meta import write_tasks

    write_tasks(root, texts)
