"""Task texts and how rows and episodes point to them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator

import numpy as np

from stack.audit.evidence import whole
from stack.audit.kinds import Case, check, kind
from stack.faults import Fault, Place

MISSING = kind(
    "task-missing",
    "error",
    "tasks",
    title="there is no task table, or it has no rows",
    consequence="no prompt can be made; the loader fails with a KeyError or IndexError",
    mend="write the task table from the episodes' task texts",
)
EMPTY = kind(
    "task-empty",
    "error",
    "tasks",
    title="a task text is empty",
    consequence="the policy is trained on a prompt that says nothing",
    mend='in the dataset manifest: `tasks: {"": "what the robot does"}`',
)
NOT_TEXT = kind(
    "task-not-text",
    "error",
    "tasks",
    title="a task is no text, or is stored where the loader takes a number for it",
    consequence="the prompt becomes a row number, or building it fails",
    mend="store the texts; in v3.0 as the pandas index of meta/tasks.parquet. `stack prepare` does",
)
ORDER = kind(
    "task-order",
    "error",
    "tasks",
    title="the task table is not in the order of task_index (v3.0)",
    consequence="texts are looked up by row position: every prompt is another task's, without a message",
    mend="sort the table by task_index, numbered from 0 without gaps; `stack prepare` does",
)
DOUBLED = kind(
    "task-doubled",
    "warning",
    "tasks",
    title="a task text or task_index is listed twice",
    consequence="tools keep the first or the last of the two; equal tasks count as different ones",
    mend="keep one entry a text and renumber the rows; `stack prepare` does",
)
OUT_OF_RANGE = kind(
    "task-out-of-range",
    "error",
    "tasks",
    title="rows point to a task_index that the table does not have",
    consequence="the loader fails with an IndexError or KeyError when it reaches such a row",
    mend="add the task to the table, or correct the rows",
)
DIFFERS = kind(
    "task-differs",
    "warning",
    "tasks",
    title="an episode's task texts are not those that its rows point to",
    consequence="loaders take the rows' task; people and tools that read the episode table see another",
    mend="make them agree; `stack prepare` writes the episode table from the rows",
)
CHANGES = kind(
    "task-changes-within-episode",
    "note",
    "tasks",
    title="rows of one episode point to several tasks",
    consequence="each frame is trained with its own row's prompt, and an action chunk may reach over the "
    "change; tools that take one task an episode use the first of the list",
    mend="none if the episode has several parts; else make the rows agree, or cut it into one episode a task",
)


@check("the task table", MISSING, EMPTY, NOT_TEXT, ORDER, DOUBLED)
def task_table(case: Case) -> Iterator[Fault]:
    table = case.evidence.tasks
    place = Place(table.file)
    if not table.entries:
        yield MISSING.fault(f"{table.file} is absent, unreadable or has no rows", where=place)
        return
    if table.layout == "plain-column":
        yield NOT_TEXT.fault(
            "the texts are a plain column, no pandas index: lerobot's loader gives the row number as task",
            where=place,
        )
    for entry in table.entries:
        if whole(entry.index) is None:
            message = f"row {entry.position} has the task_index {entry.index!r}, which is no whole number"
            yield NOT_TEXT.fault(message, where=place)
        if not isinstance(entry.text, str):
            message = f"task {entry.index} is {entry.text!r:.200}, which is no text"
            yield NOT_TEXT.fault(message, where=place, data={"task_index": entry.index})
        elif not entry.text.strip():
            known = _only_other_text(case)
            right = json.dumps(known or "what the robot does", ensure_ascii=False)
            told = ", as the episode table says" if known else ""
            yield EMPTY.fault(
                f"the text of task {entry.index} is {entry.text!r:.60}",
                where=place,
                mend=f"in the dataset manifest: `tasks: {{{json.dumps(entry.text)}: {right}}}`{told}",
            )
    numbers = [whole(entry.index) for entry in table.entries]
    if case.evidence.is_v3 and numbers != list(range(len(numbers))):
        row = next(i for i, number in enumerate(numbers) if number != i)
        yield ORDER.fault(f"row {row} has task_index {numbers[row]}", where=place)
    texts = [entry.text for entry in table.entries if isinstance(entry.text, str)]
    for what, values in (("text", texts), ("task_index", numbers)):
        for value, count in Counter(values).items():
            if count > 1 and value is not None:
                yield DOUBLED.fault(f"the {what} {value!r:.200} is listed {count} times", where=place)


def _only_other_text(case: Case) -> str | None:
    """The one text that episodes list and the task table lacks; None where there is not exactly one."""
    table = {entry.text for entry in case.evidence.tasks.entries if isinstance(entry.text, str)}
    listed = [entry.tasks for entry in case.evidence.episodes if isinstance(entry.tasks, list)]
    others = {text for tasks in listed for text in tasks if isinstance(text, str) and text.strip()} - table
    return others.pop() if len(others) == 1 else None


@check("tasks of rows and episodes", OUT_OF_RANGE, DIFFERS, CHANGES)
def task_use(case: Case) -> Iterator[Fault]:
    evidence, rows = case.evidence, case.evidence.rows
    column = rows.columns.get("task_index")
    texts = {whole(entry.index): entry.text for entry in evidence.tasks.entries}
    numbers = column.whole_numbers() if column else None
    if not texts or column is None:
        return
    if numbers is None:
        if column.present.any():
            yield OUT_OF_RANGE.fault("task_index holds values that are no whole numbers", where=rows.place(0))
        return
    used: dict[int, set[int]] = {}
    for span in rows.spans:
        there = column.present[span.start : span.start + span.count]
        own = numbers[span.start : span.start + span.count]
        used.setdefault(span.episode, set()).update(int(n) for n in np.unique(own[there]))
        unknown = np.flatnonzero(there & ~np.isin(own, [t for t in texts if t is not None]))
        if len(unknown):
            yield OUT_OF_RANGE.fault(
                f"{len(unknown)} rows of episode {span.episode} have task_index {int(own[unknown[0]])};"
                f" the table has {sorted(t for t in texts if t is not None)[:10]}",
                where=Place(span.file, span.episode, int(unknown[0]), "task_index"),
                count=len(unknown),
            )
    files = {span.episode: span.file for span in rows.spans}
    for episode, own_tasks in used.items():
        if len(own_tasks) > 1:
            shown = ", ".join(map(str, sorted(own_tasks)[:6]))
            yield CHANGES.fault(
                f"the rows of episode {episode} point to {len(own_tasks)} tasks: {shown}",
                where=Place(files[episode], episode, feature="task_index"),
            )
    for entry in evidence.episodes:
        listed = entry.tasks
        if entry.index not in used:
            continue
        if not isinstance(listed, list) or not all(isinstance(text, str) for text in listed):
            if listed is not None:
                yield DIFFERS.fault(
                    f"the tasks of episode {entry.index} are {listed!r:.80}, no list of texts",
                    where=Place(entry.file, entry.index),
                )
            continue
        pointed = [
            texts.get(number) for number in sorted(used[entry.index])
        ]  # of any type: see task-not-text
        if other := [text for text in pointed if text not in listed]:
            yield DIFFERS.fault(
                f"the rows of episode {entry.index} point to {other[0]!r:.200};"
                f" the table lists {listed!r:.200}",
                where=Place(entry.file, entry.index),
            )
