"""Sweep, train, reproduce."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import click

from stack.cli.options import FILE, FOLDER, log, manifest_options, show_json
from stack.errors import Exit, WorkFailed


def _open_run(manifest: Path, work: Path, overrides: tuple[str, ...], allow_outside: bool) -> tuple[Any, Any]:
    """The loaded run, and its context over what `reproduce` prepared and mirrored below `work`."""
    from stack.manifests import load_run_manifest
    from stack.reproduce.provenance import collect
    from stack.reproduce.stages import open_context

    loaded = load_run_manifest(manifest, overrides=overrides, allow_outside=allow_outside)
    return loaded, open_context(loaded, work.absolute(), collect(), log)


def _place(folder: Path, kind: str, out: Path | None, resume: bool) -> tuple[Path, str]:
    """Where a call writes, and the words that say how it is gone on with from there.

    A resume without --out takes the newest that such a call has made below the run's folder.
    """
    go_on = [*sys.argv[1:], *([] if resume else ["--resume"])]
    if out is None and resume:
        out = max(folder.glob(f"{kind}-[0-9]*"), default=None)
    if out is None:
        out = folder / f"{kind}-{time.strftime('%Y%m%d-%H%M%S')}"
        go_on += ["--out", str(out)]
    return out, f"go on with: stack {shlex.join(go_on)}"


def _run_options(command: Callable[..., Any], *, needs_manifest: bool = True) -> Callable[..., Any]:
    for option in (
        click.argument("manifest", type=FILE, required=needs_manifest),
        click.option("--work", type=FOLDER, default=Path("work"), show_default=True, help="Working folder."),
        click.option("--dataset", type=FOLDER, help="Prepared dataset; default: the run's own in --work."),
        click.option("--out", type=FOLDER, help="Where to write; default: below the run's folder in --work."),
    ):
        command = option(command)
    return manifest_options(command)


@click.command()
@_run_options
@click.option(
    "--resume", is_flag=True, help="Keep the points measured in --out, or in this run's newest sweep."
)
def sweep(
    manifest: Path,
    work: Path,
    dataset: Path | None,
    out: Path | None,
    resume: bool,
    overrides: Any,
    allow_outside: bool,
) -> None:
    """Measure the batch sizes of a run MANIFEST, each in its own process.

    Listed ones, and those that a search for the largest and the fastest asks for.

    Example: stack sweep manifests/runs/demo-cpu.yaml
    """
    from stack.sweep import sweep as run_sweep

    loaded, context = _open_run(manifest, work, overrides, allow_outside)
    out, go_on = _place(context.folder, "sweep", out, resume)
    try:
        result = run_sweep(
            loaded,
            dataset=dataset or context.folder / "prepare",
            mirror=context.mirror,
            models=context.models.manifest,
            out=out,
            resume=resume,
            record_provenance=context.record_provenance,
            log=log,
        )
    except KeyboardInterrupt:
        raise KeyboardInterrupt(go_on) from None
    if not any(point.status == "ok" for point in result.points):
        raise WorkFailed("sweep-no-point", "no point of the sweep ran", where=str(out))
    click.echo(f"results in {out}")


@click.command()
@partial(_run_options, needs_manifest=False)
@click.option(
    "--resume",
    is_flag=True,
    help="Go on from the last checkpoint in --out, or in this run's newest training.",
)
@click.option("--replay", type=FILE, help="Take the step of a batch that the guard kept again; no MANIFEST.")
def train(
    manifest: Path | None,
    work: Path,
    dataset: Path | None,
    out: Path | None,
    resume: bool,
    replay: Path | None,
    overrides: Any,
    allow_outside: bool,
) -> None:
    """Train as a run MANIFEST says, on what `stack reproduce` prepared and mirrored.

    Example: stack train manifests/runs/demo-cpu.yaml --out work/my-training
    """
    from stack.train import replay_file
    from stack.train import train as run_train

    if replay is not None:
        replay_file(replay, log=click.echo)
        return
    if manifest is None:
        raise click.UsageError("name the run's MANIFEST, or --replay FILE")
    loaded, context = _open_run(manifest, work, overrides, allow_outside)
    out, go_on = _place(context.folder, "train", out, resume)
    result = run_train(
        loaded,
        dataset=dataset or context.folder / "prepare",
        mirror=context.mirror,
        models=context.models.manifest,
        out=out,
        resume=resume,
        record_provenance=context.record_provenance,
        log=log,
    )
    click.echo(f"{result.outcome} after {result.steps} steps, results in {out}")
    if result.outcome == "stopped":
        raise KeyboardInterrupt(go_on)
    if result.outcome != "finished":
        raise WorkFailed(f"train-{result.outcome}", result.message or result.outcome, where=str(out))


@click.command()
@click.argument("manifest", type=FILE)
@click.option("--work", type=FOLDER, default=Path("work"), show_default=True, help="Working folder.")
@click.option("--force-stage", metavar="NAME", help="Run this stage even where an earlier one forbids it.")
@click.option("--until", metavar="NAME", help="Stop after this stage; nothing is judged or recorded.")
@click.option("--dry-run", is_flag=True, help="Print the plan and do nothing.")
@click.option("--track/--no-track", default=True, show_default=True, help="Ship the record to MLflow.")
@click.option("--json", "json_to", metavar="FILE", help="Write the verdict as JSON; '-' for stdout.")
@manifest_options
def reproduce(
    manifest: Path,
    work: Path,
    force_stage: str | None,
    until: str | None,
    dry_run: bool,
    track: bool,
    json_to: str | None,
    overrides: tuple[str, ...],
    allow_outside: bool,
) -> None:
    """Run a MANIFEST from data to verdict; what has not changed is not done again.

    Example: stack reproduce manifests/runs/demo-cpu.yaml
    """
    from stack.manifests import load_run_manifest
    from stack.reproduce import advance, describe
    from stack.reproduce import reproduce as run_reproduce
    from stack.reproduce.report import render_text

    if dry_run:
        _, context = _open_run(manifest, work, overrides, allow_outside)
        click.echo(describe(context))
        return
    loaded = load_run_manifest(manifest, overrides=overrides, allow_outside=allow_outside)
    if until is not None:
        if force_stage is not None or json_to is not None:
            raise click.UsageError("--until judges nothing: leave --force-stage and --json out")
        advanced = advance(loaded, work=work, until=until, log=log)
        click.echo(f"stopped after {until}" if advanced.did else f"nothing to do up to {until}")
        raise click.exceptions.Exit(Exit.OK if advanced.good else Exit.NOT_GOOD)
    done = run_reproduce(loaded, work=work, force_stage=force_stage, track=track, log=log)
    show_json(done.verdict.to_json(), json_to)
    if json_to != "-":
        click.echo(render_text(done.verdict))
        click.echo(
            f"results in {done.folder} (verdict.html)" + (", in MLflow: make ui" if done.store else "")
        )
        if not done.did:
            click.echo("nothing to do: every stage is up to date")
    raise click.exceptions.Exit(done.exit)
