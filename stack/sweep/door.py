"""The door: points that the manifest lists, points that its searches ask for, and what follows from them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from stack.devices.witness import look
from stack.errors import BadRequest
from stack.files import write_json
from stack.manifests.load import Loaded
from stack.manifests.models import ModelsManifest
from stack.manifests.run import RunManifest, Sweep, SweepGroup, SweepSearch
from stack.sweep.advice import Advice, Fitting, advise
from stack.sweep.before import in_words
from stack.sweep.journal import close_journal
from stack.sweep.result import RESULT, Found, Point, SweepResult
from stack.sweep.runner import HOME, POINTS, Interrupted, Runner, check_limits
from stack.sweep.search import Measured, Proposal, bounds, fits, model_of, propose
from stack.tracking import names
from stack.tracking.journal import Journal
from stack.tracking.secrets import redacted
from stack.train import lines
from stack.train.hosts import Hosts, refuse_foreign_ranks
from stack.train.identity import data_facts
from stack.train.job import Job, make_job, make_out
from stack.train.preflight import leftovers
from stack.train.record import MANIFEST, filter_tags, parameters, record_inputs
from stack.train.settings import before_start

__all__ = ["Interrupted", "sweep"]


def sweep(
    loaded: Loaded[RunManifest],
    *,
    dataset: Path,
    mirror: Path,
    models: ModelsManifest,
    out: Path,
    resume: bool = False,
    parent: str | None = None,
    record_provenance: Callable[[Path], None] = lambda _: None,
    log: Callable[[str], None] = print,
) -> SweepResult:
    """Measure every point of the manifest's `sweep`, whatever became of the ones before, and its searches'.

    Args:
        dataset, mirror, models, parent, record_provenance, log: as for `stack.train.train`.
        out: gets result.json, sweep.csv, figures, a journal, and `points/d<devices>-b<batch>/` with a journal
            for each point.
        resume: take the points that an earlier start has measured in `out` with the same inputs; crashes are
            tried again.

    Raises:
        BadRequest: the manifest has no `sweep` or names a point twice, or data or models are not there; or
            `out` holds points and `resume` is not set.
        NotAble: lerobot is not installed, or a limit cannot be set here.
        Interrupted: a signal came.
    """
    run = loaded.manifest
    if run.sweep is None:
        raise BadRequest("sweep-missing", "the manifest has no 'sweep:'", where=str(loaded.file))
    refuse_foreign_ranks(os.environ, Hosts())
    _refuse_doubles(run.sweep)
    job = make_job(run, dataset=dataset, mirror=mirror, models=models, out=out)
    lines.detect_line()
    check_limits(run.sweep, run.device.kind)
    if not resume and any((out / POINTS).glob("*")):
        raise BadRequest(
            "sweep-out-exists",
            "the folder holds points of a sweep already; nothing was started",
            where=str(out),
            do="go on with it with --resume, or name another folder",
        )
    make_out(out)
    record_provenance(out)
    journal = _open_journal(job, parent)
    try:
        before = in_words(
            look(run.device.kind, max(group.devices for group in run.sweep.groups)), leftovers()
        )
        for words in before:
            log(words)
        runner = Runner(job, run.sweep, journal.run_id, resume, log)
        result = _measure(runner, run.sweep, before)
        close_journal(journal, result, out)
    except BaseException as error:
        journal.end("FAILED" if isinstance(error, Exception) else "KILLED")
        journal.close()
        raise
    finally:
        shutil.rmtree(out / HOME, ignore_errors=True)
    log(result.table())
    return result


def _open_journal(job: Job, parent: str | None) -> Journal:
    run, out = job.run, job.out
    (out / RESULT).unlink(missing_ok=True)
    journal = Journal(
        out,
        name=f"{run.name} sweep",
        experiment=names.SWEEP,
        parent=parent,
        tags=filter_tags(run),
        description=f"Batch sizes of {run.name}: {run.purpose}",
    )
    write_json(out / MANIFEST, redacted(run.model_dump(mode="json", by_alias=True)))
    facts = data_facts(job.dataset)
    journal.params({**parameters(run, facts), **before_start(job, facts)})
    record_inputs(journal, job)
    journal.artifact(out / MANIFEST)
    return journal


def _refuse_doubles(settings: Sweep) -> None:
    points = [(group.devices, batch) for group in settings.groups for batch in group.batches]
    for devices, batch in points:
        if points.count((devices, batch)) > 1:
            raise BadRequest(
                "sweep-point-twice", f"batch {batch} on {devices} device(s) is named twice in 'sweep:'"
            )
    for group in settings.groups:
        others = [g for g in settings.groups if g is not group and g.devices == group.devices]
        if group.search is not None and others:
            raise BadRequest(
                "sweep-search-shared",
                f"two groups of 'sweep:' are on {group.devices} device(s), and one of them searches",
                do="put the batches into the group that searches",
            )


def _measure(runner: Runner, settings: Sweep, before: Sequence[str]) -> SweepResult:
    points: list[Point] = []
    found: list[Found] = []
    advice: list[Advice] = []
    for group in settings.groups:
        own = [runner.measure(group, batch) for batch in group.batches]
        if group.search is not None:
            own += _search(runner, group, group.search, own)
        train = runner.job.run.train
        margin = group.search.margin_frac if group.search is not None else None
        advised = advise(_fitting(own, margin), devices=group.devices, global_batch=train.global_batch)
        if advised is not None and group.search is not None and not advised.is_measured:
            model = model_of(_measured(own))
            own.append(runner.measure(group, advised.batch, model.predict(advised.batch) if model else None))
            advised = advise(_fitting(own, margin), devices=group.devices, global_batch=train.global_batch)
        if group.search is not None:
            found.append(_found(group, group.search, own))
        advice += [advised] if advised is not None else []
        points += own
    return SweepResult(tuple(points), tuple(found), tuple(advice), runner.pictures, tuple(before))


def _search(
    runner: Runner, group: SweepGroup, search: SweepSearch, listed: Sequence[Point]
) -> Iterator[Point]:
    points, past = [*listed], list[Proposal]()
    while len(past) < search.points:
        following = propose(
            _measured(points), start=search.start, most=search.most, margin_frac=search.margin_frac, past=past
        )
        if following is None:
            return
        past.append(following)
        point = runner.measure(group, following.batch, following.predicted_bytes)
        points.append(point)
        yield point
        if point.status == "unavailable":
            return


def _measured(points: Sequence[Point]) -> list[Measured]:
    return [
        Measured(p.batch, p.status == "ok", p.demand_bytes, p.capacity_bytes, p.samples_per_s) for p in points
    ]


def _fitting(points: Sequence[Point], margin_frac: float | None) -> list[Fitting]:
    """Points to advise: those that ran, and with a search, those that left its margin."""
    measured = zip(points, _measured(points), strict=True)
    return [
        Fitting(p.batch, p.step_s)
        for p, m in measured
        if p.status == "ok" and p.step_s is not None and (margin_frac is None or fits(m, margin_frac))
    ]


def _found(group: SweepGroup, search: SweepSearch, points: Sequence[Point]) -> Found:
    measured = _measured(points)
    known = bounds(measured, search.margin_frac)
    fitting = [m for m in measured if fits(m, search.margin_frac) and m.samples_per_s is not None]
    fastest = max(fitting, key=lambda m: (m.samples_per_s or 0.0, m.batch), default=None)
    return Found(
        devices=group.devices,
        largest=known.fits,
        next_up=known.fails,
        is_proven=known.is_closed(search.start, search.most),
        fastest=fastest.batch if fastest is not None else None,
        margin_frac=search.margin_frac,
        model=model_of(measured),
        tried=len(points),
    )
