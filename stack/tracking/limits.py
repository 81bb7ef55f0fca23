"""What a server takes, and texts cut to it. Source: MLflow 3.17, `mlflow/utils/validation.py`."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable
from typing import TypeVar

PARAM_CHARACTERS = 6000
TAG_CHARACTERS = 8000
KEY_CHARACTERS = 250
TEXT_BYTES_A_BATCH = 400_000  # a request of more than 1,000,000 bytes is refused
DIGEST_CHARACTERS = 32  # MLflow takes 36; a whole sha256 has 64

K = TypeVar("K")


def clean_key(key: str, note: Callable[[str], None]) -> str:
    """A key that MLflow takes: word characters, `_-. :/`, no path tricks, at most 250 characters."""
    parts = re.sub(r"[^/\w.\- :]", "_", key).split("/")
    cleaned = "/".join(part for part in parts if part not in ("", ".", "..")) or "_"
    if cleaned.startswith(".."):
        cleaned = f"_{cleaned}"
    if len(cleaned) > KEY_CHARACTERS:
        digest = hashlib.sha256(key.encode()).hexdigest()[:8]
        cleaned = f"{cleaned[: KEY_CHARACTERS - 9]}-{digest}"
    if cleaned != key:
        note(f"name {key[:80]!r} shown as {cleaned[:80]!r}")
    return cleaned


def cut(value: str, limit: int) -> str:
    """At most `limit` characters, the last ones saying how many there were."""
    if len(value) <= limit:
        return value
    mark = f" ... (cut; {len(value)} characters in all)"
    return value[: limit - len(mark)] + mark


def changed_text(first: str, now: str, attempt: int) -> str:
    """How a parameter changed, for a tag."""
    return cut(f"{cut(first, 3000)} -> {cut(now, 3000)} (attempt {attempt})", TAG_CHARACTERS)


def key_after(prefix: str, key: str) -> str:
    """A tag's name: the prefix, and as much of the key as fits."""
    return (prefix + key)[:KEY_CHARACTERS]


def batches(entries: Iterable[K], most: int, size: Callable[[K], int]) -> Iterable[list[K]]:
    """The entries in lists of at most `most`, each small enough for one request."""
    batch: list[K] = []
    filled_bytes = 0
    for entry in entries:
        entry_bytes = size(entry)
        if batch and (len(batch) == most or filled_bytes + entry_bytes > TEXT_BYTES_A_BATCH):
            yield batch
            batch, filled_bytes = [], 0
        batch.append(entry)
        filled_bytes += entry_bytes
    if batch:
        yield batch


def text_bytes(entry: tuple[str, str]) -> int:
    """At most how many bytes a key and its value take in a request."""
    # Requests are JSON in ASCII, where any other character takes six bytes, or twelve.
    return sum(1 if character.isascii() else 12 for text in entry for character in text) + 64
