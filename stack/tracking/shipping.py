"""The shipper: replays the journals of a run folder into a tracking server.

It may run beside the run, afterwards, again, or on another machine from the copied folder; what it sends of
one journal is in `stack.tracking.send`.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from stack.errors import BadRequest, NotAble, StackError
from stack.tracking import names
from stack.tracking.journal import JOURNAL
from stack.tracking.remote import Remote
from stack.tracking.replay import Replay, replay
from stack.tracking.send import ShippedRun, send_journal

LOCK_WAIT_S = 120.0
FOLLOW_EVERY_S = 20.0
FOLLOW_SHARE = 20
"""A shipper beside a run is idle for at least this many times as long as it works."""
VANISHED = "its journal is gone, and the run above it has ended"

Log = Callable[[str], None]


@dataclass(frozen=True)
class ShipReport:
    """What a call of `ship` did; `runs` has parents before children, `url` shows the first one's table."""

    server: str
    url: str
    runs: tuple[ShippedRun, ...]
    duration_s: float

    @property
    def is_running(self) -> bool:
        return any(run.status == "RUNNING" for run in self.runs)

    @property
    def points_sent(self) -> int:
        return sum(run.points_sent for run in self.runs)

    def to_json(self) -> dict[str, Any]:
        runs = [{**vars(run), "folder": str(run.folder), "notes": list(run.notes)} for run in self.runs]
        return {"server": self.server, "url": self.url, "runs": runs, "duration_s": self.duration_s}


@dataclass
class Passes:
    """What a shipper knows from its own passes before, so that the next one asks only for what is new.

    Attributes:
        remote: the server, known to be well.
        seen: by journal, its size and time of change as they were, and what the server has of it.
    """

    remote: Remote | None = None
    seen: dict[Path, tuple[tuple[int, int], ShippedRun]] = field(default_factory=dict)

    def forget(self) -> None:
        self.remote, self.seen = None, {}

    def unchanged(self, path: Path, state: tuple[int, int]) -> ShippedRun | None:
        """What the server has, where a pass could send nothing that it has not."""
        before, run = self.seen.get(path, (None, None))
        if run is None or before != state:
            return None
        if run.status == "RUNNING":
            content = path.read_bytes()
            if replay(content, where=str(path), points_from=len(content)).status != run.status:
                return None  # its writer has died
        return replace(run, points_sent=0, artifacts_sent=0)


def ship(folder: Path, server: str, *, log: Log | None = None, passes: Passes | None = None) -> ShipReport:
    """Bring every journal below `folder` to the tracking server; what is there already stays as it is.

    A nested run stands in the experiment of its topmost parent, because MLflow draws nesting only there; its
    tag `stack.kind` keeps what it is.

    Args:
        folder: a run folder; journals are found at any depth.
        server: `http://host:port`.
        log: called with one line a journal, and one for each thing that could not be shown as written.
        passes: of a shipper beside a run; journals that did not change since are passed over. The last pass
            goes without: it alone brings what other journals, files or people changed.

    Raises:
        BadRequest: no journal below the folder; one without a run; two with the same run_id.
        NotAble: the server is away, or refuses; MLflow is not installed; another shipper holds a journal for
            more than two minutes. Nothing is lost: ship again.
    """
    log, passes = log or _say_nothing, passes or Passes()
    started = time.monotonic()
    try:
        journals = _find(folder)
        remote = passes.remote = passes.remote or Remote(server)
        runs, sent = _send_all(journals, folder, remote, passes, log)
        _close_vanished(runs, sent, remote, log)
    except StackError:
        passes.forget()
        raise
    shipped = tuple(runs.values())
    url = remote.table_url(shipped[0].experiment_id) if shipped else remote.uri
    return ShipReport(remote.uri, url, shipped, time.monotonic() - started)


def _send_all(
    journals: list[tuple[Path, Replay]], folder: Path, remote: Remote, passes: Passes, log: Log
) -> tuple[dict[str, ShippedRun], set[str]]:
    """All journals as the server has them now, by run_id; and which of them something was asked for."""
    runs: dict[str, ShippedRun] = {}
    sent: set[str] = set()
    moved: set[str | None] = set()  # runs whose newest attempt is another than before: children follow
    for path, head in journals:
        try:
            with _locked(path):
                status = path.stat()
                state = (status.st_size, status.st_mtime_ns)
                known = None if head.parent in moved else passes.unchanged(path, state)
                run = runs[head.run_id] = known or send_journal(path, head, folder, remote)
        except FileNotFoundError:
            # A stage that has become whole is renamed with its journal; the next call finds it.
            log(f"{head.name}: its folder was moved or removed meanwhile; ship again")
            continue
        if known is not None:
            continue
        sent.add(head.run_id)
        if path in passes.seen and passes.seen[path][1].mlflow_run_id != run.mlflow_run_id:
            moved.add(head.run_id)
        passes.seen[path] = (state, run)
        log(f"{run.name}: {run.status}, {run.points_sent} points and {run.artifacts_sent} files sent")
        for note in run.notes:
            log(f"{run.name}: {note}")
    return runs, sent


def follow(
    folder: Path,
    server: str,
    *,
    every_s: float = FOLLOW_EVERY_S,
    log: Log | None = None,
    is_over: Callable[[], bool] = lambda: False,
) -> ShipReport | None:
    """Ship again and again until no run below the folder is running; a server that is away is waited for.

    Args:
        every_s: pause between two passes; longer where a pass takes long.
        is_over: asked before each pause; True makes the pass after it the last one.

    Returns the last pass's report; None if no pass has succeeded.

    Raises:
        BadRequest: as `ship`, but for a journal that is not there yet, which is waited for.
    """
    log, passes = log or _say_nothing, Passes()
    report, trouble, is_last = None, "", False
    while True:
        started = time.monotonic()
        try:
            is_whole = not passes.seen
            report = ship(folder, server, log=log if report is None else None, passes=passes)
            if trouble:
                log(f"shipping again: {report.points_sent} points sent")
            trouble = ""
            if is_last or not report.is_running:
                if is_whole:
                    return report
                passes.forget()
                continue
        except (NotAble, BadRequest) as error:
            if isinstance(error, BadRequest) and error.id != "track-no-journal":
                raise
            if str(error) != trouble:
                log(f"{error.what}; trying again every {every_s:g} s")
            trouble = str(error)
            if is_last:
                return report
        is_last = is_over()
        if not is_last:
            time.sleep(max(every_s, FOLLOW_SHARE * (time.monotonic() - started)))


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


def _close_vanished(shipped: Mapping[str, ShippedRun], sent: set[str], remote: Remote, log: Log) -> None:
    """End runs whose journal is gone, for instance with the unfinished folder of a stage that was begun anew.

    Nothing will ever end them; they are known by being below a run that has ended itself.
    """
    here = {run.mlflow_run_id for run in shipped.values()}
    for run in shipped.values():
        if run.status == "RUNNING" or run.run_id not in sent:
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
