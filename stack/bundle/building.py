"""Making a bundle: every object copied, hashed on the way, and put in its place when it is right.

An object is `objects/AB/SHA256` and appears by one rename, on the disk. Its time is set to a fixed one then,
so that a later call knows it for whole by size and time, and hashes anything else again. bundle.json comes
last: a folder without it is no bundle yet.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from stack.bundle.content import OWN_FILES, SUMS, Content, base_of, content_of, own_texts
from stack.bundle.items import Hashes, Item
from stack.bundle.parts import NOWHERE, Places
from stack.bundle.planning import plan
from stack.errors import BadRequest, Exit, NotAble, StackError
from stack.files import disk_error, hold_target, sha256_file, sha256_text, write_text
from stack.manifests import Loaded
from stack.manifests.bundle import BundleManifest

Log = Callable[[str], None]
OBJECT_TIME_S = 315_619_200  # 1980-01-02: the earliest that every file system can keep
COPY_BYTES = 4 << 20
_OWN_PARTIAL = re.compile(r"^\.(?:" + "|".join(map(re.escape, (*OWN_FILES, SUMS))) + r")\.partial-")
_OBJECT = re.compile(r"^(?:[0-9a-f]{64}|\.[0-9a-f]{64}\.partial)$")
COPIES_AT_A_TIME = 2  # one reads and writes while the other hashes


@dataclass(frozen=True)
class Bundled:
    """Attributes:
    sha256: of bundle.json; tell it to the site by another way than the bundle's.
    copied: objects that this call brought; 0: there was nothing to do.
    """

    folder: Path
    sha256: str
    items: int
    size_bytes: int
    copied: int


def bundle(
    loaded: Loaded[BundleManifest],
    out: Path,
    *,
    places: Places = NOWHERE,
    base: Path | None = None,
    log: Log = lambda _: None,
) -> Bundled:
    """Make `out` the bundle that the manifest asks for; what is there and right is not copied again.

    Args:
        base: an earlier bundle that the site has; what it holds is named, and not carried again.

    Raises:
        StackError: exit code 1, something is missing or not as pinned; all of it is named, nothing is made.
        BadRequest: a manifest is wrong, the checkout has uncommitted changes, `out` is something else.
        NotAble: the disk is full or cannot be written, another process works at `out`.
    """
    _refuse_other(out)
    with hold_target(out), tempfile.TemporaryDirectory(prefix="stack-bundle-") as scratch:
        hashes = Hashes(out.parent / f".{out.name}.hashes.json")
        wish, revision, targets = plan(loaded, places, hashes, Path(scratch))
        if wish.missing:
            raise StackError(
                "bundle-incomplete",
                f"{len(wish.missing)} of {len(wish.missing) + len(wish.items)} items cannot be bundled:"
                + "".join(f"\n  - {missing}" for missing in wish.missing),
                where=str(loaded.file),
                do="bring what is named, then run the same command again",
                exit=Exit.NOT_GOOD,
            )
        content = content_of(loaded.manifest.name, revision, wish.items, targets, base_of(base))
        try:
            out.mkdir(parents=True, exist_ok=True)
            hashes.save()
            copied = _objects(out, wish.items, content, log)
            finished = _finish(out, content)
        except OSError as error:
            raise disk_error(error, out) or NotAble(
                "bundle-not-writable", f"cannot write here: {error}", where=str(out)
            ) from error
    if not copied and not finished:
        log(f"{out}: nothing to do, {len(content.items)} items are there already")
    return Bundled(out, sha256_text(content.text), len(content.items), content.size_bytes, copied)


def _refuse_other(out: Path) -> None:
    """Files that no bundle has are never deleted: the folder is refused, and they are named."""
    foreign = sorted(_foreign(out)) if out.is_dir() else []
    if foreign or (out.exists() and not out.is_dir()):
        shown = f"holds {', '.join(foreign[:5])}, which no bundle does" if foreign else "is no folder"
        raise BadRequest(
            "bundle-place-taken",
            f"the place of the bundle {shown}",
            where=str(out),
            do="move them away, or name another --to",
        )


def _foreign(out: Path) -> Iterator[str]:
    for path in out.iterdir():
        if path.name not in (*OWN_FILES, SUMS, "objects") and not _OWN_PARTIAL.match(path.name):
            yield path.name
    for path in (out / "objects").rglob("*"):
        if not path.is_dir() and not _OBJECT.match(path.name):
            yield path.relative_to(out).as_posix()


def _objects(out: Path, items: list[Item], content: Content, log: Log) -> int:
    wanted = {item.sha256: item for item in items if item.sha256 in content.carried}
    absent = [item for item in wanted.values() if not _is_whole(object_path(out, item.sha256), item)]
    _check_space(out, absent)
    total, done, stop = sum(item.size for item in absent), 0, threading.Event()
    if absent:
        log(f"{out}: {len(absent)} of {len(wanted)} objects to copy, {total:,} bytes")
    with ThreadPoolExecutor(COPIES_AT_A_TIME) as pool:
        try:
            for number, size in enumerate(pool.map(lambda item: _copy(out, item, stop), absent), 1):
                before, done = done, done + size
                if number == len(absent) or done * 10 // max(total, 1) > before * 10 // max(total, 1):
                    log(f"{out}: {number} of {len(absent)} objects, {done:,} of {total:,} bytes")
        except BaseException:
            stop.set()
            pool.shutdown(wait=True, cancel_futures=True)
            raise
    return len(absent)


def object_path(out: Path, sha256: str) -> Path:
    return out / "objects" / sha256[:2] / sha256


def _is_whole(path: Path, item: Item) -> bool:
    try:
        stat = path.stat()
    except FileNotFoundError:
        return False
    if stat.st_size != item.size:
        return False
    if stat.st_mtime == OBJECT_TIME_S:
        return True
    if sha256_file(path) != item.sha256:
        return False
    os.utime(path, (OBJECT_TIME_S, OBJECT_TIME_S))
    return True


def _check_space(out: Path, absent: list[Item]) -> None:
    needed, free = sum(item.size for item in absent), shutil.disk_usage(out).free
    if needed > free:
        raise NotAble(
            "bundle-disk-full",
            f"the bundle needs {needed:,} bytes more, {free:,} are free",
            where=str(out),
            do="free space, or name another --to",
        )


def _copy(out: Path, item: Item, stop: threading.Event) -> int:
    """Copy one object; what it was copied from must be what the manifest pins, to the last byte.

    Args:
        stop: set when another copy has failed or somebody interrupts; ends this one in the middle.
    """
    target = object_path(out, item.sha256)
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f".{target.name}.partial")
    digest = hashlib.sha256()
    try:
        with item.source.open("rb", buffering=0) as source, partial.open("wb", buffering=0) as copy:
            while not stop.is_set() and (block := source.read(COPY_BYTES)):
                digest.update(block)
                copy.write(block)
            os.fsync(copy.fileno())
        if stop.is_set():
            return 0
        if digest.hexdigest() != item.sha256:
            raise StackError(
                "bundle-source-wrong",
                f"{item.path}: {item.source} has sha256 {digest.hexdigest()}, {item.sha256} is expected; "
                f"needed by: {', '.join(item.needed_by)}",
                where=str(item.source),
                do="bring the right file, then run the same command again",
                exit=Exit.NOT_GOOD,
            )
        os.utime(partial, (OBJECT_TIME_S, OBJECT_TIME_S))
        partial.rename(target)
    finally:
        partial.unlink(missing_ok=True)
    return item.size


def _finish(out: Path, content: Content) -> bool:
    """Write what names the objects, bundle.json last, and remove what nobody needs; False: all was so."""
    changed = False
    texts = own_texts(content)
    for name in (*(n for n in texts if n != "bundle.json"), "bundle.json"):
        path = out / name
        if not path.is_file() or path.read_text(encoding="utf-8") != texts[name]:
            write_text(path, texts[name])
            changed = True
    for stale in _stale(out, content):
        stale.unlink()
        changed = True
    for folder in (out / "objects").glob("*"):
        with suppress(OSError):
            folder.rmdir()  # only where it is empty
    return changed


def _stale(out: Path, content: Content) -> Iterator[Path]:
    for path in (out / "objects").rglob("*"):
        if path.is_file() and path.name not in content.carried:
            yield path
    for path in out.iterdir():
        if path.is_file() and path.name not in (*OWN_FILES, SUMS):
            yield path
