"""A run as its folder tells it: the journals below it, with whole curves, for reports.

Nothing is thinned here, and no server is asked.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stack.errors import BadRequest
from stack.files import read_json
from stack.tracking.curves import OF_THIS_ATTEMPT
from stack.tracking.journal import JOURNAL, read_journal, step_of
from stack.tracking.replay import UNREADABLE, Replay, attempt_ends, has_last_words, replay

Series = dict[str, list[tuple[float, float]]]


@dataclass(frozen=True)
class AttemptRecord:
    """One attempt; curves are (step, value) by metric, those before a resume included."""

    number: int
    status: str
    start_ms: int
    end_ms: int
    curves: Series


@dataclass(frozen=True)
class RunRecord:
    """One journal. `said` is what it says in the end; `attempts` has every attempt, oldest first."""

    folder: Path
    said: Replay
    attempts: tuple[AttemptRecord, ...]
    children: tuple[RunRecord, ...] = field(default=())

    @property
    def kind(self) -> str:
        return self.said.tags["stack.kind"]

    @property
    def curves(self) -> Series:
        return self.attempts[-1].curves

    @property
    def duration_s(self) -> float:
        """Over all attempts."""
        return sum(attempt.end_ms - attempt.start_ms for attempt in self.attempts) / 1000

    def all_below(self) -> list[RunRecord]:
        """This run and those nested in it, parents first."""
        return [self, *(run for child in self.children for run in child.all_below())]

    def finals(self) -> dict[str, float]:
        """Values of the whole run, without the prefix that marks them."""
        found = {key: points[-1][1] for key, points in self.curves.items() if key.startswith("final_")}
        return {key.removeprefix("final_"): value for key, value in found.items()}

    def manifest(self) -> Mapping[str, Any]:
        """The resolved manifest beside the journal; empty where there is none."""
        for name in ("manifest.json", "run.json", "dataset.json"):
            if (self.folder / name).is_file():
                return dict(read_json(self.folder / name, what="resolved manifest"))
        return {}


def read_run(folder: Path) -> RunRecord:
    """The run of a folder: its own journal, or else the topmost one below it, with what is nested in it.

    Raises:
        BadRequest: there is no journal, or several runs lie side by side in the folder.
    """
    if not folder.is_dir():
        raise BadRequest("report-no-folder", "the run folder is not there", where=str(folder))
    said = {path.parent: _read(path) for path in sorted(folder.rglob(JOURNAL))}
    if not said:
        raise BadRequest(
            "report-no-journal",
            f"there is no {JOURNAL} below this folder, so there is nothing to report",
            where=str(folder),
            do="name the folder that a run wrote",
        )
    ids = {one.said.run_id for one in said.values()}
    tops = [one for one in said.values() if one.said.parent not in ids]
    own = [one for one in tops if one.folder == folder] or tops
    if len(own) > 1:
        listed = ", ".join(str(one.folder.relative_to(folder)) for one in own[:4])
        raise BadRequest(
            "report-several-runs",
            f"{len(own)} runs lie side by side in this folder: {listed}",
            where=str(folder),
            do="name one of them",
        )
    return _with_children(own[0], list(said.values()))


def _with_children(run: RunRecord, others: list[RunRecord]) -> RunRecord:
    own = [one for one in others if one.said.parent == run.said.run_id and one is not run]
    rest = [one for one in others if one not in own]
    children = tuple(_with_children(one, rest) for one in sorted(own, key=lambda one: one.said.start_ms))
    return RunRecord(run.folder, run.said, run.attempts, children)


def _read(path: Path) -> RunRecord:
    content = path.read_bytes()
    said = replay(content, where=str(path))
    if has_last_words(said, path, content):
        return _read(path)
    ends = attempt_ends(content)
    states = [replay(content[:end], where=str(path), is_over=True) for end in ends[:-1]] + [said]
    curves = _curves(path)
    attempts = tuple(
        AttemptRecord(number, state.status, state.start_ms, state.end_ms or state.last_ms, own)
        for number, (state, own) in enumerate(zip(states, curves, strict=True), start=1)
    )
    return RunRecord(path.parent, said, attempts)


def _curves(path: Path) -> list[Series]:
    """The curves of each attempt; lines that a replay passes over are passed over here, too."""
    found: list[Series] = []
    for record in read_journal(path):
        try:
            _take(found, record)
        except UNREADABLE:
            continue
    return found


def _take(found: list[Series], record: Mapping[str, Any]) -> None:
    kind = record["kind"]
    if kind == "attempt" or (kind == "run" and not found):
        found.append({})
    elif kind == "resume" and len(found) > 1:
        last = step_of(record)
        for key, points in found[-2].items():
            kept = [point for point in points if point[0] <= last]
            if kept and not key.startswith(OF_THIS_ATTEMPT):
                found[-1][key] = kept
    elif kind == "metrics" and found:
        step = float(step_of(record))
        for key, value in record["metrics"].items():
            if math.isfinite(value):
                found[-1].setdefault(key, []).append((step, float(value)))
