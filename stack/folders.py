"""Folders that come whole or not at all, one process at a time; and what a full or failing disk is called."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import shutil
import socket
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from stack.errors import BadRequest, NotAble

PARTIAL_MARK = ".partial-"
OLD_MARK = "-old"
GONE_MARK = "-gone"
LOCK_NAME = "lock"
AT_FDCWD = -100  # linux/fcntl.h
RENAME_EXCHANGE = 2  # linux/fs.h
NO_SUCH_CALL = (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.ENOLCK)
DISK_TROUBLE = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk quota is used up",
    errno.EFBIG: "the file would be larger than this process or file system allows",
    errno.EROFS: "the file system is read-only",
    errno.EIO: "the disk answers with errors",
}
DISK_REMEDY = {
    errno.EFBIG: "raise the limit (ulimit -f) or name another place, and run the same command again",
    errno.EROFS: "name another place, and run the same command again",
    errno.EIO: "look at the disk (dmesg) or name another place, and run the same command again",
}


@contextmanager
def whole_folder(target: Path, *, replace: bool = False, resume_key: str | None = None) -> Iterator[Path]:
    """Yield a sibling folder that becomes `target` when the body succeeds, at one instant and for good.

    Everything is brought to the disk before the rename. A target that is replaced is swapped with its
    successor in one system call where the file system can (renameat2 with RENAME_EXCHANGE), and only then
    removed; elsewhere it is renamed away, and a kill just then is mended by the next call. Only one process
    at a time works at a target. A kill leaves only the sibling, which the next call for the same target
    removes, or goes on with.

    Args:
        replace: swap a folder that is there for the new one.
        resume_key: a name for the work, good for a file name. What a killed or interrupted call with the
            same key left is yielded again; the body must not trust what it finds there. Without it, and
            after errors, nothing is left.

    Raises:
        BadRequest: `target` exists, is no empty folder, and `replace` is false; or it is no folder.
        NotAble: another process works at the target; the parent cannot be written.
    """
    target = _behind_links(target)
    refuse_existing(target, replace)
    with hold_target(target) as is_alone:
        try:
            partial = _open_partial(target, resume_key, is_alone)
        except OSError as error:
            raise _not_writable(target, error) from error
        try:
            # What was left of a swap may have come back just now.
            refuse_existing(target, replace)
            yield partial
            sync_tree(partial)
            _put_in_place(partial, target)
        except BaseException as error:
            if resume_key is None or not isinstance(error, KeyboardInterrupt | SystemExit):
                _clear_away(partial)
            raise


@contextmanager
def hold_target(target: Path) -> Iterator[bool]:
    """Hold a target against other processes, for work that begins before its folder does.

    Yields whether this file system can lock at all. Within it the same thread may call `whole_folder` for the
    target.

    Raises:
        NotAble: another process works at the target; the parent cannot be written.
    """
    target = _behind_links(target)
    key = target.absolute()
    if _held.get(key, (0, False))[0] == threading.get_ident():
        yield _held[key][1]
        return
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        lock = _lock(target)
    except OSError as error:
        raise _not_writable(target, error) from error
    _held[key] = threading.get_ident(), lock.is_alone
    try:
        yield lock.is_alone
    finally:
        del _held[key]
        lock.file.unlink(missing_ok=True)
        os.close(lock.handle)


def _behind_links(target: Path) -> Path:
    """Where the target really is: a link to a folder stays a link."""
    if not target.is_symlink():
        return target
    real = Path(os.path.realpath(target))
    if real.is_symlink():
        raise BadRequest(
            "target-link-circle",
            "the target is a link that leads back to itself",
            where=str(target),
            do="remove the link, or name another --out",
        )
    return real


def sync_tree(root: Path) -> None:
    """Bring every file and folder below `root` to the disk, `root` included."""
    # One flush of the file system takes less than one a file, and there may be thousands of files.
    if _sync_file_system(root):
        return
    for path in sorted(root.rglob("*"), reverse=True):
        if not path.is_symlink():
            _sync(path)
    _sync(root)


def _sync_file_system(folder: Path) -> bool:
    """False where the C library or the file system cannot."""
    call = getattr(ctypes.CDLL(None, use_errno=True), "syncfs", None)
    if call is None:
        return False
    handle = os.open(folder, os.O_RDONLY)
    try:
        if call(handle) == 0:
            return True
        number = ctypes.get_errno()
    finally:
        os.close(handle)
    if number in NO_SUCH_CALL:
        return False
    raise OSError(number, os.strerror(number), str(folder))


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        # Some network file systems cannot do this for a folder; their renames are ordered by the server.
        if error.errno not in NO_SUCH_CALL or not path.is_dir():
            raise
    finally:
        os.close(handle)


def disk_error(error: BaseException, where: Path) -> NotAble | None:
    """What a person should know if a full, read-only or failing disk is at the root of `error`."""
    cause: BaseException | None = error
    while cause is not None:
        number = getattr(cause, "errno", None)
        if number in DISK_TROUBLE:
            near = next(p for p in (where, *where.parents) if p.is_dir())
            free = shutil.disk_usage(near).free
            return NotAble(
                "disk-not-able",
                f"{DISK_TROUBLE[number]}: {free / 1e9:.3f} GB are free on the file system of {near}",
                where=str(where),
                do=DISK_REMEDY.get(number, "make room or name another place, and run the same command again"),
            )
        cause = cause.__cause__ or cause.__context__
    return None


def refuse_existing(
    target: Path, replace: bool, *, do: str = "name another --out, or move the folder away"
) -> None:
    """Refuse a target that is there, unless it is an empty folder, or a folder that may be replaced."""
    if not target.exists() or _is_empty_folder(target):
        return
    if not replace:
        raise BadRequest(
            "target-exists",
            "the target folder exists already; nothing was written",
            where=str(target),
            do=do,
        )
    if not target.is_dir():
        raise BadRequest("target-not-folder", "the target is a file; it is not replaced", where=str(target))


def _is_empty_folder(path: Path) -> bool:
    return path.is_dir() and not any(path.iterdir())


def _not_writable(target: Path, error: OSError) -> NotAble:
    return NotAble(
        "folder-not-writable",
        f"cannot write here: {error}",
        where=str(target.parent),
        do="name a place that you may write to",
    )


_held: dict[Path, tuple[int, bool]] = {}  # target -> the thread that holds it, and whether it is alone


@dataclass(frozen=True)
class _Lock:
    """`is_alone`: whether this file system can lock at all."""

    file: Path
    handle: int
    is_alone: bool


def _lock(target: Path) -> _Lock:
    """Hold the target against other processes.

    The lock is the kernel's, so that a kill frees it, whatever file it leaves.
    """
    file = target.parent / f".{target.name}{PARTIAL_MARK}{LOCK_NAME}"
    while True:
        handle = os.open(file, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(handle, 200).decode(errors="replace") or "another process"
            os.close(handle)
            raise NotAble(
                "target-busy",
                f"{holder} is at work at this target; nothing was written",
                where=str(target),
                do="wait for it to end, or name another --out",
            ) from None
        except OSError as error:
            if error.errno in NO_SUCH_CALL:
                return _Lock(file, handle, is_alone=False)
            os.close(handle)
            raise
        if os.fstat(handle).st_nlink:  # else its last holder has removed the file since it was opened
            os.ftruncate(handle, 0)
            os.write(handle, f"process {os.getpid()} on {socket.gethostname()}".encode())
            return _Lock(file, handle, is_alone=True)
        os.close(handle)


def _open_partial(target: Path, resume_key: str | None, is_alone: bool) -> Path:
    """The sibling to work in; what other calls left is removed, or given back its name."""
    kept = f".{target.name}{PARTIAL_MARK}{resume_key}" if resume_key is not None else None
    for partial in list(target.parent.iterdir()):
        if not partial.name.startswith(f".{target.name}{PARTIAL_MARK}"):
            continue
        mark = partial.name.split(PARTIAL_MARK, 1)[1]
        pid = mark.split("-", 1)[0]
        if mark == LOCK_NAME or (not is_alone and pid.isdigit() and Path(f"/proc/{pid}").exists()):
            continue
        if mark.endswith(OLD_MARK) and not target.exists():
            # Killed between the two renames: the old folder is the last whole one.
            os.rename(partial, target)
        elif partial.name != kept:
            shutil.rmtree(partial, ignore_errors=True)
    if kept is not None:
        partial = target.parent / kept
        partial.mkdir(exist_ok=True)
    else:
        prefix = f".{target.name}{PARTIAL_MARK}{os.getpid()}-"
        partial = Path(tempfile.mkdtemp(dir=target.parent, prefix=prefix))
    os.chmod(partial, 0o755)
    return partial


def _clear_away(partial: Path) -> None:
    """Remove a folder that others may still be writing to: under its old name they find nothing any more."""
    gone = partial.with_name(f"{partial.name}{GONE_MARK}")
    with suppress(OSError):
        os.rename(partial, gone)
        partial = gone
    shutil.rmtree(partial, ignore_errors=True)


def _put_in_place(partial: Path, target: Path) -> None:
    old = None
    if not target.exists() or _is_empty_folder(target):
        os.rename(partial, target)
    elif _exchange(partial, target):
        old = partial
    else:
        old = target.parent / f".{target.name}{PARTIAL_MARK}{os.getpid()}{OLD_MARK}"
        os.rename(target, old)
        try:
            os.rename(partial, target)
        except BaseException:
            os.rename(old, target)
            raise
    _sync(target.parent)
    if old is not None:
        shutil.rmtree(old)


def _exchange(a: Path, b: Path) -> bool:
    """Swap two names in one step; False where kernel, C library or file system cannot."""
    call = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if call is None:
        return False
    if call(AT_FDCWD, os.fsencode(a), AT_FDCWD, os.fsencode(b), RENAME_EXCHANGE) == 0:
        return True
    number = ctypes.get_errno()
    if number in NO_SUCH_CALL:
        return False
    raise OSError(number, os.strerror(number), str(b))
