"""Why a file cannot be used, told from its first and last bytes."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

LFS_MARK = b"version https://git-lfs"
PARQUET_MAGIC = b"PAR1"


class Trouble(Enum):
    EMPTY = "empty"
    LFS_POINTER = "lfs-pointer"
    TRUNCATED = "truncated"
    NOT_JSON = "not-json"
    UNREADABLE = "unreadable"


@dataclass(frozen=True)
class Problem:
    """A file that could not be read, and why. `line` counts from 1 in line-based files."""

    file: str
    trouble: Trouble
    detail: str
    line: int | None = None


_LONE = re.compile(r"\\u[dD][89a-fA-F]")  # may be half of a pair; only then are the texts looked at


def parse_json(text: str) -> Any:
    """As `json.loads`, but a text that no file can hold (half a surrogate pair) is an error of the file.

    Raises:
        ValueError, RecursionError: as `json.loads`, and for such texts.
    """
    value = json.loads(text)
    if _LONE.search(text):
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            raise json.JSONDecodeError("half of a surrogate pair, which is no character", text, 0) from error
    return value


def classify_file(root: Path, relative: str, error: Exception | None = None) -> Problem:
    """The most telling reason why a file could not be read; `error` is what the reader said."""
    path = root / relative
    said = " ".join(str(error).split())[:200] if error else ""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            head = file.read(len(LFS_MARK))
    except OSError as problem:
        return Problem(relative, Trouble.UNREADABLE, str(problem))
    if size == 0:
        return Problem(relative, Trouble.EMPTY, "the file has no bytes")
    if head == LFS_MARK:
        return Problem(relative, Trouble.LFS_POINTER, f"{size} bytes that point to the real file")
    cut = _cut_short(path, size)
    if cut:
        return Problem(relative, Trouble.TRUNCATED, cut)
    if isinstance(error, (json.JSONDecodeError, UnicodeDecodeError)):
        return Problem(relative, Trouble.NOT_JSON, said)
    return Problem(relative, Trouble.UNREADABLE, said or "unknown reason")


def _cut_short(path: Path, size: int) -> str:
    if path.suffix == ".parquet":
        with path.open("rb") as file:
            head = file.read(4)
            file.seek(max(0, size - 4))
            tail = file.read(4)
        if head == PARQUET_MAGIC and tail != PARQUET_MAGIC:
            return f"it begins as parquet but its last bytes are no footer ({size} bytes)"
    return ""
