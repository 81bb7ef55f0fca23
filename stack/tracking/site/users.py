"""The users of a site's server, through its own API, as an administrator."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stack.errors import BadRequest, NotAble
from stack.tracking.login import Login, refusal
from stack.tracking.site.asking import Answer, Target, ask
from stack.tracking.site.passwords import read_password, require_strong

API = "/api/2.0/mlflow/users"


@dataclass(frozen=True)
class User:
    name: str
    is_admin: bool


def list_users(target: Target, admin: Login | None) -> list[User]:
    users = _call(target, admin, "GET", "list").get("users", [])
    return sorted((User(u["username"], u["is_admin"]) for u in users), key=lambda user: user.name)


def add_user(target: Target, admin: Login | None, name: str, password_file: Path, *, is_admin: bool) -> None:
    """Make a user with the password in a file.

    Raises:
        BadRequest: the password is weak or its file open to others; the name is taken.
        NotAble: the server is away, or refuses.
    """
    password = _password(name, password_file)
    _call(target, admin, "POST", "create", {"username": name, "password": password})
    if is_admin:
        _call(target, admin, "PATCH", "update-admin", {"username": name, "is_admin": True})


def set_password(target: Target, admin: Login | None, name: str, password_file: Path) -> None:
    """Give a user another password; errors as `add_user`."""
    body: dict[str, Any] = {"username": name, "password": _password(name, password_file)}
    if admin is not None and admin.user == name:
        body["current_password"] = admin.password  # a user changing the own password proves the old one
    _call(target, admin, "PATCH", "update-password", body)


def remove_user(target: Target, admin: Login | None, name: str) -> None:
    """Take a user's login away; what the user logged stays."""
    _call(target, admin, "DELETE", "delete", {"username": name})


def _password(name: str, file: Path) -> str:
    password = read_password(file, "the new password's file")
    require_strong(password, name, str(file))
    return password


def _call(
    target: Target, admin: Login | None, method: str, verb: str, body: dict[str, Any] | None = None
) -> Any:
    answer = ask(target, f"{API}/{verb}", method=method, body=body, login=admin)
    if answer.status == 200:
        return answer.data
    raise _refused(target, answer)


def _refused(target: Target, answer: Answer) -> BadRequest | NotAble:
    known = refusal(target.uri, answer.text, answer.status)
    if known is not None:
        return known
    if answer.status == 404 and "not found" in answer.text.lower() and "{" not in answer.text:
        return NotAble("track-no-users", "the server has no users: it asks for no login", where=target.uri)
    try:
        said = str(answer.data["message"])
    except (ValueError, KeyError, TypeError):
        said = answer.text.strip()[:200] or "no words"
    if answer.status == 403:
        said = "the login is not an administrator's"
    return BadRequest(
        "track-users-refused", f"the server refused that: {said} ({answer.status})", where=target.uri
    )
