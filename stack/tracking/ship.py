"""The shipper: replays the journals of a run folder into a tracking server.

It may run beside the run, afterwards, again, or on another machine from the copied folder. Replaying is
idempotent: a run is found by its tag `stack.run_id`; a metric that the server has already, by key, step,
time and value, is not added again; parameters, tags, inputs and artifacts are compared with what is there.
What the server has already is known from its own tag `stack.shipped`, and for artifacts from the file
`.shipped.json` beside the journal; both only save work (see `stack.tracking.watermark`).
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stack.errors import BadRequest, NotAble
from stack.tracking import names
from stack.tracking.artifacts import send_artifacts
from stack.tracking.journal import JOURNAL
from stack.tracking.remote import Remote
from stack.tracking.replay import OUTCOMES, TAG_CHARACTERS, Replay, changed_text, cut, replay
from stack.tracking.watermark import Sent, known, remember

LOCK_WAIT_S = 120.0
VANISHED = "its journal is gone, and the run above it has ended"

Log = Callable[[str], None]


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


@dataclass(frozen=True)
class ShipReport:
    """What a call of `ship` did; `runs` has parents before children, `url` shows the first one's table."""

    server: str
    url: str
    runs: tuple[ShippedRun, ...]
    duration_s: float

    @property
    def points_sent(self) -> int:
        return sum(run.points_sent for run in self.runs)

    def to_json(self) -> dict[str, Any]:
        runs = [{**vars(run), "folder": str(run.folder), "notes": list(run.notes)} for run in self.runs]
        return {"server": self.server, "url": self.url, "runs": runs, "duration_s": self.duration_s}


def ship(folder: Path, server: str, *, log: Log | None = None) -> ShipReport:
    """Bring every journal below `folder` to the tracking server; what is there already stays as it is.

    A nested run stands in the experiment of its topmost parent, because MLflow draws nesting only there; its
    tag `stack.kind` keeps what it is.

    Args:
        folder: a run folder; journals are found at any depth.
        server: `http://host:port`.
        log: called with one line a journal, and one for each thing that could not be shown as written.

    Raises:
        BadRequest: no journal below the folder; one without a run; two with the same run_id.
        NotAble: the server is away, or refuses; MLflow is not installed; another shipper holds a journal for
            more than two minutes. Nothing is lost: ship again.
    """
    log = log or _say_nothing
    started = time.monotonic()
    journals = _find(folder)
    remote = Remote(server)
    runs: dict[str, ShippedRun] = {}
    for path, head in journals:
        try:
            run = runs[head.run_id] = _ship_one(path, head, folder, remote)
        except FileNotFoundError:
            # A stage that has become whole is renamed with its journal; the next call finds it.
            log(f"{head.name}: its folder was moved or removed meanwhile; ship again")
            continue
        log(f"{run.name}: {run.status}, {run.points_sent} points and {run.artifacts_sent} files sent")
        for note in run.notes:
            log(f"{run.name}: {note}")
    _close_vanished(runs, remote, log)
    shipped = tuple(runs.values())
    url = remote.table_url(shipped[0].experiment_id) if shipped else remote.uri
    return ShipReport(remote.uri, url, shipped, time.monotonic() - started)


def _say_nothing(line: str) -> None:
    del line


def _find(folder: Path) -> list[tuple[Path, Replay]]:
    """The journals below a folder with what their first lines say, parents before children."""
    if not folder.is_dir():
        raise BadRequest("track-no-folder", "the run folder is not there", where=str(folder))
    found: dict[str, tuple[Path, Replay]] = {}
    for path in sorted(folder.rglob(JOURNAL)):
        head = _read_head(path)
        if head is None:
            continue
        if head.run_id in found:
            raise BadRequest(
                "track-run-twice",
                f"two journals are of the same run {head.run_id}: {found[head.run_id][0]} and {path}",
                where=str(folder),
                do="one is a copy of the other; ship each on its own, or move one away",
            )
        found[head.run_id] = (path, head)
    if not found:
        raise BadRequest(
            "track-no-journal",
            f"there is no {JOURNAL} below this folder, so there is nothing to ship",
            where=str(folder),
            do="name the folder that `stack train`, `stack sweep` or `stack reproduce` wrote",
        )
    return _parents_first(found)


def _read_head(path: Path) -> Replay | None:
    """The journal's first line; None where the writer has not come to its end yet."""
    try:
        with path.open("rb") as file:
            line = file.readline()
    except FileNotFoundError:
        return None  # a stage's folder was renamed meanwhile; the next call finds it
    return replay(line, where=str(path)) if line.endswith(b"\n") else None


def _parents_first(found: dict[str, tuple[Path, Replay]]) -> list[tuple[Path, Replay]]:
    ordered: dict[str, tuple[Path, Replay]] = {}

    def place(run_id: str | None, below: tuple[str, ...]) -> None:
        if run_id in found and run_id not in ordered and run_id not in below:
            place(found[run_id][1].parent, (*below, run_id))
            ordered[run_id] = found[run_id]

    for run_id in found:
        place(run_id, ())
    return list(ordered.values())


def _ship_one(path: Path, head: Replay, root: Path, remote: Remote) -> ShippedRun:
    with _locked(path):
        parent = remote.find_run(head.parent) if head.parent else None
        run = remote.find_run(head.run_id) or _create(head, parent, remote)
        content = path.read_bytes()
        sent = known(path.parent, run, content)
        fresh = replay(content, where=str(path), points_from=sent.shipped_bytes)
        _link_parent(fresh, parent)
        _send_params(fresh, run, remote)
        remote.log_points(sent.mlflow_run_id, fresh.points)
        new_datasets = [use for use in fresh.datasets if not _has_dataset(run, use.name, use.digest)]
        remote.log_datasets(sent.mlflow_run_id, new_datasets)
        artifacts_sent = send_artifacts(fresh, path.parent, root, sent, remote)
        sent.advance(content, fresh.whole_bytes)
        _send_tags(fresh, run, remote, sent)
        _send_status(fresh, run, remote)
        remember(path.parent, sent)
    return ShippedRun(
        folder=path.parent,
        run_id=fresh.run_id,
        mlflow_run_id=sent.mlflow_run_id,
        experiment_id=run.info.experiment_id,
        name=fresh.name,
        status=fresh.status,
        url=remote.url(run.info.experiment_id, sent.mlflow_run_id),
        points_sent=len(fresh.points),
        artifacts_sent=artifacts_sent,
        notes=tuple(fresh.notes),
    )


def _create(head: Replay, parent: Any | None, remote: Remote) -> Any:
    experiment_id = parent.info.experiment_id if parent else remote.experiment(head.experiment)
    first = {key: head.tags[key] for key in names.FIRST_TAGS if key in head.tags}
    rest = {key: value for key, value in head.tags.items() if key not in (names.RUN_ID, names.OUTCOME)}
    outcome = {names.OUTCOME: OUTCOMES["RUNNING"]}
    return remote.create_run(
        experiment_id, head.run_id, head.name, head.start_ms, {**outcome, **first, **rest, **outcome}
    )


def _close_vanished(shipped: Mapping[str, ShippedRun], remote: Remote, log: Log) -> None:
    """End runs whose journal is gone, for instance with the unfinished folder of a stage that was begun anew.

    Nothing will ever end them; they are known by being below a run that has ended itself.
    """
    here = {run.mlflow_run_id for run in shipped.values()}
    for run in shipped.values():
        if run.status == "RUNNING":
            continue
        for child in remote.running_children(run.run_id):
            if child.info.run_id in here:
                continue
            remote.set_tags(child.info.run_id, {names.OUTCOME: "killed", names.NOTES: VANISHED})
            remote.set_status(child.info.run_id, "KILLED", None)
            log(f"{child.info.run_name}: KILLED; {VANISHED}")


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold the journal against other shippers; its writer takes no lock and is not held up."""
    # On network file systems an exclusive lock needs a file open for writing.
    with path.open("r+b" if os.access(path, os.W_OK) else "rb") as file:
        deadline = time.monotonic() + LOCK_WAIT_S
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise NotAble(
                        "track-busy",
                        f"another shipper has held this journal for {LOCK_WAIT_S:.0f} s",
                        where=str(path),
                        do="let it finish, or end it, then ship again",
                    ) from None
                time.sleep(0.1)
        yield


def _link_parent(fresh: Replay, parent: Any | None) -> None:
    if parent is not None:
        fresh.tags["mlflow.parentRunId"] = parent.info.run_id
    elif fresh.parent is not None:
        fresh.note(f"its parent run {fresh.parent} is not on the server yet; ship the parent's folder")


def _send_params(fresh: Replay, run: Any, remote: Remote) -> None:
    there: dict[str, str] = run.data.params
    for key in fresh.params.keys() & there.keys():
        if there[key] != fresh.params[key]:
            tag = (names.PARAM_CHANGED + key)[:250]
            fresh.tags.setdefault(tag, changed_text(there[key], fresh.params[key], fresh.attempts))
    remote.log_params(
        run.info.run_id, {key: value for key, value in fresh.params.items() if key not in there}
    )


def _has_dataset(run: Any, name: str, digest: str) -> bool:
    for used in run.inputs.dataset_inputs if run.inputs else []:
        full = {tag.key: tag.value for tag in used.tags}.get("stack.digest")
        if used.dataset.name == name and full == digest:
            return True
    return False


def _send_tags(fresh: Replay, run: Any, remote: Remote, sent: Sent) -> None:
    tags = {**fresh.tags, names.SHIPPED: sent.mark}
    there: dict[str, str] = run.data.tags
    if fresh.notes or names.NOTES in there:
        tags[names.NOTES] = cut("\n".join(fresh.notes), TAG_CHARACTERS)
    remote.set_tags(
        sent.mlflow_run_id, {key: value for key, value in tags.items() if there.get(key) != value}
    )


def _send_status(fresh: Replay, run: Any, remote: Remote) -> None:
    if run.info.status != fresh.status or (fresh.end_ms and run.info.end_time != fresh.end_ms):
        remote.set_status(run.info.run_id, fresh.status, fresh.end_ms)
