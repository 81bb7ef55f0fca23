"""Tables of an older MLflow: refused by the server, upgraded after a backup, or left as they were."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from stack.errors import NotAble, WorkFailed
from stack.tracking import Server
from stack.tracking.site import place as places
from stack.tracking.site.backup_record import verify_backup
from stack.tracking.site.place import Place, connected, open_engine
from stack.tracking.site.schema import head_of_tracking, require_current
from stack.tracking.site.upgrade import upgrade

REVISION_OF_MLFLOW_3_10 = "1b5f0d9ad7c1"
STEPS = 50


def silent(line: str) -> None:
    del line


def make_old(place: Place) -> None:
    """A database as MLflow 3.10 leaves it: the same first tables, migrations up to its last one, then a run.

    Compared once by hand with a database that MLflow 3.10.1 itself had made: the tables are the same.
    """
    from alembic import command
    from mlflow.store.db.utils import _get_alembic_config
    from mlflow.store.tracking.dbmodels.initial_models import Base
    from sqlalchemy import text

    place.folder.mkdir(parents=True, exist_ok=True)
    engine = open_engine(place)
    Base.metadata.create_all(engine)
    config = _get_alembic_config(place.uri)
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, REVISION_OF_MLFLOW_3_10)
    with engine.begin() as connection:
        for statement in (
            "INSERT INTO experiments (experiment_id, name, artifact_location, lifecycle_stage, workspace) "
            "VALUES (7, 'old', 'mlflow-artifacts:/7', 'active', 'default')",
            "INSERT INTO runs (run_uuid, name, status, start_time, lifecycle_stage, experiment_id, "
            "artifact_uri) VALUES "
            "('0ld', 'old run', 'FINISHED', 5, 'active', 7, 'mlflow-artifacts:/7/0ld/artifacts')",
            *(
                "INSERT INTO metrics (key, value, timestamp, run_uuid, step, is_nan) "
                f"VALUES ('loss', {1 / (step + 1)}, {step}, '0ld', {step}, false)"
                for step in range(STEPS)
            ),
        ):
            connection.execute(text(statement))
    engine.dispose()


def points(place: Place) -> list[tuple[int, float]]:
    from sqlalchemy import text

    with connected(place) as connection:
        rows = connection.execute(text("SELECT step, value FROM metrics ORDER BY step")).all()
    return [(int(step), float(value)) for step, value in rows]


def revision(place: Place) -> str:
    from sqlalchemy import text

    with connected(place) as connection:
        return str(connection.execute(text("SELECT version_num FROM alembic_version")).scalar_one())


WRITTEN = [(step, 1 / (step + 1)) for step in range(STEPS)]


@pytest.fixture(params=["sqlite", "postgresql"])
def old(request: pytest.FixtureRequest, stores: Any, tmp_path: Path) -> Place:
    return stores.like(request.param, tmp_path / "here", "old", make_old)


def test_old_tables_are_refused_upgraded_after_a_backup_and_every_run_is_there(
    old: Place, tmp_path: Path
) -> None:
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    with pytest.raises(NotAble, match=REVISION_OF_MLFLOW_3_10) as refused:
        require_current(old, with_users=True)
    assert refused.value.do == f"stack track upgrade {old.options} --backup-to FOLDER"
    assert revision(old) == REVISION_OF_MLFLOW_3_10, "looking must not upgrade"

    assert upgrade(old, tmp_path / "backup", log=silent) is True
    assert revision(old) == head_of_tracking()
    assert points(old) == WRITTEN
    store = SqlAlchemyStore(old.uri, "mlflow-artifacts:/")
    assert [(m.step, m.value) for m in store.get_metric_history("0ld", "loss")] == WRITTEN
    store.engine.dispose()
    made = verify_backup(tmp_path / "backup")
    assert (made.schema.tracking, made.counts["metrics"]) == (REVISION_OF_MLFLOW_3_10, STEPS)
    # Again: nothing to do, and no second backup.
    assert upgrade(old, tmp_path / "second", log=silent) is False
    assert not (tmp_path / "second").exists()


def test_a_failed_upgrade_leaves_the_old_tables_usable(old: Place, tmp_path: Path) -> None:
    from sqlalchemy import text

    # A table that a later migration is to make is there already, so that one fails half-way.
    engine = open_engine(old)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE label_schemas (mine integer)"))
    engine.dispose()
    with pytest.raises(WorkFailed, match="failed and was undone") as failed:
        upgrade(old, tmp_path / "backup", log=silent)
    assert str(tmp_path / "backup") in failed.value.do
    assert revision(old) == REVISION_OF_MLFLOW_3_10
    assert points(old) == WRITTEN
    with connected(old) as connection:
        connection.execute(text("SELECT mine FROM label_schemas")).all()
    if old.is_sqlite:
        assert not list(old.folder.glob(".mlflow.db.upgrade*"))


def test_the_server_of_one_host_refuses_old_tables_with_the_command(stores: Any, tmp_path: Path) -> None:
    place = stores.like("sqlite", tmp_path, "old", make_old)
    with pytest.raises(NotAble, match="nothing was changed") as refused:
        Server.start(place.folder)
    assert refused.value.do.startswith(f"stack track upgrade --work {tmp_path / 'work'} ")
    with contextlib.closing(sqlite3.connect(place.database_file)) as database:
        assert database.execute("SELECT version_num FROM alembic_version").fetchone() == (
            REVISION_OF_MLFLOW_3_10,
        )


def test_tables_of_a_newer_mlflow_are_refused(tmp_path: Path) -> None:
    place = places.of_work(tmp_path / "work")
    place.folder.mkdir(parents=True)
    with contextlib.closing(sqlite3.connect(place.database_file)) as database:
        database.execute("CREATE TABLE alembic_version (version_num TEXT)")
        database.execute("INSERT INTO alembic_version VALUES ('ffffffffffff')")
        database.execute("CREATE TABLE runs (run_uuid TEXT)")
        database.commit()
    with pytest.raises(NotAble, match="a newer MLflow has upgraded them"):
        require_current(place)
    with pytest.raises(NotAble, match="a newer MLflow has upgraded them"):
        upgrade(place, tmp_path / "backup", log=silent)


def test_an_upgrade_waits_for_nobody_who_is_connected(
    stores: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stack.tracking.site.upgrade.LEAVE_TRIES", 2)
    place = stores.like("postgresql", tmp_path / "here", "old", make_old)
    with connected(place), pytest.raises(NotAble, match="1 other connections are open"):
        upgrade(place, tmp_path / "backup", log=silent)
    assert revision(place) == REVISION_OF_MLFLOW_3_10
