"""Passwords: read from files or the environment, judged before they are used, never shown."""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Mapping
from pathlib import Path

from stack.errors import BadRequest
from stack.tracking.login import require_private

ADMIN_PASSWORD_VARIABLE = "STACK_TRACKING_ADMIN_PASSWORD"
PASSWORD_CHARACTERS = 12  # MLflow's own least
DIFFERENT_CHARACTERS = 6
SESSION_KEY = "session-key"

# Passwords that software was shipped with, or that examples show; compared without what is appended to them.
KNOWN = (
    "password1234",  # MLflow's own until 2026
    "password", "passw0rd", "p@ssw0rd", "admin", "administrator", "root", "mlflow", "tracking", "postgres",
    "changeme", "changethis", "change-me", "change_me", "default", "secret", "letmein", "welcome", "qwerty",
    "qwertyuiop", "huawei", "huawei@123", "ascend", "mindspore", "correcthorsebatterystaple", "abc", "test",
    "example", "placeholder", "replaceme", "replace-me", "todo", "yourpassword", "your-password",
    "adminpassword", "administratorpassword", "mlflowpassword", "mlflowadmin",
)  # fmt: skip


def read_password(file: Path, what: str) -> str:
    """The first line of a file that only its owner can read.

    Raises:
        BadRequest: it is missing, can be read by others, or is empty.
    """
    require_private(file, what)
    lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    if not lines or not lines[0]:
        raise BadRequest("track-password-missing", f"{what} is empty", where=str(file))
    return lines[0]


def admin_password(file: Path | None, environment: Mapping[str, str] = os.environ) -> str | None:
    """The first user's password; None where none is given, or its file is gone, as it may once it was read.

    Raises:
        BadRequest: the file is there and cannot be used.
    """
    if file is not None and file.exists():
        return read_password(file, "the admin's password file")
    return environment.get(ADMIN_PASSWORD_VARIABLE) or None


def require_strong(password: str, user: str, where: str) -> None:
    """Refuse what would be guessed; the message never holds the password.

    Raises:
        BadRequest: it is short, known, made of the user's name, or of few characters.
    """
    why = _weakness(password, user)
    if why is not None:
        raise BadRequest(
            "track-password-weak",
            f"the password of '{user}' is refused: {why}",
            where=where,
            do="make one with: python3 -c 'import secrets; print(secrets.token_urlsafe(18))'",
        )


def _weakness(password: str, user: str) -> str | None:
    if len(password) < PASSWORD_CHARACTERS:
        return f"it has {len(password)} characters, and {PASSWORD_CHARACTERS} are needed"
    if password != password.strip() or not password.isprintable():
        return "it begins or ends with a space, or holds what cannot be typed"
    different = len(set(password))
    if different < DIFFERENT_CHARACTERS:
        return f"it has {different} different characters, and {DIFFERENT_CHARACTERS} are needed"
    plain = password.lower()
    stem = re.sub(r"[\d\W_]+$", "", plain)
    if plain in KNOWN or stem in KNOWN:
        return "it is a known default"
    if stem == user.lower() or plain.replace(user.lower(), "").strip("0123456789!@#$%._-") == "":
        return "it is the user's name with something appended"
    return None


def session_key(folder: Path) -> str:
    """The key that signs browser forms, made once for a store; equal in all of its server's processes."""
    file = folder / SESSION_KEY
    if not file.exists():
        folder.mkdir(parents=True, exist_ok=True)
        draft = file.with_name(f".{SESSION_KEY}.{os.getpid()}")
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as writing:
            writing.write(secrets.token_urlsafe(32) + "\n")
        os.replace(draft, file)
    return read_password(file, "the session key")
