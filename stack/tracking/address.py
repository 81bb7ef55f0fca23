"""Where a tracking server is, and how MLflow's client is to talk to it."""

from __future__ import annotations

import logging
import os
from urllib.parse import urlsplit

from stack.errors import BadRequest
from stack.tracking.secrets import redacted_text

LOOPBACK = ("localhost", "127.0.0.1", "::1")


def host_of(server: str) -> str:
    """The host of a tracking server's address.

    Raises:
        BadRequest: it is no address of one.
    """
    try:
        parts = urlsplit(server)
        is_one = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # half an IPv6 address, a port above 65535
        is_one = False
    if not is_one:
        raise BadRequest(
            "track-bad-server",
            f"{redacted_text(server)!r} is not the address of a tracking server",
            do="give one like http://127.0.0.1:5000 or https://tracking.example",
        )
    return str(parts.hostname)


def prepare_environment(host: str, timeout_s: float) -> None:
    """Settings of MLflow's client, which it takes from the environment alone."""
    os.environ.update(
        MLFLOW_DISABLE_TELEMETRY="true",
        DO_NOT_TRACK="true",
        MLFLOW_HTTP_REQUEST_MAX_RETRIES="0",  # we try again ourselves, and know when not to
        MLFLOW_HTTP_REQUEST_TIMEOUT=str(timeout_s),
        MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT="true",
        MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR="false",
    )
    if host in LOOPBACK:
        # A site's proxy must not be asked for this machine's own server.
        for key in ("NO_PROXY", "no_proxy"):
            listed = [entry for entry in os.environ.get(key, "").split(",") if entry]
            os.environ[key] = ",".join([*listed, *(name for name in LOOPBACK if name not in listed)])
    logging.getLogger("urllib3.connectionpool").setLevel(logging.ERROR)
