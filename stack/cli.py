"""The command line: parse, call, print. Rooms are imported inside the commands, so that help is instant."""

from __future__ import annotations

import difflib
import json
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import click

from stack import __version__
from stack.errors import BadRequest, Exit, StackError, WorkFailed

FOLDER = click.Path(path_type=Path, file_okay=False)
FILE = click.Path(path_type=Path, dir_okay=False)


class Commands(click.Group):
    """A group that names the closest command for one that it does not know."""

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            near = difflib.get_close_matches(args[0], self.list_commands(ctx), n=1)
            hint = f"; did you mean '{near[0]}'?" if near else ""
            raise click.UsageError(f"no such command '{args[0]}'{hint}", ctx) from error

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Whole first sentences; click would cut them off in the middle."""
        with formatter.section("Commands"):
            formatter.write_dl([(n, c.get_short_help_str(limit=400)) for n, c in self.commands.items()])

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)  # in the order of a project's life, not of the alphabet


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="stack")
def cli() -> None:
    """From raw robot recordings to a fine-tuned pi0.5 policy: checked, reproducible, offline.

    Exit codes: 0 good; 1 done, and what was judged is not good; 2 the request is wrong; 3 the environment is
    not able; 4 the work ran and failed; 70 a bug of stack; 130 interrupted.
    """


def main() -> NoReturn:
    """Run the command line and leave with its exit code; a user's mistake never shows a traceback."""
    try:
        code = cli.main(standalone_mode=False)
        sys.exit(code if isinstance(code, int) else Exit.OK)
    except StackError as error:
        click.echo(str(error), err=True)
        sys.exit(error.exit)
    except click.exceptions.Exit as error:
        sys.exit(error.exit_code)
    except click.ClickException as error:
        error.show()
        sys.exit(Exit.BAD_REQUEST)
    except (KeyboardInterrupt, click.Abort):
        click.echo(f"interrupted; go on with the same command: stack {' '.join(sys.argv[1:])}", err=True)
        sys.exit(Exit.INTERRUPTED)
    except BrokenPipeError:
        sys.exit(Exit.OK)
    except Exception as error:
        click.echo(f"error[bug]: {type(error).__name__}: {error}", err=True)
        click.echo(f"  this is a fault of stack itself; the traceback is in {_keep_traceback()}", err=True)
        sys.exit(Exit.OUR_BUG)


def _keep_traceback() -> str:
    with tempfile.NamedTemporaryFile("w", prefix="stack-bug-", suffix=".txt", delete=False) as file:
        traceback.print_exc(file=file)
    return file.name


def _log(line: str) -> None:
    click.echo(f"{time.strftime('%H:%M:%S')} {line}", err=True)


def _write_json(value: Any, to: str | None) -> None:
    if to == "-":
        click.echo(json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False))
    elif to is not None:
        from stack.files import write_json

        write_json(Path(to), value)


def _manifest_options(command: Callable[..., Any]) -> Callable[..., Any]:
    command = click.option(
        "--set", "overrides", multiple=True, metavar="A.B=C", help="Override a value of the manifest."
    )(command)
    return click.option(
        "--allow-outside", is_flag=True, help="Let the manifest name paths outside its root."
    )(command)


@cli.command()
@click.option("--device", "kind", type=click.Choice(["npu", "cuda", "cpu"]), default="cpu", show_default=True)
@click.option("--count", type=click.IntRange(1), default=1, show_default=True, help="Devices wanted here.")
@click.option("--json", "json_to", metavar="FILE", help="Write the facts as JSON; '-' for stdout.")
def doctor(kind: Any, count: int, json_to: str | None) -> None:
    """Is this machine able to train? Devices, memory, shared memory, packages, offline switches.

    Example: stack doctor --device npu --count 8
    """
    from stack.devices.doctor import Needs, examine
    from stack.faults import has_errors

    found = examine(Needs(kind=kind, count=count, disk=Path.cwd()))
    _write_json(found.to_json(), json_to)
    if json_to != "-":
        host, devices = found.host, found.devices
        click.echo(
            f"host     {host.machine}, {host.cpu_count} cores, {host.memory_bytes / 1e9:.1f} GB memory"
        )
        click.echo(f"devices  {devices.count} x {kind} {', '.join(sorted(set(devices.names)))}")
        click.echo(f"versions {', '.join(f'{k} {v}' for k, v in host.versions.items())}")
        for fault in found.faults:
            click.echo(f"{fault.severity}[{fault.code}]: {fault.message}\n  do: {fault.mend}")
        click.echo("able" if not has_errors(found.faults) else "NOT able")
    raise click.exceptions.Exit(Exit.NOT_ABLE if has_errors(found.faults) else Exit.OK)


@cli.command()
@click.argument("out", type=FOLDER)
def demo(out: Path) -> None:
    """Write two faulty demo deliveries and toy models into OUT.

    Example: stack demo work/demo
    """
    from stack.demo import write_demo

    write_demo(out, log=_log)
    click.echo(f"deliveries in {out / 'deliveries'}, models in {out / 'models'}")


@cli.command()
@click.argument("datasets", type=FOLDER, nargs=-1, required=True)
@click.option("--deep", is_flag=True, help="Decode every frame of every video.")
@click.option("--for", "policy", type=click.Choice(["pi05", "openpi"]), help="Also judge it for this policy.")
@click.option("--action-horizon", type=click.IntRange(1), default=50, show_default=True)
@click.option("--tokenizer", type=FOLDER, help="Local tokenizer, to count the prompts' tokens exactly.")
@click.option("--max-seconds", type=click.FloatRange(0, min_open=True), help="Stop then, with what is known.")
@click.option("--json", "json_to", metavar="FILE", help="Write the report as JSON; '-' for stdout.")
@click.option("--html", "html_to", type=FILE, help="Write the report as one HTML page.")
@click.option(
    "--decisions", "decisions_to", type=FILE, help="Write the manifest that leaves out what must go."
)
def audit(
    datasets: tuple[Path, ...],
    deep: bool,
    policy: str | None,
    action_horizon: int,
    tokenizer: Path | None,
    max_seconds: float | None,
    json_to: str | None,
    html_to: Path | None,
    decisions_to: Path | None,
) -> None:
    """Find everything in DATASETS that would hurt a training; exit code 1 where there are errors.

    Several datasets are also compared: every difference, and whether a merge may settle it.

    Example: stack audit deliveries/task_5867 --for pi05 --html report.html
    """
    from stack.audit import audit as run_audit
    from stack.audit.kinds import OPENPI, PolicyNeeds
    from stack.audit.text import render

    needs = replace(OPENPI if policy == "openpi" else PolicyNeeds(), action_horizon=action_horizon)
    needs = replace(needs, tokenizer=tokenizer)
    judged: dict[str, Any] = {"policy": needs if policy else None, "deep": deep, "max_seconds": max_seconds}
    if len(datasets) > 1:
        _audit_several(datasets, judged, json_to, html_to, decisions_to)
    (dataset,) = datasets
    report = run_audit(dataset, log=_log, **judged)
    _write_json(report.to_json(), json_to)
    if html_to is not None:
        from stack.audit.html import render as render_html
        from stack.files import write_text

        write_text(html_to, render_html(report, dataset))
    _write_decisions([(report, dataset)], decisions_to)
    if json_to != "-":
        click.echo(render(report))
    raise click.exceptions.Exit(Exit.OK if report.ok else Exit.NOT_GOOD)


def _write_decisions(entries: list[tuple[Any, Path]], to: Path | None) -> None:
    if to is not None:
        from stack.audit.decisions import fragment
        from stack.files import write_text

        write_text(to, fragment(entries, to))


def _audit_several(
    datasets: tuple[Path, ...],
    judged: dict[str, Any],
    json_to: str | None,
    html_to: Path | None,
    decisions_to: Path | None,
) -> NoReturn:
    """Each dataset's report, then what lies between them; a page for each where pages are wanted."""
    from stack.audit import audit_several
    from stack.audit.text import render, render_between

    several = audit_several(datasets, log=_log, **judged)
    _write_json(several.to_json(), json_to)
    if html_to is not None:
        from stack.audit.html import render as render_html
        from stack.files import write_text

        pairs = zip(datasets, several.reports.values(), strict=True)
        for number, (dataset, report) in enumerate(pairs):
            page = html_to.with_name(f"{html_to.stem}-{number}-{report.facts.name}{html_to.suffix}")
            write_text(page, render_html(report, dataset, between=several.faults))
            click.echo(f"page of {report.facts.name}: {page}", err=True)
    _write_decisions(list(zip(several.reports.values(), datasets, strict=True)), decisions_to)
    if json_to != "-":
        for report in several.reports.values():
            click.echo(render(report))
        click.echo(render_between(list(several.reports), several.faults))
    raise click.exceptions.Exit(Exit.OK if several.ok else Exit.NOT_GOOD)


@cli.command()
@click.argument("source", type=FOLDER)
@click.argument("target", type=FOLDER)
@click.option("--restamp", is_flag=True, help="Also write timestamp = frame_index / fps.")
@click.option("--dry-run", is_flag=True, help="Print what would be done and write nothing.")
@click.option("--json", "json_to", metavar="FILE", help="Write what was done as JSON; '-' for stdout.")
def mend(source: Path, target: Path, restamp: bool, dry_run: bool, json_to: str | None) -> None:
    """Repair on a copy of SOURCE what can be repaired without guessing, then audit the copy.

    Example: stack mend deliveries/task_5867 work/task_5867-mended --dry-run
    """
    from stack.audit.mend import mend as run_mend

    done = run_mend(source, target, restamp=restamp, dry_run=dry_run, log=_log)
    _write_json(done.to_json(), json_to)
    if json_to != "-":
        click.echo(done.text())
    raise click.exceptions.Exit(Exit.OK if done.ok else Exit.NOT_GOOD)


@cli.command()
@click.argument("manifest", type=FILE)
@click.option("--out", type=FOLDER, help="The folder to write; must not exist, unless --replace.")
@click.option("--replace", is_flag=True, help="Swap the dataset at --out for the new one, once that stands.")
@click.option("--videos", type=click.Choice(["join", "link", "transcode"]), help="Overrides the manifest.")
@click.option("--jobs", type=click.IntRange(1), help="Processes; default: one a core.")
@click.option("--executor", metavar="tcp://HOST:PORT", help="Let the workers of this Dask scheduler work.")
@click.option("--dry-run", is_flag=True, help="Print the plan and write nothing.")
@_manifest_options
def prepare(
    manifest: Path,
    out: Path | None,
    replace: bool,
    videos: Any,
    jobs: int | None,
    executor: str | None,
    dry_run: bool,
    overrides: tuple[str, ...],
    allow_outside: bool,
) -> None:
    """Turn the deliveries that a dataset MANIFEST names into one v3.0 dataset.

    Example: stack prepare manifests/datasets/demo.yaml --out work/demo-dataset
    """
    from stack.manifests import load_dataset_manifest
    from stack.prepare import outline, summary
    from stack.prepare import prepare as run_prepare

    loaded = load_dataset_manifest(manifest, overrides=overrides, allow_outside=allow_outside)
    if dry_run:
        click.echo(outline(loaded, videos=videos, jobs=jobs))
        return
    if out is None:
        raise BadRequest("prepare-no-out", "where to write is not given", do="add --out DIR, or --dry-run")
    prepared = run_prepare(
        loaded, out=out, videos=videos, jobs=jobs, executor=executor, replace=replace, log=_log
    )
    click.echo(summary(prepared))


VERSION = click.Choice(["v3.0", "v2.1"])


def _direct_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """What the commands that need no manifest share."""
    for option in (
        click.option("--dry-run", is_flag=True, help="Print the plan and write nothing."),
        click.option("--jobs", type=click.IntRange(1), help="Processes; default: one a core."),
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
    from stack.prepare import summary
    from stack.prepare.direct import preview, request, run

    loaded = request(
        sources,
        out,
        version=version,
        drop_episodes=drop_episodes,
        decide=options["decide"],
        robot_type=robot_type,
    )
    if options["dry_run"]:
        click.echo(preview(loaded, videos=options["videos"], jobs=options["jobs"]))
        return
    prepared = run(
        loaded,
        out=out,
        videos=options["videos"],
        jobs=options["jobs"],
        replace=options["replace"],
        log=_log,
    )
    click.echo(summary(prepared))


@cli.command()
@click.argument("src", type=FOLDER)
@click.argument("dst", type=FOLDER)
@click.option("--to", "version", type=VERSION, default="v3.0", show_default=True, help="The format to write.")
@_direct_options
def convert(src: Path, dst: Path, version: str, **options: Any) -> None:
    """Write dataset SRC, of any version, as DST in another; no frame and no value changes.

    Example: stack convert work/demo-dataset work/demo-v21 --to v2.1
    """
    _write_directly((src,), dst, version=version, options=options)


@cli.command()
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


@cli.command()
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


@cli.command()
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
    from stack.files import write_json
    from stack.prepare.measure import measure, norm_stats, table, write_into

    measured = measure(dataset, jobs=jobs, log=_log)
    _write_json({name: entry.to_json() for name, entry in measured.features.items()}, json_to)
    if json_to != "-":
        click.echo(table(measured))
    if norm_to is not None:
        write_json(norm_to, norm_stats(measured))
        _log(f"openpi's statistics in {norm_to}")
    if write:
        _log(f"written into {write_into(measured)}")


@cli.group(cls=Commands)
def mirror() -> None:
    """Models and tokenizers on this machine, every file hashed."""


def _mirror_options(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in (
        click.argument("manifest", type=FILE),
        click.option("--to", type=FOLDER, required=True, help="The mirror's folder."),
        click.option("--only", "names", multiple=True, metavar="NAME", help="Only this model; repeatable."),
    ):
        command = option(command)
    return command


@mirror.command("get")
@_mirror_options
@click.option("--demo", type=FOLDER, help="Folder of `stack demo`, for models that it makes.")
@click.option("--endpoint", help="ModelScope address; default: MODELSCOPE_ENDPOINT or the public site.")
def mirror_get(
    manifest: Path, to: Path, names: tuple[str, ...], demo: Path | None, endpoint: str | None
) -> None:
    """Fetch the models of MANIFEST and verify every file by size and sha256.

    Example: stack mirror get manifests/models.yaml --to mirror --only pi05_base
    """
    from stack.manifests import load_models_manifest
    from stack.mirror import get

    loaded = load_models_manifest(manifest)
    for model in get(loaded, to, names=names or None, demo=demo, endpoint=endpoint, log=_log):
        click.echo(f"{model.name}: verified, in {model.folder}")


@mirror.command("verify")
@_mirror_options
def mirror_verify(manifest: Path, to: Path, names: tuple[str, ...]) -> None:
    """Hash a mirror again and name every file that is wrong, missing or left over.

    Example: stack mirror verify manifests/models.yaml --to mirror
    """
    from stack.faults import has_errors
    from stack.manifests import load_models_manifest
    from stack.mirror import verify

    faults = verify(load_models_manifest(manifest).manifest, to, names=names or None)
    for fault in faults:
        click.echo(
            f"{fault.severity}[{fault.code}]: {fault.message}\n  at: {fault.where}\n  do: {fault.mend}"
        )
    click.echo("every file is right" if not faults else f"{len(faults)} faults")
    raise click.exceptions.Exit(Exit.NOT_GOOD if has_errors(faults) else Exit.OK)


@mirror.command("pin")
@_mirror_options
@click.option("--endpoint", help="ModelScope address; default: MODELSCOPE_ENDPOINT or the public site.")
def mirror_pin(manifest: Path, to: Path, names: tuple[str, ...], endpoint: str | None) -> None:
    """Print the sizes and hashes of files that MANIFEST does not pin yet, as YAML to paste.

    Example: stack mirror pin manifests/models.yaml --to mirror --only pi05_base
    """
    from stack.manifests import load_models_manifest
    from stack.mirror import pin

    click.echo(pin(load_models_manifest(manifest), to, names=names or None, endpoint=endpoint, log=_log))


def _open_run(manifest: Path, work: Path, overrides: tuple[str, ...], allow_outside: bool) -> tuple[Any, Any]:
    """The loaded run, and its context over what `reproduce` prepared and mirrored below `work`."""
    from stack.manifests import load_run_manifest
    from stack.reproduce.provenance import collect
    from stack.reproduce.stages import open_context

    loaded = load_run_manifest(manifest, overrides=overrides, allow_outside=allow_outside)
    return loaded, open_context(loaded, work.absolute(), collect(), _log)


def _run_options(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in (
        click.argument("manifest", type=FILE),
        click.option("--work", type=FOLDER, default=Path("work"), show_default=True, help="Working folder."),
        click.option("--dataset", type=FOLDER, help="Prepared dataset; default: the run's own in --work."),
        click.option("--out", type=FOLDER, help="Where to write; default: below the run's folder in --work."),
    ):
        command = option(command)
    return _manifest_options(command)


@cli.command()
@_run_options
def sweep(
    manifest: Path, work: Path, dataset: Path | None, out: Path | None, overrides: Any, allow_outside: bool
) -> None:
    """Measure the batch sizes of a run MANIFEST, each in its own process.

    Example: stack sweep manifests/runs/demo-cpu.yaml
    """
    from stack.sweep import sweep as run_sweep

    loaded, context = _open_run(manifest, work, overrides, allow_outside)
    out = out or context.folder / f"sweep-{time.strftime('%Y%m%d-%H%M%S')}"
    result = run_sweep(
        loaded,
        dataset=dataset or context.folder / "prepare",
        mirror=context.mirror,
        models=context.models.manifest,
        out=out,
        log=_log,
    )
    if not any(point.status == "ok" for point in result.points):
        raise WorkFailed("sweep-no-point", "no point of the sweep ran", where=str(out))
    click.echo(f"results in {out}")


@cli.command()
@_run_options
@click.option("--resume", is_flag=True, help="Go on from the last checkpoint in --out.")
def train(
    manifest: Path,
    work: Path,
    dataset: Path | None,
    out: Path | None,
    resume: bool,
    overrides: Any,
    allow_outside: bool,
) -> None:
    """Train as a run MANIFEST says, on what `stack reproduce` prepared and mirrored.

    Example: stack train manifests/runs/demo-cpu.yaml --out work/my-training
    """
    from stack.train import train as run_train

    loaded, context = _open_run(manifest, work, overrides, allow_outside)
    out = out or context.folder / f"train-{time.strftime('%Y%m%d-%H%M%S')}"
    result = run_train(
        loaded,
        dataset=dataset or context.folder / "prepare",
        mirror=context.mirror,
        models=context.models.manifest,
        out=out,
        resume=resume,
        log=_log,
    )
    click.echo(f"{result.outcome} after {result.steps} steps, results in {out}")
    if result.outcome == "stopped":
        raise KeyboardInterrupt
    if result.outcome != "finished":
        raise WorkFailed(f"train-{result.outcome}", result.message or result.outcome, where=str(out))


@cli.command()
@click.argument("manifest", type=FILE)
@click.option("--work", type=FOLDER, default=Path("work"), show_default=True, help="Working folder.")
@click.option("--force-stage", metavar="NAME", help="Run this stage even where an earlier one forbids it.")
@click.option("--dry-run", is_flag=True, help="Print the plan and do nothing.")
@click.option("--track/--no-track", default=True, show_default=True, help="Ship the record to MLflow.")
@click.option("--json", "json_to", metavar="FILE", help="Write the verdict as JSON; '-' for stdout.")
@_manifest_options
def reproduce(
    manifest: Path,
    work: Path,
    force_stage: str | None,
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
    from stack.reproduce import describe
    from stack.reproduce import reproduce as run_reproduce
    from stack.reproduce.report import render_text

    if dry_run:
        _, context = _open_run(manifest, work, overrides, allow_outside)
        click.echo(describe(context))
        return
    loaded = load_run_manifest(manifest, overrides=overrides, allow_outside=allow_outside)
    done = run_reproduce(loaded, work=work, force_stage=force_stage, track=track, log=_log)
    _write_json(done.verdict.to_json(), json_to)
    if json_to != "-":
        click.echo(render_text(done.verdict))
        click.echo(
            f"results in {done.folder} (verdict.html)" + (", in MLflow: make ui" if done.store else "")
        )
        if not done.did:
            click.echo("nothing to do: every stage is up to date")
    raise click.exceptions.Exit(done.exit)


@cli.group(cls=Commands)
def track() -> None:
    """The local MLflow server, and the way of a run's journal to one."""


@track.command("server")
@click.option("--work", type=FOLDER, default=Path("work"), show_default=True, help="Working folder.")
@click.option("--port", type=click.IntRange(1, 65535), help="Default: a free one.")
def track_server(work: Path, port: int | None) -> None:
    """Serve the runs of a working folder on loopback until Ctrl-C.

    Example: stack track server --port 5000
    """
    from stack.tracking.server import serve

    serve(work.absolute() / "tracking", port=port, log=click.echo)


@track.command("ship")
@click.argument("folder", type=FOLDER)
@click.option("--server", help="Address; default: a server over the store of --work, started for this.")
@click.option("--work", type=FOLDER, default=Path("work"), show_default=True, help="Working folder.")
def track_ship(folder: Path, server: str | None, work: Path) -> None:
    """Bring the journals below a run FOLDER to MLflow; what is there already stays as it is.

    Example: stack track ship work/runs/demo-cpu --server http://tracking.example:5000
    """
    from stack.tracking.ship import ship

    if not folder.is_dir():
        raise BadRequest("track-no-folder", "the run folder is not there", where=str(folder))
    if server is not None:
        ship(folder, server, log=_log)
        return
    from stack.tracking.server import Server

    with Server.start(work.absolute() / "tracking", log=_log) as local:
        ship(folder, local.uri, log=_log)
