"""Retention: the rule against a second way of saying it, and what is left in a store afterwards."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from stack.cli import cli
from stack.tracking import Journal, names, ship
from stack.tracking.site import place as places
from stack.tracking.site.place import Place
from stack.tracking.site.prune import DAY_MS, StoredRun, apply_prune, artifact_folder, judge, plan_prune

NOW = 2_000_000_000_000
OLD = NOW - 100 * DAY_MS


def stored(
    number: int, parent: int | None, last_ms: int, status: str, tagged: bool, model: bool
) -> StoredRun:
    above = None if parent is None else str(parent)
    return StoredRun(str(number), "", "", status, last_ms, None, "", above, tagged, model)


@st.composite
def forests(draw: st.DrawFn) -> dict[str, StoredRun]:
    size = draw(st.integers(1, 12))
    runs = {}
    for number in range(size):
        parent = draw(st.none() | st.integers(0, size))  # one that is not there, or a ring, may come too
        last_ms = draw(st.sampled_from([OLD - 1, OLD, OLD + 1]))
        status = draw(st.sampled_from(["FINISHED", "FAILED", "RUNNING"]))
        flags = draw(st.tuples(st.integers(0, 5), st.integers(0, 5)))
        runs[str(number)] = stored(number, parent, last_ms, status, flags[0] == 0, flags[1] == 0)
    return runs


@settings(max_examples=150, deadline=None)
@given(forests())
def test_a_run_goes_only_if_everything_that_is_nested_with_it_may_go(runs: dict[str, StoredRun]) -> None:
    to_trash, kept = judge(runs, OLD)
    gone = {run.run_id for run in to_trash}
    # The other way of saying it: spread "stays" along every parent link, in both directions, until it rests.
    stays = {
        key
        for key, run in runs.items()
        if run.last_ms >= OLD or run.status == "RUNNING" or run.is_tagged or run.has_model
    }
    while True:
        more = {key for key, run in runs.items() if run.parent in stays}
        more |= {run.parent for key, run in runs.items() if key in stays and run.parent in runs}
        if more <= stays:
            break
        stays |= more
    assert gone == set(runs) - stays
    assert sum(kept.values()) == len(stays)


@pytest.fixture(params=["sqlite", "postgresql"])
def place(request: pytest.FixtureRequest, stores: Any, tmp_path: Path) -> Place:
    return stores.current(request.param, tmp_path / "here")


class Filled:
    """A store with runs of known ages, written by MLflow's own store."""

    def __init__(self, place: Place) -> None:
        from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

        self.place = place
        self.store = SqlAlchemyStore(place.uri, "mlflow-artifacts:/")

    def run(
        self, name: str, *, days: int, status: str = "FINISHED", tags: dict[str, str] | None = None
    ) -> str:
        from mlflow.entities import RunStatus, RunTag

        at_ms = NOW - days * DAY_MS
        given = [RunTag(key, value) for key, value in (tags or {}).items()]
        run_id = str(self.store.create_run("0", "me", at_ms - 5, given, name).info.run_id)
        end_ms = None if status == "RUNNING" else at_ms
        self.store.update_run_info(run_id, RunStatus.from_string(status), end_ms, None)
        folder = self.place.artifacts / "0" / run_id / "artifacts"
        folder.mkdir(parents=True)
        (folder / "report.txt").write_text("x" * 100)
        return run_id

    def living(self) -> set[str]:
        from mlflow.entities import ViewType

        found = self.store.search_runs(["0"], "", ViewType.ACTIVE_ONLY)
        return {run.info.run_name for run in found}

    def trashed(self) -> set[str]:
        from mlflow.entities import ViewType

        return {run.info.run_name for run in self.store.search_runs(["0"], "", ViewType.DELETED_ONLY)}


def silent(line: str) -> None:
    del line


def test_old_runs_go_to_the_trash_and_later_for_good_and_the_rest_stays(place: Place) -> None:
    from mlflow.store.model_registry.sqlalchemy_store import SqlAlchemyStore as Registry

    filled = Filled(place)
    old = filled.run("old", days=200)
    filled.run("young", days=2)
    filled.run("kept by tag", days=200, tags={names.KEEP: "yes"})
    filled.run("tagged no", days=200, tags={names.KEEP: "no"})
    filled.run("running", days=200, status="RUNNING")
    model = filled.run("with a model", days=200)
    parent = filled.run("old parent", days=200)
    filled.run("young child", days=2, tags={"mlflow.parentRunId": parent})
    sourced = filled.run("in a source", days=200)
    registry = Registry(place.uri)
    registry.create_registered_model("policy")
    registry.create_model_version("policy", f"runs:/{model}/checkpoint", model)
    registry.create_model_version("policy", f"mlflow-artifacts:/0/{sourced}/artifacts/checkpoint")
    everything = filled.living()

    def plan(later_days: int = 0) -> Any:
        now = NOW + later_days * DAY_MS
        return plan_prune(place, keep_days=100, trash_days=30, now_ms=now)

    first = plan()
    assert {run.name for run in first.to_trash} == {"old", "tagged no"}
    assert first.to_remove == ()
    assert sum(first.kept.values()) == 7
    assert filled.living() == everything, "a plan changes nothing"

    apply_prune(place, first, log=silent)
    assert filled.living() == everything - {"old", "tagged no"}
    assert filled.trashed() == {"old", "tagged no"}
    assert (place.artifacts / "0" / old).is_dir(), "what is in the trash can be brought back"
    filled.store.restore_run(old)
    assert filled.living() == everything - {"tagged no"}
    filled.store.delete_run(old)

    # MLflow notes the wall clock's time of a deletion; NOW is years later, so the trash is old already.
    later = plan(later_days=-1)
    assert {run.name for run in later.to_remove} == {"old", "tagged no"}
    assert later.removed_bytes == 200
    apply_prune(place, later, log=silent)
    assert filled.trashed() == set()
    assert not (place.artifacts / "0" / old).exists()
    assert (place.artifacts / "0" / model / "artifacts" / "report.txt").exists()
    assert filled.living() == everything - {"old", "tagged no"}


def test_what_living_runs_name_stays_in_the_trash_until_they_go_too(stores: Any, tmp_path: Path) -> None:
    place = stores.current("sqlite", tmp_path / "here")
    filled = Filled(place)
    parent, newest = filled.run("parent", days=200), filled.run("newest attempt", days=200)
    child = filled.run("child", days=200, tags={"mlflow.parentRunId": parent, names.KEEP: "yes"})
    filled.run("first attempt", days=1, tags={names.SUPERSEDED: newest})
    for run_id in (parent, newest):
        filled.store.delete_run(run_id)  # by hand: a person may

    def plan() -> Any:
        return plan_prune(place, keep_days=100, trash_days=-1)

    assert plan().to_remove == () and plan().kept["in the trash, named by a run that lives"] == 2
    filled.store.delete_run(child)
    assert {run.name for run in plan().to_remove} == {"parent"}, "what is tagged to be kept stays"


def rows_of(database: Path, run_id: str) -> dict[str, int]:
    """Rows of every table that name a run in any column."""
    found = {}
    with contextlib.closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as db:
        for (table,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
            columns = [row[1] for row in db.execute(f"PRAGMA table_info('{table}')")]
            where = " OR ".join(f'"{column}" = ?' for column in columns)
            count = db.execute(f"SELECT count(*) FROM '{table}' WHERE {where}", [run_id] * len(columns))
            if rows := count.fetchone()[0]:
                found[table] = rows
    return found


def test_what_is_left_of_a_run_is_what_mlflow_gc_leaves(
    store: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlflow.cli import gc

    ids = []
    for name in ("by gc", "by us"):
        journal = Journal(tmp_path / name, name=name, experiment=names.TRAIN, tags={"a": "b"})
        journal.params({"lr": 0.1})
        journal.metrics({names.LOSS: 1.0}, step=1)
        journal.dataset(name="demo", digest="0" * 64, source="demo", context="training", profile={})
        (tmp_path / name / "report.html").write_text("<h1>report</h1>")
        journal.artifact(tmp_path / name / "report.html")
        journal.end("FINISHED")
        ids.append(ship(tmp_path / name, store.uri).runs[0].mlflow_run_id)
        store.client.delete_run(ids[-1])
    place = places.of_folder(store.server.store)
    before = [rows_of(place.database_file, run_id) for run_id in ids]
    assert before[0] == before[1] and before[0]["metrics"] == 1 and len(before[0]) > 4

    monkeypatch.setenv("MLFLOW_TRACKING_URI", store.uri)
    arguments = ["--backend-store-uri", place.uri, "--run-ids", ids[0]]
    done = CliRunner().invoke(gc, arguments)
    assert done.exit_code == 0, done.output
    plan = plan_prune(place, keep_days=1e6, trash_days=-1)
    assert ids[1] in {run.run_id for run in plan.to_remove}
    apply_prune(place, plan, log=silent)

    left = [rows_of(place.database_file, run_id) for run_id in ids]
    assert left[0] == left[1] and "runs" not in left[1] and "metrics" not in left[1]
    assert not [path for path in place.artifacts.rglob("*") if path.is_file() and ids[1] in path.parts]


def test_the_command_says_first_and_does_only_when_told(stores: Any, tmp_path: Path) -> None:
    place = stores.current("sqlite", tmp_path)
    filled = Filled(place)
    filled.run("ancient", days=20_000)
    command = ["track", "prune", "--work", str(tmp_path / "work"), "--keep-days", "1000"]
    said = CliRunner().invoke(cli, command)
    assert said.exit_code == 0, said.output
    assert "would go to the trash" in said.output and "ancient" in said.output
    assert "nothing was changed" in said.output
    assert filled.living() == {"ancient"}
    done = CliRunner().invoke(cli, [*command, "--apply"])
    assert done.exit_code == 0 and "to the trash: Default: ancient" in done.output
    assert filled.living() == set()


@pytest.mark.parametrize(
    "uri",
    [
        "file:///data/mlruns/0/abc/artifacts",
        "s3://bucket/0/abc/artifacts",
        "mlflow-artifacts:/../../etc/abc/artifacts",
        "mlflow-artifacts:/0/other/artifacts",
        "mlflow-artifacts:/",
    ],
)
def test_files_that_are_not_surely_the_runs_own_are_left(tmp_path: Path, uri: str) -> None:
    place = places.of_folder(tmp_path)
    place.artifacts.mkdir()
    run = StoredRun("abc", "", "", "FINISHED", 0, 0, uri)
    assert artifact_folder(place, run) is None


def test_a_link_out_of_the_store_is_not_followed(tmp_path: Path) -> None:
    place = places.of_folder(tmp_path / "tracking")
    (place.artifacts / "0").mkdir(parents=True)
    (tmp_path / "outside").mkdir()
    (place.artifacts / "0" / "abc").symlink_to(tmp_path / "outside")
    run = StoredRun("abc", "", "", "FINISHED", 0, 0, "mlflow-artifacts:/0/abc/artifacts")
    assert artifact_folder(place, run) is None
