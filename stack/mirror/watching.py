"""While a file arrives: its progress, and its sha256 from the bytes as they reach the disk.

Hashing 14 GB after the download would add a quarter to its time; a thread that follows the growing file uses
another core instead (hashlib and file reads let go of the interpreter's lock).
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

SAY_EVERY_S = 5.0
READ_BYTES = 4 << 20


class Watch:
    """Follows one download of the client into `target` by way of `partial`.

    The client tells of every byte that it has written, and takes back what it told when it starts over. Only
    a download without such a step, into one and the same file, has a hash of ours: everything else must be
    hashed again from the disk.

    Args:
        partial: the file that grows; the client renames it to `target` at the end.
        size: bytes expected, None where that is not known.
        say: gets a line of progress every few seconds.
    """

    def __init__(self, partial: Path, target: Path, size: int | None, say: Callable[[str], None]) -> None:
        self._partial, self._target, self._size, self._say = partial, target, size, say
        self._changed = threading.Condition()
        self._told_bytes = self._looked_bytes = 0
        self._begun, self._ended, self._void = 0, False, False
        self._thread: threading.Thread | None = None
        self._digest = hashlib.sha256()
        self._hashed_bytes = 0
        self._inode: int | None = None
        self._said_s = self._started_s = time.monotonic()

    def callback(self) -> type:
        """A class as the client wants it: made once a try with (file name, size), then told of bytes."""
        watch = self

        class Told:
            def __init__(self, *_: Any) -> None:
                watch._begin()

            def update(self, size: int) -> None:
                watch._tell(size)

            def end(self) -> None:
                pass

        return Told

    def sha256(self) -> str | None:
        """Wait for the last byte and give the hash of what lies at `target`; None: hash it yourself."""
        self._end()
        if self._void or self._inode is None:
            return None
        found = os.stat(self._target)
        if (found.st_ino, found.st_size) != (self._inode, self._hashed_bytes):
            return None
        return self._digest.hexdigest()

    def close(self) -> None:
        """Give up: the download failed, or its hash is not wanted."""
        self._void = True
        self._end()

    def _begin(self) -> None:
        with self._changed:
            self._begun += 1
            self._void = self._void or self._begun > 1

    def _tell(self, size: int) -> None:
        with self._changed:
            self._told_bytes += size
            self._void = self._void or size < 0
            self._changed.notify()
        if self._thread is None and not self._void:
            self._thread = threading.Thread(target=self._follow, name="mirror-hash", daemon=True)
            self._thread.start()
        now_s = time.monotonic()
        if now_s - self._said_s >= SAY_EVERY_S:
            self._say(self._progress(now_s))
            self._said_s = now_s

    def _progress(self, now_s: float) -> str:
        rate = self._told_bytes / 1e6 / max(now_s - self._started_s, 1e-9)
        of = "" if self._size is None else f" of {self._size / 1e6:,.1f}"
        return f"{self._told_bytes / 1e6:,.1f}{of} MB, {rate:,.0f} MB/s"

    def _end(self) -> None:
        with self._changed:
            self._ended = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()

    def _follow(self) -> None:
        try:
            with self._open() as stream:
                self._inode = os.fstat(stream.fileno()).st_ino
                is_last = False
                while not is_last and not self._void:
                    is_last = self._wait()
                    while not self._void and (block := stream.read(READ_BYTES)):
                        self._digest.update(block)
                        self._hashed_bytes += len(block)
        except OSError:
            self._void = True

    def _open(self) -> BinaryIO:
        try:
            return self._partial.open("rb", buffering=0)
        except FileNotFoundError:  # small files are whole and renamed before this thread runs
            return self._target.open("rb", buffering=0)

    def _wait(self) -> bool:
        """Wait for news of the client; True: it has closed the file, and what its buffer held is there."""
        with self._changed:
            # What was told may still lie in the client's buffer: a look that found less is not repeated
            # before the client tells of more.
            while not (self._void or self._ended or self._told_bytes > self._looked_bytes):
                self._changed.wait()
            self._looked_bytes = self._told_bytes
            return self._ended
