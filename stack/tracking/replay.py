"""What a journal says of one attempt of its run, as plain data; no server, no MLflow.

A journal of several attempts is read once for each, up to where the next one begins: see `attempt_ends`. What
an attempt says replaces what was said before it; its curves go on from those before it where the journal says
after which step they do (`resume`), and stand alone where it does not.

Limits of what a server takes are applied here, and each time that something could not be kept as it was
written, a note says so. Source of the limits: MLflow 3.17, `mlflow/utils/validation.py`.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from stack.errors import BadRequest
from stack.tracking import names
from stack.tracking.curves import Curves, Point
from stack.tracking.journal import record_of, step_of
from stack.tracking.limits import (
    PARAM_CHARACTERS,
    TAG_CHARACTERS,
    changed_text,
    clean_key,
    cut,
    key_after,
)
from stack.tracking.liveness import lives

EVENTS_KEPT = 1000
ENDS = (names.OUTCOME, names.VERDICT, names.MESSAGE, names.NONFINITE, names.RESUMED_AFTER)
RUN_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")  # it goes into a search expression
# What reading a line raises whose values are not of the kinds that its writer gives.
UNREADABLE = (ArithmeticError, AttributeError, KeyError, TypeError, ValueError)
OUTCOMES = {"FINISHED": "ok", "FAILED": "failed", "KILLED": "killed", "RUNNING": "running"}


@dataclass(frozen=True)
class DatasetUse:
    """A dataset that the run reads; `digest` is the full sha256, `profile` JSON text."""

    name: str
    digest: str
    source: str
    context: str
    profile: str


@dataclass(frozen=True)
class ModelUse:
    """A checkpoint to register by reference; `proof` has texts by name, `attempt` counts from 1."""

    name: str
    roles: tuple[str, ...]
    step: int
    path: str
    size_bytes: int
    sha256: str
    attempt: int
    proof: dict[str, str]


@dataclass
class Replay:
    """All that a journal says of its latest attempt, ready to be compared with what a server has.

    Attributes:
        start_ms: when this attempt began.
        points: to be sent, in order, thinned as `stack.tracking.curves` says.
        tail: the last point of each curve that `points` leaves out; to be sent when the run has ended.
        attempts: how many there are; this one's number.
    """

    run_id: str
    name: str
    experiment: str
    parent: str | None
    start_ms: int
    last_ms: int
    params: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    points: list[Point] = field(default_factory=list)
    tail: list[Point] = field(default_factory=list)
    datasets: list[DatasetUse] = field(default_factory=list)
    models: list[ModelUse] = field(default_factory=list)
    curves: Curves = field(default_factory=Curves)
    metric_keys: dict[str, str] = field(default_factory=dict)  # as written: as sent
    earlier_params: dict[str, str] = field(default_factory=dict)
    earlier_datasets: list[DatasetUse] = field(default_factory=list)
    artifacts: dict[tuple[str, str], None] = field(default_factory=dict)  # (path, to), in order
    events: list[dict[str, Any]] = field(default_factory=list)
    events_count: int = 0
    attempts: int = 0
    status: str = "RUNNING"
    end_ms: int | None = None
    whole_bytes: int = 0
    unreadable_lines: int = 0
    notes: list[str] = field(default_factory=list)

    def note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)


def attempt_ends(content: bytes) -> list[int]:
    """Where each attempt's part of a journal ends, in bytes, in order; the last one's is the journal's."""
    ends, offset = [], 0
    for line in content.split(b"\n"):
        # The writer puts the kind behind the time; a text that only looks like it is no line's beginning.
        if b'"kind": "attempt"' in line[:60] and record_of(line) is not None:
            ends.append(offset)
        offset += len(line) + 1
    return [*ends, len(content)]


def has_last_words(said: Replay, path: Path, content: bytes) -> bool:
    """Whether a writer that is dead now wrote more after its journal was read: read it again.

    Whether it lives is asked after reading. One that ends in between would be taken for killed, and its last
    lines, its end among them, for never written.
    """
    return said.status == "KILLED" and path.stat().st_size != len(content)


def replay(content: bytes, *, where: str, points_from: int = 0, is_over: bool = False) -> Replay:
    """Read a journal, or as much of it as `content` has.

    Args:
        content: the journal's bytes. A last line without its end is read if it is whole JSON, and passed over
            if it was cut.
        where: the journal's path, for errors.
        points_from: metrics in the bytes before this offset are left out.
        is_over: whatever process wrote it is no longer at this attempt.

    Raises:
        BadRequest: no line names the run.
    """
    offset = 0
    result: Replay | None = None
    unreadable = 0
    process: Mapping[str, Any] = {}
    for line in content.split(b"\n"):
        start, offset = offset, offset + len(line) + 1
        record = record_of(line)
        if record is None:
            unreadable += bool(line.strip()) and offset <= len(content)
            continue
        try:
            if record["kind"] == "run" and result is None:
                result = _begin(record)
            if result is not None:
                _take(result, record, with_points=start >= points_from)
        except UNREADABLE:
            unreadable += 1
            continue
        if record["kind"] in ("run", "attempt"):
            process = record.get("process") or {"pid": record.get("pid")}
    if result is None:
        raise BadRequest(
            "journal-without-run",
            "no line of this journal names its run, so it cannot be shipped",
            where=where,
            do="if the run is only just starting, ship again; if not, remove the file",
        )
    result.whole_bytes = content.rfind(b"\n") + 1
    result.unreadable_lines = unreadable
    _finish(result, process, is_over=is_over)
    return result


def _begin(record: dict[str, Any]) -> Replay:
    run_id = _checked_id(record["run_id"])
    if run_id is None:
        raise ValueError("no run_id")
    result = Replay(
        run_id=run_id,
        name=str(record["name"]),
        experiment=str(record["experiment"]),
        parent=_checked_id(record.get("parent")),
        start_ms=record["t"],
        last_ms=record["t"],
    )
    result.tags[names.KIND] = names.kind_of(result.experiment)
    if record.get("description"):
        result.tags[names.DESCRIPTION] = str(record["description"])
    return result


def _checked_id(run_id: Any) -> str | None:
    if run_id is not None and not RUN_ID.fullmatch(run_id):
        raise ValueError(f"not a run_id: {run_id!r}")
    return None if run_id is None else str(run_id)


def _take(result: Replay, record: dict[str, Any], *, with_points: bool) -> None:
    kind = record["kind"]
    result.last_ms = max(result.last_ms, record["t"])
    if kind in ("run", "attempt"):
        _take_attempt(result, record)
    elif kind == "params":
        _take_params(result, record["params"])
    elif kind == "tags":
        _take_tags(result, record["tags"])
    elif kind == "metrics":
        _take_metrics(result, record, with_points=with_points)
    elif kind == "resume":
        step = step_of(record)
        if result.attempts > 1:
            result.tags[names.RESUMED_AFTER] = str(step)
        prefix = result.curves.resume(step)
        result.points += prefix if with_points else []
    elif kind == "dataset":
        _take_dataset(result, record)
    elif kind == "model":
        _take_model(result, record)
    elif kind == "artifact":
        result.artifacts[(str(record["path"]), str(record.get("to") or ""))] = None
    elif kind == "event":
        _take_event(result, {key: value for key, value in record.items() if key != "kind"})
    elif kind == "end":
        result.status, result.end_ms = str(record["status"]), record["t"]
    else:
        result.note(f"lines of the unknown kind {kind[:40]!r} passed over")


def _take_attempt(result: Replay, record: dict[str, Any]) -> None:
    result.attempts += 1
    result.start_ms = record["t"]
    result.end_ms, result.status = None, "RUNNING"
    # How an earlier attempt ended is not how the run stands now.
    for tag in [tag for tag in result.tags if tag in ENDS or tag.startswith(names.PARAM_CHANGED)]:
        del result.tags[tag]
    _take_tags(result, record.get("tags") or {})
    if record["kind"] == "run":
        return
    result.parent = _checked_id(record.get("parent")) or result.parent
    result.curves.next_attempt()
    result.earlier_params = {**result.earlier_params, **result.params}
    result.earlier_datasets = result.datasets or result.earlier_datasets
    result.params, result.points, result.datasets, result.models = {}, [], [], []
    _take_event(result, {"t": record["t"], "event": "attempt", "number": result.attempts})


def _take_params(result: Replay, params: Mapping[str, Any]) -> None:
    for raw_key, raw_value in params.items():
        key, value = clean_key(str(raw_key), result.note), str(raw_value)
        if len(value) > PARAM_CHARACTERS:
            digest = hashlib.sha256(value.encode()).hexdigest()
            result.tags[key_after(names.PARAM_CUT, key)] = (
                f"{len(value)} characters, shown cut to {PARAM_CHARACTERS}; sha256 {digest}"
            )
            value = cut(value, PARAM_CHARACTERS)
        before = result.earlier_params.get(key)
        first = result.params.setdefault(key, value)
        tag = key_after(names.PARAM_CHANGED, key)
        if value != first or tag in result.tags:
            result.tags[tag] = changed_text(first, value, result.attempts)
        elif before is not None and before != value:
            result.tags[tag] = changed_text(before, value, result.attempts)


def _take_tags(result: Replay, tags: Mapping[str, Any]) -> None:
    for raw_key, value in tags.items():
        key = clean_key(str(raw_key), result.note)
        result.tags[key] = cut(str(value), TAG_CHARACTERS)


def _take_metrics(result: Replay, record: dict[str, Any], *, with_points: bool) -> None:
    t_ms, step, keys = record["t"], step_of(record), result.metric_keys
    for raw_key, value in record["metrics"].items():
        key = keys.get(raw_key)
        if key is None:
            key = keys[raw_key] = clean_key(str(raw_key), result.note)
        if not math.isfinite(value):
            details = {"t": t_ms, "event": "nonfinite", "metric": key, "step": step}
            _take_event(result, {**details, "value": str(value)})
            continue
        point = result.curves.take(key, float(value), t_ms, step)
        if point is not None and with_points:
            result.points.append(point)


def _take_dataset(result: Replay, record: dict[str, Any]) -> None:
    use = DatasetUse(
        name=cut(str(record["name"]), 500),
        digest=str(record["digest"]),
        source=str(record["source"]),
        context=str(record["context"]),
        profile=json.dumps(record.get("profile") or {}, ensure_ascii=False, sort_keys=True),
    )
    if use not in result.datasets:
        result.datasets.append(use)


def _take_model(result: Replay, record: dict[str, Any]) -> None:
    proof = {str(key): str(value) for key, value in (record.get("proof") or {}).items() if value is not None}
    use = ModelUse(
        name=re.sub(r"[/:]", "-", str(record["name"])),
        roles=tuple(str(role) for role in record["roles"]),
        step=step_of(record),
        path=str(record["path"]),
        size_bytes=int(record["bytes"]),
        sha256=str(record["sha256"]),
        attempt=result.attempts,
        proof=proof,
    )
    result.models = [model for model in result.models if model.sha256 != use.sha256] + [use]


def _take_event(result: Replay, event: dict[str, Any]) -> None:
    result.events_count += 1
    if event["event"] == "nonfinite":
        count = 1 + int(result.tags.get(names.NONFINITE, "0").split(" ", 1)[0])
        first = result.tags.get(names.NONFINITE, "").partition("first ")[2]
        first = first or f"{event.get('metric')} = {event.get('value')} at step {event.get('step')}"
        result.tags[names.NONFINITE] = f"{count} {'value' if count == 1 else 'values'}, first {first}"
    if len(result.events) < EVENTS_KEPT:
        time = datetime.fromtimestamp(event["t"] / 1000, tz=timezone.utc)
        result.events.append({**event, "time": time.isoformat(timespec="milliseconds")})


def _finish(result: Replay, process: Mapping[str, Any], *, is_over: bool) -> None:
    if result.status not in OUTCOMES:
        result.note(f"unknown end status {result.status[:40]!r} shown as FAILED")
        result.status = "FAILED"
    if result.end_ms is None and (is_over or not lives(process, last_written_ms=result.last_ms)):
        result.status, result.end_ms = "KILLED", result.last_ms
    if result.status != "RUNNING":
        result.tail = result.curves.tail()
    # What an earlier attempt said holds where this one ends without saying anything else; until then it may
    # still say otherwise, and a server never lets a parameter change.
    if result.status != "RUNNING":
        result.params = {**result.earlier_params, **result.params}
    if not result.datasets and result.status != "RUNNING":
        result.datasets = list(result.earlier_datasets)
    if (thinned := result.curves.thinned()) is not None:
        result.tags[names.THINNED] = thinned
    result.tags.setdefault(names.OUTCOME, OUTCOMES[result.status])
    result.tags[names.RUN_ID] = result.run_id
    result.tags[names.ATTEMPT] = str(result.attempts)
    result.tags.setdefault("mlflow.source.name", f"stack {result.tags[names.KIND]}")
    result.tags.setdefault("mlflow.source.type", "LOCAL")
    revision = result.tags.get(names.GIT, "").partition(" ")[0]
    if re.fullmatch(r"[0-9a-f]{7,64}", revision):
        result.tags.setdefault("mlflow.source.git.commit", revision)
    if result.parent is not None:
        result.tags[names.PARENT] = result.parent
    if result.events_count > EVENTS_KEPT:
        result.note(f"events.json holds the first {EVENTS_KEPT} of {result.events_count} events")
    if result.unreadable_lines:
        result.note(f"{result.unreadable_lines} unreadable lines of the journal passed over")
