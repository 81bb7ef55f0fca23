"""One real tracking server for the room, and ways to read back what it has."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stack.tracking import Server


class Store:
    """Reads back through MLflow's client, and past it, from the database."""

    def __init__(self, server: Server) -> None:
        from mlflow.tracking import MlflowClient

        self.server = server
        self.uri = server.uri
        self.client = MlflowClient(server.uri)

    def runs(self, run_id: str) -> list[Any]:
        ids = [experiment.experiment_id for experiment in self.client.search_experiments()]
        return list(self.client.search_runs(ids, f"tags.`stack.run_id` = '{run_id}'"))

    def run(self, run_id: str) -> Any:
        """The run of the newest attempt; one run an attempt, or this fails."""
        attempts = self.attempts(run_id)
        return attempts[max(attempts)]

    def attempts(self, run_id: str) -> dict[int, Any]:
        found = self.runs(run_id)
        by_number = {int(run.data.tags["stack.attempt"]): run for run in found}
        assert len(by_number) == len(found), "two runs for one attempt"
        return by_number

    def rows(self, mlflow_run_id: str) -> list[tuple[str, int, int, float]]:
        """Every stored point: (key, step, time, value), sorted; doubles would show."""
        with sqlite3.connect(f"file:{self.server.store / 'mlflow.db'}?mode=ro", uri=True) as database:
            query = "SELECT key, step, timestamp, value FROM metrics WHERE run_uuid = ?"
            return sorted(database.execute(query, (mlflow_run_id,)).fetchall())

    @staticmethod
    def written(journal: Path) -> list[tuple[str, int, int, float]]:
        """The points that a journal's own lines hold, read without the room's code."""
        points = []
        for line in journal.read_text().splitlines():
            record = json.loads(line)
            if record["kind"] == "metrics":
                points += [(key, record["step"], record["t"], v) for key, v in record["metrics"].items()]
        return sorted(points)

    @staticmethod
    def shown(journal: Path) -> list[tuple[str, int, int, float]]:
        """The points of a journal that a server is to have, by the rule's words, without the room's code.

        The first 500 of a curve, every second of the next 500, every fourth of the next 1,000, ...; and the
        last.
        """
        curves: dict[str, list[tuple[str, int, int, float]]] = {}
        for line in journal.read_text().splitlines():
            record = json.loads(line)
            for key, value in record["metrics"].items() if record["kind"] == "metrics" else ():
                curves.setdefault(key, []).append((key, record["step"], record["t"], value))
        points: set[tuple[str, int, int, float]] = set()
        for curve in curves.values():
            points |= {*curve[:500], curve[-1]}
            begin, every = 500, 2
            while begin < len(curve):
                points |= set(curve[begin : 2 * begin : every])
                begin, every = 2 * begin, 2 * every
        return sorted(points)

    def all_of(self, run_id: str) -> dict[str, Any]:
        """What a person or a program can see of a run, without the shipper's own accounts."""
        run = self.run(run_id)
        inputs = run.inputs.dataset_inputs
        return {
            "id": run.info.run_id,
            "info": (run.info.run_name, run.info.status, run.info.start_time, run.info.end_time),
            "params": run.data.params,
            "tags": run.data.tags,
            "rows": self.rows(run.info.run_id),
            "inputs": sorted((i.dataset.name, i.dataset.digest, i.dataset.profile) for i in inputs),
            "artifacts": {path: self.artifact(run.info.run_id, path) for path in self.files(run.info.run_id)},
        }

    def files(self, mlflow_run_id: str, folder: str = "") -> list[str]:
        found: list[str] = []
        for item in self.client.list_artifacts(mlflow_run_id, folder):
            found += self.files(mlflow_run_id, item.path) if item.is_dir else [item.path]
        return sorted(found)

    def artifact(self, mlflow_run_id: str, path: str) -> bytes:
        return Path(self.client.download_artifacts(mlflow_run_id, path)).read_bytes()


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with Server.start(tmp_path_factory.mktemp("tracking") / "store") as server:
        yield Store(server)


@pytest.fixture(autouse=True)
def _quick_tries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stack.tracking.remote.WAIT_S", 0.05)
