"""Pieces of work whose results outlive a kill: each is a pure function of its job, kept under the job's hash.

While a dataset is written, its partial folder holds `.resume/`: a record for each finished piece, written
after its output file has got its name. The next call trusts a file only if its record is whole, belongs to
the same job on unchanged sources by the same code, and gives the file's sha256.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import re
import shutil
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, Generic, TypeVar

from stack.dataset.own_code import code_digest
from stack.dataset.pool import Pool
from stack.dataset.progress import Log, Progress, Unit
from stack.errors import StackError, WorkFailed
from stack.files import sha256_file, sha256_text
from stack.folders import disk_error

RECORDS = ".resume"
ATTEMPT = "attempt-"
TOGETHER = 8  # files that travel to a worker at once, where there are hundreds: links are made in no time
DIGEST_BYTES = hashlib.sha256().digest_size
EPISODE = re.compile(r"\bepisode \d")  # not the name of a file
Result = TypeVar("Result")


@dataclass(frozen=True)
class Work(Generic[Result]):
    """One piece of work.

    Attributes:
        do: a function of a module, so that other processes find it.
        job: its only argument. Where `path` is given, `job.root` is the folder to write below.
        path: the output file, relative to the dataset; None for a measurement.
        amount: how much work it is, in the unit of its group.
        label: which episodes it is about, for an error that does not say so.
        labels: the same for each file that it reads, where the error names one.
        key: see `keyed`.
    """

    do: Callable[[Any], Result]
    job: Any
    path: str | None
    amount: float
    label: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    key: str = ""


@dataclass(frozen=True)
class _Step:
    """`is_light`: what the result can do without comes back only on request, from its record."""

    work: Work[Any]
    root: Path
    is_light: bool


@dataclass(frozen=True)
class _Done:
    result: Any
    is_reused: bool


def keyed(works: Sequence[Work[Result]]) -> list[Work[Result]]:
    """Works with their hash: of function, job, our code, and size and time of the files in the job."""
    stats: dict[Path, str] = {}
    return [
        replace(work, key=sha256_text("\n".join((code_digest(), _name(work.do), _describe(work.job, stats)))))
        for work in works
    ]


def _name(function: Callable[..., Any]) -> str:
    return f"{function.__module__}.{function.__qualname__}"


class Workshop:
    """Runs works over a pool into one partial folder.

    Args:
        works: all that will be run, with their keys; what the folder holds of others is removed.
    """

    def __init__(self, root: Path, pool: Pool, works: Sequence[Work[Any]], log: Log) -> None:
        self._root, self._pool, self._log = root, pool, log
        known = {work.path for work in works if (root / RECORDS / work.key).exists()}
        for file in sorted(root.rglob("*"), reverse=True):  # what is in a folder comes before it
            name = file.relative_to(root).as_posix()
            if file.is_dir() and not file.is_symlink():
                if not any(file.iterdir()):
                    file.rmdir()
            elif name not in known and file.parent.name != RECORDS:
                file.unlink()
        (root / RECORDS).mkdir(exist_ok=True)

    def run(self, unit: Unit, groups: Mapping[str, Sequence[Work[Any]]]) -> Iterator[list[Any]]:
        """Results of each group in the order of its works; those that an earlier call finished are not made
        again. All groups are worked at at once, so that none waits for the last piece of another.

        Args:
            groups: what progress calls them -> their works.

        Raises:
            StackError: of the first piece that fails; `NotAble` where a full or read-only disk is the reason.
        """
        # Another machine's record may take its time to be seen here.
        light = self._pool.is_local
        steps = [_Step(work, self._root, light) for works in groups.values() for work in works]
        finished = self._pool.map(_run_step, steps, together=TOGETHER)
        for what, works in groups.items():
            total = sum(work.amount for work in works)
            progress = Progress(self._log, what, items=len(works), total=total, unit=unit)
            results: list[Any] = []
            for work, done in zip(works, finished, strict=False):
                results.append(done.result)
                progress.step(work.amount, is_reused=done.is_reused)
            progress.end()
            yield results

    def whole(self, work: Work[Result], result: Result) -> Result:
        """A result of `run` with all that belongs to it.

        Raises:
            WorkFailed: its record has gone meanwhile.
        """
        if not (self._pool.is_local and _is_heavy(result)):
            return result
        record = self._root / RECORDS / work.key
        known = _load(record)
        if known is None:
            raise WorkFailed("write-record-gone", "the record of a finished file is gone", where=str(record))
        found: Result = known.result
        return found


def clear_records(root: Path) -> None:
    """The folder is complete: nothing is to be resumed."""
    shutil.rmtree(root / RECORDS)


def _run_step(step: _Step) -> _Done:
    record = step.root / RECORDS / step.work.key
    known = _load(record)
    if known is not None and _is_there(step, known.result):
        return _returned(step, known)
    attempt = step.root / RECORDS / _own_attempt(os.getpid(), threading.get_ident())
    try:
        attempt.mkdir(exist_ok=True)
        result = _attempt(step, attempt)
        _store(record, result)
    except BaseException as error:
        shutil.rmtree(attempt, ignore_errors=True)
        if not isinstance(error, StackError | OSError):
            raise
        where = step.root / (step.work.path or "")
        if told := disk_error(error, where):
            raise told from error
        if not isinstance(error, StackError):
            raise WorkFailed("write-failed", f"writing failed: {error}", where=str(where)) from error
        if step.work.label and not EPISODE.search(error.where):
            named = (label for file, label in step.work.labels.items() if file in error.where)
            error.where = ", ".join(filter(None, (error.where, next(named, step.work.label))))
        raise
    return _returned(step, _Done(result, is_reused=False))


@lru_cache(maxsize=64)
def _own_attempt(process: int, thread: int) -> str:
    """The folder that a thread of a process works in, on whatever machine it is; empty between two works."""
    return f"{ATTEMPT}{process}-{thread}-{uuid.uuid4().hex}"


def _returned(step: _Step, done: _Done) -> _Done:
    return replace(done, result=done.result.light()) if step.is_light and _is_heavy(done.result) else done


def _is_heavy(result: Any) -> bool:
    return hasattr(result, "light")


def _attempt(step: _Step, attempt: Path) -> Any:
    """Do the work in a folder of its own and move its file into place: nobody sees a half-written one."""
    work = step.work
    if work.path is None:
        return work.do(work.job)
    _make_folder_of(attempt, work.path)
    result = work.do(replace(work.job, root=attempt))
    target = step.root / work.path
    _make_folder_of(step.root, work.path)
    os.replace(attempt / work.path, target)
    info = getattr(result, "info", None)
    return replace(result, info=replace(info, file=target)) if info is not None else result


def _make_folder_of(root: Path, path: str) -> None:
    """Folder by folder, so that a root which was cleared away after another work's error stays away."""
    folder = root
    for part in PurePosixPath(path).parent.parts:
        folder = folder / part
        folder.mkdir(exist_ok=True)


def _is_there(step: _Step, result: Any) -> bool:
    if step.work.path is None:
        return True
    file = step.root / step.work.path
    return file.is_file() and sha256_file(file) == result.file.sha256


def _store(record: Path, result: Any) -> None:
    """A digest and the pickled result. That goes straight to the file: held, it would be as large again."""
    temporary = record.with_name(f"{record.name}-{uuid.uuid4().hex}")
    with temporary.open("w+b") as file:
        file.seek(DIGEST_BYTES)
        pickle.dump(result, file)
        file.seek(DIGEST_BYTES)
        digest = _digest(file)
        file.seek(0)
        file.write(digest)
    os.replace(temporary, record)


def _load(record: Path) -> _Done | None:
    """None where there is no record, or one that is broken, somebody else's, or of unknown content."""
    try:
        with record.open("rb") as file:
            if os.fstat(file.fileno()).st_uid != os.geteuid():
                return None
            # Read twice, or a record of all episodes' statistics would be held beside what is made of it.
            if file.read(DIGEST_BYTES) != _digest(file):
                return None
            file.seek(DIGEST_BYTES)
            return _Done(_Plain(file).load(), is_reused=True)
    except Exception:  # a record that cannot be read is only work to do again
        return None


def _digest(file: BinaryIO) -> bytes:
    """SHA-256 of what is left of a file."""
    hasher = hashlib.sha256()
    for block in iter(lambda: file.read(1 << 20), b""):
        hasher.update(block)
    return hasher.digest()


class _Plain(pickle.Unpickler):
    """Loads our own plain data and arrays, and calls nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        found = super().find_class(module, name)
        numpy_names = ("ndarray", "dtype", "scalar", "_reconstruct", "_frombuffer")
        if (
            (module.startswith("stack.dataset.") and is_dataclass(found))
            or (module.split(".")[0] == "numpy" and name in numpy_names)
            or (module, name) in (("fractions", "Fraction"), ("builtins", "range"))
            or (module.split(".")[0] == "pathlib" and name in ("Path", "PosixPath"))
        ):
            return found
        raise pickle.UnpicklingError(f"{module}.{name} is not expected in a record")


def _describe(value: Any, stats: dict[Path, str]) -> str:
    """A text that is equal for equal jobs; `root` is where, not what, and does not count."""
    if is_dataclass(value) and not isinstance(value, type):
        parts = (
            f"{f.name}={_describe(getattr(value, f.name), stats)}" for f in fields(value) if f.name != "root"
        )
        return f"{type(value).__name__}({','.join(parts)})"
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{_describe(k, stats)}:{_describe(v, stats)}" for k, v in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(_describe(item, stats) for item in value) + "]"
    if isinstance(value, Path):
        if value not in stats:
            stats[value] = _file_mark(value)
        return stats[value]
    if value is None or isinstance(value, str | bytes | bool | int | float):
        return repr(value)
    # Others are told apart too finely rather than not at all: at worst, work is done again.
    return f"{type(value).__name__} {hashlib.sha256(pickle.dumps(value)).hexdigest()}"


def _file_mark(file: Path) -> str:
    try:
        stat = file.stat()
    except OSError:
        return repr(str(file))
    return f"{str(file)!r} {stat.st_size} {stat.st_mtime_ns}"
