"""Upgrade of a store's tables to what the installed MLflow needs: a backup first, then all or nothing."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from stack.errors import NotAble, StackError, WorkFailed
from stack.tracking.site.backup import backup
from stack.tracking.site.place import Place, connected, hold, require_there, shown_uri
from stack.tracking.site.schema import (
    Schema,
    compare,
    count_rows,
    read_schema,
    require_known,
    translated,
    upgrade_tables,
)

LEAVE_TRIES = 30
LEAVE_WAIT_S = 0.1

Log = Callable[[str], None]


def upgrade(place: Place, backup_to: Path, *, log: Log) -> bool:
    """Bring a store's tables to the installed MLflow's version; False where they are there already.

    The database is backed up first; artifacts are not touched by an upgrade, and not copied. A SQLite
    database is upgraded as a copy that takes its place when every row is still there; PostgreSQL does it in
    a transaction.

    Raises:
        BadRequest: there is no store; the backup's folder exists.
        NotAble: a server works at the store; the tables are newer than this MLflow.
        WorkFailed: the upgrade failed; the store is as it was.
    """
    require_there(place)
    with hold(place):
        with connected(place) as connection, translated(place):
            schema, counts = read_schema(connection), count_rows(connection)
        require_known(place, schema)
        if compare(schema) == "current":
            log("the tables are of the version that this MLflow needs; nothing to do")
            return False
        _refuse_others(place)
        made = backup(place, backup_to, with_artifacts=False, log=log)
        try:
            with _all_or_nothing(place) as work:
                upgrade_tables(work)
                _require_whole(work, counts)
        except StackError:
            raise
        except Exception as error:
            raise _failed(place, schema, error, made.folder) from error
        with connected(place) as connection:
            now = read_schema(connection)
    log(f"upgraded from {schema.tracking} to {now.tracking}; {counts.get('runs', 0)} runs are there")
    return True


@contextmanager
def _all_or_nothing(place: Place) -> Iterator[Place]:
    """The place itself where its database can undo, else a copy that takes its place at the end."""
    if not place.is_sqlite:
        yield place
        return
    draft = place.database_file.with_name(f".{place.database_file.name}.upgrade")
    _remove(draft)
    try:
        with (
            contextlib.closing(sqlite3.connect(place.database_file)) as source,
            contextlib.closing(sqlite3.connect(draft)) as target,
        ):
            source.backup(target)
        yield Place(place.folder, f"sqlite:///{draft}", place.options)
        with contextlib.closing(sqlite3.connect(draft)) as done:
            done.execute("PRAGMA journal_mode = DELETE")
        with contextlib.closing(sqlite3.connect(place.database_file)) as old:
            # Its write-ahead log must not outlive it: it would be taken for the new file's.
            old.execute("PRAGMA journal_mode = DELETE")
        with draft.open("rb") as file:
            os.fsync(file.fileno())
        os.replace(draft, place.database_file)
    finally:
        _remove(draft)


def _remove(database: Path) -> None:
    for suffix in ("", "-journal", "-wal", "-shm"):
        database.with_name(database.name + suffix).unlink(missing_ok=True)


def _require_whole(place: Place, before: dict[str, int]) -> None:
    with connected(place) as connection:
        after, schema = count_rows(connection), read_schema(connection)
    lost = {table: (rows, after.get(table)) for table, rows in before.items() if after.get(table) != rows}
    if compare(schema) != "current" or lost:
        said = ", ".join(f"{table} {a} -> {b}" for table, (a, b) in sorted(lost.items()))
        raise RuntimeError(f"version {schema.tracking} was reached, rows changed: {said or 'none'}")


def _refuse_others(place: Place) -> None:
    """No server on another host may be at the database; one on this host holds the store's lock."""
    if place.is_sqlite:
        return
    from sqlalchemy import text

    query = text(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
        "AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
    )
    with connected(place) as connection:
        for _ in range(LEAVE_TRIES):  # a connection that was closed just now is counted a moment longer
            others = int(connection.execute(query).scalar_one())
            connection.rollback()
            if not others:
                break
            time.sleep(LEAVE_WAIT_S)
    if others:
        raise NotAble(
            "track-store-in-use",
            f"{others} other connections are open to the database",
            where=shown_uri(place),
            do="stop every server and program that uses it, then run the same command again",
        )


def _failed(place: Place, before: Schema, error: Exception, made: Path) -> WorkFailed:
    said = str(getattr(error, "orig", None) or error).strip().splitlines() or [type(error).__name__]
    with connected(place) as connection:
        now = read_schema(connection)
    if (now.tracking, now.users) == (before.tracking, before.users):
        state = "failed and was undone"
        do = f"the store is as it was, for the MLflow that wrote it; the backup is in {made}"
    else:
        state = f"stopped half-way (tracking {now.tracking}, users {now.users})"
        do = f"restore the backup in {made} to a new database, or mend the cause and run the command again"
    return WorkFailed(
        "track-upgrade-failed",
        f"the upgrade from {before.tracking} {state}: {said[0][:300]}",
        where=shown_uri(place),
        do=do,
    )
