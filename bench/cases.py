"""What is measured: one function a part, which makes inputs, runs commands and adds lines to the table."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import click

from bench import audit_cases
from bench.inputs import Size, delivery, rows_only
from bench.measure import Cost, Failed, fresh, measure, median, tree_bytes
from bench.rival import Rival
from bench.table import Line, is_busy

FULL_EPISODES, FULL_FRAMES = 681, 305_425
DROPPED = (11, 42, 97)
START = (sys.executable, "-m", "stack")
DATA_COMMANDS = ("prepare", "convert", "merge", "drop", "stats", "audit", "mend")
LARGE_ROWS = 100_000_000
PROCESSES = len(os.sched_getaffinity(0))


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

    def prepare(
        self, sources: Sequence[Path], name: str, *, videos: str = "join", lines: str = "", top: str = ""
    ) -> Cost:
        """Prepare a dataset at `out/NAME` from a manifest that names these sources.

        Args:
            lines: more of each source; `top`: more of the manifest.
        """
        manifest = self.scratch / f"{name}.yaml"
        listed = "".join(
            f"  - path: {source.relative_to(self.scratch)}\n    name: s{n}\n{lines}"
            for n, source in enumerate(sources)
        )
        manifest.write_text(
            f"schema: stack/dataset/1\nname: {name}\nvideos: {videos}\n{top}sources:\n{listed}"
        )
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
    helped = median(lambda: measure([*START, "--help"]), 5)
    theirs = bench.against_rival(lambda rival: rival.nothing())
    against = f"import of lerobot: {theirs.wall_s:.1f} s, {theirs.cpu_s:.1f} CPU-s" if theirs else ""
    bench.add(Line("`stack --help`", _spent(helped), against, "under 0.5 s", helped.wall_s < 0.5))
    slowest = max(
        (median(lambda n=name: measure([*START, n, "--help"]), 3) for name in DATA_COMMANDS),
        key=lambda cost: cost.wall_s,
    )
    bench.add(
        Line(
            f"the slowest start of {len(DATA_COMMANDS)} data commands, `--help`",
            _spent(slowest),
            against,
            "under 0.5 s",
            slowest.wall_s < 0.5,
        )
    )
    # All that the command needs is imported before it sees that there is no such folder, and says so.
    nowhere = str(bench.scratch / "no-such-folder")
    asked = median(lambda: measure([*START, "convert", nowhere, f"{nowhere}-2"], exits_with=2), 5)
    bench.add(
        Line(
            "`stack convert` until it has looked at its source",
            f"{_spent(asked)}; torch {'is not' if _without_torch(bench) else 'IS'} imported",
            against,
            "torch not imported",
            _without_torch(bench),
        )
    )


def _without_torch(bench: Bench) -> bool:
    """Ask a data command that has done its work what it imported."""
    source = bench.input("tiny", Size((12, 9), 48, 32, state=5, action=3))
    asked = (
        "import sys; from stack.cli import cli; "
        f"cli.main(['convert', {str(source)!r}, {str(fresh(bench.out('tiny')))!r}], standalone_mode=False); "
        "sys.exit(7 if 'torch' in sys.modules else 0)"
    )
    try:
        measure([sys.executable, "-c", asked])
    except Failed as error:
        click.echo(str(error), err=True)
        return False
    return True


def _spent(cost: Cost) -> str:
    return f"{cost.wall_s:.2f} s, {cost.cpu_s:.2f} CPU-s"


def join(bench: Bench) -> None:
    halves = bench.halves()
    copy = median(lambda: _copy(bench, halves), 3)
    ours = median(lambda: bench.prepare(halves, "join"), 3)
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
    link = median(lambda: bench.prepare(halves, "link", videos="link"), 3)
    bare = [bench.input(f"bare-{n}", Size((300,) * 50, seed=n, cameras=())) for n in (0, 1)]
    rows = median(lambda: bench.prepare(bare, "bare"), 3)
    bench.add(
        Line(
            "prepare, link",
            f"{link.wall_s:.1f} s, {link.cpu_s:.1f} CPU-s",
            f"join: {ours.wall_s:.1f} s; {link.wall_s / ours.wall_s:.2f} of it; "
            f"its rows alone, without any video: {rows.wall_s:.1f} s",
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


def sampled(bench: Bench) -> None:
    """What it costs to decode for camera statistics, as lerobot samples them; no bar."""
    halves = bench.halves()
    ours = bench.prepare(halves, "sampled", top="camera_statistics: sampled\n")
    bench.add(
        Line(
            "prepare, join, all camera statistics sampled by decoding",
            f"{ours.wall_s:.1f} s, {ours.cpu_s:.1f} CPU-s",
            "30,000 of 90,000 pictures looked at, all decoded",
            "none",
            None,
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
    ours = median(lambda: bench.prepare([source], "dropped", lines=excluded), 3)
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
    delivery = bench.input("rows", Size(_full_lengths(), seed=400, cameras=()))
    ours = median(lambda: measure([*START, "stats", str(delivery)]), 3)
    bench.add(
        Line(
            f"`stack stats`: {FULL_EPISODES} episodes, 305,425 rows x 199 values",
            f"{ours.wall_s:.1f} s, {ours.cpu_s:.1f} CPU-s, {ours.peak_mib:.0f} MiB",
            "the story: 62 hours",
            "under 5 s",
            ours.wall_s < 5,
        )
    )


def _full_lengths() -> tuple[int, ...]:
    longer = FULL_FRAMES - FULL_EPISODES * (FULL_FRAMES // FULL_EPISODES)
    return tuple(FULL_FRAMES // FULL_EPISODES + (n < longer) for n in range(FULL_EPISODES))


def large(bench: Bench) -> None:
    """12.8 GB of values, which go through in blocks; the values repeat, so that the file is small."""
    file = rows_only(bench.scratch / "inputs", LARGE_ROWS, {"action": 32}, group=1_000_000, steps=16)
    ours = measure([sys.executable, "-m", "bench.statistics", str(file)])
    bench.add(
        Line(
            f"exact statistics of {LARGE_ROWS:,} rows x 32 values",
            f"{ours.wall_s:.0f} s, {ours.cpu_s:.0f} CPU-s, {ours.peak_mib:.0f} MiB a process",
            f"the values: {LARGE_ROWS * 32 * 4 / 1e9:.1f} GB",
            "under 2 GiB, all processes",
            ours.peak_mib * (1 + PROCESSES) < 2048,
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
            "",
            "at most 11x",
            ratio <= 11,
        )
    )
    flat = many.peak_mib / few.peak_mib
    bench.add(
        Line(
            "the same, memory of the largest process",
            f"{many.peak_mib:.0f} against {few.peak_mib:.0f} MiB: {flat:.2f}x",
            "",
            "flat: at most 1.25x",
            flat <= 1.25,
        )
    )


def full(bench: Bench) -> None:
    lengths = _full_lengths()
    halves = [
        bench.input("full-0", Size(lengths[:340], 96, 72, seed=300)),
        bench.input("full-1", Size(lengths[340:], 96, 72, seed=301)),
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
    "sampled": sampled,
    "scale": scale,
    "full": full,
    "merge": merge,
    "drop": drop,
    "audit": audit_cases.speed,
    "audit-deep": audit_cases.deep,
    "audit-peers": audit_cases.peers,
    "large": large,
}
# large and audit-deep take longer than all others together; audit-peers needs other validators beside it.
BY_DEFAULT = tuple(name for name in PARTS if name not in ("large", "audit-deep", "audit-peers"))
