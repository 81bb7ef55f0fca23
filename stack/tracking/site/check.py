"""Is a server well, as people reach it? Asked from outside, under its real name.

MLflow answers `/health` whatever name it is asked under, so that a monitor of that alone stays green while
every user is refused; nor does it say that a browser could not write, or that a known password opens it.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import urlsplit

from stack.errors import NotAble
from stack.tracking.login import Login
from stack.tracking.site.asking import Answer, Target, ask

DAYS_LEFT = 14
FOREIGN_HOST = "rebinding.invalid"
KNOWN_LOGINS = (Login("admin", "password1234"), Login("admin", "password"), Login("mlflow", "mlflow"))
LOOPBACK = ("localhost", "127.0.0.1", "::1")
SEARCH = "/api/2.0/mlflow/experiments/search"
SEARCH_OF_PAGE = "/ajax-api/2.0/mlflow/experiments/search"
PROXIED = "mlflow-artifacts:"
PAGE = "1000"


@dataclass(frozen=True)
class Checked:
    """One thing looked at; `is_good` is None where it could not be."""

    name: str
    is_good: bool | None
    said: str


def check_server(target: Target, login: Login | None = None) -> list[Checked]:
    """Everything that can be told from outside; nothing is written.

    Raises:
        NotAble: the server does not answer, or its certificate is not trusted.
    """
    return list(_checks(target, login))


def _checks(target: Target, login: Login | None) -> Iterator[Checked]:
    health = ask(target, "/health")
    yield Checked("answers", health.status == 200, f"/health {health.status}")
    yield _certificate(target, health)
    nameless = ask(target, SEARCH, query={"max_results": "1"})
    yield _name(target, nameless)
    yield _login_is_asked(target, nameless)
    yield _page(target, login)
    yield _foreign(target)
    if nameless.status == 401:
        opened = [known for known in KNOWN_LOGINS if _opens(target, known)]
        said = f"'{opened[0].user}' with a known default password is let in" if opened else "refused"
        yield Checked("default passwords", not opened, said)
    yield from _as_user(target, login, asks_login=nameless.status == 401)


def _certificate(target: Target, answer: Answer) -> Checked:
    if not answer.certificate:
        if _is_here(target):
            return Checked("certificate", True, "none, on this machine alone")
        return Checked("certificate", False, "none: what is sent can be read on the way")
    left_days = (ssl.cert_time_to_seconds(str(answer.certificate["notAfter"])) - time.time()) / 86400
    return Checked("certificate", left_days >= DAYS_LEFT, f"trusted, {left_days:.0f} days left")


def _is_here(target: Target) -> bool:
    return urlsplit(target.uri).scheme == "http" and urlsplit(target.uri).hostname in LOOPBACK


def _name(target: Target, answer: Answer) -> Checked:
    name = urlsplit(target.uri).netloc
    if "Invalid Host header" in answer.text:
        return Checked("name", False, f"requests for {name!r} are refused: Invalid Host header")
    is_good = answer.status in (200, 401)
    return Checked("name", is_good, f"served as {name!r}" if is_good else f"status {answer.status}")


def _login_is_asked(target: Target, answer: Answer) -> Checked:
    if answer.status == 401:
        return Checked("login", True, "asked for")
    if answer.status == 200:
        if _is_here(target):
            return Checked("login", True, "none, on this machine alone")
        return Checked("login", False, "none: everybody who reaches the server may write")
    return Checked("login", None, f"cannot be told: status {answer.status}")


def _page(target: Target, login: Login | None) -> Checked:
    """A page of the server's own that asks it something, as every table of runs does."""
    answer = ask(
        target,
        SEARCH_OF_PAGE,
        method="POST",
        body={"max_results": 1},
        login=login,
        origin=target.origin,
    )
    is_good = answer.status in (200, 401)
    said = f"pages of {target.origin} are served"
    if not is_good:
        said = f"pages of {target.origin} are refused: {answer.status} {answer.text[:80]}"
    return Checked("pages", is_good, said)


def _foreign(target: Target) -> Checked:
    try:
        status = ask(target, SEARCH, query={"max_results": "1"}, host=FOREIGN_HOST).status
    except NotAble:
        return Checked("foreign names", True, "not answered")
    is_good = status not in (200, 401)
    return Checked("foreign names", is_good, "refused" if is_good else f"served as {FOREIGN_HOST!r} too")


def _opens(target: Target, login: Login) -> bool:
    return ask(target, SEARCH, query={"max_results": "1"}, login=login).status == 200


def _as_user(target: Target, login: Login | None, *, asks_login: bool) -> Iterator[Checked]:
    if login is None and asks_login:
        yield Checked("as a user", None, "not looked at: no login is given")
        return
    answer = ask(target, SEARCH, query={"max_results": PAGE}, login=login)
    who = f"'{login.user}'" if login is not None else "anybody"
    yield Checked("as a user", answer.status == 200, f"{who}: status {answer.status}")
    if answer.status != 200:
        return
    try:
        experiments = answer.data.get("experiments", [])
        places = {experiment["name"]: experiment["artifact_location"] for experiment in experiments}
    except (ValueError, KeyError, AttributeError):
        yield Checked("artifacts", False, "the answer is not MLflow's: is another server behind this name?")
        return
    old = [name for name, place in places.items() if not place.startswith(PROXIED)]
    said = "all go through the server"
    if old:
        said = (
            f"those of {', '.join(old[:3])} ({len(old)} experiments) go to a path of the client's own "
            "machine: the experiment is older than the server's artifact proxy; use another name for new runs"
        )
    yield Checked("artifacts", not old, said)
