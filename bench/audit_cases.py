"""The audit's parts of the bench."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import click

from bench.audit_large import EPISODES, FRAMES, large, measured
from bench.audit_peers import INTRODUCTION, Comparison, peers_folder, plants
from bench.memory_limit import memory_limit
from bench.table import Line, machine

if TYPE_CHECKING:
    from bench.cases import Bench

PAGE = Path(__file__).parents[1] / "docs" / "audit_peers.md"
BAR_S, BAR_MIB = 60.0, 1024.0


def speed(bench: Bench) -> None:
    """The fast audit at full size."""
    root = large(bench.scratch / "inputs" / "audit-full")
    got = measured(root)
    work = f"audit: {EPISODES} episodes, {FRAMES:,} frames, 3 cameras, 199 values a row"
    took = f"{got['wall_s']:.1f} s, {got['cpu_s']:.1f} CPU-s"
    bench.add(Line(work, took, "", f"under {BAR_S:g} s", got["wall_s"] < BAR_S))
    peak = got["peak_bytes"] / 2**20
    bench.add(Line("the same, memory of all processes", f"{peak:.0f} MiB", "", "under 1 GiB", peak < BAR_MIB))
    _within_the_limit(bench, root)


def _within_the_limit(bench: Bench, root: Path) -> None:
    """Again where the kernel gives no more, page cache included."""
    with memory_limit(int(BAR_MIB * 2**20)) as group:
        took, holds = "no memory cgroup can be made here", None
        if group is not None:
            try:
                wall_s = measured(root, group=group)["wall_s"]
                took, holds = f"{wall_s:.1f} s", wall_s < BAR_S
            except subprocess.CalledProcessError as error:
                took, holds = f"ended with {error.returncode}", False
    bench.add(Line("the same, in a memory cgroup of 1 GiB", took, "", f"under {BAR_S:g} s", holds))


def deep(bench: Bench) -> None:
    """Every picture of the same dataset decoded."""
    got = measured(large(bench.scratch / "inputs" / "audit-full"), deep=True)
    work = f"audit --deep: the same, all {got['decoded']:,} pictures of 64x48 decoded"
    rate = f"{got['decoded'] / got['decoding_s']:,.0f} pictures a second"
    took = f"{got['wall_s']:.0f} s, {got['cpu_s']:.0f} CPU-s; {rate}"
    bench.add(Line(work, took, f"{os.cpu_count()} cores", "none", None))
    cores = f"{got['cpu_s'] / got['wall_s']:.1f} cores in use"
    bench.add(
        Line("the same, memory of all processes", f"{got['peak_bytes'] / 2**20:.0f} MiB", cores, "none", None)
    )


def peers(bench: Bench) -> None:
    """Planted faults and seconds, beside public validators; the whole table goes to docs/audit_peers.md."""
    comparison = Comparison(bench.scratch / "audit-peers", peers_folder())
    comparison.run(lambda line: click.echo(line, err=True))
    comparison.larger(bench.scratch / "clips")
    if comparison.peers:
        PAGE.write_text(f"{INTRODUCTION}{comparison.table()}\nMeasured on {machine()}.\n")
    tried = comparison.measured()
    found = sum(comparison.cells[f"audit {code}"]["found"] for code in tried)
    best = [(sum(comparison.credit(p, *of) == "yes" for of in tried.items()), p) for p in comparison.peers]
    most, by = max(best, key=lambda pair: pair[0]) if best else (0, None)
    against = f"{by.package} names {most}" if by else "no other validator here (STACK_PEERS)"
    bench.add(
        Line(
            "planted faults, one of each kind",
            f"{found} named, with file, episode and feature",
            against,
            f"all {len(plants())}",
            found == len(plants()),
        )
    )
