"""Bringing a model's files to a staging folder beside its place in the mirror, and checking them there.

The staging folder outlives a failed or interrupted call: the next one finds the files that are right, and
resumes the one that is not whole.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from stack.errors import BadRequest, NotAble, StackError, WorkFailed
from stack.files import sha256_file
from stack.manifests.models import Model, ModelFile
from stack.mirror.folder import Mismatch, mismatch
from stack.mirror.hub import FetchFailed, Hub, Listed

Log = Callable[[str], None]
FETCH_ATTEMPTS = 2  # the second starts from zero, for a partial file of other content or a corrupted transfer
UNREACHABLE_IN_A_ROW = 2
_LOCK_POLL_S = 0.2
_CLIENT_FOLDER = ".client"


def staging_folder(to: Path, name: str) -> Path:
    return to / f".{name}.fetch"


def lock_file(to: Path, name: str) -> Path:
    return to / f".{name}.lock"


@contextmanager
def locked(to: Path, name: str, log: Log) -> Iterator[None]:
    """Hold the model's lock, so that of several processes one fetches and the others wait.

    The lock is the kernel's: it goes when its process ends, however it ends.

    Raises:
        NotAble: `to` cannot be written; also for the disk's errors in the body.
    """
    try:
        to.mkdir(parents=True, exist_ok=True)
        handle = lock_file(to, name).open("w")
    except OSError as error:
        raise _not_writable(to, error) from error
    with handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            log(f"{name}: waiting for another process that is at it")
            while not _try_lock(handle.fileno()):
                time.sleep(_LOCK_POLL_S)
        try:
            yield
        except OSError as error:
            raise _not_writable(to, error) from error


def _not_writable(to: Path, error: OSError) -> NotAble:
    return NotAble("mirror-not-writable", f"cannot write here: {error}", where=str(to))


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


class Source:
    """Where one model's files come from.

    Args:
        demo: the folder that `stack demo` wrote; needed for models of the demo only.
        endpoint, hosts: see `Hub`.

    Raises:
        BadRequest: a demo model, and no demo folder given or not there.
    """

    def __init__(
        self,
        name: str,
        model: Model,
        staging: Path,
        *,
        demo: Path | None,
        endpoint: str | None,
        hosts: Sequence[str] = (),
    ) -> None:
        self.name, self.model, self.staging = name, model, staging
        self.carried: set[str] = set()  # files that came by hand; nobody but the manifest can vouch for them
        self._endpoint, self._hosts = endpoint, hosts
        self._hub: Hub | None = None
        self._listing: dict[str, Listed] | None = None
        self._demo = None if model.origin.demo is None else _demo_folder(name, model.origin.demo, demo)

    @property
    def hub(self) -> Hub:
        if self._hub is None:
            self._hub = Hub(self._endpoint, self.staging / _CLIENT_FOLDER, self._hosts)
        return self._hub

    def bring(self, file: ModelFile, log: Log) -> str | None:
        """Bring one file to the staging folder, not yet checked.

        Returns:
            its sha256 where that was computed on the way.

        Raises:
            FetchFailed: it did not come.
        """
        target = self.staging / file.path
        target.parent.mkdir(parents=True, exist_ok=True)
        size = "size not pinned" if file.size is None else f"{file.size:,} bytes"
        log(f"{self.name}: fetching {file.path} ({size})")
        if self._demo is not None:
            target.unlink(missing_ok=True)  # it may be a hard link to a file that is not ours to change
            try:
                shutil.copyfile(self._demo / file.path, target)
            except FileNotFoundError:
                raise FetchFailed(f"is not in the demo's folder {self._demo}") from None
            return None
        repository, revision = self._repository()
        return self.hub.fetch(
            repository,
            revision,
            file.path,
            self.staging,
            size=file.size,
            say=lambda line: log(f"{self.name}: {file.path}: {line}"),
        )

    def discard(self, path: str) -> None:
        for leftover in (self.staging / path, self.staging / f"{path}.incomplete"):
            leftover.unlink(missing_ok=True)

    def listed(self, path: str) -> Listed | None:
        """What the hub's listing says of a file; None for the demo, and where there is no listing."""
        if self._demo is not None:
            return None
        if self._listing is None:
            try:
                self._listing = self.hub.listing(*self._repository())
            except FetchFailed:
                self._listing = {}
        return self._listing.get(path)

    def _repository(self) -> tuple[str, str]:
        origin = self.model.origin
        assert origin.modelscope is not None and origin.revision is not None  # the manifest's own rule
        return origin.modelscope, origin.revision


def _demo_folder(name: str, below: str, demo: Path | None) -> Path:
    do = "run 'stack demo DIR' and pass '--demo DIR', or bring the files of a bundle to the mirror's folder"
    if demo is None:
        raise BadRequest(
            "mirror-demo-not-given", f"'{name}' comes from the demo, and no demo folder is given", do=do
        )
    folder = demo / "models" / below
    if not folder.is_dir():
        raise BadRequest("mirror-demo-missing", f"the demo folder has no '{name}'", where=str(folder), do=do)
    return folder


def stage(source: Source, files: list[ModelFile], log: Log) -> list[str]:
    """Bring `files` to the staging folder and check each; files that are right there already stay.

    Returns:
        paths that were fetched.

    Raises:
        WorkFailed, NotAble: with every file that is missing or wrong; the right ones stay staged.
    """
    source.staging.mkdir(parents=True, exist_ok=True)
    wanted = [f for f in files if not _staged(source, f)]
    _check_space(source, wanted)
    problems: list[str] = []
    reached, in_a_row = False, 0
    for position, file in enumerate(wanted):
        try:
            wrong = _fetch_checked(source, file, log)
            in_a_row, reached = 0, True
            if wrong is not None:
                problems.append(f"{file.path} {wrong.what}{_whose_side(source, file, wrong)}")
        except FetchFailed as error:
            problems.append(f"{file.path} {error.what}")
            in_a_row = in_a_row + 1 if error.unreachable else 0
            reached = reached or not error.unreachable
        # The client tries for half a minute each time; a hub that is away need not be asked for every file.
        if in_a_row == UNREACHABLE_IN_A_ROW:
            problems += [f"{later.path} was not tried" for later in wanted[position + 1 :]]
            break
    if problems:
        raise _failed(source, problems, all_unreachable=not reached)
    return [file.path for file in wanted]


def _staged(source: Source, file: ModelFile) -> bool:
    """Whether the file is there and right; of an unpinned one that was fetched the hub's listing is asked."""
    if mismatch(source.staging, file) is not None:
        return False
    if file.sha256 is not None or file.path in source.carried:
        return True
    listed, path = source.listed(file.path), source.staging / file.path
    if listed is None or listed.sha256 is None:
        return False
    return listed.sha256 == sha256_file(path)


def _fetch_checked(source: Source, file: ModelFile, log: Log) -> Mismatch | None:
    """Fetch a file until it is right, at most `FETCH_ATTEMPTS` times; what is wrong does not stay."""
    wrong = None
    for attempt in range(FETCH_ATTEMPTS):
        if wrong is not None:
            log(f"{source.name}: {file.path} {wrong.what}; attempt {attempt + 1} of {FETCH_ATTEMPTS}")
        sha256 = source.bring(file, log)
        wrong = mismatch(source.staging, file, sha256=sha256)
        if wrong is None:
            return None
        source.discard(file.path)
    return wrong


def _whose_side(source: Source, file: ModelFile, wrong: Mismatch) -> str:
    """Which of the two moved: the hub's file, or the bytes on their way here."""
    listed = source.listed(file.path)
    if wrong.code != "wrong-hash" or listed is None or listed.sha256 is None:
        return ""
    if listed.sha256 == wrong.got:
        return "; the hub lists what it sent, so the manifest and the hub disagree about this revision"
    if listed.sha256 == wrong.expected:
        return "; the hub lists what the manifest pins, so the bytes were damaged on the way"
    return f"; the hub lists sha256 {listed.sha256}, which is neither"


def _check_space(source: Source, wanted: list[ModelFile]) -> None:
    needed_bytes = sum(file.size or 0 for file in wanted)
    free_bytes = shutil.disk_usage(source.staging).free
    if needed_bytes > free_bytes:
        raise NotAble(
            "mirror-disk-full",
            f"'{source.name}' needs {needed_bytes:,} bytes more, {free_bytes:,} are free",
            where=str(source.staging.parent),
            do="free space, or name another --to",
        )


def _failed(source: Source, problems: list[str], *, all_unreachable: bool) -> StackError:
    count, total = len(problems), len(source.model.files)
    shown = f" {problems[0]}" if count == 1 else "".join(f"\n  - {problem}" for problem in problems)
    what = f"'{source.name}': {count} of {total} files could not be mirrored:{shown}"
    if all_unreachable:
        return NotAble(
            "mirror-unreachable",
            what,
            where=source.hub.endpoint,
            do="check the address and the network (--endpoint), then run the same command again; it resumes",
        )
    if source.model.origin.modelscope is None:
        do = "run 'stack demo' again with this version of stack; its models are the same bytes everywhere"
    else:
        do = "compare the manifest with the repository at this revision; a next call fetches only these files"
    return WorkFailed("mirror-files-wrong", what, where=str(source.staging.parent), do=do)


def adopt(source_file: Path, target: Path) -> None:
    """Make `target` the same file: a hard link, or a copy where the file system has none."""
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source_file.resolve(), target)
    except OSError:
        shutil.copyfile(source_file, target)
