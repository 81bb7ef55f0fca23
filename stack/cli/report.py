"""Pages from run folders."""

from __future__ import annotations

from pathlib import Path

import click

from stack.cli.options import FILE, FOLDER
from stack.errors import BadRequest


@click.command()
@click.argument("runs", type=FOLDER, nargs=-1, required=True, metavar="RUN...")
@click.option("--compare", is_flag=True, help="Two runs: what differs in configuration, curves, speed.")
@click.option(
    "--html", "to", type=FILE, help="Where to write; default: beside the first RUN, RUN.report.html."
)
def report(runs: tuple[Path, ...], compare: bool, to: Path | None) -> None:
    """Make one self-contained HTML page of a run folder, or of what differs between two; no server is asked.

    Example: stack report work/runs/demo-cpu --html work/report.html
    """
    from stack.files import write_text
    from stack.tracking.record_read import read_run
    from stack.tracking.report import comparison_page, report_page

    if len(runs) != (2 if compare else 1):
        wanted = "two run folders" if compare else "one run folder, or two with --compare"
        raise BadRequest("report-count", f"{len(runs)} folders are given; the command takes {wanted}")
    read = [read_run(folder) for folder in runs]
    page = comparison_page(*read) if compare else report_page(read[0])
    # Not into the folder: a stage's folder that changes is made anew.
    own = runs[0].absolute()
    target = to or own.with_name(f"{own.name}.{'comparison' if compare else 'report'}.html")
    write_text(target, page)
    click.echo(f"{target}")
