"""One journal, brought to a tracking server: each attempt a run, the newest one above the others.

The newest attempt's run stands for the whole run: it has the name, and its curves go on from those of the
attempt that it resumed. An attempt that was followed by another becomes a run nested below it, with the
curves as they were then. So a table has one row a run, and no curve is drawn twice.

Replaying is idempotent. A run is found by its tags `stack.run_id` and `stack.attempt`; a metric that the
server has already, by key, step, time and value, is not added again; parameters, tags, inputs and artifacts
are compared with what is there. What the server has already is known from its own tag `stack.shipped`, and
for artifacts from the file `.shipped.json` beside the journal; both only save work (see
`stack.tracking.watermark`).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stack.tracking import names
from stack.tracking.artifacts import send_artifacts
from stack.tracking.limits import TAG_CHARACTERS, changed_text, cut
from stack.tracking.registry import register
from stack.tracking.remote import Remote
from stack.tracking.replay import OUTCOMES, Replay, attempt_ends, has_last_words, replay
from stack.tracking.watermark import known, mark_of, remember

ENDED = ("FINISHED", "FAILED", "KILLED")
BEGINNING_BYTES = 1 << 16


@dataclass(frozen=True)
class ShippedRun:
    """One journal, as the server has it now; the counts are what this call sent."""

    folder: Path
    run_id: str
    mlflow_run_id: str
    experiment_id: str
    name: str
    status: str
    url: str
    points_sent: int
    artifacts_sent: int
    notes: tuple[str, ...]


def send_journal(path: Path, head: Replay, root: Path, remote: Remote) -> ShippedRun:
    """Bring all attempts of a journal to the server; the caller holds it against other shippers.

    Args:
        path: the journal.
        head: what its first line says.
        root: the folder that is shipped; no file outside it is sent.

    Raises:
        NotAble: the server is away, or refuses.
        FileNotFoundError: the journal was moved meanwhile.
    """
    content = path.read_bytes()
    ends = attempt_ends(content)
    there = remote.find_attempts(head.run_id)
    newest = max(len(ends), *there) if there else len(ends)
    parent_id = _beginning(content, ends, len(ends), path).parent
    parent = remote.find_run(parent_id) if parent_id else None
    if newest not in there:
        there[newest] = _create(_beginning(content, ends, newest, path), newest, parent, remote)
    top = there[newest]
    points = 0
    for number in range(1, min(len(ends), newest - 1) + 1):
        part = content[: ends[number - 1]]
        if number not in there:
            there[number] = _create(_beginning(content, ends, number, path), number, top, remote)
        points += _send_superseded(part, number, there[number], top, path, remote)
    if newest > len(ends):
        # A copy of the folder that is behind the server: all that it has of its last attempt is there now.
        fresh = replay(content, where=str(path), points_from=len(content), is_over=True)
        return _shipped(fresh, path, there.get(len(ends), top), points, 0, remote)
    shipped = _send_newest(content, top, parent, path, root, points, remote)
    return shipped or send_journal(path, head, root, remote)


def _beginning(content: bytes, ends: list[int], number: int, path: Path) -> Replay:
    """What an attempt says at its beginning: enough to find its parent and to make its run."""
    head = content[: content.find(b"\n") + 1] if number > 1 else b""
    start = ends[number - 2] if number > 1 else 0
    first_ends = content.find(b"\n", start) + 1
    part = content[start : min(ends[number - 1], max(start + BEGINNING_BYTES, first_ends))]
    whole = part[: part.rfind(b"\n") + 1] or part
    return replay(head + whole, where=str(path), points_from=len(content))


def _create(fresh: Replay, number: int, parent: Any | None, remote: Remote) -> Any:
    experiment_id = parent.info.experiment_id if parent else remote.experiment(fresh.experiment)
    first = {key: fresh.tags[key] for key in names.FIRST_TAGS if key in fresh.tags}
    rest = {key: value for key, value in fresh.tags.items() if key not in (names.RUN_ID, names.OUTCOME)}
    outcome = {names.OUTCOME: OUTCOMES["RUNNING"]}
    tags = {**outcome, **first, **rest, **outcome, names.ATTEMPT: str(number)}
    return remote.create_run(experiment_id, fresh.run_id, number, fresh.name, fresh.start_ms, tags)


def _send_newest(
    content: bytes, run: Any, parent: Any | None, path: Path, root: Path, points: int, remote: Remote
) -> ShippedRun | None:
    """None: its writer has ended and written more since the journal was read."""
    sent = known(path.parent, run, content)
    fresh = replay(content, where=str(path), points_from=sent.shipped_bytes)
    if has_last_words(fresh, path, content):
        return None
    if parent is not None:
        fresh.tags[names.PARENT_RUN] = parent.info.run_id
        verdict = parent.data.tags.get(names.VERDICT)
        if verdict is not None and fresh.tags[names.KIND] == names.kind_of(names.TRAIN):
            # The chain judges the training, after the training's own record has ended.
            fresh.tags.setdefault(names.VERDICT, verdict)
    elif fresh.parent is not None:
        fresh.note(f"its parent run {fresh.parent} is not on the server yet; ship the parent's folder")
    points += _send_facts(fresh, run, remote)
    artifacts = send_artifacts(fresh, path.parent, root, sent, run, remote)
    register(fresh, run, remote)
    sent.advance(content, fresh.whole_bytes)
    _send_tags(fresh, run, remote, sent.mark)
    _send_status(fresh, run, remote)
    remember(path.parent, sent)
    return _shipped(fresh, path, run, points, artifacts, remote)


def _send_superseded(part: bytes, number: int, run: Any, top: Any, path: Path, remote: Remote) -> int:
    """An attempt that was followed by another: below the newest one, with its curves as they were then."""
    tags: dict[str, str] = run.data.tags
    mark, top_id = mark_of(part, len(part)), top.info.run_id
    if tags.get(names.SHIPPED) == mark and tags.get(names.SUPERSEDED) == top_id and run.info.status in ENDED:
        return 0
    sent = known(path.parent, run, part)
    fresh = replay(part, where=str(path), points_from=sent.shipped_bytes, is_over=True)
    points = _send_facts(fresh, run, remote)
    register(fresh, run, remote)
    fresh.tags |= {names.PARENT_RUN: top_id, names.SUPERSEDED: top_id}
    remote.rename(run.info.run_id, f"{fresh.name} (attempt {number})")
    _send_status(fresh, run, remote)
    _send_tags(fresh, run, remote, mark)
    return points


def _send_facts(fresh: Replay, run: Any, remote: Remote) -> int:
    """Parameters, points and inputs; how many points were sent."""
    _send_params(fresh, run, remote)
    # Once the server knows the end of a run it has the last points too.
    points = [*fresh.points, *(fresh.tail if run.info.status == "RUNNING" else ())]
    remote.log_points(run.info.run_id, points)
    new = [use for use in fresh.datasets if not _has_dataset(run, use.name, use.digest)]
    remote.log_datasets(run.info.run_id, new)
    return len(points)


def _shipped(fresh: Replay, path: Path, run: Any, points: int, artifacts: int, remote: Remote) -> ShippedRun:
    return ShippedRun(
        folder=path.parent,
        run_id=fresh.run_id,
        mlflow_run_id=run.info.run_id,
        experiment_id=run.info.experiment_id,
        name=fresh.name,
        status=fresh.status,
        url=remote.url(run.info.experiment_id, run.info.run_id),
        points_sent=points,
        artifacts_sent=artifacts,
        notes=tuple(fresh.notes),
    )


def _send_params(fresh: Replay, run: Any, remote: Remote) -> None:
    there: dict[str, str] = run.data.params
    for key in fresh.params.keys() & there.keys():
        if there[key] != fresh.params[key]:
            tag = (names.PARAM_CHANGED + key)[:250]
            fresh.tags[tag] = changed_text(there[key], fresh.params[key], fresh.attempts)
    new = {key: value for key, value in fresh.params.items() if key not in there}
    remote.log_params(run.info.run_id, new)


def _has_dataset(run: Any, name: str, digest: str) -> bool:
    for used in run.inputs.dataset_inputs if run.inputs else []:
        full = {tag.key: tag.value for tag in used.tags}.get("stack.digest")
        if used.dataset.name == name and full == digest:
            return True
    return False


def _send_tags(fresh: Replay, run: Any, remote: Remote, mark: str) -> None:
    tags = {**fresh.tags, names.SHIPPED: mark}
    there: dict[str, str] = run.data.tags
    if fresh.notes or names.NOTES in there:
        tags[names.NOTES] = cut("\n".join(fresh.notes), TAG_CHARACTERS)
    remote.set_tags(run.info.run_id, {key: value for key, value in tags.items() if there.get(key) != value})


def _send_status(fresh: Replay, run: Any, remote: Remote) -> None:
    if run.info.status != fresh.status or (fresh.end_ms and run.info.end_time != fresh.end_ms):
        remote.set_status(run.info.run_id, fresh.status, fresh.end_ms)
