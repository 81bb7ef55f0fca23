"""Folders for what is thrown away in the end, also where nobody came to do so."""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import gettempdir, mkdtemp

MARK = "stack-scratch-"
YOUNG_S = 60.0  # a folder that was made just now may not be held yet


def scratch_place() -> Path:
    """TMPDIR, else /var/tmp before /tmp, which may be memory (file-hierarchy(7))."""
    is_told = "TMPDIR" in os.environ or not os.access("/var/tmp", os.W_OK)
    return Path(gettempdir() if is_told else "/var/tmp")


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """Yield an empty folder in `scratch_place`; it is removed afterwards, after a kill by the next call."""
    place = scratch_place()
    for left in place.glob(f"{MARK}*"):
        _remove_left(left)
    folder = Path(mkdtemp(prefix=MARK, dir=place))
    handle = _held(folder)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if handle is not None:
            os.close(handle)


def _remove_left(folder: Path) -> None:
    with suppress(OSError):
        stat = folder.lstat()
        if stat.st_uid != os.geteuid() or time.time() - stat.st_mtime < YOUNG_S:
            return
        handle = _held(folder)
        if handle is not None:
            shutil.rmtree(folder, ignore_errors=True)
            os.close(handle)


def _held(folder: Path) -> int | None:
    """A handle that locks a folder until it is closed or its process ends; None where another one has it."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # held, or a file system that cannot lock: nothing is removed there
        os.close(handle)
        return None
    return handle
