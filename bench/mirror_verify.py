"""A bundle's verifier against sha256sum on all cores, in one run.

    python -m bench.mirror_verify --scratch work/bench --gb 4

The files have just been written, so that all hash from memory and none waits for a disk. Each is measured
three times in turns; the fastest counts. coreutils' sha256sum may be built without the fast code for the
processor at hand, and is then several times slower than Python's hashlib: `openssl sha256` is a second rival.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from pathlib import Path

import click

from bench.measure import measure
from bench.table import Line, is_busy, machine, render
from stack.bundle.content import SCRIPTS_FOLDER, SUMS, content_of, own_texts
from stack.bundle.items import Item

LEAST_FRAC = 0.8
TURNS = 3
BIG_SHARES = (0.5, 0.2, 0.1)  # of the bytes; the rest lies in small files


def make(folder: Path, size: int) -> None:
    """A bundle of a few big files and many of a megabyte, as one with weights and a dataset is."""
    sizes = [int(size * share) for share in BIG_SHARES]
    sizes += [1_000_000] * ((size - sum(sizes)) // 1_000_000)
    block, items = os.urandom(1 << 20), []
    for number, wanted in enumerate(sizes):
        made, digest, left = folder / "made", hashlib.sha256(), wanted
        with made.open("wb") as stream:
            while left > 0:
                part = (number.to_bytes(8, "little") + block)[: min(left, len(block))]
                digest.update(part)
                stream.write(part)
                left -= len(part)
        sha256 = digest.hexdigest()
        path = folder / "objects" / sha256[:2] / sha256
        path.parent.mkdir(parents=True, exist_ok=True)
        made.rename(path)
        items.append(Item(f"site/{number}", path, wanted, sha256, ("the bench",)))
    for name, text in own_texts(content_of("bench", "0" * 40, items, {}, None)).items():
        (folder / name).write_text(text)


@click.command()
@click.option("--scratch", type=click.Path(path_type=Path), default=Path("work/bench"), show_default=True)
@click.option("--gb", type=float, default=4.0, show_default=True, help="Size of the bundle, 10^9 bytes.")
def main(scratch: Path, gb: float) -> None:
    """Exit code 1: slower than the bar on a machine that had nothing else to do."""
    scratch.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="mirror-verify-", dir=scratch.resolve()))
    cores = len(os.sched_getaffinity(0))
    try:
        make(folder, int(gb * 1e9))
        items = json.loads((folder / "bundle.json").read_text())["items"]
        ordered = sorted(items, key=lambda item: -item["size"])
        lines = (f"objects/{item['sha256'][:2]}/{item['sha256']}\n" for item in ordered)
        (folder.parent / f"{folder.name}.order").write_text("".join(lines))
        # One process a core, the big files first: the best that sha256sum can do.
        rival = f"tr '\\n' '\\0' <../{folder.name}.order | xargs -0 -P {cores} -n 4 sha256sum >/dev/null"
        fast = rival.replace("sha256sum", "openssl sha256")
        ours_cost, theirs_cost, fast_cost = [], [], []
        for _ in range(TURNS):
            theirs_cost.append(measure(["sh", "-c", rival], cwd=folder))
            fast_cost.append(measure(["sh", "-c", fast], cwd=folder))
            ours_cost.append(measure(["python3", str(SCRIPTS_FOLDER / "verify-bundle.py"), str(folder)]))
    finally:
        shutil.rmtree(folder)
        (folder.parent / f"{folder.name}.order").unlink(missing_ok=True)
    ours, theirs, faster = (
        min(costs, key=lambda cost: cost.wall_s) for costs in (ours_cost, theirs_cost, fast_cost)
    )
    frac = min(theirs.wall_s, faster.wall_s) / ours.wall_s
    line = Line(
        f"verify a bundle of {gb:g} GB, {len(items)} objects",
        f"{ours.wall_s:.1f} s, {ours.cpu_s:.1f} CPU-s, {ours.peak_mib:.0f} MiB",
        f"sha256sum on {cores} cores: {theirs.wall_s:.1f} s, {theirs.cpu_s:.1f} CPU-s; "
        f"openssl: {faster.wall_s:.1f} s, {faster.cpu_s:.1f} CPU-s",
        f">= 80 % of the faster one's speed: {frac:.0%}",
        frac >= LEAST_FRAC,
        is_busy(),
    )
    click.echo(f"{render([line])}\nMeasured on {machine()}; {SUMS} is read as well.")
    raise SystemExit(1 if line.holds is False and not line.is_busy else 0)


if __name__ == "__main__":
    main()
