"""A site's server in the foreground, for systemd or a container: MLflow's application with logins.

TLS is the reverse proxy's. Passwords and keys reach MLflow through this process's own memory; worker
processes get the session key in their environment, which only their user can read.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path

from stack.errors import BadRequest, NotAble
from stack.tracking.mlflow_app import log_ahead
from stack.tracking.site.config import Site, load_site
from stack.tracking.site.passwords import (
    ADMIN_PASSWORD_VARIABLE,
    admin_password,
    require_strong,
    session_key,
)
from stack.tracking.site.place import connected, hold, shown_uri
from stack.tracking.site.schema import has_user, require_current, translated

AUTH_FILE = "auth.ini"
HOLD_WAIT_S = 15.0
WORKER_START_S = 120
GRACE_S = 20

Log = Callable[[str], None]


def serve_site(file: Path, *, log: Log) -> None:
    """Serve until SIGTERM or Ctrl-C.

    Raises:
        BadRequest: the site's file or the admin's password is refused.
        NotAble: the database is away, old or refuses the login; the port is taken; the store is in use.
    """
    site = load_site(file)
    password = admin_password(site.admin_password_file)
    if password is not None:
        where = str(site.admin_password_file or ADMIN_PASSWORD_VARIABLE)
        require_strong(password, site.manifest.admin.user, where)
    _set_environment(site)
    with hold(site.place, wait_s=HOLD_WAIT_S):
        require_current(site.place, with_users=True)
        if password is None:
            _require_first_user(site)
        with _bind(site) as listening:
            _make_ready(site, password)
            log(f"tracking server at {site.manifest.listen}, for {', '.join(site.manifest.names)}")
            log(f"database {shown_uri(site.place)}, artifacts {site.place.artifacts}")
            _run(site, listening)
    log("tracking server stopped")


def _require_first_user(site: Site) -> None:
    with connected(site.place) as connection, translated(site.place):
        if has_user(connection, site.manifest.admin.user):
            return
    raise BadRequest(
        "track-password-missing",
        f"the first user '{site.manifest.admin.user}' is to be made, and no password is given; "
        "there is no default",
        where=str(site.file),
        do=f"name a file in admin.password_file, or set {ADMIN_PASSWORD_VARIABLE}",
    )


def _bind(site: Site) -> socket.socket:
    family = socket.AF_INET6 if ":" in site.host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((site.host, site.port))
    except OSError as error:
        listening.close()
        raise NotAble(
            "track-port-taken",
            f"{site.manifest.listen} cannot be had: {error}",
            where=str(site.file),
            do="`ss -ltnp` says who has it; or name another port in `listen`, and to the proxy",
        ) from error
    return listening


def _set_environment(site: Site) -> None:
    """No setting of MLflow but ours; the admin's password is taken out before a worker could inherit it."""
    for key in list(os.environ):
        if key.lstrip("_").startswith("MLFLOW_") or key == ADMIN_PASSWORD_VARIABLE:
            del os.environ[key]
    site.place.artifacts.mkdir(parents=True, exist_ok=True)
    site.place.folder.chmod(0o750)
    auth_file = site.place.folder / AUTH_FILE
    auth_file.write_text(
        "[mlflow]\n"
        f"default_permission = {site.manifest.default_permission}\n"
        f"database_uri = {site.place.uri.replace('%', '%%')}\n"
        f"admin_username = {site.manifest.admin.user}\n"
        f"auth_cache_ttl_seconds = {site.manifest.login_cache_s}\n"
    )
    # MLflow reads some of these while it is imported, so they are written out here, and compared below.
    os.environ.update(
        {
            "_MLFLOW_SERVER_FILE_STORE": site.place.uri,
            "_MLFLOW_SERVER_REGISTRY_STORE": site.place.uri,
            "_MLFLOW_SERVER_ARTIFACT_ROOT": "mlflow-artifacts:/",
            "_MLFLOW_SERVER_ARTIFACT_DESTINATION": str(site.place.artifacts),
            "_MLFLOW_SERVER_SERVE_ARTIFACTS": "true",
            "DO_NOT_TRACK": "true",
            "MLFLOW_DISABLE_TELEMETRY": "true",
            "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
            "MLFLOW_SERVER_ALLOWED_HOSTS": ",".join(site.allowed_hosts),
            "MLFLOW_SERVER_CORS_ALLOWED_ORIGINS": ",".join(site.allowed_origins),
            "MLFLOW_FLASK_SERVER_SECRET_KEY": session_key(site.place.folder),
            "MLFLOW_AUTH_CONFIG_PATH": str(auth_file),
            "_MLFLOW_SGI_NAME": "uvicorn",
            "_MLFLOW_AUTH_ADMIN_BOOTSTRAPPED": "true",
        }
    )
    if not site.place.is_sqlite:
        os.environ["MLFLOW_SQLALCHEMYSTORE_POOL_SIZE"] = str(site.manifest.pool)
        os.environ["MLFLOW_SQLALCHEMYSTORE_MAX_OVERFLOW"] = str(site.manifest.pool)


def _make_ready(site: Site, password: str | None) -> None:
    """Tables and the first user, once and in this process, before any worker is there.

    Raises:
        NotAble: this MLflow reads other settings, or cannot make its tables.
    """
    from mlflow.exceptions import MlflowException
    from mlflow.server import constants, handlers
    from sqlalchemy.exc import SQLAlchemyError

    names = (
        constants.BACKEND_STORE_URI_ENV_VAR,
        constants.REGISTRY_STORE_URI_ENV_VAR,
        constants.ARTIFACT_ROOT_ENV_VAR,
        constants.ARTIFACTS_DESTINATION_ENV_VAR,
        constants.SERVE_ARTIFACTS_ENV_VAR,
    )
    if missing := [name for name in names if name not in os.environ]:
        raise NotAble("track-mlflow-differs", f"this MLflow reads other settings: {', '.join(missing)}")
    if site.place.is_sqlite:
        log_ahead(site.place.database_file)
    try:
        handlers.initialize_backend_stores(site.place.uri, site.place.uri, "mlflow-artifacts:/")
        _make_first_user(site.manifest.admin.user, password)
    except (SQLAlchemyError, MlflowException) as error:
        said = str(getattr(error, "orig", None) or error).strip().splitlines() or [type(error).__name__]
        raise NotAble(
            "track-database-unusable",
            f"MLflow cannot make its tables in the database: {said[0][:300]}",
            where=shown_uri(site.place),
            do="the role must own the database: ALTER DATABASE ... OWNER TO ...",
        ) from error


def _make_first_user(user: str, password: str | None) -> None:
    from mlflow.server.auth import store
    from mlflow.server.auth.config import read_auth_config

    store.init_db(read_auth_config().database_uri)
    if password is not None and not store.has_user(user, use_primary=True):
        store.create_user(user, password, is_admin=True)


def _run(site: Site, listening: socket.socket) -> None:
    import uvicorn
    from uvicorn.supervisors import Multiprocess

    config = uvicorn.Config(
        "mlflow.server.auth:create_app",
        factory=True,
        workers=site.manifest.workers,
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=GRACE_S,
        timeout_worker_healthcheck=WORKER_START_S,
    )
    sys.stdout.flush()
    if site.manifest.workers == 1:
        uvicorn.Server(config).run(sockets=[listening])
        return
    listening.set_inheritable(True)
    supervisor = Multiprocess(config, sockets=[listening])
    supervisor.run()
