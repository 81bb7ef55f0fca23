"""The journal: an append-only record of a run, in the run's folder.

Training, sweep and the runner write it and never talk to a server; `stack.tracking.ship` replays it. Each
line is one JSON object with `t` (milliseconds since the epoch) and `kind`. The first line is of kind `run`
and names the run. A line cut by a kill is the last one, and readers pass over it.
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

JOURNAL = "journal.jsonl"
Status = Literal["FINISHED", "FAILED", "KILLED"]


class Journal:
    """Writes one run's journal; each call is one line, handed to the operating system at once.

    Args:
        folder: where `journal.jsonl` stands; artifact paths are relative to it.
        name: the run's name, as people read it.
        experiment: the experiment it belongs to.
        parent: `run_id` of the run that this one is nested under.
        tags, description: as MLflow shows them.

    An existing journal is continued: its run_id stays, and an `attempt` line marks the place.
    """

    def __init__(
        self,
        folder: Path,
        *,
        name: str,
        experiment: str,
        parent: str | None = None,
        tags: Mapping[str, str] | None = None,
        description: str | None = None,
    ) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / JOURNAL
        known = read_run_id(path)
        self.run_id = known or uuid.uuid4().hex
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        if known is None:
            self._write(
                "run",
                run_id=self.run_id,
                name=name,
                experiment=experiment,
                parent=parent,
                tags=dict(tags or {}),
                description=description,
                pid=os.getpid(),
                process=this_process(),
            )
        else:
            _end_cut_line(path, self._file)
            self._write("attempt", tags=dict(tags or {}), pid=os.getpid(), process=this_process())

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

    def event(self, event: str, **details: Any) -> None:
        self._write("event", event=event, **details)

    def end(self, status: Status) -> None:
        self._write("end", status=status)

    def close(self) -> None:
        os.close(self._file)

    def _write(self, kind: str, **fields: Any) -> None:
        line = json.dumps({"t": int(time.time() * 1000), "kind": kind, **fields}, ensure_ascii=False)
        os.write(self._file, line.encode() + b"\n")


def read_run_id(path: Path) -> str | None:
    """The run_id of a journal, or None where there is none yet."""
    for record in read_journal(path):
        if record["kind"] == "run":
            return str(record["run_id"])
    return None


def read_journal(path: Path) -> list[dict[str, Any]]:
    """All whole lines of a journal; a cut last line is passed over."""
    if not path.exists():
        return []
    records = []
    for line in path.read_bytes().split(b"\n"):
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if isinstance(record, dict) and "kind" in record:
            records.append(record)
    return records


def _end_cut_line(path: Path, file: int) -> None:
    content = path.read_bytes()
    if content and not content.endswith(b"\n"):
        os.write(file, b"\n")
