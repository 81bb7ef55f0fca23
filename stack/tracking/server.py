"""A tracking server on loopback over a store folder: `mlflow.db` (SQLite) and `artifacts/`."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import stack
from stack.errors import BadRequest, NotAble
from stack.files import write_json
from stack.tracking.liveness import started_ticks
from stack.tracking.priority import send_back

HOST = "127.0.0.1"
READY_LIMIT_S = 300.0  # making MLflow's tables takes a machine that is busy minutes
STOP_LIMIT_S = 10.0
POLL_S = 0.1
HEALTH_TRIES = 3
STATE = "server.json"
LOCK = ".server.lock"
DATABASE = "mlflow.db"
REFUSED = ".server-refused.json"  # why the child did not start, in its own words
MADE = ".database-made"  # its tables were all there once; MLflow makes them in many steps
SERVER_LOG = "server.log"
LOG_LINES = 12
ALLOWED_HOSTS = "localhost,localhost:*,127.0.0.1,127.0.0.1:*"

Log = Callable[[str], None]


@dataclass
class Server:
    """A running tracking server; a context manager that stops it.

    Attributes:
        store: the folder with the database and the artifacts.
        uri: `http://127.0.0.1:port`.
        pid: the server's process.
        ready_s: how long it took to answer; 0.0 when it was running already.
    """

    store: Path
    uri: str
    pid: int
    ready_s: float = 0.0
    _child: subprocess.Popen[bytes] | None = None
    _lifeline: int | None = field(default=None, repr=False)

    @classmethod
    def start(
        cls, store: Path, *, port: int | None = None, is_beside: bool = False, log: Log | None = None
    ) -> Server:
        """Start a server, or take the one that is running over the same store already.

        A server that was started here ends with this process, however that ends.

        Args:
            store: made where it is not there yet.
            port: None takes a free one. A running server keeps its own.
            is_beside: it stands beside a training on the same machine, and gives way to it once it answers.

        Raises:
            BadRequest: the store is a file.
            NotAble: the port is taken; the folder cannot be written; the server does not answer within 300 s.
        """
        log = log or _say_nothing
        with _store_lock(store):
            running = _running(store)
            if running is not None:
                log(f"tracking server is running already at {running.uri}")
                return running
            _set_half_made_aside(store, log)
            server = _spawn(store, port)
            try:
                server._wait_until_ready()
            except BaseException:
                server.stop()
                raise
            if is_beside:
                send_back(server.pid)
            (store / MADE).touch()
            state = {"pid": server.pid, "started": started_ticks(server.pid), "uri": server.uri}
            write_json(store / STATE, state)
        log(f"tracking server at {server.uri}, ready after {server.ready_s:.1f} s")
        return server

    @property
    def started_here(self) -> bool:
        return self._child is not None

    @property
    def is_alive(self) -> bool:
        if self._child is not None:
            return self._child.poll() is None
        return started_ticks(self.pid) is not None

    def stop(self) -> None:
        """End the server if it was started here; else leave it to whoever started it."""
        child, self._child = self._child, None
        if child is None:
            return
        _end_group(child)
        if self._lifeline is not None:
            os.close(self._lifeline)
            self._lifeline = None
        state = _read_state(self.store)
        if state is not None and state["pid"] == child.pid:
            (self.store / STATE).unlink(missing_ok=True)

    def __enter__(self) -> Server:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _wait_until_ready(self) -> None:
        assert self._child is not None
        started = time.monotonic()
        while time.monotonic() - started < READY_LIMIT_S:
            code = self._child.poll()
            if code is not None:
                raise self._failed(f"the tracking server ended with code {code} before it answered")
            if _answers(self.uri):
                self.ready_s = time.monotonic() - started
                return
            time.sleep(POLL_S)
        raise self._failed(f"the tracking server did not answer within {READY_LIMIT_S:.0f} s")

    def _failed(self, what: str) -> NotAble:
        refused = self.store / REFUSED
        if refused.exists():
            said_by_child = json.loads(refused.read_text())
            refused.unlink()
            return NotAble(**said_by_child)
        path = self.store / SERVER_LOG
        lines = path.read_text(errors="replace").strip().splitlines()[-LOG_LINES:]
        said = "\n    ".join(lines) if lines else "nothing"
        return NotAble(
            "track-server-failed",
            f"{what}; its log says:\n    {said}",
            where=str(path),
            do="mend what the log names, then start it again",
        )


def serve(store: Path, *, port: int | None = None, log: Log) -> None:
    """Keep a server in the foreground until Ctrl-C or SIGTERM; then return.

    Where one is running over the same store already, its address is said and it is used; when it ends, one
    of our own follows.

    Raises:
        NotAble: as `Server.start`; or the server ended by itself.
    """
    previous = signal.signal(signal.SIGTERM, _as_interrupt)
    try:
        while True:
            with Server.start(store, port=port, log=log) as server:
                log(f"open {server.uri}/#/experiments?workflowType=machine_learning ; Ctrl-C ends")
                while server.is_alive:
                    time.sleep(0.5)
                if server.started_here:
                    raise server._failed("the tracking server ended by itself")
            log("the server that was running has ended; starting one here")
    except KeyboardInterrupt:
        log("tracking server stopped")
    finally:
        signal.signal(signal.SIGTERM, previous)


def _as_interrupt(number: int, frame: Any) -> None:
    raise KeyboardInterrupt


def _say_nothing(line: str) -> None:
    del line


@contextmanager
def _store_lock(store: Path) -> Iterator[None]:
    """One start at a time over a store, so that two callers get the same server."""
    if store.exists() and not store.is_dir():
        raise BadRequest("track-store-not-folder", "the tracking store is not a folder", where=str(store))
    try:
        store.mkdir(parents=True, exist_ok=True)
        file = (store / LOCK).open("w")
    except OSError as error:
        raise NotAble(
            "track-store-not-writable", f"the tracking store cannot be written: {error}", where=str(store)
        ) from error
    with file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _read_state(store: Path) -> dict[str, Any] | None:
    try:
        state = json.loads((store / STATE).read_text())
        return {"pid": int(state["pid"]), "started": int(state["started"]), "uri": str(state["uri"])}
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _running(store: Path) -> Server | None:
    """The server of `server.json`, if that very process lives and answers; a stale file says nothing."""
    state = _read_state(store)
    if state is None or started_ticks(state["pid"]) != state["started"]:
        return None
    # The process is the server; where the machine is busy its answer may take a while.
    is_answering = any(_answers(state["uri"]) for _ in range(HEALTH_TRIES))
    return Server(store, state["uri"], state["pid"]) if is_answering else None


def _answers(uri: str) -> bool:
    # No proxy is asked for a server on this machine.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"{uri}/health", timeout=5) as answer:
            return bool(answer.status == 200)
    except (OSError, ValueError):
        return False


def _set_half_made_aside(store: Path, log: Log) -> None:
    """A server killed while it made its tables leaves a database that no server opens again.

    One that holds runs is never touched.
    """
    database = store / DATABASE
    if not database.exists() or (store / MADE).exists() or _count_runs(database) != 0:
        return
    aside = store / f"{DATABASE}.half-made-{int(time.time())}"
    for suffix in ("", "-journal", "-wal", "-shm"):
        left = store / (DATABASE + suffix)
        if left.exists():
            left.rename(aside.with_name(aside.name + suffix))
    log(f"an unfinished database without runs was set aside as {aside.name}")


def _count_runs(database: Path) -> int | None:
    """Runs in it; 0 where the table is not there yet; None where it cannot be told.

    A copy is asked: reading what a kill left behind rolls the last change back, which is a write.
    """
    with tempfile.TemporaryDirectory(dir=database.parent, prefix=".look-") as folder:
        for suffix in ("", "-journal", "-wal"):
            left = database.with_name(database.name + suffix)
            if left.exists():
                shutil.copyfile(left, Path(folder) / left.name)
        try:
            with contextlib.closing(sqlite3.connect(Path(folder) / database.name)) as db:
                if not db.execute("select 1 from sqlite_master where name = 'runs'").fetchall():
                    return 0
                return int(db.execute("select count(*) from runs").fetchone()[0])
        except sqlite3.Error:
            return None


def _spawn(store: Path, port: int | None) -> Server:
    store = store.resolve()
    (store / REFUSED).unlink(missing_ok=True)
    with _bind(port) as listening, (store / SERVER_LOG).open("wb") as log_file:
        uri = f"http://{HOST}:{listening.getsockname()[1]}"
        reading, writing = os.pipe()
        arguments = [str(store), str(listening.fileno()), str(reading)]
        child = subprocess.Popen(
            [sys.executable, "-m", "stack.tracking.mlflow_app", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=log_file,
            stderr=subprocess.STDOUT,
            pass_fds=(listening.fileno(), reading),
            env=_environment(),
            start_new_session=True,
        )
        os.close(reading)
    return Server(store, uri, child.pid, _child=child, _lifeline=writing)


def _bind(port: int | None) -> socket.socket:
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((HOST, port or 0))
    except (OSError, OverflowError) as error:
        listening.close()
        raise NotAble(
            "track-port-taken",
            f"port {port} on {HOST} cannot be had: {error}",
            do="give another port, or none for a free one; `ss -ltnp` says who has it",
        ) from error
    return listening


def _environment() -> dict[str, str]:
    """The child's environment: no setting of MLflow but ours, nothing that talks to the outside."""
    kept = {key: value for key, value in os.environ.items() if not key.lstrip("_").startswith("MLFLOW_")}
    package_root = str(Path(stack.__file__).resolve().parents[1])
    path = [package_root, *filter(None, [kept.get("PYTHONPATH")])]
    return {
        **kept,
        "PYTHONPATH": os.pathsep.join(path),
        "DO_NOT_TRACK": "true",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
        "MLFLOW_SERVER_ALLOWED_HOSTS": ALLOWED_HOSTS,
    }


def _end_group(child: subprocess.Popen[bytes]) -> None:
    for sign, limit_s in ((signal.SIGTERM, STOP_LIMIT_S), (signal.SIGKILL, STOP_LIMIT_S)):
        with suppress(ProcessLookupError):
            os.killpg(child.pid, sign)
        try:
            child.wait(timeout=limit_s)
            return
        except subprocess.TimeoutExpired:
            continue
