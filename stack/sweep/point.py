"""The child that measures one point: `python -m stack.sweep.point SPEC.json`, one process a device.

The policy has the manifest's dimensions and random values: neither time nor memory depend on the values.
Data, processors, optimiser and the step are those of a training, its moving average included.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stack.devices import Device, is_out_of_memory, open_device
from stack.devices.memory import limit_data_bytes
from stack.errors import Exit, StackError
from stack.files import read_json, write_json
from stack.manifests.run import Sweep
from stack.sweep.judge import ACCOUNTS, STEPS
from stack.sweep.result import RESULT, Point
from stack.tracking.liveness import lives
from stack.train import offline
from stack.train.child import LAUNCHER_ENV
from stack.train.job import Job
from stack.train.preflight import raise_open_files


@dataclass(frozen=True)
class Spec:
    """What the parent asks for; see `SweepGroup`. `pictures`: also measure their cost."""

    devices: int
    batch: int
    memory_limit_mb: int | None
    host_limit_mb: int | None
    pictures: bool


@dataclass(frozen=True)
class Memory:
    """Where memory stood before the first step.

    Attributes:
        free_bytes: this rank could take so much.
        held_bytes: of what it takes, so much does not count: it was there before the limit was set.
    """

    free_bytes: int
    held_bytes: int = 0


def main(spec_file: Path) -> int:
    raw = read_json(spec_file, what="point's specification")
    job = Job.read(Path(raw.pop("job")))
    spec = Spec(**raw)
    raise_open_files()
    offline.install_guard(job.outside, allow=filter(None, [os.environ.get("MASTER_ADDR")]))
    rank = int(os.environ.get("RANK", "0"))
    try:
        point = _measure(job, spec)
    except Exception as error:
        # First of all: the others fail next, with words that hide the cause.
        _account(job, rank, error)
        traceback.print_exc()
        return int(Exit.WORK_FAILED)
    if rank == 0:
        write_json(job.out / RESULT, point.to_json())
    return int(Exit.OK)


def _account(job: Job, rank: int, error: Exception) -> None:
    """Write down why this rank failed, and how far memory went before it ran out."""
    from stack.train.ranks import local_rank

    is_ours = isinstance(error, StackError)
    status = "oom" if not is_ours and is_out_of_memory(error) else "error"
    account = {
        "time": time.time(),
        "rank": rank,
        "status": status,
        "message": f"{error.id}: {error.what}" if isinstance(error, StackError) else _first_line(error),
    }
    if status == "oom":
        account["peak_memory_bytes"] = open_device(job.run.device.kind, local_rank()).memory_peak_bytes()
    write_json(job.out / ACCOUNTS / f"rank-{rank}.json", account)


def _measure(job: Job, spec: Spec) -> Point:
    import torch

    from stack.train.batches import told_of_dead_workers
    from stack.train.data import Collate, Order, loader, open_dataset
    from stack.train.objective import make_objective
    from stack.train.policy import build_policy, build_processors
    from stack.train.ranks import join, local_rank
    from stack.train.trainable import choose_trainable

    run, settings = job.run, job.run.sweep
    assert settings is not None
    is_cpu = run.device.kind == "cpu"
    if is_cpu:
        torch.set_num_threads(1)
    device = open_device(run.device.kind, local_rank())
    free_bytes = device.memory_free_bytes() + (device.memory_now_bytes() if is_cpu else 0)
    ranks = join(device, spec.devices)
    try:
        dataset = open_dataset(job.dataset, run.policy.action_horizon)
        device.seed(run.train.seed + ranks.rank)
        policy = build_policy(run, dataset.meta, device)
        policy.train()
        processors = build_processors(policy.config, dataset.meta.stats, job.tokenizer)
        trainable = choose_trainable(policy, run)
        optimizer = policy.config.get_optimizer_preset().build(trainable.parameters)
        update_average = _averaging(trainable, run.train.ema_decay)
        train = run.train
        memory = Memory(free_bytes // ranks.world if is_cpu else free_bytes)
        if spec.memory_limit_mb is not None and is_cpu:
            # In one process, so that the limit is on all that the point takes.
            train = train.model_copy(update={"workers": 0})
            memory = Memory(spec.memory_limit_mb * 1_000_000, device.memory_now_bytes())
            limit_data_bytes(memory.free_bytes)
        elif spec.host_limit_mb is not None and is_cpu:
            memory = Memory(spec.host_limit_mb * 1_000_000 // ranks.world)
        order = Order(dataset.num_frames, spec.batch, train.seed, ranks.world, ranks.rank)
        steps = settings.warmup_steps + settings.timed_steps
        collate = Collate(processors.before, dataset.meta.camera_keys, policy.config.image_resolution)
        batches = iter(loader(dataset, order, collate, train, first_step=0, last_step=steps))
        device.reset_memory_peak()
        tell = _teller(job.out / STEPS, ranks.rank == 0)
        tell(phase="steps")
        model = ranks.wrap(make_objective(policy, run, device), device)
        step = _Step(model, trainable.parameters, policy, optimizer, update_average, device)
        with told_of_dead_workers():
            steps_s, waits_s = _run(step, _checked(batches, dataset), settings, tell)
        taken = ranks.gather(_taken(device, memory, free_bytes))
        point = _point(spec, steps_s, waits_s, taken)
        if spec.pictures and ranks.rank == 0:
            _measure_pictures(job, dataset, collate, policy.config.image_resolution)
        return point
    finally:
        ranks.close()


def _averaging(trainable: Any, decay: float | None) -> Callable[[], None]:
    """The update of a moving average; nothing where the run keeps none."""
    if decay is None:
        return lambda: None
    from stack.train.average import Average

    return Average(trainable.named, decay).update


def _taken(device: Device, memory: Memory, free_before_bytes: int) -> dict[str, int | None]:
    """What this rank's steps took at most."""
    peak = device.memory_peak_bytes()
    reserved = device.memory_reserved_peak_bytes()
    demand = (peak if reserved is None else reserved) - memory.held_bytes
    if device.kind != "cpu":
        # What the runtime took for itself, such as buffers of collectives, is in no allocator's account.
        held = free_before_bytes - device.memory_free_bytes()
        demand += max(0, held - device.memory_reserved_bytes())
    return {"peak": peak, "reserved": reserved, "demand": demand, "capacity": memory.free_bytes}


def _point(
    spec: Spec, steps_s: list[float], waits_s: list[float], taken: list[dict[str, int | None]]
) -> Point:
    """One rank's times, for all ranks wait for each other; the memory of the rank that took most."""

    def most(name: str) -> int | None:
        return max((value for own in taken if (value := own[name]) is not None), default=None)

    step_s = statistics.median(steps_s)
    return Point(
        spec.devices,
        spec.batch,
        "ok",
        step_s=step_s,
        samples_per_s=spec.devices * spec.batch / step_s,
        data_wait_s=statistics.median(waits_s),
        peak_memory_bytes=most("peak"),
        peak_reserved_bytes=most("reserved"),
        demand_bytes=most("demand"),
        capacity_bytes=min((value for own in taken if (value := own["capacity"]) is not None), default=None),
    )


def _checked(batches: Iterator[Any], dataset: Any) -> Iterator[Any]:
    from stack.train.batches import next_batch

    while True:
        yield next_batch(batches, dataset)


@dataclass(frozen=True)
class _Step:
    """A training's step, without what it tells of itself."""

    model: Any
    parameters: Any
    policy: Any
    optimizer: Any
    update_average: Callable[[], None]
    device: Device

    def __call__(self, inputs: Any) -> None:
        import torch

        from stack.train.step import to_device

        loss, *_ = self.model(to_device(inputs, self.device))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.parameters, self.policy.config.optimizer_grad_clip_norm)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.update_average()


def _run(
    take: _Step, batches: Iterator[Any], settings: Sweep, tell: Callable[..., None]
) -> tuple[list[float], list[float]]:
    """All steps; times of those after the warm-up."""
    steps_s, waits_s = [], []
    launcher = json.loads(os.environ.get(LAUNCHER_ENV, "null"))
    for step in range(settings.warmup_steps + settings.timed_steps):
        if launcher is not None and not lives(launcher, last_written_ms=int(time.time() * 1000)):
            raise SystemExit("the sweep that started this point is gone")
        take.device.synchronise()
        started = time.perf_counter()
        batch = next(batches)
        waited = time.perf_counter() - started
        take(batch.inputs)
        take.device.synchronise()
        took = time.perf_counter() - started
        tell(step=step + 1, seconds=took)
        if step >= settings.warmup_steps:
            steps_s.append(took)
            waits_s.append(waited)
    return steps_s, waits_s


def _teller(path: Path, is_first_rank: bool) -> Callable[..., None]:
    """Appends what has happened, for the parent, whatever becomes of this process next."""

    def tell(**details: Any) -> None:
        if is_first_rank:
            with path.open("a") as file:
                file.write(json.dumps(details) + "\n")

    return tell


def _measure_pictures(job: Job, dataset: Any, collate: Any, size: tuple[int, int]) -> None:
    """The point is measured already: what fails here is said, and costs only this."""
    from stack.sweep.pictures import PICTURES, measure_pictures

    try:
        found: dict[str, Any] = measure_pictures(dataset, collate, size).to_json()
    except Exception as error:
        traceback.print_exc()
        found = {"why_not": error.what if isinstance(error, StackError) else _first_line(error)}
    write_json(job.out / PICTURES, found)


def _first_line(error: Exception) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0] if text else ''}"


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(int(Exit.BAD_REQUEST))
    sys.exit(main(Path(sys.argv[1])))
