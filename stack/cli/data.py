"""Write datasets: prepare, convert, merge, drop, stats."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from stack.cli.options import FILE, FOLDER, OwnProcess, log, manifest_options, show_json
from stack.errors import BadRequest, Exit

GARBAGE_MIN = 10_000


def _be_quick() -> None:
    """What makes a short run shorter, where the process is this command's own; called before heavy imports.

    What is imported and what is planned is no garbage, and looking for circles in it takes a fifth of the
    time from start to end of a command that does little. numpy's own threads have nothing to do here.
    """
    context = click.get_current_context()
    if not isinstance(context.obj, OwnProcess):
        return
    gc.set_threshold(GARBAGE_MIN, *gc.get_threshold()[1:])
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    context.call_on_close(gc.freeze)


@click.command()
@click.argument("manifest", type=FILE)
@click.option("--out", type=FOLDER, help="The folder to write; must not exist, unless --replace.")
@click.option("--replace", is_flag=True, help="Swap the dataset at --out for the new one, once that stands.")
@click.option("--videos", type=click.Choice(["join", "link", "transcode"]), help="Overrides the manifest.")
@click.option("--jobs", type=click.IntRange(1), help="Processes; default: one a core.")
@click.option("--executor", metavar="tcp://HOST:PORT", help="Let the workers of this Dask scheduler work.")
@click.option("--dry-run", is_flag=True, help="Print the plan and write nothing.")
@click.option("--audit", "audited", is_flag=True, help="Audit the output's values too, not its form only.")
@manifest_options
def prepare(
    manifest: Path,
    out: Path | None,
    replace: bool,
    videos: Any,
    jobs: int | None,
    executor: str | None,
    dry_run: bool,
    audited: bool,
    overrides: tuple[str, ...],
    allow_outside: bool,
) -> None:
    """Turn the deliveries that a dataset MANIFEST names into one v3.0 dataset.

    Example: stack prepare manifests/datasets/demo.yaml --out work/demo-dataset
    """
    _be_quick()
    from stack.manifests import load_dataset_manifest
    from stack.prepare import outline, summary
    from stack.prepare.record import prepare_recorded

    loaded = load_dataset_manifest(manifest, overrides=overrides, allow_outside=allow_outside)
    if dry_run:
        click.echo(outline(loaded, videos=videos, jobs=jobs))
        return
    if out is None:
        raise BadRequest("prepare-no-out", "where to write is not given", do="add --out DIR, or --dry-run")
    prepared = prepare_recorded(
        loaded, out=out, videos=videos, jobs=jobs, executor=executor, replace=replace, log=log
    )
    click.echo(summary(prepared))
    written = [part.out for part in prepared.parts or (prepared,)]
    del prepared  # the plan of many episodes makes room for the audit
    _audit(written, values=audited)


def _audit(written: list[Path], *, values: bool) -> None:
    """The audit's own checks on what was just written; exit code 1 for errors.

    Those of values are run on request: they hold all values, and memory would grow with the rows.
    """
    from stack.audit.output import audit_output, said_of

    reports = [audit_output(root, values=values) for root in written]
    for report in reports:
        click.echo(said_of(report, values=values))
    if not all(report.ok for report in reports):
        raise click.exceptions.Exit(Exit.NOT_GOOD)


VERSION = click.Choice(["v3.0", "v2.1"])


def _direct_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """What the commands that need no manifest share."""
    for option in (
        click.option("--dry-run", is_flag=True, help="Print the plan and write nothing."),
        click.option("--jobs", type=click.IntRange(1), help="Processes; default: one a core."),
        click.option(
            "--executor", metavar="tcp://HOST:PORT", help="Let the workers of this Dask scheduler work."
        ),
        click.option("--replace", is_flag=True, help="Swap the dataset at DST once the new one stands."),
        click.option(
            "--decide",
            multiple=True,
            metavar="KEY=VALUE",
            help="Answer a question that a source raises, such as timestamps=restamp; repeatable.",
        ),
        click.option(
            "--videos", type=click.Choice(["join", "link"]), default="join", help="Copy, or hard-link."
        ),
        click.option(
            "--camera-statistics",
            type=click.Choice(["stored", "sampled"]),
            default="stored",
            show_default=True,
            help="Keep those of SRC that decoded pictures agree with, or sample all clips.",
        ),
    ):
        command = option(command)
    return command


def _write_directly(
    sources: tuple[Path, ...],
    out: Path,
    *,
    version: str | None,
    options: dict[str, Any],
    drop_episodes: str | None = None,
    robot_type: str | None = None,
) -> None:
    _be_quick()
    from stack.prepare import summary
    from stack.prepare.direct import preview, request, run

    loaded = request(
        sources,
        out,
        version=version,
        drop_episodes=drop_episodes,
        decide=options["decide"],
        robot_type=robot_type,
        camera_statistics=options["camera_statistics"],
    )
    if options["dry_run"]:
        click.echo(preview(loaded, videos=options["videos"], jobs=options["jobs"]))
        return
    prepared = run(
        loaded,
        out=out,
        videos=options["videos"],
        jobs=options["jobs"],
        executor=options["executor"],
        replace=options["replace"],
        log=log,
    )
    click.echo(summary(prepared))


@click.command()
@click.argument("src", type=FOLDER)
@click.argument("dst", type=FOLDER)
@click.option("--to", "version", type=VERSION, default="v3.0", show_default=True, help="The format to write.")
@_direct_options
def convert(src: Path, dst: Path, version: str, **options: Any) -> None:
    """Write dataset SRC, of any version, as DST in another; no frame and no value changes.

    Example: stack convert work/demo-dataset work/demo-v21 --to v2.1
    """
    _write_directly((src,), dst, version=version, options=options)


@click.command()
@click.argument("src", type=FOLDER, nargs=-1, required=True)
@click.argument("dst", type=FOLDER)
@click.option("--to", "version", type=VERSION, default="v3.0", show_default=True, help="The format to write.")
@click.option("--robot-type", help="Settles sources that disagree.")
@_direct_options
def merge(src: tuple[Path, ...], dst: Path, version: str, robot_type: str | None, **options: Any) -> None:
    """Join datasets SRC... into DST; what differs in form is reconciled, what really differs is refused.

    Example: stack merge deliveries/task_5867 deliveries/task_5868 work/both
    """
    _write_directly(src, dst, version=version, options=options, robot_type=robot_type)


@click.command()
@click.argument("src", type=FOLDER)
@click.argument("dst", type=FOLDER)
@click.option("--episodes", required=True, metavar="3,7-9", help="Source episodes to leave out.")
@click.option("--to", "version", type=VERSION, help="The format to write; default: that of SRC.")
@_direct_options
def drop(src: Path, dst: Path, episodes: str, version: str | None, **options: Any) -> None:
    """Write dataset SRC as DST without some episodes; SRC stays as it is, videos are copied, not encoded.

    Example: stack drop work/demo-dataset work/demo-smaller --episodes 3,7-9
    """
    _write_directly((src,), dst, version=version, options=options, drop_episodes=episodes)


@click.command()
@click.argument("dataset", type=FOLDER)
@click.option(
    "--write", is_flag=True, help="Put them into the dataset's meta folder, in place of what is there."
)
@click.option("--norm-stats", "norm_to", type=FILE, help="Write openpi's norm_stats.json here.")
@click.option("--jobs", type=click.IntRange(1), help="Processes; default: one a core.")
@click.option("--json", "json_to", metavar="FILE", help="Write the statistics as JSON; '-' for stdout.")
def stats(dataset: Path, write: bool, norm_to: Path | None, jobs: int | None, json_to: str | None) -> None:
    """Exact statistics of DATASET: over all rows, quantiles as numpy defines them.

    Example: stack stats work/demo-dataset --norm-stats work/norm_stats.json
    """
    _be_quick()
    from stack.files import write_json
    from stack.prepare.measure import measure, norm_stats, table, write_into

    measured = measure(dataset, jobs=jobs, log=log)
    show_json({name: entry.to_json() for name, entry in measured.features.items()}, json_to)
    if json_to != "-":
        click.echo(table(measured))
    if norm_to is not None:
        write_json(norm_to, norm_stats(measured))
        log(f"openpi's statistics in {norm_to}")
    if write:
        log(f"written into {write_into(measured)}")
