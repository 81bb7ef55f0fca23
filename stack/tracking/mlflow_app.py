"""The child process of `stack.tracking.server`: MLflow's application on a socket that the parent bound.

`mlflow server` imports everything twice, once to read its options and once to serve. This does the same work
in one process: half the time to start and half the memory. The names that it takes from MLflow are imported,
so that another version of MLflow fails here with a clear line instead of serving another store.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sqlite3
import sys
import threading
from pathlib import Path

from stack.errors import StackError
from stack.files import write_json
from stack.tracking.server import REFUSED
from stack.tracking.site.place import hold, of_folder
from stack.tracking.site.schema import require_current

HOLD_WAIT_S = 5.0
REMOTE_KINDS = ("nfs", "cifs", "smb", "fuse.sshfs", "9p", "ceph", "lustre", "gpfs", "beegfs", "glusterfs")


def main() -> None:
    """Arguments: store folder, descriptor of the bound socket, descriptor that ends when the parent does."""
    store, listen_fd, lifeline_fd = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    threading.Thread(target=_end_with_parent, args=(lifeline_fd,), daemon=True).start()
    listening = socket.socket(fileno=listen_fd)
    place = of_folder(store, options=f"--work {store.parent}")
    try:
        # The store of a server that was killed just now may be let go a moment later.
        with hold(place, wait_s=HOLD_WAIT_S):
            if place.database_file.exists():
                require_current(place)
            log_ahead(place.database_file)
            _serve(store, listening)
    except StackError as error:
        write_json(
            store / REFUSED, {"id": error.id, "what": error.what, "where": error.where, "do": error.do}
        )
        sys.exit(int(error.exit))


def log_ahead(database: Path) -> None:
    """Let readers and a writer work at once, where the file system can: not across a network.

    The setting stays with the database; the time that a writer waits for another is MLflow's own 20 s.
    """
    if _is_remote(database.parent):
        return
    with contextlib.closing(sqlite3.connect(database, timeout=20)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")


def _is_remote(folder: Path) -> bool:
    """Whether the folder is on a network file system, whose shared memory no other host would see."""
    best, kind = "", ""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        mount, _, rest = line.partition(" - ")
        point = mount.split()[4].encode().decode("unicode_escape")
        if folder.is_relative_to(point) and len(point) >= len(best):
            best, kind = point, rest.split()[0]
    return kind.startswith(REMOTE_KINDS)


def _serve(store: Path, listening: socket.socket) -> None:
    import uvicorn
    from mlflow.server import constants, handlers

    database = f"sqlite:///{store / 'mlflow.db'}"
    artifacts = str(store / "artifacts")
    os.environ.update(
        {
            constants.BACKEND_STORE_URI_ENV_VAR: database,
            constants.REGISTRY_STORE_URI_ENV_VAR: database,
            constants.ARTIFACT_ROOT_ENV_VAR: "mlflow-artifacts:/",
            constants.ARTIFACTS_DESTINATION_ENV_VAR: artifacts,
            constants.SERVE_ARTIFACTS_ENV_VAR: "true",
        }
    )
    # Before anything is served: a database that cannot be used or needs an upgrade ends the process here.
    handlers.initialize_backend_stores(database, database, "mlflow-artifacts:/")
    config = uvicorn.Config(
        "mlflow.server.fastapi_app:app", workers=1, log_level="warning", timeout_graceful_shutdown=3
    )
    uvicorn.Server(config).run(sockets=[listening])


def _end_with_parent(lifeline_fd: int) -> None:
    # The parent holds the other end of this pipe; when it dies, even by SIGKILL, reading ends.
    os.read(lifeline_fd, 1)
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main()
