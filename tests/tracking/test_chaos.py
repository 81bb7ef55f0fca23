"""Trainer, shipper and server are killed at random; in the end the server has the journal, once and in order.

A fake trainer writes a real journal as fast as a short training would and, killed, is started again from its
last checkpoint; a real shipper follows it; a real server stands behind. Few kills in CI; STACK_LONG=1:
thirty.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stack.tracking import Server, ship
from stack.tracking.journal import JOURNAL

IS_LONG = bool(os.environ.get("STACK_LONG"))
KILLS = 30 if IS_LONG else 4
STEPS, STEP_S = (480, 0.5) if IS_LONG else (150, 0.08)  # below 500 points nothing is thinned
SAVE_EVERY = 20
TRAINER = f"""
import sys, time
from pathlib import Path
from stack.tracking.journal import Journal, read_journal
folder, steps, step_s = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
events = [r for r in read_journal(folder / "journal.jsonl") if r.get("event") == "checkpoint"]
start = events[-1]["step"] if events else 0
journal = Journal(folder, name="chaos", experiment="stack/train")
journal.params({{"train.steps": steps, "attempt_from": start}})
if journal.is_continued:
    journal.resumed(start)
for step in range(start + 1, steps + 1):
    journal.metrics({{"train/loss": 1 / step, "perf/step_s": time.time() % 1}}, step=step)
    if step % {SAVE_EVERY} == 0:
        journal.event("checkpoint", step=step)
    time.sleep(step_s)
journal.end("FINISHED")
"""
SHIPPER = """
import importlib, sys
from pathlib import Path
from stack.tracking import remote
module = importlib.import_module("stack.tracking.shipping")
remote.WAIT_S, remote.TRIES, module.FOLLOW_SHARE = 0.05, 2, 0
module.follow(Path(sys.argv[1]), sys.argv[2], every_s=0.2)
"""


class Actors:
    """The three processes, each started again after it was killed."""

    def __init__(self, root: Path) -> None:
        self.store, self.folder = root / "store", root / "runs"
        self.folder.mkdir()
        self.server = Server.start(self.store)
        self.port = int(self.server.uri.rsplit(":", 1)[1])
        self.trainer: subprocess.Popen[bytes] | None = None
        self.shipper: subprocess.Popen[bytes] | None = None
        self.start("trainer")
        self.start("shipper")

    def start(self, who: str) -> None:
        if who == "server":
            self.server = Server.start(self.store, port=self.port)
        elif who == "trainer":
            command = [sys.executable, "-c", TRAINER, str(self.folder / "run"), str(STEPS), str(STEP_S)]
            self.trainer = subprocess.Popen(command)
        else:
            command = [sys.executable, "-c", SHIPPER, str(self.folder), self.server.uri]
            self.shipper = subprocess.Popen(command)

    def kill(self, who: str) -> None:
        if who == "server":
            os.killpg(self.server.pid, signal.SIGKILL)
            self.server.stop()
            return
        child = self.trainer if who == "trainer" else self.shipper
        assert child is not None
        child.kill()
        child.wait()

    def end(self) -> None:
        for child in (self.trainer, self.shipper):
            if child is not None and child.poll() is None:
                child.kill()
                child.wait()
        self.server.stop()


def expected(journal: Path) -> dict[int, list[tuple[str, int, float]]]:
    """The curves of each attempt, by the rule's words: those before a resume up to its step, then its own."""
    attempts: dict[int, list[tuple[str, int, float]]] = {}
    for line in journal.read_text().splitlines():
        try:
            record = json.loads(line)
        except ValueError:
            continue  # cut by a kill
        if record["kind"] in ("run", "attempt"):
            attempts[len(attempts) + 1] = []
        elif record["kind"] == "resume":
            before = attempts[len(attempts) - 1]
            attempts[len(attempts)] = [point for point in before if point[1] <= record["step"]]
        elif record["kind"] == "metrics":
            attempts[len(attempts)] += [(k, record["step"], v) for k, v in record["metrics"].items()]
    return attempts


def test_random_kills_lose_nothing_and_double_nothing(tmp_path: Path, store: Any) -> None:
    rng = random.Random(int(os.environ.get("STACK_CHAOS_SEED", "6")))
    actors = Actors(tmp_path)
    whom = [rng.choice(("trainer", "shipper", "server")) for _ in range(KILLS - 3)]
    whom += ["shipper", "server"]  # each at least once
    rng.shuffle(whom)
    whom.insert(0, "trainer")  # while it certainly runs
    journal, killed = actors.folder / "run" / JOURNAL, list[str]()
    try:
        for who in whom:
            time.sleep(rng.uniform(0.2, 1.5))
            if who == "trainer" and actors.trainer is not None and actors.trainer.poll() is not None:
                who = "shipper"  # the trainer has finished its steps before its time
            if who == "trainer":
                begun = 1 + killed.count("trainer")
                _wait_for(lambda n=begun: journal.exists() and len(expected(journal)) == n)
            actors.kill(who)
            killed.append(who)
            time.sleep(rng.uniform(0.0, 0.5))
            actors.start(who)
        assert actors.trainer is not None and actors.shipper is not None
        actors.trainer.wait(timeout=300)
        if actors.shipper.poll() is not None:
            actors.start("shipper")  # it found the trainer killed, and its work done
        actors.shipper.wait(timeout=300)
        there = type(store)(actors.server)
        run_id = json.loads(journal.read_text().splitlines()[0])["run_id"]
        wanted = expected(journal)
        seen = there.attempts(run_id)
        assert set(seen) == set(wanted)
        assert len(killed) == KILLS and len(wanted) == 1 + killed.count("trainer") > 1
        for number, run in seen.items():
            rows = [(key, step, value) for key, step, _, value in there.rows(run.info.run_id)]
            assert rows == sorted(wanted[number]), f"attempt {number}"
            assert run.info.status == ("FINISHED" if number == len(wanted) else "KILLED")
            assert run.data.tags["stack.outcome"] == ("ok" if number == len(wanted) else "killed")
        assert ship(actors.folder, actors.server.uri).points_sent == 0
    finally:
        actors.end()


def _wait_for(condition: Callable[[], bool], limit_s: float = 120.0) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.05)


def test_a_trainer_that_is_never_started_again_does_not_run_for_ever(tmp_path: Path, store: Any) -> None:
    command = [sys.executable, "-c", TRAINER, str(tmp_path / "run"), "100000", "0.01"]
    trainer = subprocess.Popen(command)
    follower = subprocess.Popen([sys.executable, "-c", SHIPPER, str(tmp_path), store.uri])
    try:
        journal = tmp_path / "run" / JOURNAL
        _wait_for(lambda: journal.exists() and journal.read_bytes().count(b"\n") > 30)
        trainer.kill()
        trainer.wait()
        assert follower.wait(timeout=120) == 0, "a shipper beside a dead run ends by itself"
    finally:
        for child in (trainer, follower):
            child.kill()
            child.wait()
    run = store.run(json.loads(journal.read_text().splitlines()[0])["run_id"])
    assert (run.info.status, run.data.tags["stack.outcome"]) == ("KILLED", "killed")
