"""Backup of a tracking store while it is written to: the database first, then the artifacts.

The database is copied as of one instant (SQLite's online backup; pg_dump over an exported snapshot), and
what it held then is counted at that same instant. Artifacts follow, so that a run of the backup may have
files of a moment later, and never misses one that it had. The folder is whole or not there.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stack.errors import BadRequest, Exit, NotAble, StackError
from stack.files import (
    CHUNK_BYTES,
    PARTIAL_MARK,
    disk_error,
    read_json,
    sha256_file,
    whole_folder,
    write_json,
)
from stack.tracking.site import place as places
from stack.tracking.site import postgres
from stack.tracking.site.place import ARTIFACTS, Place, connected, require_there
from stack.tracking.site.schema import Schema, count_rows, read_schema, translated

RECORD = "backup.json"
FORMAT = 1
SQLITE_FILE = "mlflow.db"
DUMP_FILE = "tracking.dump"
COPY_TRIES = 3
PROBLEMS_SHOWN = 20
NAME_PREFIX = "tracking-"
DATED = re.compile(NAME_PREFIX + r"\d{8}T\d{6}Z")

Log = Callable[[str], None]


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


def backup(place: Place, to: Path, *, with_artifacts: bool = True, log: Log) -> Backup:
    """Copy a store into a new folder, and read it back.

    The folder is for its owner's eyes only: with users it holds the hashes of their passwords.

    Args:
        to: must not be there yet, or be empty.
        with_artifacts: False copies the database alone.

    Raises:
        BadRequest: there is no store; `to` is there, or inside the store.
        NotAble: the database does not answer; the disk is full.
    """
    require_there(place)
    to = to.absolute()
    if to.resolve().is_relative_to(place.folder.resolve()):
        raise BadRequest(
            "track-backup-inside",
            "a backup inside the store that it is of would be lost with it, and would be part of the next",
            where=str(to),
            do="name a folder on another disk",
        )
    try:
        with whole_folder(to) as partial:
            partial.chmod(0o700)
            schema, counts = _copy_database(place, partial)
            log(f"database copied: {_said(counts)}")
            database = partial / (SQLITE_FILE if place.is_sqlite else DUMP_FILE)
            files = {database.name: _entry(database)}
            copied, changing = _copy_artifacts(place, partial, log) if with_artifacts else ({}, ())
            record = {
                "format": FORMAT,
                "kind": place.kind,
                "made_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
                "mlflow": _mlflow_version(),
                "schema": {"tracking": schema.tracking, "users": schema.users},
                "counts": counts,
                "with_artifacts": with_artifacts,
                "changing": list(changing),
                "files": {**files, **copied},
            }
            write_json(partial / RECORD, record)
            verify_backup(partial)
    except OSError as error:
        raise disk_error(error, to) or NotAble("track-backup-failed", str(error), where=str(to)) from error
    made = open_backup(to)
    log(f"{len(made.files)} files, {made.total_bytes / 1e6:.1f} MB in {to}")
    return made


def backup_dated(
    place: Place, parent: Path, *, keep: int | None, with_artifacts: bool = True, log: Log
) -> Backup:
    """A backup named by its time, below `parent`; then only the newest `keep` of such stay.

    What has another name, or is no backup, is never removed. Errors as `backup`.
    """
    _clear_leftovers(parent)
    name = NAME_PREFIX + time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    made = backup(place, parent / name, with_artifacts=with_artifacts, log=log)
    dated = sorted(path for path in parent.glob(f"{NAME_PREFIX}*") if DATED.fullmatch(path.name))
    for old in [path for path in dated if (path / RECORD).is_file()][: -keep if keep else 0]:
        # Renamed first: what a kill leaves is then no backup by name.
        gone = old.rename(old.with_name(f".{old.name}.removed"))
        shutil.rmtree(gone)
        log(f"removed the old backup {old.name}")
    return made


def _clear_leftovers(parent: Path) -> None:
    """What killed calls left: each backup has another name, so none would clear it by itself."""
    for path in [*parent.glob(f".{NAME_PREFIX}*.removed"), *parent.glob(f".{NAME_PREFIX}*{PARTIAL_MARK}*")]:
        pid = path.name.partition(PARTIAL_MARK)[2].partition("-")[0]
        if path.is_dir() and not Path(f"/proc/{pid or 0}").exists():
            shutil.rmtree(path, ignore_errors=True)


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


def _copy_database(place: Place, to: Path) -> tuple[Schema, dict[str, int]]:
    if place.is_sqlite:
        _copy_sqlite(place.database_file, to / SQLITE_FILE)
        copied = places.of_folder(to)
        with connected(copied) as connection, translated(copied):
            return read_schema(connection), count_rows(connection)
    from sqlalchemy import text

    with connected(place) as connection, translated(place):
        connection.execute(text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY"))
        snapshot = str(connection.execute(text("SELECT pg_export_snapshot()")).scalar_one())
        postgres.dump(place, to / DUMP_FILE, snapshot=snapshot)
        return read_schema(connection), count_rows(connection)


def _copy_sqlite(source: Path, target: Path) -> None:
    with (
        contextlib.closing(sqlite3.connect(f"file:{source}?mode=ro", uri=True, timeout=30)) as reading,
        contextlib.closing(sqlite3.connect(target)) as writing,
    ):
        try:
            reading.backup(writing)
            # One file: without the side files of write-ahead logging, which a copy could lose.
            writing.execute("PRAGMA journal_mode = DELETE")
            fault = writing.execute("PRAGMA quick_check(1)").fetchone()[0]
        except sqlite3.Error as error:
            raise NotAble(
                "track-backup-failed", f"the database cannot be copied: {error}", where=str(source)
            ) from error
    if fault != "ok":
        raise NotAble("track-backup-failed", f"the database is damaged: {fault}", where=str(source))


def _copy_artifacts(place: Place, to: Path, log: Log) -> tuple[dict[str, dict[str, Any]], tuple[str, ...]]:
    """What was copied, by its path in the backup, and which files never stood still."""
    copied, changing = {}, []
    (to / ARTIFACTS).mkdir()
    for path in _files(place.artifacts):
        name = f"{ARTIFACTS}/{path.relative_to(place.artifacts).as_posix()}"
        if path.is_symlink():
            log(f"{name}: a link, not followed")
            continue
        entry, is_settled = _copy_settled(path, to / name)
        if entry is not None:
            copied[name] = entry
        if not is_settled:
            changing.append(name)
            log(f"{name}: was being written all the time; its copy may be of a moment in between")
    return copied, tuple(changing)


def _files(folder: Path) -> Iterator[Path]:
    """Files below a folder that others write to meanwhile, in order."""
    for root, folders, names in os.walk(folder):
        folders.sort()
        yield from (Path(root) / name for name in sorted(names))


def _copy_settled(source: Path, target: Path) -> tuple[dict[str, Any] | None, bool]:
    """Copy a file that may be written to: size and hash of what was read, and whether it stood still.

    One that is gone is no file, and no trouble.
    """
    entry = None
    for _ in range(COPY_TRIES):
        try:
            before = source.stat()
            target.parent.mkdir(parents=True, exist_ok=True)
            entry = _copy(source, target)
            after = source.stat()
        except FileNotFoundError:
            target.unlink(missing_ok=True)
            return None, True
        if (before.st_size, before.st_mtime_ns) == (after.st_size, after.st_mtime_ns):
            return entry, True
    return entry, False


def _copy(source: Path, target: Path) -> dict[str, Any]:
    digest, size_bytes = hashlib.sha256(), 0
    with source.open("rb") as reading, target.open("wb") as writing:
        while chunk := reading.read(CHUNK_BYTES):
            digest.update(chunk)
            writing.write(chunk)
            size_bytes += len(chunk)
    return {"size_bytes": size_bytes, "sha256": digest.hexdigest()}


def _entry(path: Path) -> dict[str, Any]:
    return {"size_bytes": path.stat().st_size, "sha256": sha256_file(path)}


def _said(counts: dict[str, int]) -> str:
    shown = ("experiments", "runs", "metrics", "params", "users")
    return ", ".join(f"{counts[name]} {name}" for name in shown if name in counts)


def _mlflow_version() -> str:
    import mlflow

    return str(mlflow.__version__)
