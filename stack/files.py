"""Files written whole or not at all, canonical JSON, and hashes."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from stack.errors import BadRequest, NotAble

CHUNK_BYTES = 1 << 20
PARTIAL_MARK = ".partial-"
OLD_MARK = "-old"


def canonical_json(value: Any) -> str:
    """JSON with sorted keys, two spaces and a final newline; UTF-8 text is kept as it is."""
    return json.dumps(value, sort_keys=True, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def write_text(path: Path, text: str) -> None:
    """Write through a temporary sibling and a rename, so that no reader ever sees half a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fd, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}{PARTIAL_MARK}")
    try:
        with os.fdopen(fd, "w", encoding="utf-8", newline="\n") as file:
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
    return hashlib.sha256(text.encode()).hexdigest()


def tree_files(root: Path) -> list[Path]:
    """All regular files below `root`, sorted by their relative POSIX path."""
    return sorted((p for p in root.rglob("*") if p.is_file()), key=lambda p: p.relative_to(root).as_posix())


def tree_digest(root: Path) -> str:
    """sha256 over sorted lines of (digest, size, relative path); modes and times are left out."""
    lines = [
        f"{sha256_file(p)} {p.stat().st_size} {p.relative_to(root).as_posix()}\n" for p in tree_files(root)
    ]
    return sha256_text("".join(lines))


@contextmanager
def whole_folder(target: Path, *, replace: bool = False) -> Iterator[Path]:
    """Yield an empty sibling folder that becomes `target` by one rename when the body succeeds.

    A kill leaves only the sibling, which the next call for the same target removes.

    Raises:
        BadRequest: `target` exists, is no empty folder, and `replace` is false.
        NotAble: the parent cannot be written.
    """
    if target.exists() and not replace and not _is_empty_folder(target):
        raise BadRequest(
            "target-exists",
            "the target folder exists already; nothing was written",
            where=str(target),
            do="name another --out, or move the folder away",
        )
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _clear_abandoned(target)
        partial = Path(
            tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}{PARTIAL_MARK}{os.getpid()}-")
        )
    except OSError as error:
        raise NotAble(
            "folder-not-writable", f"cannot write here: {error}", where=str(target.parent)
        ) from error
    os.chmod(partial, 0o755)
    try:
        yield partial
        if target.exists() and not _is_empty_folder(target):
            old = target.parent / f".{target.name}{PARTIAL_MARK}{os.getpid()}{OLD_MARK}"
            os.rename(target, old)
            os.rename(partial, target)
            shutil.rmtree(old)
        else:
            os.rename(partial, target)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def _is_empty_folder(path: Path) -> bool:
    return path.is_dir() and not any(path.iterdir())


def _clear_abandoned(target: Path) -> None:
    for partial in target.parent.glob(f".{target.name}{PARTIAL_MARK}*"):
        pid = partial.name.split(PARTIAL_MARK, 1)[1].split("-", 1)[0]
        if pid.isdigit() and Path(f"/proc/{pid}").exists():
            continue
        if partial.name.endswith(OLD_MARK) and not target.exists():
            # Killed between the two renames: the old folder is the last whole one.
            os.rename(partial, target)
        else:
            shutil.rmtree(partial, ignore_errors=True)
