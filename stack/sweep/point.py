"""The child that measures one point: `python -m stack.sweep.point SPEC.json`, one process a device.

The policy has the manifest's dimensions and random values: neither time nor memory depend on the values.
Data, processors, optimiser and the step are those of a training.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from stack.devices import Device, is_out_of_memory, open_device
from stack.devices.memory import limit_data_bytes
from stack.errors import Exit, StackError
from stack.files import read_json, write_json
from stack.manifests.run import Sweep
from stack.sweep.result import RESULT, Point
from stack.train import offline
from stack.train.job import Job


def main(spec_file: Path) -> int:
    spec = read_json(spec_file, what="point's specification")
    job = Job.read(Path(spec["job"]))
    offline.install_guard(job.outside, allow=filter(None, [os.environ.get("MASTER_ADDR")]))
    devices, batch, limit_mb = spec["devices"], spec["batch"], spec["memory_limit_mb"]
    try:
        point = _measure(job, devices, batch, limit_mb)
    except StackError as error:
        traceback.print_exc()
        point = Point(devices, batch, "error", message=f"{error.id}: {error.what}")
    except Exception as error:
        traceback.print_exc()
        status = "oom" if is_out_of_memory(error) else "error"
        point = Point(
            devices,
            batch,
            status,  # type: ignore[arg-type]
            message=_first_line(error),
            peak_memory_bytes=_peak(job, status),
        )
    if os.environ.get("RANK", "0") == "0" or point.status != "ok":
        write_json(job.out / RESULT, point.to_json())
    return int(Exit.OK if point.status == "ok" else Exit.WORK_FAILED)


def _measure(job: Job, devices: int, batch: int, limit_mb: int | None) -> Point:
    import torch

    from stack.train.data import Collate, Order, loader, open_dataset
    from stack.train.objective import make_objective
    from stack.train.policy import build_policy, build_processors
    from stack.train.ranks import join, local_rank
    from stack.train.trainable import choose_trainable

    run, settings = job.run, job.run.sweep
    assert settings is not None
    if run.device.kind == "cpu":
        torch.set_num_threads(1)
    device = open_device(run.device.kind, local_rank())
    ranks = join(device, devices)
    try:
        dataset = open_dataset(job.dataset, run.policy.action_horizon)
        device.seed(run.train.seed + ranks.rank)
        policy = build_policy(run, dataset.meta, device)
        policy.train()
        processors = build_processors(policy.config, dataset.meta.stats, job.tokenizer)
        trainable = choose_trainable(policy, run)
        optimizer = policy.config.get_optimizer_preset().build(trainable.parameters)
        train = run.train
        if limit_mb is not None and device.kind == "cpu":
            # In one process, so that the limit is on all that the point takes.
            train = train.model_copy(update={"workers": 0})
            limit_data_bytes(limit_mb * 1_000_000)
        order = Order(dataset.num_frames, batch, train.seed, ranks.world, ranks.rank)
        steps = settings.warmup_steps + settings.timed_steps
        collate = Collate(processors.before, dataset.meta.camera_keys, policy.config.image_resolution)
        batches = iter(loader(dataset, order, collate, train, first_step=0, last_step=steps))
        device.reset_memory_peak()
        model = ranks.wrap(make_objective(policy, run, device), device)
        steps_s, waits_s = _run(model, policy, optimizer, _checked(batches, dataset), device, settings)
    finally:
        ranks.close()
    step_s = statistics.median(steps_s)
    return Point(
        devices,
        batch,
        "ok",
        step_s=step_s,
        samples_per_s=devices * batch / step_s,
        data_wait_s=statistics.median(waits_s),
        peak_memory_bytes=device.memory_peak_bytes(),
    )


def _checked(batches: Iterator[Any], dataset: Any) -> Iterator[Any]:
    from stack.train.data import next_batch

    while True:
        yield next_batch(batches, dataset)


def _run(
    model: Any, policy: Any, optimizer: Any, batches: Iterator[Any], device: Device, settings: Sweep
) -> tuple[list[float], list[float]]:
    """All steps; times of those after the warm-up."""
    import torch

    from stack.train.step import to_device

    steps_s, waits_s = [], []
    for step in range(settings.warmup_steps + settings.timed_steps):
        device.synchronise()
        started = time.perf_counter()
        batch = next(batches)
        waited = time.perf_counter() - started
        loss, *_ = model(to_device(batch.inputs, device))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(policy.parameters(), policy.config.optimizer_grad_clip_norm)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        device.synchronise()
        if step >= settings.warmup_steps:
            steps_s.append(time.perf_counter() - started)
            waits_s.append(waited)
    return steps_s, waits_s


def _peak(job: Job, status: str) -> int | None:
    """How far memory went before it ran out."""
    if status != "oom":
        return None
    from stack.train.ranks import local_rank

    return open_device(job.run.device.kind, local_rank()).memory_peak_bytes()


def _first_line(error: Exception) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0] if text else ''}"


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(int(Exit.BAD_REQUEST))
    sys.exit(main(Path(sys.argv[1])))
