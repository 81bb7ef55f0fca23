"""Who a client is to a tracking server, and whom it trusts: from files and the environment, never an address.

MLflow's own names are used where there are some: `MLFLOW_TRACKING_USERNAME`, `MLFLOW_TRACKING_PASSWORD`, and
`MLFLOW_TRACKING_SERVER_CERT_PATH`, the certificates of the site's own authority. A password in a file is
safer than one in the environment: `STACK_TRACKING_LOGIN_FILE` names one with `user:password` in its first
line.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import MutableMapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from stack.errors import BadRequest, NotAble

LOGIN_FILE = "STACK_TRACKING_LOGIN_FILE"
USER = "MLFLOW_TRACKING_USERNAME"
PASSWORD = "MLFLOW_TRACKING_PASSWORD"
CERTIFICATES = "MLFLOW_TRACKING_SERVER_CERT_PATH"


@dataclass(frozen=True)
class Login:
    user: str
    password: str = field(repr=False)


def login(environment: MutableMapping[str, str] = os.environ) -> Login | None:
    """The login that is given; one of a file is put where MLflow's client looks for it.

    Raises:
        BadRequest: the file cannot be used, or only half a login is given.
    """
    given = environment.get(LOGIN_FILE)
    if given:
        found = _read_login(Path(given))
        environment[USER], environment[PASSWORD] = found.user, found.password
        return found
    user, password = environment.get(USER), environment.get(PASSWORD)
    if bool(user) != bool(password):
        raise BadRequest(
            "track-login-half",
            f"{USER if user else PASSWORD} is set, and {PASSWORD if user else USER} is not",
            do=f"set both, or {LOGIN_FILE} to a file with user:password",
        )
    return Login(user, password) if user and password else None


def _read_login(file: Path) -> Login:
    require_private(file, f"the login file of {LOGIN_FILE}")
    user, colon, password = (file.read_text(errors="replace").splitlines() or [""])[0].partition(":")
    if not (user and colon and password):
        raise BadRequest(
            "track-login-malformed",
            f"the login file of {LOGIN_FILE} does not hold user:password in its first line",
            where=str(file),
        )
    return Login(user, password)


def require_private(file: Path, what: str) -> None:
    """Raises BadRequest where a file with a secret is missing, or can be read by others."""
    try:
        mode = file.stat().st_mode
        with file.open("rb"):
            pass
    except OSError as error:
        raise BadRequest(
            "track-secret-unreadable", f"{what} cannot be read: {error.strerror}", where=str(file)
        ) from error
    if mode & 0o077:
        raise BadRequest(
            "track-secret-open",
            f"{what} has mode {mode & 0o777:04o}, so others can read or change it; 0600 is needed",
            where=str(file),
            do=f"chmod 600 {file}",
        )


def refuse_login_in_address(server: str) -> None:
    """An address stands in process lists, logs and pages; the error shows it without what is secret."""
    try:
        parts = urlsplit(server)
    except ValueError:
        return  # no address at all, which is told where it is used
    if parts.username is not None or parts.password is not None:
        raise BadRequest(
            "track-login-in-address",
            "the server's address holds a login, which process lists and logs would show",
            where=f"{parts.scheme}://{parts.hostname or ''}",
            do=f"give the address without it, and the login by {LOGIN_FILE}",
        )


def trust(environment: MutableMapping[str, str] = os.environ) -> ssl.SSLContext:
    """Whom to believe: the site's own certificates where they are named, else the system's.

    Raises:
        BadRequest: the named file cannot be used.
    """
    given = environment.get(CERTIFICATES)
    try:
        return ssl.create_default_context(cafile=given or None)
    except (OSError, ssl.SSLError) as error:
        raise BadRequest(
            "track-certificates-unreadable",
            f"the certificates of {CERTIFICATES} cannot be used: {error}",
            where=str(given),
        ) from error


def refusal(uri: str, said: str, status: int | None = None) -> NotAble | None:
    """What a refusal means that has to do with names, logins or certificates; None for any other.

    Args:
        said: the server's words, or those of the library that met the refusal.
        status: the HTTP status where it is known.
    """
    if "CERTIFICATE_VERIFY_FAILED" in said or "certificate verify failed" in said:
        return NotAble(
            "track-certificate",
            f"the server's certificate is not trusted: {_reason(said)}",
            where=uri,
            do=f"set {CERTIFICATES} to the certificates of the site's own authority (PEM)",
        )
    if "Invalid Host header" in said:
        return NotAble(
            "track-host-refused",
            f"the tracking server refused a request under the name {urlsplit(uri).netloc!r}: "
            "Invalid Host header",
            where=uri,
            do="use a name that it is served under, or add this one to `names` in the site's file",
        )
    if status == 401 or "error code 401" in said or "You are not authenticated" in said:
        user = os.environ.get(USER)
        what = f"does not accept the password of '{user}'" if user else "asks for a login, and none is given"
        return NotAble(
            "track-login-refused",
            f"the tracking server {what}; what is in the journal stays there",
            where=uri,
            do=f"set {LOGIN_FILE} to a file with user:password (mode 0600), then ship again",
        )
    return None


def _reason(said: str) -> str:
    text = said.partition("certificate verify failed:")[2] or said
    return text.partition("(_ssl")[0].strip(" :")[:200]
