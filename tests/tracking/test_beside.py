"""A shipper beside a run: passes that ask only for what is new, and give way to the training."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import threading
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from stack.errors import NotAble
from stack.tracking import Journal, Server, follow, names, ship
from stack.tracking.priority import step_back
from stack.tracking.remote import Remote
from stack.tracking.shipping import Passes


class Counted:
    """Requests of a shipper, by the function of MLflow's client that asks."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[str] = []
        call = Remote.call

        def counting(remote: Remote, function: Any, *args: Any, **options: Any) -> Any:
            self.asked.append(function.__name__)
            return call(remote, function, *args, **options)

        monkeypatch.setattr(Remote, "call", counting)

    def take(self) -> list[str]:
        taken, self.asked = self.asked, []
        return taken


def test_a_pass_asks_nothing_about_journals_that_did_not_change(
    store: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted, passes = Counted(monkeypatch), Passes()
    sweep = Journal(tmp_path / "sweep", name="sweep", experiment=names.SWEEP)
    for number in range(6):
        point = Journal(tmp_path / f"p{number}", name="p", experiment=names.SWEEP, parent=sweep.run_id)
        point.end("FINISHED")
    first = ship(tmp_path, store.uri, passes=passes)
    assert len(counted.take()) > 20
    again = ship(tmp_path, store.uri, passes=passes)
    assert counted.take() == []
    assert again.runs == tuple(first.runs) and again.is_running
    sweep.metrics({"final_points_ok": 6.0}, step=0)
    assert ship(tmp_path, store.uri, passes=passes).points_sent == 1
    assert 0 < len(counted.take()) < 8
    sweep.end("FINISHED")
    last = ship(tmp_path, store.uri, passes=passes)
    assert {run.status for run in last.runs} == {"FINISHED"}
    assert store.run(sweep.run_id).info.status == "FINISHED"


def test_a_writer_that_dies_in_silence_is_noticed(store: Any, tmp_path: Path) -> None:
    passes = Passes()
    code = (
        "import sys\nfrom pathlib import Path\nfrom stack.tracking import Journal\n"
        "j = Journal(Path(sys.argv[1]), name='dies', experiment='stack/train')\n"
        "print(j.run_id, flush=True)\nsys.stdin.read()\n"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "run")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with child:
        assert child.stdout is not None
        run_id = child.stdout.readline().strip()
        assert ship(tmp_path, store.uri, passes=passes).is_running
        assert ship(tmp_path, store.uri, passes=passes).is_running
        child.kill()
        child.wait()
        assert not ship(tmp_path, store.uri, passes=passes).is_running
    assert store.run(run_id).info.status == "KILLED"


def test_children_follow_to_the_next_attempt_of_their_parent_though_they_did_not_change(
    store: Any, tmp_path: Path
) -> None:
    passes = Passes()
    top = Journal(tmp_path / "top", name="chain", experiment=names.REPRODUCE)
    child = Journal(tmp_path / "child", name="data", experiment=names.DATA, parent=top.run_id)
    child.end("FINISHED")
    ship(tmp_path, store.uri, passes=passes)
    Journal(tmp_path / "top", name="chain", experiment=names.REPRODUCE)
    ship(tmp_path, store.uri, passes=passes)
    newest = store.run(top.run_id)
    assert newest.data.tags["stack.attempt"] == "2"
    assert store.run(child.run_id).data.tags["mlflow.parentRunId"] == newest.info.run_id


def test_what_only_the_server_knows_is_mended_by_the_last_pass(
    store: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tag changed behind the shipper's back, and a chain's verdict that comes after the training."""
    monkeypatch.setattr(importlib.import_module("stack.tracking.shipping"), "FOLLOW_SHARE", 0)
    top = Journal(tmp_path / "top", name="chain", experiment=names.REPRODUCE)
    train = Journal(tmp_path / "train", name="train", experiment=names.TRAIN, parent=top.run_id)
    train.metrics({names.LOSS: 1.0}, step=1)
    train.end("FINISHED")

    def meanwhile() -> bool:
        if store.run(train.run_id).data.tags[names.OUTCOME] == "ok":
            store.client.set_tag(store.run(train.run_id).info.run_id, names.OUTCOME, "wrong")
            top.tags({names.VERDICT: "within-band"})
            top.end("FINISHED")
        return False

    report = follow(tmp_path, store.uri, every_s=0.01, is_over=meanwhile)
    assert report is not None and not report.is_running
    tags = store.run(train.run_id).data.tags
    assert (tags[names.OUTCOME], tags[names.VERDICT]) == ("ok", "within-band")


def test_after_an_error_everything_is_asked_for_again(
    store: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    passes = Passes()
    ended = Journal(tmp_path / "ended", name="ended", experiment=names.TRAIN)
    ended.end("FINISHED")
    journal = Journal(tmp_path / "run", name="run", experiment=names.TRAIN)
    ship(tmp_path, store.uri, passes=passes)
    journal.metrics({names.LOSS: 1.0}, step=1)

    def refuse(*args: Any) -> None:
        raise NotAble("track-refused", "no")

    with monkeypatch.context() as patched, pytest.raises(NotAble):
        patched.setattr(Remote, "log_points", refuse)
        ship(tmp_path, store.uri, passes=passes)
    assert passes.seen == {} and passes.remote is None
    store.client.set_tag(store.run(ended.run_id).info.run_id, names.OUTCOME, "wrong")
    ship(tmp_path, store.uri, passes=passes)
    assert store.run(ended.run_id).data.tags[names.OUTCOME] == "ok"
    assert store.rows(store.run(journal.run_id).info.run_id) == store.written(tmp_path / "run/journal.jsonl")


def test_a_thread_that_steps_back_does_so_alone_and_what_it_starts_follows() -> None:
    before, values = os.getpriority(os.PRIO_PROCESS, 0), []

    def niceness() -> int:
        return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    def work() -> None:
        step_back(19)
        values.append(niceness())
        inner = threading.Thread(target=lambda: values.append(niceness()))
        inner.start()
        inner.join()

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert values == [19, 19]
    assert os.getpriority(os.PRIO_PROCESS, 0) == before


def test_a_server_beside_a_training_gives_way_with_all_its_threads(tmp_path: Path) -> None:
    with Server.start(tmp_path / "store", is_beside=True) as server:
        with urllib.request.urlopen(f"{server.uri}/health", timeout=30) as answer:
            assert answer.status == 200
        tasks = list(Path(f"/proc/{server.pid}/task").iterdir())
        # proc(5), /proc/pid/stat, field 19.
        nices = {int((t / "stat").read_text().rpartition(")")[2].split()[16]) for t in tasks}
    assert nices == {19} and len(tasks) > 1
