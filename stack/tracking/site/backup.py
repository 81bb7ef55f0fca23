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
from pathlib import Path
from typing import Any

from stack.errors import BadRequest, NotAble
from stack.files import (
    CHUNK_BYTES,
    PARTIAL_MARK,
    disk_error,
    sha256_file,
    whole_folder,
    write_json,
)
from stack.tracking.site import place as places
from stack.tracking.site import postgres
from stack.tracking.site.backup_record import (
    DUMP_FILE,
    FORMAT,
    RECORD,
    SQLITE_FILE,
    Backup,
    open_backup,
    verify_backup,
)
from stack.tracking.site.place import ARTIFACTS, Place, connected, require_there
from stack.tracking.site.schema import Schema, count_rows, read_schema, translated

COPY_TRIES = 3
NAME_PREFIX = "tracking-"
DATED = re.compile(NAME_PREFIX + r"\d{8}T\d{6}Z")

Log = Callable[[str], None]


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
