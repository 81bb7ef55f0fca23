"""The local server: started, shared, replaced, refused, and gone when it should be."""

from __future__ import annotations

import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from stack.errors import BadRequest, Exit, NotAble
from stack.tracking import Server
from stack.tracking.site.asking import Target
from stack.tracking.site.check import check_server


def answers(uri: str) -> bool:
    try:
        with urllib.request.urlopen(f"{uri}/health", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def test_a_second_start_takes_the_running_server_and_does_not_end_it(store: Any) -> None:
    with Server.start(store.server.store) as second:
        assert (second.uri, second.pid, second.started_here) == (store.uri, store.server.pid, False)
    assert answers(store.uri)
    assert store.server.started_here


def test_a_second_server_over_the_same_store_is_refused_even_where_its_state_was_lost(store: Any) -> None:
    state = store.server.store / "server.json"
    kept = state.read_text()
    state.unlink()
    try:
        with pytest.raises(NotAble, match="works at this store") as refused:
            Server.start(store.server.store)
    finally:
        state.write_text(kept)
    assert f"process {store.server.pid}" in str(refused.value)
    assert answers(store.uri)


def test_the_check_of_a_site_finds_nothing_wrong_here_either(store: Any) -> None:
    found = {checked.name: checked.is_good for checked in check_server(Target.parse(store.uri))}
    assert found.pop("artifacts") is not None  # other tests make experiments of any kind
    assert found == dict.fromkeys(
        ["answers", "certificate", "name", "login", "pages", "foreign names", "as a user"], True
    )


def test_readers_do_not_wait_for_a_writer(store: Any) -> None:
    with sqlite3.connect(f"file:{store.server.store / 'mlflow.db'}?mode=ro", uri=True) as database:
        assert database.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_it_listens_on_loopback_only_and_refuses_foreign_hosts(store: Any) -> None:
    port = int(store.uri.rsplit(":", 1)[1])
    listening = [
        line.split()[1]
        for line in Path("/proc/net/tcp").read_text().splitlines()[1:]
        if line.split()[3] == "0A" and int(line.split()[1].rsplit(":", 1)[1], 16) == port
    ]
    assert listening == [f"0100007F:{port:04X}"]
    for host, code in ((f"localhost:{port}", 200), (f"127.0.0.1:{port}", 200), ("10.0.0.1", 403)):
        assert _status(f"{store.uri}/api/2.0/mlflow/experiments/search?max_results=1", host) == code


def test_artifacts_go_through_the_server(store: Any, tmp_path: Path) -> None:
    run = store.client.create_run("0")
    assert run.info.artifact_uri.startswith("mlflow-artifacts:/")
    (tmp_path / "note.txt").write_text("through the server")
    store.client.log_artifact(run.info.run_id, str(tmp_path / "note.txt"))
    (stored,) = (store.server.store / "artifacts").rglob("note.txt")
    assert stored.read_text() == "through the server"


def test_a_taken_port_is_told_at_once(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        started = time.monotonic()
        with pytest.raises(NotAble, match=f"port {port}") as refused:
            Server.start(tmp_path, port=port)
    assert time.monotonic() - started < 2
    assert refused.value.exit is Exit.NOT_ABLE
    with pytest.raises(NotAble, match="port 99999"):
        Server.start(tmp_path, port=99999)


def test_a_server_that_cannot_start_says_what_its_log_says(tmp_path: Path) -> None:
    (tmp_path / "mlflow.db").write_bytes(b"this is not a database, and long enough to be looked at" * 50)
    with pytest.raises(NotAble, match="file is not a database"):
        Server.start(tmp_path)
    assert not (tmp_path / "server.json").exists()
    (tmp_path / "file").write_text("")
    with pytest.raises(BadRequest, match="not a folder"):
        Server.start(tmp_path / "file")


SERVE = """
import sys
from pathlib import Path
from stack.tracking import serve
serve(Path(sys.argv[1]), log=lambda line: print(line, flush=True))
"""


def test_serve_replaces_a_stale_state_and_ends_cleanly_on_interrupt(tmp_path: Path) -> None:
    # A pid that lives, but was started at another time: the pid was used again after a reboot.
    stale = {"pid": os.getpid(), "started": 1, "uri": "http://127.0.0.1:9"}
    (tmp_path / "server.json").write_text(json.dumps(stale))
    child = subprocess.Popen([sys.executable, "-c", SERVE, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    try:
        lines = [child.stdout.readline(), child.stdout.readline()]
        state = json.loads((tmp_path / "server.json").read_text())
        assert state["uri"] in lines[1]
        assert answers(state["uri"])
    finally:
        child.send_signal(signal.SIGINT)
        rest = child.communicate(timeout=30)[0]
    assert (child.returncode, rest) == (0, "tracking server stopped\n")
    assert not answers(state["uri"])
    assert not (tmp_path / "server.json").exists()


START = """
import sys, time
from pathlib import Path
from stack.tracking import Server
from stack.tracking.site.asking import Target
from stack.tracking.site.check import check_server
print(Server.start(Path(sys.argv[1])).uri, flush=True)
time.sleep(600)
"""


def test_the_server_of_a_killed_process_ends_too(tmp_path: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", START, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    uri = child.stdout.readline().strip()
    assert answers(uri)
    child.kill()
    child.communicate()
    deadline = time.monotonic() + 15
    while answers(uri):
        assert time.monotonic() < deadline, "the server outlived its parent"
        time.sleep(0.1)


def test_a_kill_while_the_tables_are_made_costs_nothing(tmp_path: Path) -> None:
    """MLflow makes its tables in many steps, and never again opens a database that has only some of them."""
    code = (
        "import os, sys, threading, time, pathlib\n"
        "from stack.tracking import Server\n"
        "store = pathlib.Path(sys.argv[1])\n"
        "threading.Thread(target=Server.start, args=(store,), daemon=True).start()\n"
        "while not (store / 'mlflow.db').exists() or (store / 'mlflow.db').stat().st_size < 40_000:\n"
        "    time.sleep(0.01)\n"
        "os._exit(9)\n"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], timeout=120)
    lines: list[str] = []
    with Server.start(tmp_path, log=lines.append) as server:
        assert answers(server.uri)
    assert any("set aside" in line for line in lines)


def test_a_database_with_runs_is_never_set_aside(tmp_path: Path) -> None:
    from stack.tracking.server import _set_half_made_aside

    with sqlite3.connect(tmp_path / "mlflow.db") as db:
        db.execute("create table runs (id text)")
        db.execute("insert into runs values ('one')")
    _set_half_made_aside(tmp_path, print)
    assert (tmp_path / "mlflow.db").exists()
    with sqlite3.connect(tmp_path / "mlflow.db") as db:
        db.execute("delete from runs")
    _set_half_made_aside(tmp_path, print)
    assert not (tmp_path / "mlflow.db").exists() and list(tmp_path.glob("mlflow.db.half-made-*"))


def _status(url: str, host: str) -> int:
    request = urllib.request.Request(url, headers={"Host": host})
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code
