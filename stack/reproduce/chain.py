"""Run the stages in order, stop where one is not good, judge, and show it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from stack.errors import BadRequest, Exit
from stack.files import write_json, write_text
from stack.manifests import Loaded, RunManifest
from stack.reproduce import record
from stack.reproduce.provenance import Provenance, collect
from stack.reproduce.report import render_html
from stack.reproduce.stage import StageResult, run
from stack.reproduce.stages import Context, make_stage, open_context, stage_names
from stack.reproduce.verdict import Evidence, Verdict, judge

Log = Callable[[str], None]


@dataclass(frozen=True)
class Reproduced:
    """Attributes:
    did: names of the stages that were run by this call; empty when nothing had changed.
    exit: 0 good; 1 a verdict that is not; 4 the training or the sweep ran and failed.
    store: the tracking server's store, if the run stands in it.
    """

    verdict: Verdict
    folder: Path
    did: tuple[str, ...]
    exit: Exit
    store: Path | None


@dataclass(frozen=True)
class Advanced:
    """What `advance` did: whether any stage was run, and whether all of them are good."""

    did: bool
    good: bool


def reproduce(
    loaded: Loaded[RunManifest],
    *,
    work: Path,
    force_stage: str | None = None,
    track: bool = True,
    log: Log,
) -> Reproduced:
    """Run a manifest from data to verdict; stages whose inputs have not changed are not run again.

    Args:
        work: where runs, the mirror of demo models and the tracking store are kept.
        force_stage: go on to this stage even where an earlier one judged that it must not, and run it again.
        track: bring the record to a tracking server on loopback over `work/tracking`.
        log: called with one line of progress at a time.

    Raises:
        StackError: the request or the environment is wrong, or a stage could not be done at all.
    """
    names = stage_names(loaded.manifest)
    if force_stage is not None:
        _require_stage(force_stage, names)
    provenance = collect()
    context = open_context(loaded, work.absolute(), provenance, log)
    context.folder.mkdir(parents=True, exist_ok=True)
    with record.Recorder(context, is_tracked=track) as recorder:
        stopped = _run_stages(context, names, force_stage, recorder)
        did = tuple(name for name, result in context.done.items() if not result.reused)
        verdict = judge(
            loaded.manifest.name, loaded.manifest.expect, _evidence(context, provenance), stopped=stopped
        )
        is_news = bool(did) or not (context.folder / "verdict.json").exists()
        if is_news:
            write_json(
                context.folder / "verdict.json", {**verdict.to_json(), "provenance": provenance.to_json()}
            )
            write_text(context.folder / "verdict.html", render_html(verdict, provenance, context.done))
            recorder.finish(verdict)
        store = recorder.ship()
    context.cache.save()
    return Reproduced(verdict, context.folder, did, _exit(context, verdict), store)


def advance(loaded: Loaded[RunManifest], *, work: Path, until: str, log: Log) -> Advanced:
    """Run the stages up to `until`; judge and record nothing. Other hosts wait for this before they train.

    `reproduce` finds what was done here, and does it no second time.

    Raises:
        StackError: as `reproduce`.
    """
    names = stage_names(loaded.manifest)
    _require_stage(until, names)
    context = open_context(loaded, work.absolute(), collect(), log)
    context.folder.mkdir(parents=True, exist_ok=True)
    stopped = _run_stages(context, names[: names.index(until) + 1], None, None)
    context.cache.save()
    return Advanced(any(not result.reused for result in context.done.values()), stopped is None)


def _require_stage(name: str, names: tuple[str, ...]) -> None:
    if name not in names:
        raise BadRequest(
            "reproduce-no-such-stage", f"'{name}' is no stage of this run; its stages: {', '.join(names)}"
        )


def _run_stages(
    context: Context, names: tuple[str, ...], force_stage: str | None, recorder: record.Recorder | None
) -> str | None:
    """Run until the end or until a stage is not good; then say which one stopped the run."""
    stopped = None
    for number, name in enumerate(names, start=1):
        stage = make_stage(name, context)
        title = f"[{number}/{len(names)}] {name}"
        result = run(
            stage,
            context.cache,
            force=name == force_stage,
            before=partial(_begin, context.log, title, recorder),
        )
        context.done[name] = result
        context.cache.save()
        context.log(f"{title}: {_summary(result)}")
        if result.good:
            continue
        stopped = f"{name}: {_first_line(result.message)}"
        if result.message:
            context.log(result.message)
        if force_stage is None or names.index(force_stage) <= names.index(name):
            break
        context.log(f"{name} forbids what follows; going on to '{force_stage}' because it was forced")
    return stopped


def _begin(log: Log, title: str, recorder: record.Recorder | None) -> None:
    if recorder is not None:
        recorder.open()
    log(f"{title} ...")


def _summary(result: StageResult) -> str:
    state = "ok" if result.good else "NOT GOOD"
    return f"{state}, nothing changed" if result.reused else f"{state}, {result.seconds:.1f} s"


def _first_line(message: str) -> str:
    return message.strip().splitlines()[0] if message.strip() else "not good"


def _evidence(context: Context, provenance: Provenance) -> Evidence:
    facts = {name: result.facts for name, result in context.done.items()}
    return Evidence(
        provenance=provenance.to_json(),
        mirror=facts.get("mirror"),
        prepare=facts.get("prepare"),
        audit=facts.get("audit"),
        sweep=facts.get("sweep"),
        train=facts.get("train"),
    )


def _exit(context: Context, verdict: Verdict) -> Exit:
    failed = [n for n in ("sweep", "train") if n in context.done and not context.done[n].good]
    if failed:
        return Exit.WORK_FAILED
    if "doctor" in context.done and not context.done["doctor"].good:
        return Exit.NOT_ABLE
    return Exit.OK if verdict.good else Exit.NOT_GOOD
