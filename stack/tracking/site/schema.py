"""Which version of MLflow's tables a database has, against what the installed MLflow needs.

MLflow itself refuses an old database only where no table is missing; where one is, it upgrades at once,
without a backup. So the tables are looked at before MLflow is let near them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stack.errors import NotAble
from stack.tracking.site.place import Place, connected, database_away, shown_uri

if TYPE_CHECKING:
    from sqlalchemy import Connection

TRACKING_TABLE = "alembic_version"
USERS_TABLE = "alembic_version_auth"

# What a backup and its restore must have equally many of, where the table is there.
COUNTED = (
    "experiments", "runs", "metrics", "latest_metrics", "params", "tags", "datasets", "inputs",
    "registered_models", "model_versions", "users",
)  # fmt: skip


@dataclass(frozen=True)
class Schema:
    """Revisions of the tables of tracking and of users; None where there are no such tables yet."""

    tracking: str | None
    users: str | None
    is_empty: bool
    runs: int


def read_schema(connection: Connection) -> Schema:
    tables = _tables(connection)
    return Schema(
        tracking=_revision(connection, TRACKING_TABLE) if TRACKING_TABLE in tables else None,
        users=_revision(connection, USERS_TABLE) if USERS_TABLE in tables else None,
        is_empty=not tables,
        runs=_count(connection, "runs") if "runs" in tables else 0,
    )


def count_rows(connection: Connection) -> dict[str, int]:
    tables = _tables(connection)
    return {table: _count(connection, table) for table in COUNTED if table in tables}


def has_user(connection: Connection, name: str) -> bool:
    from sqlalchemy import text

    query = text("SELECT count(*) FROM users WHERE username = :name")
    return "users" in _tables(connection) and bool(connection.execute(query, {"name": name}).scalar_one())


def head_of_tracking() -> str:
    """The version of the tables of tracking that the installed MLflow needs."""
    return str(_scripts_of_tracking().get_heads()[0])


def head_of_users() -> str:
    """The version of the tables of users that the installed MLflow needs."""
    import mlflow
    from alembic.script import ScriptDirectory

    # By path: importing MLflow's own way there would load its whole server.
    migrations = Path(mlflow.__file__).parent / "server" / "auth" / "db" / "migrations"
    return str(ScriptDirectory(str(migrations)).get_current_head())


def require_current(place: Place, *, with_users: bool = False) -> None:
    """Let a server open only what it needs not change first: an empty database, or one of its own version.

    Raises:
        NotAble: the tables are older, and the upgrade is named; or newer; or the database does not answer.
    """
    with connected(place) as connection, translated(place):
        schema = read_schema(connection)
    state = compare(schema, with_users=with_users)
    if state == "newer":
        raise _newer(place, schema)
    if state == "older":
        found, head = _versions(schema)
        raise NotAble(
            "track-database-old",
            f"the database's tables are of version {found} and this MLflow needs {head}; nothing was changed",
            where=shown_uri(place),
            do=f"stack track upgrade {place.options} --backup-to FOLDER",
        )


def compare(schema: Schema, *, with_users: bool = True) -> str:
    """`current`, `older` or `newer`, as the installed MLflow sees it; no tables yet are current."""
    if schema.tracking is None and schema.runs == 0:
        return "current"
    known = {script.revision for script in _scripts_of_tracking().walk_revisions()}
    if schema.tracking is not None and schema.tracking not in known:
        return "newer"
    if schema.tracking != head_of_tracking():
        return "older"
    are_users_current = not with_users or schema.users is None or schema.users == head_of_users()
    return "current" if are_users_current else "older"


def upgrade_tables(place: Place) -> None:
    """Run MLflow's own migrations, of tracking and, where there are users, of users.

    In PostgreSQL each of the two is one transaction; a SQLite file is to be a copy.
    """
    from mlflow.store.db.utils import _upgrade_db

    from stack.tracking.site.place import open_engine

    engine = open_engine(place)
    try:
        with connected(place) as connection:
            schema = read_schema(connection)
        _upgrade_db(engine)
        if schema.users is not None:
            from mlflow.server.auth.db.utils import migrate

            migrate(engine, "head")
    finally:
        engine.dispose()


def require_known(place: Place, schema: Schema) -> None:
    if compare(schema) == "newer":
        raise _newer(place, schema)


@contextmanager
def translated(place: Place) -> Iterator[None]:
    """What the database says against a query, as an error of ours."""
    from sqlalchemy.exc import DatabaseError

    try:
        yield
    except DatabaseError as error:
        raise database_away(place, error) from error


def _newer(place: Place, schema: Schema) -> NotAble:
    import mlflow

    return NotAble(
        "track-database-newer",
        f"the database's tables are of version {schema.tracking}, which MLflow {mlflow.__version__} does not "
        "know: a newer MLflow has upgraded them",
        where=shown_uri(place),
        do="serve it with that MLflow, or restore the backup that was made before the upgrade",
    )


def _versions(schema: Schema) -> tuple[str, str]:
    if schema.tracking != head_of_tracking():
        return str(schema.tracking), head_of_tracking()
    return f"{schema.users} (users)", head_of_users()


def _scripts_of_tracking() -> Any:
    from alembic.script import ScriptDirectory
    from mlflow.store.db.utils import _get_alembic_config

    return ScriptDirectory.from_config(_get_alembic_config(""))


def _tables(connection: Connection) -> set[str]:
    import sqlalchemy

    return set(sqlalchemy.inspect(connection).get_table_names())


def _revision(connection: Connection, table: str) -> str | None:
    from sqlalchemy import text

    found = connection.execute(text(f"SELECT version_num FROM {table}")).scalars().all()
    return str(found[0]) if found else None


def _count(connection: Connection, table: str) -> int:
    from sqlalchemy import text

    return int(connection.execute(text(f"SELECT count(*) FROM {table}")).scalar_one())
