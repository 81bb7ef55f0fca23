"""Look at a machine or a dataset: doctor, demo, audit, mend."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import click

from stack.cli.options import FILE, FOLDER, OwnProcess, log, show_json
from stack.errors import Exit


@click.command()
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
    show_json(found.to_json(), json_to)
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


@click.command()
@click.argument("out", type=FOLDER)
def demo(out: Path) -> None:
    """Write two faulty demo deliveries and toy models into OUT.

    Example: stack demo work/demo
    """
    from stack.demo import write_demo

    write_demo(out, log=log)
    click.echo(f"deliveries in {out / 'deliveries'}, models in {out / 'models'}")


@click.command()
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
    _take_shelter()
    from stack.audit import audit as run_audit
    from stack.audit.kinds import OPENPI, PolicyNeeds
    from stack.audit.text import render

    needs = replace(OPENPI if policy == "openpi" else PolicyNeeds(), action_horizon=action_horizon)
    needs = replace(needs, tokenizer=tokenizer)
    judged: dict[str, Any] = {"policy": needs if policy else None, "deep": deep, "max_seconds": max_seconds}
    if len(datasets) > 1:
        _audit_several(datasets, judged, json_to, html_to, decisions_to)
    (dataset,) = datasets
    report = run_audit(dataset, log=log, **judged)
    show_json(report.to_json(), json_to)
    if html_to is not None:
        from stack.audit.html import render as render_html
        from stack.files import write_text

        write_text(html_to, render_html(report, dataset))
    _write_decisions([(report, dataset)], decisions_to)
    if json_to != "-":
        click.echo(render(report))
    raise click.exceptions.Exit(Exit.OK if report.ok else Exit.NOT_GOOD)


def _take_shelter() -> None:
    """A reader that crashes on a damaged file must not take the report along."""
    if isinstance(click.get_current_context().find_root().obj, OwnProcess):
        from stack.audit.shelter import take_shelter

        take_shelter()


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

    several = audit_several(datasets, log=log, **judged)
    show_json(several.to_json(), json_to)
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


@click.command()
@click.argument("source", type=FOLDER)
@click.argument("target", type=FOLDER)
@click.option("--restamp", is_flag=True, help="Also write timestamp = frame_index / fps.")
@click.option("--dry-run", is_flag=True, help="Print what would be done and write nothing.")
@click.option("--json", "json_to", metavar="FILE", help="Write what was done as JSON; '-' for stdout.")
def mend(source: Path, target: Path, restamp: bool, dry_run: bool, json_to: str | None) -> None:
    """Repair on a copy of SOURCE what can be repaired without guessing, then audit the copy.

    Example: stack mend deliveries/task_5867 work/task_5867-mended --dry-run
    """
    _take_shelter()
    from stack.audit.mend import mend as run_mend

    done = run_mend(source, target, restamp=restamp, dry_run=dry_run, log=log)
    show_json(done.to_json(), json_to)
    if json_to != "-":
        click.echo(done.text())
    raise click.exceptions.Exit(Exit.OK if done.ok else Exit.NOT_GOOD)
