"""What a bundle is to hold, before any of it is copied."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from stack.errors import BadRequest
from stack.files import read_json, sha256_file, write_json


@dataclass(frozen=True)
class Item:
    """One file of the bundle.

    Attributes:
        path: where it lies when the bundle is unpacked; POSIX, relative.
        source: where it is copied from.
        size, sha256: what it must be; the copy is refused when the bytes are others.
        needed_by: who would miss it.
    """

    path: str
    source: Path
    size: int
    sha256: str
    needed_by: tuple[str, ...]


@dataclass(frozen=True)
class Missing:
    """Something that a manifest needs and that is not there, or not as it is pinned."""

    path: str
    what: str
    needed_by: tuple[str, ...]
    do: str

    def __str__(self) -> str:
        return f"{self.path}: {self.what}; needed by: {', '.join(self.needed_by)}; do: {self.do}"


@dataclass
class Wish:
    """Items by their place, and gaps, gathered part by part."""

    by_path: dict[str, Item] = field(default_factory=dict)
    missing: list[Missing] = field(default_factory=list)

    @property
    def items(self) -> list[Item]:
        return list(self.by_path.values())

    def add(self, item: Item) -> None:
        """Take an item; one that is there already gets one more owner.

        Raises:
            BadRequest: two different files for one place.
        """
        other = self.by_path.get(item.path, item)
        if other.sha256 != item.sha256:
            raise BadRequest(
                "bundle-place-taken",
                f"two different files are wanted at {item.path}: for {', '.join(other.needed_by)}, and for "
                f"{', '.join(item.needed_by)}",
                do="let both name one manifest, or other places",
            )
        owners = tuple(sorted({*other.needed_by, *item.needed_by}))
        self.by_path[item.path] = replace(other, needed_by=owners)


class Hashes:
    """sha256 of files that no manifest pins, remembered by size, times and inode, as git does.

    Args:
        file: where they are remembered; what cannot be read there is forgotten.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._known: dict[str, Any] = {}
        self._used: dict[str, Any] = {}
        try:
            known = read_json(file, what="record of hashes")
            self._known = known if isinstance(known, dict) else {}
        except (BadRequest, OSError):
            pass

    def sha256(self, path: Path) -> str:
        stat = path.stat()
        look = [stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino]
        key = str(path.resolve())
        known = self._known.get(key)
        if not (isinstance(known, list) and known[:-1] == look):
            known = [*look, sha256_file(path)]
        self._used[key] = known
        return str(known[-1])

    def save(self) -> None:
        if self._used != self._known:
            write_json(self._file, self._used)
