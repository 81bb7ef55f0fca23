"""Canaries: what stands in the environment, in texts of a manifest or in an address never gets out."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from stack.errors import BadRequest
from stack.tracking import Journal, ship
from stack.tracking import names as tracked
from stack.tracking.record_read import read_run
from stack.tracking.remote import Remote
from stack.tracking.report import report_page
from stack.tracking.secrets import holds_secret, redacted

CANARY, LOGIN = "canary-4f1c9e77", "bird-77ac01"


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SITE_API_TOKEN", "DB_PASSWORD", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, f"{CANARY}-{name.lower()}")


def texts() -> dict[str, str]:
    return {
        "of the environment": f"failed with {CANARY}-db_password in it",
        "an address": f"https://ops:{LOGIN}@mirror.example:8443/models?x=1",
        "two addresses": f"from s3://key:{LOGIN}@a/b to http://{LOGIN}@c/d",
    }


def test_nothing_secret_reaches_journal_log_server_or_page(
    environment: None, store: Any, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    journal = Journal(
        folder, name="n", experiment=tracked.TRAIN, tags=texts(), description=texts()["an address"]
    )
    journal.params(texts())
    journal.tags(texts())
    journal.event("error", what=texts()["of the environment"], nested={"deep": [texts()["an address"]]})
    journal.dataset(
        name="d", digest="0" * 64, source=texts()["an address"], context="training", profile=texts()
    )
    journal.model(name="m", roles=["last"], step=1, path=texts()["an address"], size_bytes=1, sha256="1" * 64)
    (folder / "result.json").write_text(json.dumps(texts()))
    (folder / "clean.json").write_text("{}")
    journal.artifact(folder / "result.json")
    journal.artifact(folder / "clean.json")
    journal.end("FINISHED")
    (folder / "run.json").write_text(json.dumps(texts()))
    said: list[str] = []
    report = ship(folder, store.uri, log=said.append)

    everything = [(folder / "journal.jsonl").read_text(), "\n".join(said), report_page(read_run(folder))]
    everything += [path.read_text() for path in folder.glob(".shipped.json")]
    everything += [content.decode() for content in store.all_of(journal.run_id)["artifacts"].values()]
    with sqlite3.connect(store.server.store / "mlflow.db") as database:
        everything.append("\n".join(database.iterdump()))
    everything.append((store.server.store / "server.log").read_text())
    for text in everything:
        assert CANARY not in text and LOGIN not in text
    assert "mirror.example:8443/models" in everything[0], "what is no secret stays"
    assert store.files(store.run(journal.run_id).info.run_id)[-1] == "events.json"
    assert "result.json: holds a login or a secret" in "\n".join(report.runs[0].notes)


def test_a_login_in_the_servers_address_is_refused_and_never_said(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "run", name="n", experiment=tracked.TRAIN)
    journal.end("FINISHED")
    for scheme in ("http", "ftp"):
        with pytest.raises(BadRequest) as refused:
            Remote(f"{scheme}://ops:{LOGIN}@127.0.0.1:9")
        assert refused.value.id == "track-login-in-address"
        assert LOGIN not in f"{refused.value}"
        with pytest.raises(BadRequest):
            ship(tmp_path, f"{scheme}://ops:{LOGIN}@127.0.0.1:9")


def test_ordinary_texts_stay_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")
    monkeypatch.setenv("USE_API_KEY", "true")
    monkeypatch.setenv("SECRET_FILE", "/run/secrets/site")
    plain = {
        "a": "false", "b": "true", "c": "see /run/secrets/site", "d": "http://127.0.0.1:5000/#/a@b",
        "e": "mail to ops@example.org", "f": ["任务", 1, None, 2.5],
    }  # fmt: skip
    assert redacted(plain) == plain


def test_files_that_are_no_text_are_not_looked_into(environment: None, tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(f"{CANARY}-db_password".encode())
    (tmp_path / "a.json").write_bytes(f"\xff {CANARY}-db_password".encode("latin-1"))
    assert not holds_secret(tmp_path / "a.png") and holds_secret(tmp_path / "a.json")


def test_the_environment_of_the_command_line_stays_out_of_its_words(
    environment: None, store: Any, tmp_path: Path
) -> None:
    journal = Journal(tmp_path / "run", name="n", experiment=tracked.TRAIN)
    journal.end("FINISHED")
    address = store.uri.replace("127.0.0.1", "localhost")
    command = [sys.executable, "-m", "stack", "track", "ship", str(tmp_path), "--server", address]
    login = {"MLFLOW_TRACKING_USERNAME": "ops", "MLFLOW_TRACKING_PASSWORD": LOGIN}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env={**os.environ, **login})
    assert done.returncode == 0, done.stderr
    assert LOGIN not in done.stdout + done.stderr and CANARY not in done.stdout + done.stderr
