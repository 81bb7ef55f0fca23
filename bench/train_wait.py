"""How long a step waits for its data: `python -m bench.train_wait`.

Our loader on the demo dataset, warm, with a stand-in for the device: a step that sleeps, as a host does while
an accelerator computes. Against the same workers without the thread that takes batches over. On a cpu the
step itself needs the cores that the workers need; what a training on a cpu waits is in its own log.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click

from bench.train_overhead import CHECKOUT, make_inputs, run_manifest
from stack.manifests import load_models_manifest
from stack.train.ahead import AheadLoader
from stack.train.job import Job, make_job

WARM_STEPS = 10


def make_loader(job: Job, workers: int, steps: int) -> AheadLoader:
    """The batches of a training, processed by its own workers."""
    import torch

    from stack.devices import open_device
    from stack.train.data import Collate, Order, loader, open_dataset
    from stack.train.policy import build_policy, build_processors

    torch.set_num_threads(1)
    dataset = open_dataset(job.dataset, job.run.policy.action_horizon)
    policy = build_policy(job.run, dataset.meta, open_device("cpu"))
    processors = build_processors(policy.config, dataset.meta.stats, job.tokenizer)
    collate = Collate(processors.before, dataset.meta.camera_keys, policy.config.image_resolution)
    train = job.run.train.model_copy(update={"workers": workers})
    order = Order(dataset.num_frames, train.batch_per_device, train.seed)
    found: Any = loader(dataset, order, collate, train, first_step=0, last_step=steps)
    assert isinstance(found, AheadLoader)
    return found


def waits(batches: Iterable[Any], step_s: float) -> tuple[float, list[float]]:
    """(share of the time after the warm-up that was waited for data, the waits in seconds)."""
    found: list[float] = []
    iterator, began = iter(batches), 0.0
    number = 0
    while True:
        if number == WARM_STEPS:
            began = time.perf_counter()
        asked = time.perf_counter()
        if next(iterator, None) is None:
            break
        if number >= WARM_STEPS:
            found.append(time.perf_counter() - asked)
        time.sleep(step_s)
        number += 1
    return sum(found) / (time.perf_counter() - began), found


@click.command()
@click.option("--scratch", type=click.Path(path_type=Path), default=Path("work/bench-train"))
@click.option("--steps", default=80)
@click.option("--batch", default=4)
@click.option("--step-s", default=0.12, show_default=True, help="Seconds of the stand-in's step.")
@click.option("--workers", multiple=True, default=(1, 2), show_default=True)
@click.option("--rounds", default=3)
def main(scratch: Path, steps: int, batch: int, step_s: float, workers: tuple[int, ...], rounds: int) -> None:
    scratch = scratch.absolute()
    dataset = make_inputs(scratch)
    models = load_models_manifest(CHECKOUT / "manifests" / "models.yaml").manifest
    mirror, out = scratch / "work" / "demo" / "models", scratch / "wait"
    out.mkdir(exist_ok=True)
    job = make_job(run_manifest(steps, 1, batch), dataset=dataset, mirror=mirror, models=models, out=out)
    click.echo(
        f"batch {batch}, a step of {step_s * 1000:.0f} ms that sleeps, {steps - WARM_STEPS} warm steps"
    )
    for count in workers:
        loader = make_loader(job, count, steps)
        shares: dict[str, list[float]] = {"taken over ahead": [], "by the workers alone": []}
        for _ in range(rounds):
            for name, batches in zip(shares, (loader, loader.batches), strict=True):
                share, found = waits(batches, step_s)
                shares[name].append(share)
                click.echo(
                    f"{count} workers, {name}: {share:.2%} of the time waited, median "
                    f"{statistics.median(found) * 1000:.2f} ms, longest {max(found) * 1000:.1f} ms"
                )
        medians = ", ".join(f"{name} {statistics.median(values):.2%}" for name, values in shares.items())
        click.echo(f"{count} workers, median of {rounds} rounds: {medians}; load {os.getloadavg()[0]:.0f}")


if __name__ == "__main__":
    main()
