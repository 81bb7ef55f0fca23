"""Measure the dataset commands: `python -m bench`, or `make bench`."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import click

from bench import audit_cases
from bench.inputs import Size, delivery, rows_only
from bench.measure import Cost, Failed, fresh, measure, tree_bytes
from bench.rival import Rival
from bench.table import Line, is_busy, machine, render

FULL_EPISODES, FULL_FRAMES = 681, 305_425
DROPPED = (11, 42, 97)
START = (sys.executable, "-m", "stack")


class Bench:
    """Inputs, outputs and lines of one run."""

    def __init__(self, scratch: Path, rival: Rival | None) -> None:
        self.scratch, self.rival = scratch, rival
        self.lines: list[Line] = []

    def add(self, line: Line) -> None:
        line = replace(line, is_busy=is_busy())
        self.lines.append(line)
        click.echo(f"{line.work}: {line.took}; {line.against}; bar {line.bar}: {line.cells()[-1]}", err=True)

    def input(self, name: str, size: Size) -> Path:
        return delivery(self.scratch / "inputs" / name, self.scratch / "clips", size)

    def halves(self) -> list[Path]:
        return [self.input(f"half-{n}", Size((300,) * 50, seed=n)) for n in (0, 1)]

    def prepare(self, sources: Sequence[Path], name: str, *, videos: str = "join", lines: str = "") -> Cost:
        """Prepare a dataset at `out/NAME` from a manifest that names these sources."""
        manifest = self.scratch / f"{name}.yaml"
        listed = "".join(
            f"  - path: {source.relative_to(self.scratch)}\n    name: s{n}\n{lines}"
            for n, source in enumerate(sources)
        )
        manifest.write_text(f"schema: stack/dataset/1\nname: {name}\nvideos: {videos}\nsources:\n{listed}")
        return measure([*START, "prepare", str(manifest), "--out", str(fresh(self.out(name)))])

    def out(self, name: str) -> Path:
        return self.scratch / "out" / name

    def against_rival(self, run: Callable[[Rival], Cost]) -> Cost | None:
        if self.rival is None:
            return None
        try:
            return run(self.rival)
        except Failed as error:
            click.echo(f"the rival failed: {error}", err=True)
            return None


def start(bench: Bench) -> None:
    ours = min((measure([*START, "--help"]) for _ in range(5)), key=lambda cost: cost.wall_s)
    theirs = bench.against_rival(lambda rival: rival.nothing())
    bench.add(
        Line(
            "`stack --help`",
            f"{ours.wall_s:.2f} s, {ours.cpu_s:.2f} CPU-s",
            f"import of lerobot: {theirs.wall_s:.1f} s, {theirs.cpu_s:.1f} CPU-s" if theirs else "",
            "under 0.5 s",
            ours.wall_s < 0.5,
        )
    )


def join(bench: Bench) -> None:
    halves = bench.halves()
    copy = _copy(bench, halves)
    ours = bench.prepare(halves, "join")
    megabytes = sum(tree_bytes(half) for half in halves) / 1e6
    bar_s = 2 * copy.wall_s + 3
    bench.add(
        Line(
            f"prepare, join: 100 episodes x 300 frames, 3 cameras 320x240, {megabytes:.0f} MB",
            f"{ours.wall_s:.1f} s, {ours.cpu_s:.1f} CPU-s",
            f"`cp -r`: {copy.wall_s:.1f} s",
            f"2x `cp -r` + 3 s = {bar_s:.1f} s",
            ours.wall_s <= bar_s,
        )
    )
    bench.add(Line("the same, memory", f"{ours.peak_mib:.0f} MiB", "", "under 700 MiB", ours.peak_mib < 700))
    link = bench.prepare(halves, "link", videos="link")
    bench.add(
        Line(
            "prepare, link",
            f"{link.wall_s:.1f} s, {link.cpu_s:.1f} CPU-s",
            f"join: {ours.wall_s:.1f} s; {link.wall_s / ours.wall_s:.2f} of it",
            "a third of join",
            link.wall_s <= ours.wall_s / 3,
        )
    )
    theirs = bench.against_rival(lambda rival: _convert_and_merge(rival, halves))
    bench.add(
        Line(
            "prepare, join, against convert + merge + quantiles",
            f"{ours.wall_s:.1f} s, {ours.cpu_s:.1f} CPU-s",
            _figure(theirs, ours),
            "10x faster",
            theirs.wall_s >= 10 * ours.wall_s if theirs else None,
        )
    )


def _convert_and_merge(rival: Rival, halves: Sequence[Path]) -> Cost:
    """The rival's quantiles are averages over episodes; ours are exact."""
    converted = [rival.convert(half, half.name) for half in halves]
    merged, cost = rival.merge([root for root, _ in converted], "merged")
    for _, part in converted:
        cost += part
    return cost + rival.quantiles(merged)


def _copy(bench: Bench, sources: Sequence[Path]) -> Cost:
    target = fresh(bench.scratch / "copied")
    target.mkdir()
    cost = measure(["cp", "-r", *map(str, sources), str(target)])
    shutil.rmtree(target)
    return cost


def _figure(theirs: Cost | None, ours: Cost) -> str:
    if theirs is None:
        return ""
    return (
        f"lerobot: {theirs.wall_s:.1f} s, {theirs.cpu_s:.1f} CPU-s, {theirs.peak_mib:.0f} MiB; "
        f"{theirs.wall_s / ours.wall_s:.0f}x the time, {theirs.cpu_s / ours.cpu_s:.0f}x the CPU"
    )


def drop(bench: Bench) -> None:
    if not bench.out("join").is_dir():
        bench.prepare(bench.halves(), "join")
    source = bench.out("join")
    excluded = f"    exclude_episodes: [{', '.join(map(str, DROPPED))}]\n"
    ours = bench.prepare([source], "dropped", lines=excluded)
    theirs = bench.against_rival(lambda rival: rival.delete(source, DROPPED, "deleted"))
    bench.add(
        Line(
            "drop 3 of 100 episodes",
            f"{ours.wall_s:.1f} s, {ours.cpu_s:.1f} CPU-s",
            _figure(theirs, ours),
            "under 5 s",
            ours.wall_s < 5,
        )
    )


def merge(bench: Bench) -> None:
    sources = []
    for n in range(10):
        name = f"tenth-{n}"
        tenth = bench.input(name, Size((300,) * 10, seed=100 + n))
        if not bench.out(name).is_dir():
            bench.prepare([tenth], name)
        sources.append(bench.out(name))
    few, many = bench.prepare(sources[:2], "merge-2"), bench.prepare(sources, "merge-10")
    theirs_few = bench.against_rival(lambda rival: rival.merge(sources[:2], "rival-2")[1])
    theirs_many = bench.against_rival(lambda rival: rival.merge(sources, "rival-10")[1])
    against = ""
    if theirs_few and theirs_many:
        against = (
            f"lerobot: {theirs_many.cpu_s:.1f} against {theirs_few.cpu_s:.1f} CPU-s, of which "
            f"{bench.against_rival(lambda rival: rival.nothing()).cpu_s:.1f} are its import"  # type: ignore[union-attr]
        )
    ratio = many.wall_s / few.wall_s
    bench.add(
        Line(
            "merge of 10 sources against 2, five times the bytes",
            f"{many.wall_s:.1f} against {few.wall_s:.1f} s ({ratio:.1f}x); "
            f"{many.cpu_s:.1f} against {few.cpu_s:.1f} CPU-s",
            against,
            "linear: at most 5.5x",
            ratio <= 5.5,
        )
    )


def statistics(bench: Bench) -> None:
    widths = {"observation.state": 163, "action": 36}
    file = rows_only(bench.scratch / "inputs", FULL_FRAMES, widths)
    ours = measure([sys.executable, "-m", "bench.statistics", str(file)])
    bench.add(
        Line(
            "exact statistics of 305,425 rows x 199 values",
            f"{ours.wall_s:.1f} s, {ours.cpu_s:.1f} CPU-s, {ours.peak_mib:.0f} MiB",
            "the story: 62 hours",
            "under 5 s",
            ours.wall_s < 5,
        )
    )


def scale(bench: Bench) -> None:
    small = [bench.input(f"small-{n}", Size((300,) * 50, 96, 72, seed=200 + n)) for n in range(20)]
    few, many = bench.prepare(small[:2], "small-100"), bench.prepare(small, "small-1000")
    ratio = many.wall_s / few.wall_s
    bench.add(
        Line(
            "10x the episodes: 1,000 against 100 (pictures 96x72)",
            f"{many.wall_s:.1f} against {few.wall_s:.1f} s: {ratio:.1f}x; "
            f"{many.cpu_s:.1f} against {few.cpu_s:.1f} CPU-s",
            f"memory {many.peak_mib:.0f} against {few.peak_mib:.0f} MiB",
            "at most 11x",
            ratio <= 11,
        )
    )


def full(bench: Bench) -> None:
    longer = FULL_FRAMES - FULL_EPISODES * (FULL_FRAMES // FULL_EPISODES)
    lengths = [FULL_FRAMES // FULL_EPISODES + (n < longer) for n in range(FULL_EPISODES)]
    halves = [
        bench.input("full-0", Size(tuple(lengths[:340]), 96, 72, seed=300)),
        bench.input("full-1", Size(tuple(lengths[340:]), 96, 72, seed=301)),
    ]
    ours = bench.prepare(halves, "full")
    bench.add(
        Line(
            f"full size: {FULL_EPISODES} episodes, {FULL_FRAMES:,} frames, 3 cameras 96x72",
            f"{ours.wall_s:.0f} s, {ours.cpu_s:.0f} CPU-s, {ours.peak_mib:.0f} MiB",
            "",
            "under 180 s",
            ours.wall_s < 180,
        )
    )


PARTS: dict[str, Callable[[Bench], None]] = {
    "start": start,
    "statistics": statistics,
    "join": join,
    "scale": scale,
    "full": full,
    "merge": merge,
    "drop": drop,
    "audit": audit_cases.speed,
    "audit-peers": audit_cases.peers,
}


@click.command()
@click.option("--scratch", type=click.Path(path_type=Path), default=Path("work/bench"), show_default=True)
@click.option("--only", multiple=True, type=click.Choice(list(PARTS)), help="Only this part; repeatable.")
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
def main(scratch: Path, only: tuple[str, ...], rival: Path, write: Path | None) -> None:
    """Print a table of ratios, all measured in this run; exit code 1 where a bar is missed.

    A bar that is missed while other work fills the cores is not judged.

    Inputs of about 1 GB are made below SCRATCH the first time and kept.

    Example: python -m bench --only join --only drop
    """
    scratch = scratch.resolve()
    scratch.mkdir(parents=True, exist_ok=True)
    # Not resolved: a virtual environment's Python is a link, and works by the place of the link.
    other = Rival(rival.absolute(), scratch) if rival.is_file() else None
    bench = Bench(scratch, other)
    against = f"lerobot {other.version()}" if other else "no lerobot 0.6 here"
    text = ""
    for name in only or PARTS:
        PARTS[name](bench)
        text = f"{render(bench.lines)}\nMeasured on {machine()}; {against}.\n"
        if write is not None:  # after each part: a run that is stopped leaves what it has
            write.write_text(INTRODUCTION + text)
    click.echo(text)
    missed = [line for line in bench.lines if line.holds is False and not line.is_busy]
    raise SystemExit(1 if missed else 0)


INTRODUCTION = """# Time and memory

`make bench` measures the dataset commands against physical floors and against lerobot's own tools, all in one
run, and writes this table. Inputs are generated: deliveries in v2.1 with a state of 163 and an action of 36
values, three cameras in H.264, episodes sharing a few different clips (the bytes are copied all the same).
Memory is the largest process's, as the kernel counted it. lerobot's tools run in their own environment;
copying their input, which they convert in place, is not counted. Its quantiles come from `recompute_stats`,
which averages those of the episodes; `augment_dataset_quantile_stats` ends by pushing to a hub and takes
about seven seconds an episode. Where other work keeps the machine busy, processor seconds are the safer
figure.

"""

if __name__ == "__main__":
    main()
