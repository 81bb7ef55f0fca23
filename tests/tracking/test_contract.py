"""What a site's server may do to a shipper: be away, answer errors, be slow, refuse, keep files elsewhere."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from stack.errors import BadRequest, NotAble
from stack.tracking import Journal, Server, follow, ship
from stack.tracking import names as tracked
from stack.tracking.journal import JOURNAL

Answer = Callable[[int, str], "int | None"]


def run_of(folder: Path, steps: int = 30) -> Journal:
    journal = Journal(folder, name=folder.name, experiment=tracked.TRAIN)
    journal.params({"lr": 0.1})
    for step in range(steps):
        journal.metrics({f"train/m{number}": step + number / 10 for number in range(5)}, step=step)
    (folder / "report.html").write_text("<h1>report</h1>")
    journal.artifact(folder / "report.html")
    journal.end("FINISHED")
    journal.close()
    return journal


@contextlib.contextmanager
def proxy(server: str, answer: Answer, *, name: str | None = None) -> Iterator[str]:
    """A proxy on loopback that passes requests on, unless `answer(number, path)` gives a status instead.

    A status below 0 passes the request on and then drops the connection: the work is done, the answer lost.
    `name` is what the server is asked as.
    """
    host = urlsplit(server).netloc
    numbers = iter(range(10**9))

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _any(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            status = None if self.path == "/health" else answer(next(numbers), self.path)
            if status is not None and status > 0:
                self._give(status, b"the proxy says no", "text/plain")
                return
            upstream = http.client.HTTPConnection(host, timeout=60)
            kept = {k: v for k, v in self.headers.items() if k.lower() not in ("host", "connection")}
            upstream.request(self.command, self.path, body, {**kept, "Host": name or host})
            got = upstream.getresponse()
            content = got.read()
            upstream.close()
            if status is not None:
                self.close_connection = True
                self.connection.close()
                return
            self._give(got.status, content, got.headers.get("Content-Type", "application/json"))

        def _give(self, status: int, content: bytes, kind: str) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            with contextlib.suppress(OSError):
                self.wfile.write(content)

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _any

        def log_message(self, *args: Any) -> None:
            pass

    class Quiet(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: Any, client_address: Any) -> None:
            pass

    with Quiet(("127.0.0.1", 0), Handler) as serving:
        threading.Thread(target=serving.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{serving.server_address[1]}"
        serving.shutdown()


def in_a_process(folder: Path, server: str, *, timeout_s: float = 1.0) -> subprocess.CompletedProcess[str]:
    """Ship in a process of its own: MLflow's client keeps one artifact repository a process."""
    code = (
        "import importlib, sys\nfrom pathlib import Path\nfrom stack.errors import StackError\n"
        "from stack.tracking import remote\nmodule = importlib.import_module('stack.tracking.shipping')\n"
        f"remote.WAIT_S, remote.TIMEOUT_S = 0.05, {timeout_s}\n"
        "try:\n    module.ship(Path(sys.argv[1]), sys.argv[2])\n"
        "except StackError as error:\n    print(error); sys.exit(int(error.exit))\n"
    )
    command = [sys.executable, "-c", code, str(folder), server]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


def is_all_there(store: Any, journal: Journal) -> None:
    run = store.run(journal.run_id)
    assert store.rows(run.info.run_id) == store.written(journal.folder / JOURNAL)
    assert (run.info.status, run.data.params) == ("FINISHED", {"lr": "0.1"})
    assert store.artifact(run.info.run_id, "report.html") == b"<h1>report</h1>"


@pytest.mark.parametrize("fault", ["every third answer is 503", "every fourth answer is lost"])
def test_a_server_that_fails_now_and_then_gets_everything_once(
    store: Any, tmp_path: Path, fault: str
) -> None:
    journal = run_of(tmp_path / "run")
    every, status = (3, 503) if "503" in fault else (4, -1)
    with proxy(store.uri, lambda number, path: status if number % every == 2 else None) as uri:
        done = in_a_process(tmp_path, uri, timeout_s=30)
    assert done.returncode == 0, done.stdout + done.stderr
    is_all_there(store, journal)


def test_time_outs_and_500s_end_in_an_error_and_the_next_call_ends_the_work(
    store: Any, tmp_path: Path
) -> None:
    journal = run_of(tmp_path / "run", steps=450)

    def slow(number: int, path: str) -> int | None:
        if "log-batch" in path and number > 6:
            time.sleep(3)
        return None

    with proxy(store.uri, slow) as uri:
        done = in_a_process(tmp_path, uri, timeout_s=1)
        assert (done.returncode, "does not answer" in done.stdout) == (3, True), done.stdout + done.stderr
    with proxy(store.uri, lambda number, path: 500 if number > 4 else None) as uri:
        assert in_a_process(tmp_path, uri).returncode == 3
    assert not (tmp_path / "run" / ".shipped.json").exists()
    ship(tmp_path, store.uri)
    is_all_there(store, journal)


def test_a_shipper_beside_a_run_waits_for_a_server_that_is_away_at_start(tmp_path: Path, store: Any) -> None:
    journal = run_of(tmp_path / "runs" / "run")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])
    said: list[str] = []
    code = (
        "import importlib, sys\nfrom pathlib import Path\nfrom stack.tracking import remote\n"
        "module = importlib.import_module('stack.tracking.shipping')\n"
        "remote.WAIT_S = 0.05\nmodule.FOLLOW_SHARE = 0\n"
        "module.follow(Path(sys.argv[1]), sys.argv[2], every_s=0.3, log=print)\n"
    )
    command = [sys.executable, "-u", "-c", code, str(tmp_path / "runs"), f"http://127.0.0.1:{port}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        said.append(child.stdout.readline())
        with Server.start(tmp_path / "store", port=port) as again:
            said += child.stdout.readlines()
            assert child.wait(timeout=120) == 0
            is_all_there(type(store)(again), journal)
    assert "trying again every" in said[0] and "shipping again: 150 points" in "".join(said)


def test_eight_shippers_at_once_on_sqlite_lose_nothing(tmp_path: Path, store: Any) -> None:
    def write(folder: Path) -> None:
        journal = Journal(folder, name=folder.name, experiment=tracked.TRAIN)
        for part in range(3):
            for step in range(part * 50, part * 50 + 50):
                metrics = {f"train/m{number}": step + number / 10 for number in range(10)}
                journal.metrics(metrics, step=step)
            if part == 2:
                journal.end("FINISHED")
            ship(folder, store.uri)

    folders = [tmp_path / f"writer{number}" for number in range(8)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, folders))
    for folder in folders:
        run = store.run(json.loads((folder / JOURNAL).read_text().splitlines()[0])["run_id"])
        rows = store.rows(run.info.run_id)
        assert (len(rows), run.info.status) == (1500, "FINISHED")
        assert rows == store.written(folder / JOURNAL)


def test_a_name_that_the_server_does_not_know_is_refused_with_its_words(tmp_path: Path, store: Any) -> None:
    run_of(tmp_path / "run", steps=1)
    with (
        proxy(store.uri, lambda number, path: None, name="tracking.example") as uri,
        pytest.raises(NotAble, match=r"refused a request.*Invalid Host header"),
    ):
        ship(tmp_path, uri)


def test_an_experiment_from_before_proxied_artifacts_keeps_its_curve_and_says_what_is_missing(
    tmp_path: Path, store: Any
) -> None:
    name = f"old/{tmp_path.name}"
    old = tmp_path / "host of the server" / "artifacts"
    experiment = store.client.create_experiment(name)
    with sqlite3.connect(store.server.store / "mlflow.db", timeout=30) as database:
        # As servers made them that gave out a path of their own.
        database.execute(
            "UPDATE experiments SET artifact_location = ? WHERE experiment_id = ?",
            (f"file://{old}", experiment),
        )
    folder = tmp_path / "run"
    journal = Journal(folder, name="old", experiment=name)
    journal.metrics({"train/loss": 1.0}, step=1)
    (folder / "report.html").write_text("<h1>report</h1>")
    journal.artifact(folder / "report.html")
    journal.end("FINISHED")
    report = ship(folder, store.uri)
    run = store.run(journal.run_id)
    assert store.rows(run.info.run_id) == store.written(folder / JOURNAL)
    assert not old.exists(), "nothing may be written to a path of another machine"
    assert "from before artifacts were proxied" in report.runs[0].notes[0]
    assert "from before artifacts were proxied" in run.data.tags["stack.ship_notes"]


@pytest.mark.skipif(not os.environ.get("STACK_LONG"), reason="set STACK_LONG=1: some ten seconds")
def test_a_curve_of_a_hundred_thousand_steps(tmp_path: Path, store: Any) -> None:
    folder = tmp_path / "run"
    journal = Journal(folder, name="long", experiment=tracked.TRAIN)
    for step in range(100_000):
        journal.metrics({"train/loss": 1 / (step + 1)}, step=step)
    journal.end("FINISHED")
    report = ship(folder, store.uri)
    run = store.run(journal.run_id)
    rows = store.rows(run.info.run_id)
    assert rows == store.shown(folder / JOURNAL)
    assert report.points_sent == len(rows) < 2_500
    assert rows[-1][1] == 99_999


def test_follow_stops_with_its_caller(tmp_path: Path, store: Any) -> None:
    journal = Journal(tmp_path / "run", name="alive", experiment=tracked.TRAIN)
    journal.metrics({"train/loss": 1.0}, step=1)
    report = follow(tmp_path, store.uri, every_s=0.01, is_over=lambda: True)
    assert report is not None and report.is_running


@pytest.fixture
def other_server() -> Iterator[Callable[[int, dict[str, str], bytes], str]]:
    """Start one that gives the same answer to everything; returns its address."""
    running = []

    def start(status: int, headers: dict[str, str], content: bytes) -> str:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(status)
                for key, value in {**headers, "Content-Length": str(len(content))}.items():
                    self.send_header(key, value)
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *args: Any) -> None: ...

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        running.append(server)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{server.server_port}"

    yield start
    for server in running:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize(
    ("status", "headers", "content", "said"),
    [
        (200, {"Content-Type": "text/html"}, b"<html>Sign in</html>", "begins with '<ht'"),
        (200, {}, b"", "begins with ''"),
        (404, {}, b"no such page", "404"),
        (413, {}, b"", "413"),
        (302, {"Location": "/health"}, b"", "302"),
    ],
    ids=["login page", "nothing", "no such page", "too large", "sent in a circle"],
)
def test_what_is_no_tracking_server_is_told_from_one_that_is_away(
    tmp_path: Path, other_server: Any, status: int, headers: dict[str, str], content: bytes, said: str
) -> None:
    run_of(tmp_path / "run")
    with pytest.raises(NotAble) as told:
        ship(tmp_path / "run", other_server(status, headers, content))
    assert told.value.id == "track-other-server" and said in told.value.what


def test_a_server_that_sends_on_to_another_is_named_with_it(
    tmp_path: Path, store: Any, other_server: Any
) -> None:
    """Followed, a POST would become a GET and nothing would be stored."""
    run_of(tmp_path / "run")
    with pytest.raises(NotAble) as told:
        ship(tmp_path / "run", other_server(301, {"Location": f"{store.uri}/health"}, b""))
    assert told.value.id == "track-other-server" and f"on to {store.uri}/health" in told.value.what


@pytest.mark.parametrize(
    "address", ["http://[::1", "http://127.0.0.1:99999", "http://127.0.0.1:x", "http://"]
)
def test_half_an_address_is_a_wrong_request(tmp_path: Path, address: str) -> None:
    run_of(tmp_path / "run")
    with pytest.raises(BadRequest) as told:
        ship(tmp_path / "run", address)
    assert told.value.id == "track-bad-server"


@pytest.mark.parametrize("status", [408, 429, 503])
def test_a_server_that_is_only_busy_is_not_taken_for_another(
    tmp_path: Path, other_server: Any, status: int
) -> None:
    run_of(tmp_path / "run")
    with pytest.raises(NotAble) as told:
        ship(tmp_path / "run", other_server(status, {}, b""))
    assert told.value.id == "track-server-away" and str(status) in told.value.what
