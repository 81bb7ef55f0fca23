"""The record of a backup: what is in it, and whether it still is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stack.errors import BadRequest, Exit, StackError
from stack.files import read_json, sha256_file
from stack.tracking.site.schema import Schema

RECORD = "backup.json"
FORMAT = 1
SQLITE_FILE = "mlflow.db"
DUMP_FILE = "tracking.dump"
PROBLEMS_SHOWN = 20


@dataclass(frozen=True)
class Backup:
    """A backup as its record describes it.

    Attributes:
        kind: `sqlite` or `postgresql`.
        counts: rows a table at the instant of the database's copy.
        files: relative path -> size and sha256, of everything in the folder but the record.
        changing: artifacts that were being written all the time; their copy may be of a moment in between.
    """

    folder: Path
    kind: str
    made_at: str
    mlflow: str
    schema: Schema
    counts: dict[str, int]
    files: dict[str, dict[str, Any]]
    with_artifacts: bool
    changing: tuple[str, ...]

    @property
    def database(self) -> Path:
        return self.folder / (SQLITE_FILE if self.kind == "sqlite" else DUMP_FILE)

    @property
    def total_bytes(self) -> int:
        return sum(int(entry["size_bytes"]) for entry in self.files.values())


def open_backup(folder: Path) -> Backup:
    """Read a backup's record; its files are not looked at.

    Raises:
        BadRequest: there is no record, or it is of another format.
    """
    data = read_json(folder / RECORD, what="record of a backup")
    try:
        if data["format"] != FORMAT:
            raise BadRequest(
                "track-backup-format",
                f"the backup is of format {data['format']}, and {FORMAT} is understood here",
                where=str(folder / RECORD),
            )
        schema = Schema(data["schema"]["tracking"], data["schema"]["users"], False, data["counts"]["runs"])
        return Backup(
            folder,
            str(data["kind"]),
            str(data["made_at"]),
            str(data["mlflow"]),
            schema,
            dict(data["counts"]),
            dict(data["files"]),
            bool(data["with_artifacts"]),
            tuple(data["changing"]),
        )
    except (KeyError, TypeError) as error:
        raise BadRequest(
            "track-backup-record", f"the record of the backup lacks {error}", where=str(folder / RECORD)
        ) from error


def verify_backup(folder: Path) -> Backup:
    """Compare every file of a backup with its record.

    Raises:
        StackError: with every file that is missing, damaged or not of the record; exit code 1.
        BadRequest: there is no record.
    """
    made = open_backup(folder)
    problems = list(_problems(made))
    if problems:
        more = f"\n    and {len(problems) - PROBLEMS_SHOWN} more" if len(problems) > PROBLEMS_SHOWN else ""
        lines = "\n    ".join(problems[:PROBLEMS_SHOWN])
        raise StackError(
            "track-backup-damaged",
            f"{len(problems)} of {len(made.files)} files of the backup are not as they were made:\n    "
            f"{lines}{more}",
            where=str(folder),
            do="take another backup; nothing was restored from this one",
            exit=Exit.NOT_GOOD,
        )
    return made


def _problems(made: Backup) -> Iterator[str]:
    for name, entry in sorted(made.files.items()):
        path = made.folder / name
        if path.is_symlink() or not path.is_file():
            yield f"{name}: missing"
        elif path.stat().st_size != entry["size_bytes"]:
            yield f"{name}: {path.stat().st_size} bytes, {entry['size_bytes']} were written"
        elif sha256_file(path) != entry["sha256"]:
            yield f"{name}: its content has changed"
    for path in sorted(made.folder.rglob("*")):
        name = path.relative_to(made.folder).as_posix()
        if not path.is_dir() and name != RECORD and name not in made.files:
            yield f"{name}: not part of the backup"
