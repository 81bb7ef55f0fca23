"""Several attempts of one run, shipped to a real server: one row a run, no curve drawn twice."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from stack.tracking import Journal, ship
from stack.tracking import names as tracked
from stack.tracking.journal import JOURNAL


def attempt(folder: Path, steps: range, value: float, *, resumed: int | None = None) -> Journal:
    journal = Journal(folder, name="night", experiment=tracked.TRAIN, tags={"stack.device": "cpu"})
    journal.params({"lr": value})
    if resumed is not None:
        journal.resumed(resumed)
    for step in steps:
        journal.metrics({"train/loss": value + step}, step=step)
        journal.metrics({"host/cpu_frac": value}, step=step * 60)
    return journal


def curve(store: Any, run: Any, key: str = "train/loss") -> list[tuple[int, float]]:
    return [(step, value) for name, step, _, value in store.rows(run.info.run_id) if name == key]


def three_attempts(folder: Path) -> str:
    """Killed at 8 and resumed after 5; failed at 7 and tried again from the start."""
    attempt(folder, range(1, 9), 0.0).close()
    second = attempt(folder, range(6, 8), 100.0, resumed=5)
    second.tags({"stack.outcome": "nonfinite"})
    second.end("FAILED")
    second.close()
    third = attempt(folder, range(1, 4), 200.0, resumed=0)
    third.end("FINISHED")
    third.close()
    return third.run_id


def expected() -> dict[int, list[tuple[int, float]]]:
    first = [(step, float(step)) for step in range(1, 9)]
    return {
        1: first,
        2: [*first[:5], (6, 106.0), (7, 107.0)],
        3: [(1, 201.0), (2, 202.0), (3, 203.0)],
    }


@pytest.mark.parametrize("is_shipped_between", [True, False])
def test_each_attempt_is_a_run_and_the_newest_stands_for_all(
    store: Any, tmp_path: Path, is_shipped_between: bool
) -> None:
    folder = tmp_path / "run"
    if is_shipped_between:
        attempt(folder, range(1, 9), 0.0).close()
        ship(tmp_path, store.uri)
        pasted = store.run(ship(tmp_path, store.uri).runs[0].run_id).info.run_id
        second = attempt(folder, range(6, 6), 100.0)
        ship(tmp_path, store.uri)
        assert curve(store, store.run(second.run_id)) == [], "where it goes on is not known yet"
        second.resumed(5)
        ship(tmp_path, store.uri)
        assert len(curve(store, store.run(second.run_id))) == 5
        for step in (6, 7):
            second.metrics({"train/loss": 100.0 + step}, step=step)
            ship(tmp_path, store.uri)
        second.tags({"stack.outcome": "nonfinite"})
        second.end("FAILED")
        ship(tmp_path, store.uri)
        third = attempt(folder, range(1, 4), 200.0, resumed=0)
        third.end("FINISHED")
        run_id = third.run_id
    else:
        run_id = three_attempts(folder)
    ship(tmp_path, store.uri)
    runs = store.attempts(run_id)
    assert {number: curve(store, run) for number, run in runs.items()} == expected()
    assert {number: run.info.status for number, run in runs.items()} == {
        1: "KILLED", 2: "FAILED", 3: "FINISHED",
    }  # fmt: skip
    assert {n: run.data.tags["stack.outcome"] for n, run in runs.items()} == {
        1: "killed", 2: "nonfinite", 3: "ok",
    }  # fmt: skip
    assert {n: run.data.params["lr"] for n, run in runs.items()} == {1: "0.0", 2: "100.0", 3: "200.0"}
    assert [runs[n].info.run_name for n in (1, 2, 3)] == [
        "night (attempt 1)", "night (attempt 2)", "night",
    ]  # fmt: skip
    top = runs[3].info.run_id
    assert [runs[n].data.tags.get("mlflow.parentRunId") for n in (1, 2, 3)] == [top, top, None]
    assert "stack.resumed_after_step" not in runs[1].data.tags
    assert runs[2].data.tags["stack.resumed_after_step"] == "5"
    assert runs[1].info.end_time <= runs[2].info.start_time
    if is_shipped_between:
        assert runs[1].info.run_id == pasted, "an address that somebody noted shows the same curve"
    before = {number: store.rows(run.info.run_id) for number, run in runs.items()}
    assert ship(tmp_path, store.uri).points_sent == 0
    assert {n: store.rows(run.info.run_id) for n, run in store.attempts(run_id).items()} == before


def test_what_is_sampled_by_the_clock_is_not_taken_over(store: Any, tmp_path: Path) -> None:
    run_id = three_attempts(tmp_path / "run")
    ship(tmp_path, store.uri)
    second = store.attempts(run_id)[2]
    assert [step for step, _ in curve(store, second, "host/cpu_frac")] == [360, 420]


def test_a_copy_that_is_behind_the_server_changes_nothing_of_the_newest(store: Any, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    attempt(folder, range(1, 4), 0.0).close()
    shutil.copytree(folder, tmp_path / "old copy" / "run")
    second = attempt(folder, range(3, 6), 0.0, resumed=2)
    second.end("FINISHED")
    ship(folder, store.uri)
    before = store.all_of(second.run_id)
    ship(tmp_path / "old copy", store.uri)
    assert store.all_of(second.run_id) == before
    assert set(store.attempts(second.run_id)) == {1, 2}


def test_children_move_to_the_newest_attempt_of_their_parent(store: Any, tmp_path: Path) -> None:
    top = Journal(tmp_path, name="chain", experiment=tracked.REPRODUCE)
    child = Journal(tmp_path / "sweep", name="sweep", experiment=tracked.SWEEP, parent=top.run_id)
    child.end("FINISHED")
    top.end("FAILED")
    ship(tmp_path, store.uri)
    first = store.run(top.run_id).info.run_id
    assert store.run(child.run_id).data.tags["mlflow.parentRunId"] == first
    again = Journal(tmp_path, name="chain", experiment=tracked.REPRODUCE)
    again.end("FINISHED")
    ship(tmp_path, store.uri)
    assert store.run(child.run_id).data.tags["mlflow.parentRunId"] == store.run(top.run_id).info.run_id
    assert store.attempts(top.run_id)[1].info.run_id == first


def test_a_long_curve_is_thinned_by_rule_and_its_last_point_goes_with_the_end(
    store: Any, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    journal = Journal(folder, name="long", experiment=tracked.TRAIN)
    for step in range(2_343):
        journal.metrics({"train/loss": 1 / (step + 1), "train/lr": step / 7}, step=step)
        if step % 700 == 0:
            ship(folder, store.uri)
    ship(folder, store.uri)
    assert len(curve(store, store.run(journal.run_id))) < len(store.shown(folder / JOURNAL)) // 2
    journal.end("FINISHED")
    ship(folder, store.uri)
    run = store.run(journal.run_id)
    assert store.rows(run.info.run_id) == store.shown(folder / JOURNAL)
    assert run.data.metrics["train/lr"] == 2342 / 7
    assert run.data.tags["stack.thinned"].startswith("train/loss: 1043 of 2343 points, and 1 more curve")
    ship(folder, store.uri)
    assert store.rows(run.info.run_id) == store.shown(folder / JOURNAL)
