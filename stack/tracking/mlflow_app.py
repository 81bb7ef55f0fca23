"""The child process of `stack.tracking.server`: MLflow's application on a socket that the parent bound.

`mlflow server` imports everything twice, once to read its options and once to serve. This does the same work
in one process: half the time to start and half the memory. The names that it takes from MLflow are imported,
so that another version of MLflow fails here with a clear line instead of serving another store.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
from pathlib import Path


def main() -> None:
    """Arguments: store folder, descriptor of the bound socket, descriptor that ends when the parent does."""
    store, listen_fd, lifeline_fd = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    threading.Thread(target=_end_with_parent, args=(lifeline_fd,), daemon=True).start()
    listening = socket.socket(fileno=listen_fd)

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
