"""What big files were when they were last hashed whole, so that a second look takes seconds.

A file whose size and time of change are those of then, and of which eighteen samples hash as they did then,
is taken for the same file. Damage between the samples that leaves the time alone (a failing disk) passes
unseen: a whole `stack mirror verify` is for that. Small files are always hashed whole.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from stack.errors import BadRequest
from stack.files import read_json, write_json
from stack.manifests.models import Model

SAMPLED_FROM_BYTES = 64 << 20
WINDOW_BYTES = 1 << 20
WINDOWS = 18
SCHEMA = "stack/mirror-seen/1"


def seen_file(to: Path, name: str) -> Path:
    return to / f".{name}.seen.json"


def note(to: Path, name: str, model: Model) -> None:
    """Record the big files of a model that has just been found right, hash by hash."""
    files: dict[str, Any] = {}
    for file in model.files:
        path = to / name / file.path
        if path.stat().st_size >= SAMPLED_FROM_BYTES:
            files[file.path] = {"sha256": file.sha256, **_look(path)}
    if files:
        write_json(seen_file(to, name), {"schema": SCHEMA, "files": files})
    else:
        seen_file(to, name).unlink(missing_ok=True)


class Seen:
    """The record of one model; empty where there is none, or none that can be read.

    Attributes:
        trusted: files that were taken for unchanged.
    """

    def __init__(self, to: Path, name: str) -> None:
        self._folder = to / name
        self.trusted: list[str] = []
        try:
            record = read_json(seen_file(to, name), what="mirror's record")
            self._files = dict(record["files"]) if record["schema"] == SCHEMA else {}
        except (BadRequest, OSError, KeyError, TypeError, ValueError):
            self._files = {}

    def sha256(self, path: str) -> str | None:
        """The hash of then, if the file looks as it did then."""
        known = self._files.get(path)
        here = self._folder / path
        if not isinstance(known, dict) or not here.is_file():
            return None
        size, time_ns = here.stat().st_size, here.stat().st_mtime_ns
        if size < SAMPLED_FROM_BYTES or (known.get("size"), known.get("time_ns")) != (size, time_ns):
            return None
        if {"sha256": known.get("sha256"), **_look(here)} != known or not isinstance(known["sha256"], str):
            return None
        self.trusted.append(path)
        return known["sha256"]


def _look(path: Path) -> dict[str, Any]:
    stat = path.stat()
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        for window in range(WINDOWS):
            stream.seek((stat.st_size - WINDOW_BYTES) * window // (WINDOWS - 1))
            digest.update(stream.read(WINDOW_BYTES))
    return {"size": stat.st_size, "time_ns": stat.st_mtime_ns, "samples_sha256": digest.hexdigest()}
