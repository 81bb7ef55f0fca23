"""Content hashes of input and output trees, remembered by file size and time so that a re-run is quick."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from stack.files import read_json, sha256_file, sha256_text, tree_files, write_json


class HashCache:
    """sha256 of files, kept in one JSON file.

    A file is hashed again when its size, modification time, change time or inode differ; that is how git
    decides too, and `fresh=True` ignores the memory for a full re-check.
    """

    def __init__(self, file: Path, *, fresh: bool = False) -> None:
        self._file = file
        self._known: dict[str, list[Any]] = {}
        if file.exists() and not fresh:
            try:
                self._known = dict(read_json(file))
            except Exception:  # a memory that cannot be read is only slow
                self._known = {}
        self._changed = False

    def file(self, path: Path) -> str:
        stat = path.stat()
        mark = [stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino]
        known = self._known.get(str(path))
        if known is not None and known[:-1] == mark:
            return str(known[-1])
        digest = sha256_file(path)
        self._known[str(path)] = [*mark, digest]
        self._changed = True
        return digest

    def tree(self, root: Path) -> str:
        """sha256 over sorted (digest, size, path) lines; hidden files are book-keeping and do not count."""
        lines = [
            f"{self.file(p)} {p.stat().st_size} {p.relative_to(root).as_posix()}\n"
            for p in tree_files(root)
            if not any(part.startswith(".") for part in p.relative_to(root).parts)
        ]
        return sha256_text("".join(lines))

    def save(self) -> None:
        if self._changed:
            write_json(self._file, self._known)
            self._changed = False


def code_digest(*rooms: str) -> str:
    """sha256 over the sources of the named rooms of this package and of the leaves that all rooms share.

    Args:
        rooms: folder names below `stack/`.
    """
    package = Path(__file__).resolve().parent.parent
    files = sorted(package.glob("*.py"))
    for room in ("manifests", *rooms):
        files += sorted((package / room).rglob("*.py"))
    return sha256_text("".join(f"{sha256_file(f)} {f.relative_to(package).as_posix()}\n" for f in files))
