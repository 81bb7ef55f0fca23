"""Measure the dataset commands and the audit: `python -m bench`, or `make bench`."""

from __future__ import annotations

import os
from pathlib import Path

import click

from bench.cases import BY_DEFAULT, PARTS, START, Bench
from bench.measure import measure
from bench.rival import Rival
from bench.table import between_marks, machine, render


@click.command()
@click.option("--scratch", type=click.Path(path_type=Path), default=Path("work/bench"), show_default=True)
@click.option(
    "--only",
    multiple=True,
    type=click.Choice(list(PARTS)),
    help="Only this part; repeatable. Not given: all but large, audit-deep and audit-peers.",
)
@click.option(
    "--rival",
    type=click.Path(path_type=Path),
    default=Path(".venv-current/bin/python"),
    show_default=True,
    help="A Python that has lerobot 0.6; left out where it is not there.",
)
@click.option(
    "--write", type=click.Path(path_type=Path), help="Also write the table into this Markdown file."
)
@click.option(
    "--readme",
    type=click.Path(path_type=Path, exists=True),
    help="Also put it between the marks in this file.",
)
def main(scratch: Path, only: tuple[str, ...], rival: Path, write: Path | None, readme: Path | None) -> None:
    """Print a table of ratios, all measured in this run; exit code 1 where a bar is missed.

    A bar that is missed while other work fills the cores is not judged.

    Inputs of about 1 GB are made below SCRATCH the first time and kept.

    Example: python -m bench --only join --only drop
    """
    scratch = scratch.resolve()
    scratch.mkdir(parents=True, exist_ok=True)
    # Not resolved: a virtual environment's Python is a link, and works by the place of the link.
    other = Rival(rival.absolute(), scratch) if rival.is_file() else None
    _keep_compiled(scratch, other)
    bench = Bench(scratch, other)
    against = f"lerobot {other.version()}" if other else "no lerobot 0.6 here"
    text = ""
    for name in only or BY_DEFAULT:
        PARTS[name](bench)
        text = f"{render(bench.lines)}\nMeasured on {machine()}; {against}.\n"
        if write is not None:  # after each part: a run that is stopped leaves what it has
            write.write_text(INTRODUCTION + text)
        if readme is not None:
            readme.write_text(between_marks(readme.read_text(), text))
    click.echo(text)
    missed = [line for line in bench.lines if line.holds is False and not line.is_busy]
    raise SystemExit(1 if missed else 0)


def _keep_compiled(scratch: Path, other: Rival | None) -> None:
    """Modules are compiled once, as in any installation, and not at each start; theirs and ours."""
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ["PYTHONPYCACHEPREFIX"] = str(scratch / "compiled")
    nowhere = str(scratch / "no-such-folder")
    measure([*START, "audit", nowhere], exits_with=2)
    measure([*START, "convert", nowhere, f"{nowhere}-2"], exits_with=2)
    if other is not None:
        other.compile()


INTRODUCTION = """# Time and memory

`make bench` measures the dataset commands against physical floors and against lerobot's own tools, all in
one run, and writes this table here and into the README. Inputs are generated: deliveries in v2.1 with a
state of 163 and an action of 36 values, three cameras in H.264, episodes sharing a few different clips (the
bytes are copied all the same), with the camera statistics that a recorder stores. Short runs are the median
of three or five. Both sides' Python modules are compiled beforehand, as in any installation. Memory is the
largest process's, as the kernel counted it. lerobot's tools run in their own environment; copying their
input, which they convert in place, is not counted. Its quantiles come from `recompute_stats`, which averages
those of the episodes; `augment_dataset_quantile_stats` ends by pushing to a hub and takes about seven seconds
an episode. Its convert and merge take camera statistics over unseen; ours are checked against decoded
pictures (see [writing.md](writing.md)), and the row on sampling says what decoding for them costs. Where
other work keeps the machine busy, processor seconds are the safer figure.

Linking saves the copying of the videos and the comparison with their sources, which is a small part of
joining them at this size. What remains is the same: starting Python and its libraries (before anything is
read), reading, checking and writing all rows, their statistics, a look at a picture of each clip, and
hashing every byte of the videos for the provenance. The row on linking also gives the time of the same
episodes without any camera: that alone is more than a third of what joining may take, so that no way of
linking reaches the bar while joining reaches its own.

`python -m bench --only large` measures statistics that do not fit into memory; it takes about half an hour
and 1 GB of disk.

"""

if __name__ == "__main__":
    main()
