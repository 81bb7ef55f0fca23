"""Files written whole or not at all, canonical JSON, and hashes; the door to `stack.folders` too."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any

from stack.errors import BadRequest
from stack.folders import LOCK_NAME as LOCK_NAME
from stack.folders import PARTIAL_MARK as PARTIAL_MARK
from stack.folders import disk_error as disk_error
from stack.folders import hold_target as hold_target
from stack.folders import refuse_existing as refuse_existing
from stack.folders import whole_folder as whole_folder

CHUNK_BYTES = 1 << 20


def canonical_json(value: Any) -> str:
    """JSON with sorted keys, two spaces and a final newline; UTF-8 text is kept as it is."""
    return json.dumps(value, sort_keys=True, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def write_text(path: Path, text: str) -> None:
    """Write through a temporary sibling and a rename, so that no reader ever sees half a file.

    A file name that is not UTF-8 is written with escapes, which in JSON stand for the same name.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    fd, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}{PARTIAL_MARK}")
    try:
        with os.fdopen(fd, "w", encoding="utf-8", errors="backslashreplace", newline="\n") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def write_json(path: Path, value: Any) -> None:
    write_text(path, canonical_json(value))


def read_json(path: Path, *, what: str = "file") -> Any:
    """Parse a JSON file; a missing or broken one is a `BadRequest` that names it."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise BadRequest("file-missing", f"the {what} is not there", where=str(path)) from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise BadRequest("file-not-json", f"the {what} is not JSON: {error}", where=str(path)) from error


def sha256_file(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def sha256_text(text: str) -> str:
    # File names that are not UTF-8 count as the bytes that they are.
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()


def tree_files(root: Path) -> list[Path]:
    """All regular files below `root`, sorted by their relative POSIX path."""
    return sorted((p for p in root.rglob("*") if p.is_file()), key=lambda p: p.relative_to(root).as_posix())


def tree_digest(root: Path) -> str:
    """sha256 over sorted lines of (digest, size, relative path); modes and times are left out."""
    lines = [
        f"{sha256_file(p)} {p.stat().st_size} {p.relative_to(root).as_posix()}\n" for p in tree_files(root)
    ]
    return sha256_text("".join(lines))
