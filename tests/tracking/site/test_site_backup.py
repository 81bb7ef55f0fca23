"""Backup and restore on both kinds of database: everything is found again in an empty place."""

from __future__ import annotations

import contextlib
import json
import shutil
import sqlite3
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from stack.errors import BadRequest, Exit, NotAble, StackError
from stack.tracking import Server
from stack.tracking.site import place as places
from stack.tracking.site.backup import backup, backup_dated
from stack.tracking.site.backup_record import DUMP_FILE, RECORD, verify_backup
from stack.tracking.site.place import Place, connected
from stack.tracking.site.restore import restore
from stack.tracking.site.schema import read_schema

TABLES = ("runs", "metrics", "latest_metrics", "params", "tags", "experiments")


def silent(line: str) -> None:
    del line


def fill(place: Place, name: str, steps: int = 300) -> str:
    """A run with points, a parameter, a tag and an artifact, written by MLflow's own store."""
    from mlflow.entities import Metric, Param, RunTag
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    store = SqlAlchemyStore(place.uri, "mlflow-artifacts:/")
    run = store.create_run("0", "me", 1_700_000_000_000, [RunTag("made", name)], name)
    points = [Metric("loss", 1 / (i + 1), 1_700_000_000_000 + i, i) for i in range(steps)]
    store.log_batch(run.info.run_id, points, [Param("lr", "0.1")], [])
    folder = place.artifacts / "0" / run.info.run_id / "artifacts" / "deep"
    folder.mkdir(parents=True)
    (folder / "图.txt").write_text(name * 1000)
    store.engine.dispose()
    return str(run.info.run_id)


def rows(place: Place) -> dict[str, list[tuple[Any, ...]]]:
    """Whole tables, read past the code under test."""
    if place.is_sqlite:
        with contextlib.closing(sqlite3.connect(place.database_file)) as database:
            return {table: sorted(database.execute(f"SELECT * FROM {table}")) for table in TABLES}
    import psycopg

    # SQLAlchemy's name of the driver is not libpq's; the password file is named in the address.
    address = place.uri.replace("postgresql+psycopg://", "postgresql://")
    with psycopg.connect(address) as connection:
        return {table: sorted(connection.execute(f"SELECT * FROM {table}"), key=repr) for table in TABLES}


def files(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.fixture(params=["sqlite", "postgresql"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_every_row_and_file_is_found_in_an_empty_place(kind: str, stores: Any, tmp_path: Path) -> None:
    place = stores.current(kind, tmp_path / "here")
    for name in ("first", "second"):
        fill(place, name)
    made = backup(place, tmp_path / "backup", log=silent)
    assert (tmp_path / "backup").stat().st_mode & 0o777 == 0o700
    assert (made.counts["runs"], made.counts["metrics"]) == (2, 600)

    there = stores.empty(kind, tmp_path / "there")
    restore(tmp_path / "backup", there, log=silent)
    assert rows(there) == rows(place)
    assert files(there.artifacts) == files(place.artifacts)
    # What is there is never replaced, and stays as it is.
    before = (rows(there), files(there.artifacts))
    with pytest.raises(BadRequest, match="never replaces anything"):
        restore(tmp_path / "backup", there, log=silent)
    assert (rows(there), files(there.artifacts)) == before
    with pytest.raises(BadRequest, match="the target folder exists already"):
        backup(place, tmp_path / "backup", log=silent)


def test_a_backup_while_writers_write_holds_one_instant(kind: str, stores: Any, tmp_path: Path) -> None:
    place = stores.current(kind, tmp_path / "here")
    from mlflow.entities import Metric
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    store = SqlAlchemyStore(place.uri, "mlflow-artifacts:/")
    run = store.create_run("0", "me", 0, [], "written meanwhile").info.run_id
    is_over = threading.Event()
    growing = place.artifacts / "0" / run / "artifacts" / "growing.log"
    growing.parent.mkdir(parents=True)

    def write() -> None:
        # Two keys a batch, always in one transaction: a copy of one instant has as many of each.
        step = 0
        while not is_over.is_set():
            store.log_batch(run, [Metric(key, step, step, step) for key in ("a", "b")], [], [])
            with growing.open("a") as file:
                file.write(f"{step}\n")
            step += 1

    writer = threading.Thread(target=write, daemon=True)
    writer.start()
    while not growing.exists() or growing.stat().st_size < 20:
        time.sleep(0.01)
    try:
        made = backup(place, tmp_path / "backup", log=silent)
    finally:
        is_over.set()
        writer.join(timeout=60)
    there = stores.empty(kind, tmp_path / "there")
    restore(tmp_path / "backup", there, log=silent)
    got = rows(there)["metrics"]
    keys = [row[0] for row in got]
    assert 0 < keys.count("a") == keys.count("b") <= len(rows(place)["metrics"]) / 2
    assert made.counts["metrics"] == len(got)
    copied = (there.artifacts / growing.relative_to(place.artifacts)).read_text()
    assert growing.read_text().startswith(copied) and copied.count("\n") >= keys.count("a") - 1


def test_a_restored_store_is_served_with_its_runs(stores: Any, tmp_path: Path) -> None:
    from mlflow.tracking import MlflowClient

    place = stores.current("sqlite", tmp_path / "here")
    run_id = fill(place, "served again")
    backup(place, tmp_path / "backup", log=silent)
    restore(tmp_path / "backup", places.of_folder(tmp_path / "there" / "tracking"), log=silent)
    with Server.start(tmp_path / "there" / "tracking") as server:
        client = MlflowClient(server.uri)
        run = client.get_run(run_id)
        assert (run.info.run_name, run.data.params) == ("served again", {"lr": "0.1"})
        assert len(client.get_metric_history(run_id, "loss")) == 300
        (tmp_path / "fetched").mkdir()
        fetched = client.download_artifacts(run_id, "deep/图.txt", str(tmp_path / "fetched"))
        assert Path(fetched).read_text() == "served again" * 1000
        with contextlib.closing(sqlite3.connect(server.store / "mlflow.db")) as database:
            assert database.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def damage_byte(folder: Path) -> str:
    path = next((folder / "artifacts").rglob("*.txt"))
    content = bytearray(path.read_bytes())
    content[17] ^= 1
    path.write_bytes(content)
    return f"{path.relative_to(folder).as_posix()}: its content has changed"


def damage_database(folder: Path) -> str:
    path = folder / "mlflow.db"
    path.write_bytes(path.read_bytes()[:-100])
    return "mlflow.db: "


def damage_missing(folder: Path) -> str:
    path = next((folder / "artifacts").rglob("*.txt"))
    path.unlink()
    return f"{path.relative_to(folder).as_posix()}: missing"


def damage_added(folder: Path) -> str:
    (folder / "artifacts" / "added.txt").write_text("x")
    return "artifacts/added.txt: not part of the backup"


@pytest.fixture(scope="module")
def sound_backup(stores: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sound")
    place = stores.current("sqlite", folder)
    fill(place, "sound", steps=5)
    backup(place, folder / "backup", log=silent)
    return folder / "backup"


@pytest.mark.parametrize("damage", [damage_byte, damage_database, damage_missing, damage_added])
def test_a_damaged_backup_is_named_and_not_restored(sound_backup: Path, tmp_path: Path, damage: Any) -> None:
    shutil.copytree(sound_backup, tmp_path / "backup")
    expected = damage(tmp_path / "backup")
    place = places.of_folder(tmp_path / "there")
    with pytest.raises(StackError, match="not as they were made") as damaged:
        restore(tmp_path / "backup", place, log=silent)
    assert expected in str(damaged.value) and damaged.value.exit is Exit.NOT_GOOD
    assert not place.folder.exists()


def test_a_folder_that_is_no_backup_is_refused(sound_backup: Path, tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match="record of a backup is not there"):
        verify_backup(tmp_path)
    (tmp_path / RECORD).write_text(json.dumps({"format": 99}))
    with pytest.raises(BadRequest, match="format 99"):
        verify_backup(tmp_path)
    with pytest.raises(BadRequest, match="no tracking database here"):
        backup(places.of_work(tmp_path / "none"), tmp_path / "to", log=silent)
    with pytest.raises(BadRequest, match="inside the store"):
        there = places.of_work(sound_backup.parent / "work")
        backup(there, there.folder / "backup", log=silent)


def test_a_backup_of_another_kind_is_refused(sound_backup: Path, stores: Any, tmp_path: Path) -> None:
    place = stores.empty("postgresql", tmp_path)
    with pytest.raises(BadRequest, match="of a sqlite database, and the place has postgresql"):
        restore(sound_backup, place, log=silent)


def test_a_failed_restore_leaves_an_empty_place(
    stores: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = stores.current("postgresql", tmp_path / "here")
    fill(place, "kept", steps=50)
    backup(place, tmp_path / "backup", log=silent)
    there = stores.empty("postgresql", tmp_path / "there")
    # Half a dump with a record that fits: what arrives is not whole, and PostgreSQL's tool says so.
    dump = tmp_path / "backup" / DUMP_FILE
    dump.write_bytes(dump.read_bytes()[: dump.stat().st_size // 2])
    monkeypatch.setattr("stack.tracking.site.backup_record._problems", lambda made: iter(()))
    with pytest.raises(StackError, match="pg_restore ended with code"):
        restore(tmp_path / "backup", there, log=silent)
    with connected(there) as connection:
        assert read_schema(connection).is_empty
    assert not there.artifacts.exists()


def test_dated_backups_stay_as_many_as_asked_and_nothing_else_goes(stores: Any, tmp_path: Path) -> None:
    place = stores.current("sqlite", tmp_path)
    fill(place, "kept", steps=1)
    below = tmp_path / "backups"
    for day in ("01", "02", "03"):
        (below / f"tracking-202601{day}T000000Z").mkdir(parents=True)
        (below / f"tracking-202601{day}T000000Z" / RECORD).write_text("{}")
    (below / "tracking-20250101T000000Z").mkdir()  # by name only: no record
    (below / "tracking-before-upgrade").mkdir()
    (below / "tracking-before-upgrade" / RECORD).write_text("{}")
    made = backup_dated(place, below, keep=2, log=silent)
    assert sorted(path.name for path in below.iterdir()) == sorted(
        [
            "tracking-20250101T000000Z",
            "tracking-20260103T000000Z",
            "tracking-before-upgrade",
            made.folder.name,
        ]
    )


def test_a_server_at_work_keeps_restores_and_upgrades_away(stores: Any, tmp_path: Path) -> None:
    from stack.tracking.site.place import hold
    from stack.tracking.site.upgrade import upgrade

    place = stores.current("sqlite", tmp_path)
    fill(place, "held", steps=1)
    with hold(place), pytest.raises(NotAble, match="works at this store"):
        upgrade(place, tmp_path / "backup", log=silent)
