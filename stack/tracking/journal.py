"""The journal: an append-only record of a run, in the run's folder.

Training, sweep, prepare and the runner write it and never talk to a server; `stack.tracking.shipping` replays
it. Each line is one JSON object with `t` (milliseconds since the epoch) and `kind`. The first line is of kind
`run` and names the run. A line cut by a kill is the last one, and readers pass over it.

Writing never stops the work that is recorded: on a full disk, lines wait in memory and follow when there is
room; what had to be given up is counted, and the count is written.
"""

from __future__ import annotations

import json
import math
import os
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from stack.tracking.liveness import this_process
from stack.tracking.secrets import redacted

JOURNAL = "journal.jsonl"
WAITING_BYTES = 8 << 20
"""Lines that cannot be written wait in memory up to this size; the newest beyond it are given up."""

MOST_STEPS = 2**63 - 1  # a server stores 64 bits
LAST_MS = 253_402_300_799_999  # the year 9999 ends

Status = Literal["FINISHED", "FAILED", "KILLED"]


class Journal:
    """Writes one run's journal; each call is one line, handed to the operating system at once.

    Args:
        folder: where `journal.jsonl` stands; artifact paths are relative to it.
        name: the run's name, as people read it.
        experiment: the experiment it belongs to.
        parent: `run_id` of the run that this one is nested under.
        tags, description: as MLflow shows them.
        started_unix_s: when the work began, where that was before this call.

    An existing journal is continued: its run_id stays, and an `attempt` line begins the next attempt of the
    same run.

    Attributes:
        is_continued: there was a journal already.

    Raises:
        OSError: the journal cannot be opened at all. No later call raises one; see `problem`.
    """

    is_continued: bool
    _file: int

    def __init__(
        self,
        folder: Path,
        *,
        name: str,
        experiment: str,
        parent: str | None = None,
        tags: Mapping[str, str] | None = None,
        description: str | None = None,
        started_unix_s: float | None = None,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        known = read_run_id(folder / JOURNAL)
        self._open(folder, known or uuid.uuid4().hex)
        self.is_continued = known is not None
        process = {"pid": os.getpid(), "process": this_process()}
        when = {} if started_unix_s is None else {"t": int(started_unix_s * 1000)}
        if known is None:
            self._write(
                "run",
                run_id=self.run_id,
                name=name,
                experiment=experiment,
                parent=parent,
                tags=dict(tags or {}),
                description=description,
                **process,
                **when,
            )
        else:
            self._write("attempt", parent=parent, tags=dict(tags or {}), **process, **when)

    @classmethod
    def extend(cls, folder: Path) -> Journal | None:
        """Open a journal to add what became known after its run's end; None where there is none."""
        known = read_run_id(folder / JOURNAL)
        if known is None:
            return None
        journal = cls.__new__(cls)
        journal._open(folder, known)
        journal.is_continued = True
        return journal

    def params(self, params: Mapping[str, Any]) -> None:
        self._write("params", params={key: str(value) for key, value in params.items()})

    def tags(self, tags: Mapping[str, Any]) -> None:
        self._write("tags", tags={key: str(value) for key, value in tags.items()})

    def metrics(self, metrics: Mapping[str, float], *, step: int) -> None:
        """Non-finite values are recorded as events: servers store them wrongly or not at all."""
        finite = {key: float(value) for key, value in metrics.items() if math.isfinite(value)}
        if finite:
            self._write("metrics", step=step, metrics=finite)
        for key in metrics.keys() - finite.keys():
            self.event("nonfinite", metric=key, step=step, value=str(metrics[key]))

    def resumed(self, step: int) -> None:
        """This attempt goes on after `step` of the one before, whose curves count up to there; 0: anew."""
        self._write("resume", step=step)

    def dataset(
        self, *, name: str, digest: str, source: str, context: str, profile: Mapping[str, Any]
    ) -> None:
        """A dataset that the run reads; `digest` is a full sha256, `profile` small counts and widths."""
        self._write(
            "dataset", name=name, digest=digest, source=source, context=context, profile=dict(profile)
        )

    def artifact(self, path: Path, *, to: str = "") -> None:
        """A small file to show with the run, in the artifact folder `to`; read when the journal is shipped.

        The shipper sends only files below the folder that it ships, so keep a copy in the run folder.
        """
        relative = os.path.relpath(path, self.folder)
        self._write("artifact", path=relative, to=to)

    def model(
        self, *, name: str, roles: list[str], step: int, path: str, size_bytes: int, sha256: str, **proof: Any
    ) -> None:
        """A checkpoint to register by reference as a version of the model `name`.

        Args:
            roles: `best`, `last`; the registry's aliases.
            path: as the run folder has it; the bytes stay there.
            sha256: of the weights' file.
            proof: what makes it trustworthy, such as the loss, the outcome, digests.
        """
        reference = {"step": step, "path": path, "bytes": size_bytes, "sha256": sha256}
        self._write("model", name=name, roles=roles, **reference, proof=proof)

    def event(self, event: str, **details: Any) -> None:
        self._write("event", event=event, **details)

    def end(self, status: Status) -> None:
        self._write("end", status=status)

    def close(self) -> None:
        """Leave the file; what is written after this waits in memory and goes with it."""
        self._flush()
        if self._file >= 0:
            os.close(self._file)
        self._file = -1

    @property
    def problem(self) -> str | None:
        """Why lines wait in memory just now; None when all are written."""
        return self._problem

    def _open(self, folder: Path, run_id: str) -> None:
        self.folder, self.run_id = folder, run_id
        self._waiting = bytearray()
        self._given_up = 0
        self._problem: str | None = None
        path = folder / JOURNAL
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        size_bytes = os.fstat(self._file).st_size
        if size_bytes and os.pread(self._file, 1, size_bytes - 1) != b"\n":
            self._waiting += b"\n"  # the end of a line that a kill has cut

    def _write(self, kind: str, **fields: Any) -> None:
        record = {"t": int(time.time() * 1000), "kind": kind, **fields}
        if kind != "metrics":
            record = redacted(record)
        line = json.dumps(record, ensure_ascii=False).encode(errors="replace") + b"\n"
        if len(self._waiting) + len(line) > WAITING_BYTES and kind != "end":
            self._given_up += 1
        else:
            self._waiting += line
        self._flush()

    def _flush(self) -> None:
        """Write what waits, as far as it goes; a line that was cut by a full disk goes on where it ended."""
        try:
            while self._waiting:
                del self._waiting[: os.write(self._file, self._waiting)]
        except OSError as error:
            self._problem = f"{len(self._waiting)} bytes of the journal wait in memory: {error}"
            return
        self._problem = None
        if self._given_up:
            count, self._given_up = self._given_up, 0
            self.event("journal-gap", lines=count)


def read_run_id(path: Path) -> str | None:
    """The run_id of a journal, or None where there is none yet."""
    try:
        with path.open("rb") as file:
            for line in file:
                record = record_of(line)
                if record is not None and record["kind"] == "run":
                    return str(record["run_id"])
    except FileNotFoundError:
        pass
    return None


def read_journal(path: Path) -> list[dict[str, Any]]:
    """All whole lines of a journal; a cut last line is passed over."""
    if not path.exists():
        return []
    return [record for line in path.read_bytes().split(b"\n") if (record := record_of(line)) is not None]


def record_of(line: bytes) -> dict[str, Any] | None:
    """What a line says; None where it is not one of a journal: cut, no kind, no time that a calendar has."""
    try:
        record = json.loads(line)
    except ValueError:
        return None
    if not isinstance(record, dict) or not isinstance(record.get("kind"), str):
        return None
    t_ms = record.get("t")
    return record if isinstance(t_ms, int) and 0 <= t_ms <= LAST_MS else None


def step_of(record: Mapping[str, Any]) -> int:
    """The step that a line is about.

    Raises:
        ArithmeticError, KeyError, TypeError, ValueError: there is none, or none that a server could store.
    """
    step = int(record["step"])
    if not -MOST_STEPS <= step <= MOST_STEPS:
        raise ValueError(f"step {step}")
    return step
