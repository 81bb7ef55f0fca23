"""Where a tracking store is: its database, its artifacts, and who may work at it."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stack.errors import BadRequest, NotAble

if TYPE_CHECKING:
    from sqlalchemy import Connection, Engine

DATABASE = "mlflow.db"
ARTIFACTS = "artifacts"
IN_USE = ".in-use.lock"
CONNECT_LIMIT_S = 10


@dataclass(frozen=True)
class Place:
    """A tracking store.

    Attributes:
        folder: holds `artifacts/`, and `mlflow.db` where the database is SQLite.
        uri: the database's address for SQLAlchemy; never with a password in it.
        options: what names this place on the command line, for messages.
        passfile: libpq's password file, for PostgreSQL; None where the database asks for none.
    """

    folder: Path
    uri: str
    options: str
    passfile: Path | None = None

    @property
    def artifacts(self) -> Path:
        return self.folder / ARTIFACTS

    @property
    def is_sqlite(self) -> bool:
        return self.uri.startswith("sqlite:")

    @property
    def kind(self) -> str:
        return "sqlite" if self.is_sqlite else "postgresql"

    @property
    def database_file(self) -> Path:
        """The file of a SQLite database."""
        assert self.is_sqlite
        return self.folder / DATABASE


def of_work(work: Path) -> Place:
    """The store of a working folder on one host."""
    return of_folder(work.absolute() / "tracking", options=f"--work {work}")


def of_folder(folder: Path, *, options: str = "") -> Place:
    """A SQLite store by its own folder."""
    return Place(folder, f"sqlite:///{folder / DATABASE}", options)


def require_there(place: Place) -> None:
    """Raises BadRequest where there is no SQLite store; a connection would make an empty one."""
    if place.is_sqlite and not place.database_file.is_file():
        raise BadRequest(
            "track-no-store",
            "there is no tracking database here",
            where=str(place.database_file),
            do="name the working folder with --work, or a site's file with --site",
        )


def open_engine(place: Place) -> Engine:
    """An engine without a pool: every connection is closed when it is let go."""
    import sqlalchemy

    arguments: dict[str, Any] = {} if place.is_sqlite else {"connect_timeout": CONNECT_LIMIT_S}
    return sqlalchemy.create_engine(place.uri, poolclass=sqlalchemy.NullPool, connect_args=arguments)


@contextmanager
def connected(place: Place) -> Iterator[Connection]:
    """A connection to the place's database.

    Raises:
        NotAble: the database does not answer, or refuses the login.
    """
    from sqlalchemy.exc import DatabaseError

    engine = open_engine(place)
    try:
        connection = engine.connect()
    except (DatabaseError, ImportError) as error:
        raise database_away(place, error) from error
    try:
        yield connection
    finally:
        connection.close()
        engine.dispose()


def database_away(place: Place, error: BaseException) -> NotAble:
    """What a person should know of a database that cannot be opened; the driver's words hold no password."""
    said = str(getattr(error, "orig", None) or error).strip().splitlines() or [type(error).__name__]
    is_login = any(
        word in line for line in said for word in ("authentication failed", "no password supplied")
    )
    do = "is it running, and is its address right? `pg_isready` with the same host and port tells"
    if is_login:
        do = "put the right line into the password file; libpq passes over one that others can read"
    return NotAble(
        "track-database-login" if is_login else "track-database-away",
        f"the tracking database cannot be opened: {'; '.join(line.strip() for line in said[:3])}",
        where=shown_uri(place),
        do="" if place.is_sqlite else do,
    )


def shown_uri(place: Place) -> str:
    """The address without options, for messages."""
    return place.uri.partition("?")[0]


@contextmanager
def hold(place: Place, *, wait_s: float = 0.0) -> Iterator[None]:
    """Be the only server, restore or upgrade at a store; a kill lets go.

    Raises:
        NotAble: another process holds it for longer than `wait_s`; the folder cannot be written.
    """
    try:
        place.folder.mkdir(parents=True, exist_ok=True)
        opened = (place.folder / IN_USE).open("a+")
    except OSError as error:
        raise NotAble(
            "track-store-not-writable", f"the store cannot be written: {error}", where=str(place.folder)
        ) from error
    with opened as file:
        deadline = time.monotonic() + wait_s
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    file.seek(0)
                    raise NotAble(
                        "track-store-in-use",
                        f"a tracking server or another command works at this store: {file.read().strip()}",
                        where=str(place.folder),
                        do="stop the server first; two would not know of each other",
                    ) from None
            time.sleep(0.1)
        file.truncate(0)
        file.write(f"process {os.getpid()}\n")
        file.flush()
        yield
