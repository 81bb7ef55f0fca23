"""The doors of this room, called in a process that may die without harm.

A function marked `sheltered` runs in a worker: its arguments go there and its result comes back pickled.
The worker is a child of a process that watches over it (`stack.audit.shelter`); where a reader takes it down,
another worker is told to leave the file alone and gets the same call again. Both live on for a moment, so
that calls in a row do not each pay for the imports, and end with the process that called.

A command that has taken shelter itself, and a function called by a sheltered one, run where they are.
"""

from __future__ import annotations

import atexit
import functools
import importlib
import os
import pickle
import select
import struct
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, ParamSpec, TypeVar

from stack.audit import shelter
from stack.errors import Exit, StackError, WorkFailed

IDLE_S = 5.0
LEAVE_S = 10.0
STARTS = 3  # one may have left for idleness at the very moment of the call
MAIN = "import sys; sys.path[:] = {path!r}; from stack.audit.apart import serve; sys.exit(serve({owner}))"

P = ParamSpec("P")
R = TypeVar("R")

_lock = threading.Lock()
_is_here = False


def sheltered(function: Callable[P, R]) -> Callable[P, R]:
    """Let `function` run in a worker. Its arguments but `log`, its result and its errors must be picklable.

    Raises:
        WorkFailed: the worker died although no file can be blamed (memory), or again and again.
    """

    @functools.wraps(function)
    def door(*args: P.args, **kwargs: P.kwargs) -> R:
        if _is_here or shelter.in_shelter() or not hasattr(os, "fork") or not sys.executable:
            return function(*args, **kwargs)
        log: Any = kwargs.pop("log", None)
        name = (function.__module__, function.__qualname__)
        with _lock:
            return _call(name, args, kwargs, log)  # type: ignore[no-any-return]

    return door


@contextmanager
def here() -> Iterator[None]:
    """Run sheltered functions in this process after all: under a debugger, or where parts were replaced."""
    global _is_here
    before, _is_here = _is_here, True
    try:
        yield
    finally:
        _is_here = before


def let_go() -> None:
    """End the worker now; the next call starts another."""
    with _lock:
        if _worker is not None and _worker.owner == os.getpid():
            _worker.close()
        _forget()


class _Remote(Exception):
    """The traceback in the worker, shown as the cause of the error here."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


class _Worker:
    """A process that watches, its child that works, and the pipes to it."""

    def __init__(self) -> None:
        self.owner = os.getpid()
        main = MAIN.format(path=_import_path(), owner=self.owner)
        # A session of its own: Ctrl-C reaches the caller, who decides.
        self._process = subprocess.Popen(
            [sys.executable, "-c", main],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        assert self._process.stdin and self._process.stdout
        self._to, self._from = self._process.stdin, self._process.stdout

    def send(self, request: bytes) -> None:
        # Where the worker has left, reading says so.
        with suppress(BrokenPipeError):
            _write(self._to, request)

    def receive(self) -> tuple[str, Any] | None:
        """What the worker says; None where it has left."""
        content = _read(self._from)
        return None if content is None else pickle.loads(content)

    def left_well(self) -> bool:
        return self._process.wait() == Exit.OK

    @property
    def code(self) -> int | None:
        return self._process.returncode

    def close(self) -> None:
        """Ask it to leave, and end it where it does not."""
        with suppress(BrokenPipeError):
            self._to.close()
        self._from.close()
        try:
            self._process.wait(LEAVE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def end(self) -> None:
        self._process.terminate()
        self.close()


_worker: _Worker | None = None


def _call(
    name: tuple[str, str], args: Sequence[Any], kwargs: Mapping[str, Any], log: Callable[[str], None] | None
) -> Any:
    place = (str(Path.cwd()), dict(os.environ))
    request = pickle.dumps((name, args, kwargs, log is not None, place))
    for _ in range(STARTS):
        worker = _open()
        try:
            worker.send(request)
            answer = _answer(worker, request, log)
        except BaseException:  # an interrupt, or an error of `log`: nobody waits for the answer any more
            worker.end()
            _forget()
            raise
        if answer is not None:
            return _result(*answer)
        well = worker.left_well()
        _forget()
        if not well:
            break
    raise WorkFailed(
        "audit-died",
        f"the process of the audit ended without a word (exit code {worker.code})",
        do="look at the machine's memory and log, then try again",
    )


def _answer(worker: _Worker, request: bytes, log: Callable[[str], None] | None) -> tuple[str, Any] | None:
    restarts = 0
    while (said := worker.receive()) is not None:
        kind, value = said
        if kind == "again":
            restarts += 1
            if restarts == shelter.RESTARTS:
                raise shelter.died_again()
            worker.send(request)
        elif kind != "log":
            return said
        elif log is not None:
            log(value)
    return None


def _result(kind: str, value: Any) -> Any:
    if kind == "done":
        return value
    error, told = value
    if told:
        raise error from _Remote(told)
    raise error


def _open() -> _Worker:
    global _worker
    if _worker is None or _worker.owner != os.getpid():  # a forked process has no use for its parent's
        _worker = _Worker()
        atexit.register(_worker.close)
    return _worker


def _forget() -> None:
    global _worker
    if _worker is not None:
        atexit.unregister(_worker.close)
    _worker = None


def _import_path() -> list[str]:
    return [os.path.abspath(entry) for entry in sys.path]


def _read(file: BinaryIO | Any) -> bytes | None:
    head = file.read(8)
    if len(head) < 8:
        return None
    (size,) = struct.unpack("<Q", head)
    content: bytes = file.read(size)
    return content if len(content) == size else None


def _write(file: BinaryIO | Any, content: bytes) -> None:
    file.write(struct.pack("<Q", len(content)) + content)
    file.flush()


def serve(owner: int) -> int:
    """The watching process: answers the calls of process `owner`, which come through stdin."""
    with os.fdopen(os.dup(0), "rb", buffering=0) as calls, os.fdopen(os.dup(1), "wb") as answers:
        os.dup2(2, 1)  # whatever prints must not print among the answers
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)

        def say(kind: str, value: Any = None) -> None:
            _write(answers, pickle.dumps((kind, value)))

        try:
            code = shelter.branch(owner=owner, restarts=None, again=lambda: say("again"))
        except WorkFailed as error:
            say("failed", (error, ""))
            return Exit.OK
        if code is not None:
            return code
        _answer_calls(calls, say)
        answers.flush()
        os._exit(Exit.OK)


def _answer_calls(calls: Any, say: Callable[..., None]) -> None:
    """In the child: one call after another, until none comes for a while."""
    while select.select([calls], [], [], IDLE_S)[0]:
        request = _read_whole(calls)
        if request is None:
            return
        try:
            say("done", _work(request, say))
        except Exception as error:
            say("failed", _picklable(error))


def _read_whole(file: Any) -> bytes | None:
    head = _read_exactly(file, 8)
    return None if head is None else _read_exactly(file, struct.unpack("<Q", head)[0])


def _read_exactly(file: Any, size: int) -> bytes | None:
    parts, left = [], size
    while left:
        part = file.read(min(left, 1 << 20))
        if not part:
            return None
        parts.append(part)
        left -= len(part)
    return b"".join(parts)


def _work(request: bytes, say: Callable[..., None]) -> Any:
    (module, name), args, kwargs, logs, (folder, environment) = pickle.loads(request)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    log = {"log": functools.partial(say, "log")} if logs else {}
    return getattr(importlib.import_module(module), name)(*args, **kwargs, **log)


def _picklable(error: Exception) -> tuple[Exception, str]:
    told = "" if isinstance(error, StackError) else traceback.format_exc()
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}"), told
    return error, told
