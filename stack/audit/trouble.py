"""Why a file cannot be used, told from its first and last bytes."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

LFS_MARK = b"version https://git-lfs"
PARQUET_MAGIC = b"PAR1"
NESTED_MOST = 100  # levels; the format needs six


class Trouble(Enum):
    EMPTY = "empty"
    LFS_POINTER = "lfs-pointer"
    TRUNCATED = "truncated"
    NOT_JSON = "not-json"
    DOUBTFUL_JSON = "doubtful-json"
    UNREADABLE = "unreadable"


@dataclass(frozen=True)
class Problem:
    """A file that could not be read, and why. `line` counts from 1 in line-based files."""

    file: str
    trouble: Trouble
    detail: str
    line: int | None = None


_LONE = re.compile(r"\\u[dD][89a-fA-F]")  # may be half of a pair; only then are the texts looked at


def parse_json(text: str, *, doubts: list[str] | None = None, nan_is_doubtful: bool = False) -> Any:
    """As `json.loads`, but what could not be written down again is an error of the file.

    Args:
        doubts: takes what readers understand differently: keys that stand twice in one object.
        nan_is_doubtful: also NaN and Infinity, which are no JSON (RFC 8259, 6).

    Raises:
        ValueError: as `json.loads`; for half a surrogate pair, and for absurd nesting.
    """

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        made = dict(pairs)
        if len(made) < len(pairs) and doubts is not None:
            for key, times in Counter(key for key, _ in pairs).items():
                values = ", ".join(f"{value!r:.30}" for name, value in pairs if name == key)
                doubts.extend([f"the key {key!r:.60} stands {times} times: {values:.120}"] * (times > 1))
        return made

    def constant(name: str) -> float:
        if nan_is_doubtful and doubts is not None:
            doubts.append(f"{name} stands where JSON has no such number")
        return float(name)

    try:
        value = json.loads(text, object_pairs_hook=once, parse_constant=constant)
    except RecursionError:
        raise _nested(text) from None
    if _nests_beyond(value, NESTED_MOST):
        raise _nested(text)
    if _LONE.search(text):
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            raise json.JSONDecodeError("half of a surrogate pair, which is no character", text, 0) from error
    return value


def _nested(text: str) -> json.JSONDecodeError:
    return json.JSONDecodeError(f"nested more than {NESTED_MOST} levels deep", text, 0)


def _nests_beyond(value: Any, most: int) -> bool:
    """Whether lists and objects stand in one another more than so many levels deep."""
    level = [value]
    for _ in range(most):
        children = (v.values() if isinstance(v, dict) else v for v in level if isinstance(v, (dict, list)))
        level = [item for items in children for item in items if isinstance(item, (dict, list))]
        if not level:
            return False
    return True


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
