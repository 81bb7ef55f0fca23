"""One step of a run: skipped when nothing changed, whole or absent otherwise."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stack.errors import BadRequest
from stack.files import canonical_json, read_json, sha256_text, whole_folder, write_json
from stack.reproduce.hashing import HashCache

RECORD_SUFFIX = ".stage.json"
PARTIAL_SUFFIX = ".partial"


@dataclass(frozen=True)
class Outcome:
    """What a stage's work returns.

    Attributes:
        facts: small JSON values that later stages and the verdict read.
        good: False when the work is done and what it judged or made is not good.
        message: for the user; needed when not good.
    """

    facts: Mapping[str, Any]
    good: bool = True
    message: str = ""


@dataclass(frozen=True)
class StageResult:
    """A finished or reused stage.

    Attributes:
        key: sha256 over the stage's name, inputs and code: equal keys mean equal work.
        reused: True when nothing was done.
    """

    name: str
    folder: Path
    key: str
    facts: Mapping[str, Any]
    good: bool
    message: str
    seconds: float
    reused: bool


Work = Callable[[Path, bool], Outcome]


@dataclass(frozen=True)
class Stage:
    """What to do, and what it depends on.

    Attributes:
        name: also the name of its folder.
        folder: where its output stands.
        inputs: everything that decides the output, as JSON values (hashes, manifest sections).
        work: called with an empty folder to fill and False; with `resumable`, the folder may hold an
            earlier attempt with the same inputs, and the second argument says so.
        resumable: long work that keeps its own checkpoints in its folder.
        is_whole_by_itself: the work makes the folder, by its final name, whole or not at all.
        also_makes: folders elsewhere that the work leaves behind; changed ones make the stage stale.
    """

    name: str
    folder: Path
    inputs: Mapping[str, Any]
    work: Work
    resumable: bool = False
    is_whole_by_itself: bool = False
    also_makes: tuple[Path, ...] = ()

    def outputs(self, cache: HashCache) -> dict[str, str]:
        """Digest of each output tree by its path; a folder that is gone has none."""
        return {str(f): cache.tree(f) for f in (self.folder, *self.also_makes) if f.is_dir()}

    @property
    def key(self) -> str:
        return sha256_text(canonical_json({"stage": self.name, "inputs": self.inputs}))

    @property
    def record_file(self) -> Path:
        return self.folder.with_name(self.folder.name + RECORD_SUFFIX)


def finished(stage: Stage, cache: HashCache) -> StageResult | None:
    """The stage's result from an earlier call, if inputs and outputs are still the same."""
    if not stage.record_file.exists() or not stage.folder.is_dir():
        return None
    try:
        record = read_json(stage.record_file, what="stage record")
    except BadRequest:
        return None
    if record.get("key") != stage.key or record.get("outputs") != stage.outputs(cache):
        return None
    return StageResult(
        stage.name,
        stage.folder,
        record["key"],
        record["facts"],
        record["good"],
        record["message"],
        record["seconds"],
        reused=True,
    )


def run(
    stage: Stage, cache: HashCache, *, force: bool = False, before: Callable[[], None] = lambda: None
) -> StageResult:
    """Do the stage's work unless an earlier call did just that; `before` is called when there is work.

    A result that is not good is recorded and shown, but never reused for resumable work: it is tried again.
    """
    earlier = None if force else finished(stage, cache)
    if earlier is not None and (earlier.good or not stage.resumable):
        return earlier
    before()
    started = time.monotonic()
    stage.record_file.unlink(missing_ok=True)
    outcome = _run_resumable(stage) if stage.resumable else _run_whole(stage)
    seconds = round(time.monotonic() - started, 2)
    result = StageResult(
        stage.name,
        stage.folder,
        stage.key,
        outcome.facts,
        outcome.good,
        outcome.message,
        seconds,
        reused=False,
    )
    write_json(
        stage.record_file,
        {
            "stage": stage.name,
            "key": result.key,
            "inputs": stage.inputs,
            "facts": result.facts,
            "good": result.good,
            "message": result.message,
            "seconds": seconds,
            "finished_unix_s": int(time.time()),
            "outputs": stage.outputs(cache),
        },
    )
    return result


def _run_whole(stage: Stage) -> Outcome:
    if stage.is_whole_by_itself:
        shutil.rmtree(stage.folder, ignore_errors=True)
        return stage.work(stage.folder, False)
    with whole_folder(stage.folder, replace=True) as partial:
        return stage.work(partial, False)


def _run_resumable(stage: Stage) -> Outcome:
    """Work in a sibling of fixed name, so that a killed attempt with the same inputs goes on from there."""
    partial = stage.folder.with_name(stage.folder.name + PARTIAL_SUFFIX)
    key_file = partial.with_name(partial.name + ".key")
    resume = partial.is_dir() and key_file.exists() and key_file.read_text() == stage.key
    if not resume:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        key_file.write_text(stage.key)
    outcome = stage.work(partial, resume)
    shutil.rmtree(stage.folder, ignore_errors=True)
    partial.rename(stage.folder)
    key_file.unlink()
    return outcome
