"""Journals shipped to a real server, read back through its API and from its database."""

from __future__ import annotations

import fcntl
import hashlib
import http.server
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stack.errors import BadRequest, Exit, NotAble
from stack.tracking import Journal, Server, follow, ship, views
from stack.tracking import names as tracked
from stack.tracking.journal import JOURNAL
from stack.tracking.remote import Remote

DIGEST = hashlib.sha256(b"a dataset").hexdigest()


def begin(folder: Path, **options: Any) -> Journal:
    return Journal(folder, **{"name": folder.name, "experiment": tracked.TRAIN, **options})


def whole_run(folder: Path, steps: int = 40) -> Journal:
    journal = begin(folder, tags={"stack.device": "cpu"}, description="What it is **for**.")
    journal.params({"train.global_batch": 8, "train.learning_rate": 2.5e-5})
    for step in range(steps):
        journal.metrics({"train/loss": 1.0 / (step + 1), "perf/step_s": 0.1 + step / 1000}, step=step)
    journal.dataset(
        name="demo", digest=DIGEST, source="prepared/demo", context="training", profile={"episodes": 19}
    )
    (folder / "verdict.html").write_text("<h1>within band</h1>")
    (folder / "manifest.json").write_text('{"steps": 40}\n')
    journal.artifact(folder / "verdict.html")
    journal.artifact(folder / "manifest.json", to="provenance")
    journal.event("checkpoint", step=20, bytes=123)
    journal.tags({"stack.outcome": "ok", "stack.verdict": "within-band"})
    journal.end("FINISHED")
    return journal


def test_all_of_a_run_arrives(store: Any, tmp_path: Path) -> None:
    journal = whole_run(tmp_path / "run")
    report = ship(tmp_path, store.uri)

    run = store.run(journal.run_id)
    lines = [json.loads(line) for line in (tmp_path / "run" / JOURNAL).read_text().splitlines()]
    assert run.info.run_name == "run"
    assert run.info.status == "FINISHED"
    assert (run.info.start_time, run.info.end_time) == (lines[0]["t"], lines[-1]["t"])
    assert run.data.params == {"train.global_batch": "8", "train.learning_rate": "2.5e-05"}
    assert run.data.tags["stack.device"] == "cpu"
    assert run.data.tags["stack.kind"] == "train"
    assert run.data.tags["stack.outcome"] == "ok"
    assert run.data.tags["mlflow.note.content"] == "What it is **for**."
    assert store.client.get_experiment(run.info.experiment_id).name == "stack/train"
    assert store.rows(run.info.run_id) == store.written(tmp_path / "run" / JOURNAL)
    history = store.client.get_metric_history(run.info.run_id, "train/loss")
    assert [(point.step, point.value) for point in history] == [(s, 1.0 / (s + 1)) for s in range(40)]
    assert report.points_sent == 80
    assert report.runs[0].mlflow_run_id == run.info.run_id
    assert report.runs[0].notes == ()


def test_dataset_goes_in_as_an_input_with_both_digests(store: Any, tmp_path: Path) -> None:
    journal = whole_run(tmp_path / "run", steps=1)
    ship(tmp_path, store.uri)
    (used,) = store.run(journal.run_id).inputs.dataset_inputs
    tags = {tag.key: tag.value for tag in used.tags}
    assert (used.dataset.name, used.dataset.digest) == ("demo", DIGEST[:32])
    assert json.loads(used.dataset.profile) == {"episodes": 19}
    assert tags == {"mlflow.data.context": "training", "stack.digest": DIGEST}


def test_artifacts_and_events_can_be_read_back(store: Any, tmp_path: Path) -> None:
    journal = whole_run(tmp_path / "run", steps=1)
    ship(tmp_path, store.uri)
    seen = store.all_of(journal.run_id)["artifacts"]
    assert seen["verdict.html"] == b"<h1>within band</h1>"
    assert seen["provenance/manifest.json"] == b'{"steps": 40}\n'
    events = json.loads(seen["events.json"])["events"]
    assert [(event["event"], event["step"], event["bytes"]) for event in events] == [("checkpoint", 20, 123)]
    assert set(seen) == {"verdict.html", "provenance/manifest.json", "events.json"}


def test_shipping_again_changes_nothing_and_sends_nothing(store: Any, tmp_path: Path) -> None:
    journal = whole_run(tmp_path / "run")
    ship(tmp_path, store.uri)
    before = store.all_of(journal.run_id)
    report = ship(tmp_path, store.uri)
    assert (report.points_sent, report.runs[0].artifacts_sent) == (0, 0)
    assert store.all_of(journal.run_id) == before


@pytest.mark.parametrize("forget", ["file", "tag", "both"])
def test_a_deleted_watermark_changes_nothing(store: Any, tmp_path: Path, forget: str) -> None:
    journal = whole_run(tmp_path / "run")
    ship(tmp_path, store.uri)
    before = store.all_of(journal.run_id)
    if forget != "tag":
        (tmp_path / "run" / ".shipped.json").unlink()
    if forget != "file":
        store.client.delete_tag(before["id"], tracked.SHIPPED)
    report = ship(tmp_path, store.uri)
    assert (report.points_sent, report.runs[0].artifacts_sent) == (0 if forget == "file" else 80, 3)
    assert store.all_of(journal.run_id) == before


def test_a_copy_that_went_another_way_is_sent_too(store: Any, tmp_path: Path) -> None:
    journal = begin(tmp_path / "run")
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    journal.metrics({"train/loss": 1.0}, step=0)
    copied = Journal.extend(tmp_path / "copy")
    assert copied is not None
    copied.metrics({"train/loss": 2.0}, step=0)
    ship(tmp_path / "run", store.uri)
    ship(tmp_path / "copy", store.uri)
    run_id = store.run(journal.run_id).info.run_id
    assert [row[3] for row in store.rows(run_id)] == [1.0, 2.0]


def test_a_watermark_that_the_server_does_not_confirm_is_not_believed(store: Any, tmp_path: Path) -> None:
    journal = whole_run(tmp_path / "run")
    ship(tmp_path, store.uri)
    first = store.run(journal.run_id).info.run_id
    store.client.delete_run(first)
    ship(tmp_path, store.uri)
    again = store.run(journal.run_id).info.run_id
    assert again != first
    assert store.rows(again) == store.written(tmp_path / "run" / JOURNAL)
    assert store.files(again) == ["events.json", "provenance/manifest.json", "verdict.html"]
    # A database restored from before the last points: its tag is behind the file.
    store.client.set_tag(again, tracked.SHIPPED, "17")
    assert ship(tmp_path, store.uri).points_sent == 80


def test_half_a_journal_and_then_the_rest(store: Any, tmp_path: Path) -> None:
    journal = begin(tmp_path / "run")
    for step in range(30):
        journal.metrics({"train/loss": float(step)}, step=step)
    assert ship(tmp_path, store.uri).points_sent == 30
    assert store.run(journal.run_id).info.status == "RUNNING"
    assert store.run(journal.run_id).data.tags["stack.outcome"] == "running"
    for step in range(30, 50):
        journal.metrics({"train/loss": float(step)}, step=step)
    journal.end("FINISHED")
    assert ship(tmp_path, store.uri).points_sent == 20
    run = store.run(journal.run_id)
    assert [row[1] for row in store.rows(run.info.run_id)] == list(range(50))
    assert (run.info.status, run.data.tags["stack.outcome"]) == ("FINISHED", "ok")


def test_a_server_killed_while_shipping_gets_every_point_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: Any
) -> None:
    journal = begin(tmp_path / "run")
    for step in range(350):
        journal.metrics({f"train/loss{number}": float(step) for number in range(10)}, step=step)
    journal.end("FINISHED")
    server = Server.start(tmp_path / "store")
    port = int(server.uri.rsplit(":", 1)[1])
    from mlflow.tracking import MlflowClient

    real, batches = MlflowClient.log_batch, []

    def dying(self: Any, run_id: str, metrics: Any = (), **others: Any) -> Any:
        if metrics:
            batches.append(len(metrics))
            if len(batches) == 3:
                os.killpg(server.pid, signal.SIGKILL)
        return real(self, run_id, metrics=metrics, **others)

    monkeypatch.setattr(MlflowClient, "log_batch", dying)
    monkeypatch.setattr("stack.tracking.remote.TRIES", 1)
    before = (tmp_path / "run" / JOURNAL).read_bytes()
    with pytest.raises(NotAble) as refused:
        ship(tmp_path / "run", server.uri)
    monkeypatch.undo()
    server.stop()
    assert refused.value.exit is Exit.NOT_ABLE
    assert server.uri in str(refused.value)
    assert (tmp_path / "run" / JOURNAL).read_bytes() == before

    with Server.start(tmp_path / "store", port=port) as again:
        there = type(store)(again)
        run_id = there.run(journal.run_id).info.run_id
        assert len(there.rows(run_id)) == 2000, "the test must cut in the middle"
        ship(tmp_path / "run", again.uri)
        assert there.rows(run_id) == store.written(tmp_path / "run" / JOURNAL)
        history = there.client.get_metric_history(run_id, "train/loss7")
        assert [point.step for point in history] == list(range(350))


def test_many_params_and_metrics_in_one_go(store: Any, tmp_path: Path) -> None:
    journal = begin(tmp_path / "run")
    params = {f"group.{number}": f"值{number}" * 300 for number in range(150)}
    journal.params(params)
    journal.metrics({f"data/channel {number}": float(number) for number in range(5000)}, step=0)
    journal.end("FINISHED")
    assert ship(tmp_path, store.uri).points_sent == 5000
    run = store.run(journal.run_id)
    assert run.data.params == params
    assert store.rows(run.info.run_id) == store.written(tmp_path / "run" / JOURNAL)


def test_values_that_are_not_finite_are_said_and_not_drawn(store: Any, tmp_path: Path) -> None:
    journal = begin(tmp_path / "run")
    journal.metrics({"train/loss": 0.5, "train/grad_norm": 2.0}, step=1)
    journal.metrics({"train/loss": float("nan"), "train/grad_norm": float("inf")}, step=2)
    with (tmp_path / "run" / JOURNAL).open("a") as file:  # a writer that did not look
        file.write('{"t": 1700000000000, "kind": "metrics", "step": 3, "metrics": {"train/loss": NaN}}\n')
    journal.end("FAILED")
    ship(tmp_path, store.uri)
    run = store.run(journal.run_id)
    assert [row[:2] for row in store.rows(run.info.run_id)] == [("train/grad_norm", 1), ("train/loss", 1)]
    assert run.data.tags["stack.nonfinite"].startswith("3 values, first train/")
    assert "at step 2" in run.data.tags["stack.nonfinite"]
    events = json.loads(store.artifact(run.info.run_id, "events.json"))["events"]
    assert sorted((e["metric"], e["step"]) for e in events) == [
        ("train/grad_norm", 2),
        ("train/loss", 2),
        ("train/loss", 3),
    ]


WRITER = """
import sys, time
from pathlib import Path
from stack.tracking.journal import Journal
journal = Journal(Path(sys.argv[1]), name="killed", experiment="stack/train")
for step in range(1_000_000):
    journal.metrics({"train/loss": float(step)}, step=step)
    time.sleep(0.005)
"""


def test_a_killed_writer_ships_as_killed_and_a_living_one_as_running(store: Any, tmp_path: Path) -> None:
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path / "run")])
    try:
        path = tmp_path / "run" / JOURNAL
        _wait_for(lambda: path.exists() and path.read_bytes().count(b"\n") > 20)
        ship(tmp_path, store.uri)
        run_id = json.loads(path.read_text().splitlines()[0])["run_id"]
        assert store.run(run_id).info.status == "RUNNING"
    finally:
        writer.kill()
    # Not waited for yet: a zombie is no living writer.
    _wait_for(lambda: Path(f"/proc/{writer.pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z")
    ship(tmp_path, store.uri)
    writer.wait()
    run = store.run(run_id)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert (run.info.status, run.data.tags["stack.outcome"]) == ("KILLED", "killed")
    assert run.info.end_time == lines[-1]["t"]
    assert store.rows(run.info.run_id) == store.written(path)


def test_two_shippers_at_once_make_one_run(store: Any, tmp_path: Path) -> None:
    journals = [whole_run(tmp_path / f"run{number}", steps=200) for number in range(3)]
    failures: list[BaseException] = []

    def one() -> None:
        try:
            ship(tmp_path, store.uri)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=one) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    for journal in journals:
        assert len(store.runs(journal.run_id)) == 1
        run_id = store.run(journal.run_id).info.run_id
        assert store.rows(run_id) == store.written(journal.folder / JOURNAL)


def test_a_held_journal_is_an_error_that_says_so(
    store: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole_run(tmp_path / "run", steps=1)
    monkeypatch.setattr(sys.modules["stack.tracking.shipping"], "LOCK_WAIT_S", 0.2)
    with (tmp_path / "run" / JOURNAL).open("r+b") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(NotAble, match="another shipper"):
            ship(tmp_path, store.uri)
    ship(tmp_path, store.uri)


def test_of_doubles_left_by_a_lost_answer_one_is_kept(store: Any, tmp_path: Path) -> None:
    journal = whole_run(tmp_path / "run")
    experiment = store.client.create_experiment(f"double-{journal.run_id}")
    for _ in range(2):
        store.client.create_run(experiment, tags={"stack.run_id": journal.run_id})
    ship(tmp_path, store.uri)
    run = store.run(journal.run_id)
    assert store.rows(run.info.run_id) == store.written(tmp_path / "run" / JOURNAL)


def test_a_cut_last_line_is_passed_over_and_the_next_attempt_goes_on(store: Any, tmp_path: Path) -> None:
    first = begin(tmp_path / "run")
    first.metrics({"train/loss": 1.0}, step=0)
    first.close()
    path = tmp_path / "run" / JOURNAL
    with path.open("a") as file:
        file.write('{"t": 1700000000000, "kind": "metrics", "step": 1, "metr')
    assert ship(tmp_path, store.uri).points_sent == 1
    second = begin(tmp_path / "run")
    second.metrics({"train/loss": 0.5}, step=1)
    second.end("FINISHED")
    report = ship(tmp_path, store.uri)
    assert second.run_id == first.run_id
    assert report.points_sent == 1
    attempts = store.attempts(first.run_id)
    points = {n: [(r[1], r[3]) for r in store.rows(run.info.run_id)] for n, run in attempts.items()}
    assert points == {1: [(0, 1.0)], 2: [(1, 0.5)]}
    assert "1 unreadable lines" in attempts[2].data.tags["stack.ship_notes"]


def test_a_parameter_changed_on_the_second_attempt_is_shown_and_said(store: Any, tmp_path: Path) -> None:
    first = begin(tmp_path / "run")
    first.params({"lr": 0.001, "batch": 8})
    first.tags({"stack.outcome": "nonfinite"})
    first.end("FAILED")
    ship(tmp_path, store.uri)
    assert store.run(first.run_id).info.status == "FAILED"
    second = begin(tmp_path / "run")
    ship(tmp_path, store.uri)
    assert store.run(first.run_id).data.params == {}, "what it will say is not known yet"
    second.params({"lr": 0.0005})
    ship(tmp_path, store.uri)
    assert store.run(first.run_id).info.status == "RUNNING"
    second.end("FINISHED")
    ship(tmp_path, store.uri)
    run = store.run(first.run_id)
    assert run.data.params == {"lr": "0.0005", "batch": "8"}
    assert store.attempts(first.run_id)[1].data.params == {"lr": "0.001", "batch": "8"}
    changed = {key: value for key, value in run.data.tags.items() if key.startswith("param-changed")}
    assert changed == {"param-changed.lr": "0.001 -> 0.0005 (attempt 2)"}
    # How the first attempt ended is not how the run stands.
    assert (run.info.status, run.data.tags["stack.outcome"]) == ("FINISHED", "ok")


def test_nested_runs_stand_below_their_parents_in_one_experiment(store: Any, tmp_path: Path) -> None:
    top = begin(tmp_path, name="chain", experiment=tracked.REPRODUCE)
    # By path the points come before their sweep, and the sweep before the chain's later folders.
    sweep = begin(tmp_path / "z-sweep", experiment=tracked.SWEEP, parent=top.run_id)
    points = [
        begin(tmp_path / "points" / f"b{batch}", experiment=tracked.SWEEP, parent=sweep.run_id)
        for batch in (2, 4)
    ]
    for journal in (*points, sweep, top):
        journal.end("FINISHED")
    ship(tmp_path, store.uri)
    ids = {journal.run_id: store.run(journal.run_id) for journal in (top, sweep, *points)}
    parent_of = {key: run.data.tags.get("mlflow.parentRunId") for key, run in ids.items()}
    assert parent_of[top.run_id] is None
    assert parent_of[sweep.run_id] == ids[top.run_id].info.run_id
    assert [parent_of[p.run_id] for p in points] == [ids[sweep.run_id].info.run_id] * 2
    experiments = {store.client.get_experiment(run.info.experiment_id).name for run in ids.values()}
    assert experiments == {"stack/reproduce"}
    assert ids[sweep.run_id].data.tags["stack.kind"] == "sweep"


def test_a_child_shipped_alone_finds_its_parent(store: Any, tmp_path: Path) -> None:
    top = begin(tmp_path / "top", experiment=tracked.REPRODUCE)
    child = begin(tmp_path / "child", parent=top.run_id)
    top.end("FINISHED")
    ship(tmp_path / "top", store.uri)
    child.end("FINISHED")
    ship(tmp_path / "child", store.uri)
    assert store.run(child.run_id).data.tags["mlflow.parentRunId"] == store.run(top.run_id).info.run_id

    orphan = begin(tmp_path / "orphan", parent="0" * 32)
    orphan.end("FINISHED")
    report = ship(tmp_path / "orphan", store.uri)
    assert "not on the server yet" in report.runs[0].notes[0]


def test_a_run_whose_journal_vanished_does_not_run_for_ever(store: Any, tmp_path: Path) -> None:
    top = begin(tmp_path, name="chain", experiment=tracked.REPRODUCE)
    lost = begin(tmp_path / "lost", parent=top.run_id)
    kept = begin(tmp_path / "kept", parent=top.run_id)
    ship(tmp_path, store.uri)
    shutil.rmtree(tmp_path / "lost")
    ship(tmp_path, store.uri)
    assert store.run(lost.run_id).info.status == "RUNNING", "the chain may still be at it"
    top.end("FINISHED")
    ship(tmp_path, store.uri)
    run = store.run(lost.run_id)
    assert (run.info.status, run.data.tags["stack.outcome"]) == ("KILLED", "killed")
    assert store.run(kept.run_id).info.status == "RUNNING"


def test_an_artifact_goes_once_again_when_changed_and_never_from_outside(
    store: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "run"
    journal = begin(folder)
    (tmp_path / "secret.txt").write_text("not of this run")
    (folder / "link.txt").symlink_to(tmp_path / "secret.txt")
    (folder / "report.txt").write_text("first")
    (folder / "large.bin").write_bytes(bytes(2000))
    for path in ("report.txt", "link.txt", "../secret.txt", "gone.txt", "large.bin"):
        journal.artifact(folder / path)
    monkeypatch.setattr("stack.tracking.artifacts.LIMIT_BYTES", 1999)
    sent = [ship(folder, store.uri).runs[0].artifacts_sent for _ in range(2)]
    (folder / "report.txt").write_text("second")
    report = ship(folder, store.uri)
    run_id = store.run(journal.run_id).info.run_id
    assert [*sent, report.runs[0].artifacts_sent] == [1, 0, 1]
    assert store.files(run_id) == ["report.txt"]
    assert store.artifact(run_id, "report.txt") == b"second"
    notes = "\n".join(report.runs[0].notes)
    assert notes.count("outside the run folder") == 2
    assert "gone.txt: not there" in notes
    assert "large.bin: 2000 bytes, more than 1999" in notes


def test_what_is_too_long_is_cut_and_said(store: Any, tmp_path: Path) -> None:
    journal = begin(tmp_path / "run")
    long = "".join(f"{number:05d} " for number in range(2000))
    journal.params({"manifest": long, "fits": "x" * 6000, "k" * 400: 1})
    journal.tags({"story": long})
    journal.metrics({"loss[0]": 1.0, "../up//x": 2.0}, step=0)
    report = ship(tmp_path, store.uri)
    run = store.run(journal.run_id)
    assert len(run.data.params["manifest"]) == 6000
    assert run.data.params["manifest"].startswith(long[:5900])
    assert run.data.params["fits"] == "x" * 6000
    assert hashlib.sha256(long.encode()).hexdigest() in run.data.tags["param-cut.manifest"]
    assert "12000 characters" in run.data.tags["param-cut.manifest"]
    assert "param-cut.fits" not in run.data.tags
    assert run.data.tags["story"].startswith(long[:7900])
    assert "12000 characters in all" in run.data.tags["story"]
    assert set(run.data.metrics) == {"loss_0_", "up/x"}
    assert "'loss[0]' shown as 'loss_0_'" in "\n".join(report.runs[0].notes)


def test_the_experiment_says_what_it_is_for_and_a_person_may_say_otherwise(
    store: Any, tmp_path: Path
) -> None:
    begin(tmp_path / "a", experiment=tracked.DATA).end("FINISHED")
    ship(tmp_path, store.uri)
    experiment = store.client.get_experiment_by_name(tracked.DATA)
    assert views.EXPERIMENTS[tracked.DATA] in experiment.tags["mlflow.note.content"]
    view = json.loads(experiment.tags["mlflow.sharedViewState.stack"])
    assert "metrics.`final_episodes`" in view["selectedColumns"]
    store.client.set_experiment_tag(experiment.experiment_id, "mlflow.note.content", "ours")
    begin(tmp_path / "b", experiment=tracked.DATA).end("FINISHED")
    ship(tmp_path, store.uri)
    assert store.client.get_experiment_by_name(tracked.DATA).tags["mlflow.note.content"] == "ours"


def test_a_copied_folder_ships_as_the_same_run(store: Any, tmp_path: Path) -> None:
    journal = whole_run(tmp_path / "here" / "run")
    ship(tmp_path / "here", store.uri)
    before = store.all_of(journal.run_id)
    shutil.copytree(tmp_path / "here", tmp_path / "there")
    (tmp_path / "there" / "run" / ".shipped.json").unlink()
    ship(tmp_path / "there", store.uri)
    assert store.all_of(journal.run_id) == before
    with pytest.raises(BadRequest, match="two journals are of the same run"):
        ship(tmp_path, store.uri)


@pytest.mark.parametrize("moment", ["_wait_for_health", "set_status"])
def test_a_stage_that_is_renamed_meanwhile_is_found_by_the_next_call(
    store: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    journal = whole_run(tmp_path / ".stage.partial-1")
    real = getattr(Remote, moment)

    def renaming(*args: Any) -> Any:
        (tmp_path / ".stage.partial-1").rename(tmp_path / "stage")
        return real(*args)

    monkeypatch.setattr(Remote, moment, renaming)
    said: list[str] = []
    ship(tmp_path, store.uri, log=said.append)
    monkeypatch.undo()
    assert [path.name for path in tmp_path.iterdir()] == ["stage"]
    assert any("meanwhile" in line for line in said) == (moment == "_wait_for_health")
    ship(tmp_path, store.uri)
    run = store.run(journal.run_id)
    assert store.rows(run.info.run_id) == store.written(tmp_path / "stage" / JOURNAL)
    assert store.files(run.info.run_id) == ["events.json", "provenance/manifest.json", "verdict.html"]


def test_a_server_that_is_away_is_named_in_seconds_and_nothing_is_lost(tmp_path: Path) -> None:
    whole_run(tmp_path / "run", steps=1)
    content = (tmp_path / "run" / JOURNAL).read_bytes()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: refuses every connection
        uri = f"http://127.0.0.1:{taken.getsockname()[1]}"
        started = time.monotonic()
        with pytest.raises(NotAble, match="does not answer") as away:
            ship(tmp_path, uri)
    assert time.monotonic() - started < 10
    assert uri in str(away.value)
    assert (tmp_path / "run" / JOURNAL).read_bytes() == content
    assert not (tmp_path / "run" / ".shipped.json").exists()


def test_requests_that_are_wrong_say_what_to_do(store: Any, tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match="not there"):
        ship(tmp_path / "none", store.uri)
    with pytest.raises(BadRequest, match="nothing to ship"):
        ship(tmp_path, store.uri)
    whole_run(tmp_path / "run", steps=1)
    with pytest.raises(BadRequest, match="not the address"):
        ship(tmp_path, "localhost:5000")
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / JOURNAL).write_text("not json\n")
    with pytest.raises(BadRequest, match="names its run"):
        ship(tmp_path / "bad", store.uri)


class Refusing(http.server.BaseHTTPRequestHandler):
    """Healthy, and forbids everything else, as a server does whose allowed hosts lack the name used."""

    asked: list[str] = []  # noqa: RUF012

    def do_GET(self) -> None:
        self.asked.append(self.path)
        self.send_response(200 if self.path == "/health" else 403)
        self.end_headers()
        self.wfile.write(b"OK" if self.path == "/health" else b"Invalid Host header")

    do_POST = do_GET

    def log_message(self, *args: Any) -> None:
        pass


def test_a_refusal_is_told_with_the_servers_words_and_not_tried_again(tmp_path: Path) -> None:
    whole_run(tmp_path / "run", steps=1)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Refusing) as refusing:
        threading.Thread(target=refusing.serve_forever, daemon=True).start()
        with pytest.raises(NotAble, match=r"refused a request.*Invalid Host header"):
            ship(tmp_path, f"http://127.0.0.1:{refusing.server_address[1]}")
        refusing.shutdown()
    assert len([path for path in Refusing.asked if path != "/health"]) == 1


def _wait_for(condition: Any, limit_s: float = 20.0) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


def about_to_end(folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Journal, Callable[[], None]]:
    """A journal, and what makes its writer go on, end and be gone."""
    from stack.tracking import replay

    journal = begin(folder)
    journal.metrics({"train/loss": 1.0}, step=1)
    gone: list[bool] = []

    def last_words() -> None:
        if not gone:
            journal.metrics({"train/loss": 0.5}, step=2)
            journal.end("FINISHED")
            gone.append(True)

    monkeypatch.setattr(replay, "lives", lambda *_, **__: not gone)
    return journal, last_words


def test_a_writer_that_ends_after_it_was_read_is_not_taken_for_killed(
    store: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from stack.tracking.remote import Remote

    journal, last_words = about_to_end(tmp_path / "run", monkeypatch)
    find = Remote.find_attempts

    def slowly(self: Remote, run_id: str) -> Any:
        last_words()  # the journal was read before the server is asked
        return find(self, run_id)

    monkeypatch.setattr(Remote, "find_attempts", slowly)
    report = follow(tmp_path, store.uri, every_s=0.1)

    run = store.run(journal.run_id)
    assert report is not None and report.runs[0].status == run.info.status == "FINISHED"
    assert store.rows(run.info.run_id) == store.written(tmp_path / "run" / JOURNAL)
    assert len(store.rows(run.info.run_id)) == 2


def test_a_report_does_not_call_such_a_run_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from stack.tracking import replay
    from stack.tracking.record_read import read_run

    _, last_words = about_to_end(tmp_path / "run", monkeypatch)
    told = replay.lives

    def lives(*given: Any, **more: Any) -> bool:
        last_words()
        return told(*given, **more)

    monkeypatch.setattr(replay, "lives", lives)
    assert read_run(tmp_path / "run").said.status == "FINISHED"


def test_a_first_line_of_a_hundred_kilobytes_ships(tmp_path: Path, store: Any) -> None:
    """Only the beginning of a journal is read for what its run is; a description may be longer than that."""
    journal = Journal(tmp_path / "run", name="long", experiment=tracked.TRAIN, description="word " * 20_000)
    journal.metrics({"train/loss": 1.0}, step=1)
    journal.end("FINISHED")
    journal.close()
    (run,) = ship(tmp_path / "run", store.uri).runs
    assert (run.status, run.points_sent) == ("FINISHED", 1)
