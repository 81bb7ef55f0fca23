"""What must not be written down: passwords in addresses, and secrets of the environment.

Journals are written through `redacted`; the shipper looks at every text once more before it leaves. Both know
a secret by its form (an address with a login) or by its value (that of a variable whose name says so).
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

MASK = "***"
LEAST_CHARACTERS = 6
"""Shorter values, such as `true` or `1`, stand in ordinary texts and prove nothing."""

_LOGIN = re.compile(r"(?<=://)[^\s/@\"'<>]+(?=@)")
_NAME = re.compile(
    r"(PASSWORD|PASSWD|SECRET|TOKEN|CREDENTIAL|API_?KEY|ACCESS_?KEY|PRIVATE_?KEY)", re.IGNORECASE
)
_PATH_NAME = re.compile(r"(_FILE|_PATH|_DIR)$", re.IGNORECASE)
TEXT_SUFFIXES = (".json", ".jsonl", ".html", ".svg", ".txt", ".yaml", ".yml", ".md", ".log", ".csv")


def redacted(value: Any) -> Any:
    """A JSON value with every secret in its texts and keys replaced by `***`."""
    return _redacted(value, _values())


def redacted_text(text: str) -> str:
    """The text without logins in addresses and without secrets of this process's environment."""
    return _without(text, _values())


def _redacted(value: Any, secrets: re.Pattern[str] | None) -> Any:
    if isinstance(value, str):
        return _without(value, secrets)
    if isinstance(value, Mapping):
        return {_without(str(key), secrets): _redacted(entry, secrets) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_redacted(entry, secrets) for entry in value]
    return value


def _without(text: str, secrets: re.Pattern[str] | None) -> str:
    if "://" in text:
        text = _LOGIN.sub(MASK, text)
    return secrets.sub(MASK, text) if secrets is not None else text


def holds_secret(path: Path) -> bool:
    """Whether a text file holds what `redacted_text` would take out."""
    if path.suffix.lower() not in TEXT_SUFFIXES:
        return False
    text = path.read_text(encoding="utf-8", errors="replace")
    return redacted_text(text) != text


def _values() -> re.Pattern[str] | None:
    named = {value for key, value in os.environ.items() if _NAME.search(key) and not _PATH_NAME.search(key)}
    return _pattern(tuple(sorted(v for v in named if len(v) >= LEAST_CHARACTERS)))


@lru_cache(maxsize=8)
def _pattern(values: tuple[str, ...]) -> re.Pattern[str] | None:
    # The longest first: one value may begin with another.
    return (
        re.compile("|".join(re.escape(v) for v in sorted(values, key=len, reverse=True))) if values else None
    )
