"""Retention: old runs are deleted by a rule, first so that they can be brought back, later for good.

The rule looks at trees (a run with all that is nested below it) and keeps a whole tree when any run in it is
young, running, tagged to be kept, or the source of a model version. What is deleted stays in MLflow's trash
for some days, and only from there are rows and files removed, unless a run that lives is nested below it
or is an earlier attempt of it. Nothing is done without `apply`.

`mlflow gc` is not called: it takes whatever is in the trash, sources of model versions too, deletes proxied
files only through a running server with a login in its environment, and drops the rows of a run whose files
it could not find its way to. What it does to one run is done here: its files, then its rows by the same
function of MLflow's store; a test compares what both leave.
"""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from stack.errors import NotAble
from stack.tracking import names
from stack.tracking.site.place import Place, connected, require_there
from stack.tracking.site.schema import require_current, translated

if TYPE_CHECKING:
    from sqlalchemy import Connection

DAY_MS = 24 * 3600 * 1000
NO = ("", "0", "no", "false", "off")
PARENT = "mlflow.parentRunId"
MODEL_OF_VERSION = re.compile(r"models:/(m-[0-9a-f]+)")
RUN_OF_VERSION = re.compile(r"(?<![0-9a-f])[0-9a-f]{32}(?![0-9a-f])")

Log = Callable[[str], None]


@dataclass(frozen=True)
class StoredRun:
    """What the rule needs to know of a run; times in milliseconds. `refers_to`: runs that its tags name."""

    run_id: str
    name: str
    experiment: str
    status: str
    last_ms: int
    deleted_ms: int | None
    artifact_uri: str
    parent: str | None = None
    is_tagged: bool = False
    has_model: bool = False
    refers_to: tuple[str, ...] = ()


@dataclass(frozen=True)
class PrunePlan:
    """What a rule would do, or has done.

    Attributes:
        to_trash: runs that go to the trash.
        to_remove: runs that leave the trash for good.
        kept: reason -> how many runs it keeps.
        bytes_of: artifacts of the runs that leave for good.
        elsewhere: artifacts that lie outside this store, and are left there.
    """

    to_trash: tuple[StoredRun, ...]
    to_remove: tuple[StoredRun, ...]
    kept: dict[str, int]
    bytes_of: dict[str, int] = field(default_factory=dict)
    elsewhere: tuple[str, ...] = ()

    @property
    def removed_bytes(self) -> int:
        return sum(self.bytes_of.values())


def plan_prune(place: Place, *, keep_days: float, trash_days: float, now_ms: int | None = None) -> PrunePlan:
    """Apply the rule to what the store holds now; changes nothing.

    Raises:
        BadRequest: there is no store.
        NotAble: the database does not answer, or is not of the installed MLflow's version.
    """
    require_there(place)
    require_current(place)
    now = int(time.time() * 1000) if now_ms is None else now_ms
    with connected(place) as connection, translated(place):
        runs = _read_runs(connection)
    living = {key: run for key, run in runs.items() if run.deleted_ms is None}
    to_trash, kept = judge(living, now - int(keep_days * DAY_MS))
    named = {name for run in living.values() for name in run.refers_to}
    to_remove = []
    for run in runs.values():
        if run.deleted_ms is None or run.deleted_ms > now - int(trash_days * DAY_MS):
            continue
        reason = _reason_to_keep(run, None)
        if reason is None and run.run_id in named:
            reason = "named by a run that lives"
        if reason is None:
            to_remove.append(run)
        else:
            kept[f"in the trash, {reason}"] = kept.get(f"in the trash, {reason}", 0) + 1
    folders = {run.run_id: artifact_folder(place, run) for run in to_remove}
    return PrunePlan(
        tuple(to_trash),
        tuple(to_remove),
        kept,
        {run_id: _size(folder) for run_id, folder in folders.items() if folder is not None},
        tuple(run.artifact_uri for run in to_remove if folders[run.run_id] is None),
    )


def judge(runs: Mapping[str, StoredRun], old_ms: int) -> tuple[list[StoredRun], dict[str, int]]:
    """Split living runs into those to delete and, by reason, those kept: a tree is kept as one.

    Args:
        old_ms: what ended before is old.
    """
    trees: dict[str, list[StoredRun]] = {}
    for run in runs.values():
        trees.setdefault(_top(run, runs), []).append(run)
    to_trash: list[StoredRun] = []
    kept: dict[str, int] = {}
    for tree in trees.values():
        reasons = {run.run_id: _reason_to_keep(run, old_ms) for run in tree}
        if not any(reasons.values()):
            to_trash += tree
            continue
        for reason in reasons.values():
            said = reason or "nested with one that is kept"
            kept[said] = kept.get(said, 0) + 1
    return sorted(to_trash, key=lambda run: (run.last_ms, run.run_id)), kept


def apply_prune(place: Place, plan: PrunePlan, *, log: Log) -> None:
    """Do what a plan says; a kill in between leaves the rest for the next call.

    Raises:
        NotAble: the database or a folder cannot be written; what was done until then is done.
    """
    from mlflow.exceptions import MlflowException

    try:
        _apply(place, plan, log)
    except (OSError, MlflowException) as error:
        raise NotAble(
            "track-prune-stopped",
            f"stopped on the way: {str(error).splitlines()[0][:300]}",
            where=str(place.folder),
            do="mend that, and run the same command again; it goes on with what is left",
        ) from error


def _apply(place: Place, plan: PrunePlan, log: Log) -> None:
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    store = SqlAlchemyStore(place.uri, "mlflow-artifacts:/")
    for run in plan.to_trash:
        store.delete_run(run.run_id)
        log(f"to the trash: {shown(run)}")
    for run in plan.to_remove:
        if store.get_run(run.run_id).info.lifecycle_stage != "deleted":
            log(f"brought back meanwhile, so kept: {shown(run)}")
            continue
        # Files first, as `mlflow gc` does it: a row without files is found again, files without a row never.
        folder = artifact_folder(place, run)
        if folder is not None and folder.exists():
            shutil.rmtree(folder)
        store._hard_delete_run(run.run_id)
        log(f"removed for good: {shown(run)}")


def artifact_folder(place: Place, run: StoredRun) -> Path | None:
    """The folder below the store's artifacts that is this run's alone; None where its files are elsewhere."""
    parts = urlsplit(run.artifact_uri)
    if parts.scheme != "mlflow-artifacts":
        return None
    relative = Path(parts.path.lstrip("/"))
    if run.run_id not in relative.parts or ".." in relative.parts:
        return None
    own = Path(*relative.parts[: relative.parts.index(run.run_id) + 1])
    folder = place.artifacts / own
    return folder if folder.resolve().is_relative_to(place.artifacts.resolve()) else None


def shown(run: StoredRun) -> str:
    day = time.strftime("%Y-%m-%d", time.gmtime(run.last_ms / 1000))
    return f"{run.experiment}: {run.name} ({run.run_id}), {run.status.lower()}, last {day}"


def _reason_to_keep(run: StoredRun, old_ms: int | None) -> str | None:
    if run.is_tagged:
        return f"tagged {names.KEEP}"
    if run.has_model:
        return "source of a model version"
    if old_ms is not None and run.status in ("RUNNING", "SCHEDULED"):
        return "running"
    if old_ms is not None and run.last_ms >= old_ms:
        return "young"
    return None


def _top(run: StoredRun, runs: Mapping[str, StoredRun]) -> str:
    """What names a run's tree: its topmost run, or the first of a ring, which only broken tags make."""
    path = [run.run_id]
    while (above := runs[path[-1]].parent) in runs:
        if above in path:
            return min(path[path.index(above) :])
        path.append(str(above))
    return path[-1]


def _read_runs(connection: Connection) -> dict[str, StoredRun]:
    tagged = _pairs(connection, f"SELECT run_uuid, value FROM tags WHERE key = '{names.KEEP}'")
    parents = dict(_pairs(connection, f"SELECT run_uuid, value FROM tags WHERE key = '{PARENT}'"))
    later = dict(_pairs(connection, f"SELECT run_uuid, value FROM tags WHERE key = '{names.SUPERSEDED}'"))
    kept = {run_id for run_id, value in tagged if str(value).strip().lower() not in NO}
    with_model = _runs_of_versions(connection)
    rows = _rows(
        connection,
        "SELECT r.run_uuid, r.name, e.name, r.status, r.start_time, r.end_time, r.lifecycle_stage, "
        "r.deleted_time, r.artifact_uri FROM runs r JOIN experiments e ON e.experiment_id = r.experiment_id",
    )
    return {
        run_id: StoredRun(
            run_id,
            name or "",
            experiment,
            status or "",
            int(end or start or 0),
            int(deleted or 0) if stage == "deleted" else None,
            uri or "",
            parents.get(run_id),
            run_id in kept,
            run_id in with_model,
            tuple(filter(None, (parents.get(run_id), later.get(run_id)))),
        )
        for run_id, name, experiment, status, start, end, stage, deleted, uri in rows
    }


def _runs_of_versions(connection: Connection) -> set[str]:
    """Runs that a model version names: itself, in its source, or through its logged model."""
    versions = _pairs(connection, "SELECT run_id, source FROM model_versions")
    made_by = dict(_pairs(connection, "SELECT model_id, source_run_id FROM logged_models"))
    models = {found[1] for _, source in versions if (found := MODEL_OF_VERSION.search(source or ""))}
    in_source = {found for _, source in versions for found in RUN_OF_VERSION.findall(source or "")}
    by_model = {made_by[model] for model in models if made_by.get(model)}
    return {run_id for run_id, _ in versions if run_id} | in_source | by_model


def _pairs(connection: Connection, query: str) -> list[tuple[str, str]]:
    return [(row[0], row[1]) for row in _rows(connection, query)]


def _rows(connection: Connection, query: str) -> Iterable[Any]:
    from sqlalchemy import text

    return connection.execute(text(query)).fetchall()


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) if folder.is_dir() else 0
