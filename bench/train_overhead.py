"""Our training against lerobot-train: `python -m bench.train_overhead --scratch work/bench-train`.

Same policy, weights, frames in the same order, batch, noise; turn about in one run, so that a busy machine is
busy for both. Run it with the line's own Python: that line's lerobot is the rival.
"""

from __future__ import annotations

import itertools
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from stack.files import read_json, write_json, write_text
from stack.manifests import load_models_manifest
from stack.manifests.models import ModelsManifest
from stack.manifests.run import RunManifest, ToyDims
from stack.train import lines
from stack.train.job import Job, make_job

CHECKOUT = Path(__file__).resolve().parent.parent
LOG_EVERY = 10  # as often as lerobot's script is asked to
WARM_STEPS = 10


@dataclass(frozen=True)
class Mark:
    """A moment: seconds since the epoch, and processor seconds of the process."""

    at: float
    cpu_s: float


@dataclass(frozen=True)
class Timed:
    """One training: seconds from its command to its first step's end, and of each step after the warm-up.

    `cpu`: the same in seconds of processor time of the process that trains, which a busy machine leaves as
    they are; loader workers are not in it.
    """

    first_step_s: float
    steps_s: list[float]
    first_step_cpu_s: float
    step_cpu_s: float
    losses: list[float]

    @property
    def step_s(self) -> float:
        return statistics.median(self.steps_s)


def timed(launched: float, first: Mark, marks: Sequence[Mark], losses: list[float]) -> Timed:
    """From the end of the first step, and marks at the end of each `LOG_EVERY` steps."""
    warm = marks[WARM_STEPS // LOG_EVERY - 1 :]
    steps_s = [(after.at - before.at) / LOG_EVERY for before, after in itertools.pairwise(warm)]
    step_cpu_s = (warm[-1].cpu_s - warm[0].cpu_s) / (LOG_EVERY * len(steps_s))
    return Timed(first.at - launched, steps_s, first.cpu_s, step_cpu_s, losses)


def make_inputs(scratch: Path) -> Path:
    """The demo dataset, prepared by the commands that a user gives."""
    dataset = scratch / "work" / "bench-demo"
    if not dataset.is_dir():
        stack = [sys.executable, "-m", "stack"]
        subprocess.run([*stack, "demo", str(scratch / "work" / "demo")], check=True)
        manifests = scratch / "manifests" / "datasets"
        manifests.mkdir(parents=True, exist_ok=True)
        text = (CHECKOUT / "manifests" / "datasets" / "demo.yaml").read_text()
        (manifests / "demo.yaml").write_text(text)
        command = [*stack, "prepare", str(manifests / "demo.yaml"), "--out", str(dataset), "--allow-outside"]
        subprocess.run(command, check=True)
    return dataset


def run_manifest(steps: int, workers: int, batch: int) -> RunManifest:
    return RunManifest.model_validate(
        {
            "schema": "stack/run/1",
            "name": "bench",
            "purpose": "bench",
            "dataset": "demo.yaml",
            "models": "models.yaml",
            "mirror": "work/demo/models",
            "policy": {
                "type": "pi05",
                "weights": "toy-pi05",
                "tokenizer": "toy-tokenizer",
                "action_horizon": 10,
                "dtype": "float32",
                "image_size": 56,
                "tokenizer_max_length": 200,
                "toy": ToyDims().model_dump(),
            },
            "device": {"kind": "cpu"},
            "train": {
                "steps": steps,
                "batch_per_device": batch,
                "global_batch": batch,
                "learning_rate": 3e-3,
                "warmup_steps": 2,
                "workers": workers,
                "log_every": LOG_EVERY,
                "save_every": steps,
                "padded_actions": "trained",
            },
            "expect": {},
        }
    )


def ours(run: RunManifest, dataset: Path, models: Path, out: Path) -> Timed:
    """`stack.train.train` in a process of its own, as the command starts it."""
    write_json(out / "run.json", run.model_dump(mode="json", by_alias=True))
    code = (
        "import sys; from pathlib import Path\n"
        "from stack.manifests import Loaded, RunManifest, load_models_manifest\n"
        "from stack.train import train\n"
        "out, dataset, mirror, models = map(Path, sys.argv[1:])\n"
        "run = RunManifest.model_validate_json((out / 'run.json').read_text())\n"
        "result = train(Loaded(run, out / 'run.yaml'), dataset=dataset, mirror=mirror,\n"
        "    models=load_models_manifest(models).manifest, out=out / 'train', log=lambda _: None)\n"
        "sys.exit(int(result.exit))\n"
    )
    arguments = [str(out), str(dataset), str(models), str(CHECKOUT / "manifests" / "models.yaml")]
    launched = time.time()
    subprocess.run([sys.executable, "-c", code, *arguments], check=True)
    events = [json.loads(line) for line in (out / "train" / "events.jsonl").read_text().splitlines()]
    windows = [event for event in events if event["kind"] == "window"]
    first = next(event for event in events if event["kind"] == "first-step")
    marks = [Mark(event["t"] / 1000, event["cpu_s"]) for event in (first, *windows)]
    losses = read_json(out / "train" / "result.json")["first_losses"]
    return timed(launched, marks[0], marks[1:], losses)


def theirs(run: RunManifest, dataset: Path, start: Path, out: Path, frames: int) -> Timed:
    train = run.train
    settings = {
        "steps": train.steps,
        "batch": train.batch_per_device,
        "seed": train.seed,
        "workers": train.workers,
        "learning_rate": train.learning_rate,
        "warmup_steps": train.warmup_steps,
        "frames": frames,
    }
    spec = {
        "start": str(start),
        "dataset": str(dataset),
        "out": str(out / "lerobot"),
        "toy": ToyDims().model_dump(),
        "settings": settings,
        "report": str(out / "report.json"),
    }
    write_json(out / "spec.json", spec)
    env = {
        **os.environ,
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "HF_DATASETS_OFFLINE": "1",
        "HF_HOME": str(out / "home"),
        "OMP_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "ACCELERATE_USE_CPU": "true",
        "PYTHONPATH": str(CHECKOUT),
    }
    launched = time.time()
    command = [sys.executable, "-m", "bench.train_rival", str(out / "spec.json")]
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    if done.returncode != 0:
        raise click.ClickException(f"lerobot-train failed:\n{done.stderr[-3000:]}")
    report = read_json(out / "report.json")
    marks = [Mark(*pair) for pair in zip(report["ends"], report["cpus"], strict=True)]
    return timed(launched, marks[0], marks[LOG_EVERY - 1 :: LOG_EVERY], report["losses"])


def start_folder(job: Job, folder: Path) -> Path:
    """The policy before its first step, made in a child: this process stays free of torch."""
    if not folder.is_dir():
        job.write(job.out / "job.json")
        code = (
            "import sys; from pathlib import Path; from bench.train_rival import write_start\n"
            "write_start(Path(sys.argv[1]), Path(sys.argv[2]))"
        )
        subprocess.run([sys.executable, "-c", code, str(job.out / "job.json"), str(folder)], check=True)
    return folder


def measure(
    scratch: Path, steps: int, rounds: int, batch: int, workers_list: Sequence[int]
) -> list[dict[str, Any]]:
    dataset = make_inputs(scratch)
    frames = int(read_json(dataset / "meta" / "info.json")["total_frames"])
    mirror = scratch / "work" / "demo" / "models"
    models: ModelsManifest = load_models_manifest(CHECKOUT / "manifests" / "models.yaml").manifest
    found = []
    for workers in workers_list:
        run = run_manifest(steps, workers, batch)
        folder = scratch / f"runs-{int(time.time())}-w{workers}"
        folder.mkdir(parents=True)
        job = make_job(run, dataset=dataset, mirror=mirror, models=models, out=folder)
        start = start_folder(job, scratch / "start")
        pairs: list[tuple[Timed, Timed]] = []
        for number in range(rounds):
            pairs.append(_pair(run, dataset, mirror, start, folder / str(number), frames, number % 2 == 0))
        found.append(_line(workers, pairs))
        click.echo(json.dumps(found[-1]), err=True)
    return found


def _pair(
    run: RunManifest, dataset: Path, mirror: Path, start: Path, folder: Path, frames: int, is_ours_first: bool
) -> tuple[Timed, Timed]:
    (folder / "ours").mkdir(parents=True)
    (folder / "theirs").mkdir()
    if is_ours_first:
        one = ours(run, dataset, mirror, folder / "ours")
        return one, theirs(run, dataset, start, folder / "theirs", frames)
    two = theirs(run, dataset, start, folder / "theirs", frames)
    return ours(run, dataset, mirror, folder / "ours"), two


def _line(workers: int, pairs: Sequence[tuple[Timed, Timed]]) -> dict[str, Any]:
    apart = max(
        abs(a - b) for one, two in pairs for a, b in zip(one.losses[:10], two.losses[:10], strict=True)
    )
    return {
        "workers": workers,
        "ours_step_s": statistics.median(step for one, _ in pairs for step in one.steps_s),
        "theirs_step_s": statistics.median(step for _, two in pairs for step in two.steps_s),
        "step_ratio": statistics.median(one.step_s / two.step_s for one, two in pairs),
        "ours_first_step_s": statistics.median(one.first_step_s for one, _ in pairs),
        "theirs_first_step_s": statistics.median(two.first_step_s for _, two in pairs),
        "first_step_ratio": statistics.median(one.first_step_s / two.first_step_s for one, two in pairs),
        "step_cpu_ratio": statistics.median(one.step_cpu_s / two.step_cpu_s for one, two in pairs),
        "ours_step_cpu_s": statistics.median(one.step_cpu_s for one, _ in pairs),
        "theirs_step_cpu_s": statistics.median(two.step_cpu_s for _, two in pairs),
        "first_step_cpu_ratio": statistics.median(
            one.first_step_cpu_s / two.first_step_cpu_s for one, two in pairs
        ),
        "first_ten_losses_apart": apart,
    }


def render(found: Sequence[dict[str, Any]], steps: int, rounds: int, batch: int) -> str:
    version = lines.versions()
    head = (
        "| workers | our step | lerobot's | ratio | ratio of processor time | to our first step "
        "| lerobot's | ratio | ratio of processor time | losses apart |"
    )
    rows = [
        f"| {f['workers']} | {f['ours_step_s'] * 1000:.1f} ms | {f['theirs_step_s'] * 1000:.1f} ms | "
        f"{f['step_ratio']:.2f} | {f['step_cpu_ratio']:.2f} | {f['ours_first_step_s']:.1f} s | "
        f"{f['theirs_first_step_s']:.1f} s | {f['first_step_ratio']:.2f} | {f['first_step_cpu_ratio']:.2f} | "
        f"{f['first_ten_losses_apart']:.1e} |"
        for f in found
    ]
    busy = os.getloadavg()[0]
    return (
        f"lerobot {version['lerobot']}, torch {version['torch']}, toy pi0.5, batch {batch}, {steps} steps, "
        f"{rounds} rounds turn about; load {busy:.0f} on {len(os.sched_getaffinity(0))} cores. Ratios: ours "
        "over lerobot's, median over rounds; below 1 is faster. The first step is counted from the command."
        "\n\n"
        f"{head}\n{'|---' * 10}|\n" + "\n".join(rows) + "\n"
    )


@click.command()
@click.option("--scratch", type=click.Path(path_type=Path), default=Path("work/bench-train"))
@click.option("--steps", default=60)
@click.option("--rounds", default=3)
@click.option("--batch", default=4)
@click.option("--workers", multiple=True, default=(0, 2), show_default=True)
@click.option("--write", type=click.Path(path_type=Path), help="Write the table to this file.")
def main(
    scratch: Path, steps: int, rounds: int, batch: int, workers: tuple[int, ...], write: Path | None
) -> None:
    found = measure(scratch.absolute(), steps, rounds, batch, workers)
    text = render(found, steps, rounds, batch)
    click.echo(text)
    if write is not None:
        write_text(write, text)


if __name__ == "__main__":
    main()
