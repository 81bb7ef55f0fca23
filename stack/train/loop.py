"""The training loop: lerobot's policy, processors and dataset; our order, guard, checkpoints and clock."""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from stack.devices import Device
from stack.train import checkpoint
from stack.train.data import Batch, Collate, Order, loader, open_dataset
from stack.train.guard import Culprit, Guard, Trip, describe, find_culprits
from stack.train.identity import identity
from stack.train.job import Job
from stack.train.policy import (
    ACTION,
    STATE,
    Processors,
    build_policy,
    build_processors,
    prompt_tokens,
    prove_statistics,
    prove_tokenizer,
)
from stack.train.ranks import Ranks
from stack.train.weights import WeightsProof, load_weights

Emit = Callable[..., None]


@dataclass(frozen=True)
class Proofs:
    """What was proven before the first step.

    Attributes:
        golden_checked: golden texts that the tokenizer encoded as it must.
        prompt_tokens: tokens of the first frame's prompt, whole.
    """

    weights: WeightsProof
    golden_checked: int
    prompt_tokens: int

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "weights": self.weights.to_json(), "stats_proven": True}


@dataclass
class Session:
    """Everything a step needs; made by `open_session`."""

    job: Job
    device: Device
    ranks: Ranks
    dataset: Any
    policy: Any
    processors: Processors
    optimizer: Any
    scheduler: Any
    order: Order
    proofs: Proofs
    start: checkpoint.Progress

    @property
    def channel_names(self) -> dict[str, list[str]]:
        """Channel names of state and action; indices where the dataset has none."""
        names = {}
        for feature in (STATE, ACTION):
            entry = self.dataset.meta.features[feature]
            given = entry.get("names")
            given = next(iter(given.values())) if isinstance(given, dict) and len(given) == 1 else given
            width = int(entry["shape"][0])
            fits = isinstance(given, (list, tuple)) and len(given) == width
            names[feature] = [str(n) for n in given] if fits else [f"channel {i}" for i in range(width)]
        return names


@dataclass
class Run:
    """What the loop found; numbers of this process's steps, and of all steps where they are losses."""

    losses: list[float]
    windows: list[tuple[int, float]] = field(default_factory=list)
    steps_s: list[float] = field(default_factory=list)
    data_waits_s: list[float] = field(default_factory=list)
    trip: Trip | None = None
    culprits: list[Culprit] = field(default_factory=list)
    message: str = ""
    is_stopped: bool = False


def open_session(job: Job, device: Device, ranks: Ranks, emit: Emit) -> Session:
    """Build, load and prove everything before the first step.

    Raises:
        StackError: whatever is not as it should be; see `policy`, `weights` and `checkpoint`.
    """
    run, train = job.run, job.run.train
    dataset = open_dataset(job.dataset, run.policy.action_horizon)
    device.seed(train.seed)
    policy = build_policy(run, dataset.meta, device)
    processors = build_processors(policy.config, dataset.meta.stats, job.tokenizer)
    proofs = _prove(job, policy, processors, dataset, emit)
    optimizer = policy.config.get_optimizer_preset().build(policy.get_optim_params())
    scheduler = policy.config.get_scheduler_preset().build(optimizer, train.steps)
    order = Order(
        dataset.num_frames, train.batch_per_device, train.seed, ranks.world, ranks.rank, train.accumulation
    )
    # All ranks have built the same policy by now; from here on each draws its own noise.
    device.seed(train.seed + 1 + ranks.rank)
    session = Session(
        job=job,
        device=device,
        ranks=ranks,
        dataset=dataset,
        policy=policy,
        processors=processors,
        optimizer=optimizer,
        scheduler=scheduler,
        order=order,
        proofs=proofs,
        start=checkpoint.Progress(0, ()),
    )
    if job.is_resume:
        session.start = _resume(session, emit)
    policy.train()
    return session


def _prove(job: Job, policy: Any, processors: Processors, dataset: Any, emit: Emit) -> Proofs:
    """Weights loaded, tokenizer and statistics the right ones, prompt whole: before the first step."""
    weights = load_weights(policy, job.weights, job.run.policy.random_tensors)
    share, parameters = weights.filled_frac, weights.parameters
    emit("log", text=f"weights: {weights.tensors} tensors fill {share:.1%} of {parameters:,} parameters")
    golden = prove_tokenizer(processors, job.tokenizer, job.golden)
    sample = dataset[0]
    prove_statistics(processors, job.dataset, sample)
    tokens, limit = prompt_tokens(processors, sample), job.run.policy.tokenizer_max_length
    if tokens > limit:
        emit(
            "log",
            text=f"warning: the first frame's prompt has {tokens} tokens, tokenizer_max_length is {limit}: "
            "its end, with 'Action:', is cut off",
        )
    return Proofs(weights, golden, tokens)


def _resume(session: Session, emit: Emit) -> checkpoint.Progress:
    found = checkpoint.last(session.job.checkpoints)
    if found is None:
        emit("log", text="nothing to resume from; starting at step 0")
        return session.start
    start = checkpoint.load(
        found,
        session.job,
        session.policy,
        session.optimizer,
        session.scheduler,
        session.device,
        session.ranks.rank,
    )
    emit("log", text=f"resumed from {found.name}")
    return start


def train_loop(session: Session, emit: Emit, should_stop: Callable[[], bool]) -> Run:
    """Train from where the session starts to the manifest's last step, a stop, or the guard."""
    train, ranks = session.job.run.train, session.ranks
    run = Run(losses=list(session.start.losses), windows=_windows(session.start.losses, train.log_every))
    guard = Guard(train.explosion_factor, run.losses)
    model = ranks.wrap(session.policy, session.device)
    batches = iter(
        loader(
            session.dataset,
            session.order,
            Collate(session.processors.before, session.dataset.meta.camera_keys),
            train,
            first_step=session.start.step,
            last_step=train.steps,
        )
    )
    session.device.reset_memory_peak()
    for step in range(session.start.step + 1, train.steps + 1):
        started = time.perf_counter()
        batch_list, channel_losses, loss, wait_s = _forward_backward(session, model, batches)
        trip = guard.loss(step, loss)
        norm = float("nan") if trip else _clip(session)
        trip = trip or guard.gradient(step, norm)
        if trip is not None:
            _explain(session, run, trip, batch_list, channel_losses)
            emit("trip", step=step, message=run.message)
            return run
        learning_rate = session.scheduler.get_last_lr()[0]
        session.optimizer.step()
        session.scheduler.step()
        session.optimizer.zero_grad(set_to_none=True)
        session.device.synchronise()
        run.losses.append(loss)
        run.steps_s.append(time.perf_counter() - started)
        run.data_waits_s.append(wait_s)
        if step % train.log_every == 0 or step == train.steps:
            _report(session, run, step, learning_rate, norm, emit)
        run.is_stopped = ranks.any(should_stop()) and step < train.steps
        if step % train.save_every == 0 or step == train.steps or run.is_stopped:
            _save(session, step, run, emit)
        if run.is_stopped:
            run.message = f"stopped after step {step} of {train.steps}, saved; go on with --resume"
            return run
    return run


def _forward_backward(
    session: Session, model: Any, batches: Iterator[Batch]
) -> tuple[list[Batch], list[list[float]], float, float]:
    """One step's micro-batches; the loss is the mean over them and over all ranks."""
    accumulation = session.job.run.train.accumulation
    taken, channel_losses, losses, wait_s = [], [], [], 0.0
    for micro in range(accumulation):
        asked = time.perf_counter()
        batch = next(batches)
        wait_s += time.perf_counter() - asked
        inputs = to_device(batch.inputs, session.device)
        is_last = micro == accumulation - 1
        # Gradients need to meet those of the other ranks only once a step.
        silent = contextlib.nullcontext() if is_last or session.ranks.world == 1 else model.no_sync()
        with silent:
            loss, detail = model(inputs)
            (loss / accumulation).backward()
        losses.append(float(loss.detach()))
        channel_losses.append([float(value) for value in detail["loss_per_dim"]])
        taken.append(batch)
    return taken, channel_losses, session.ranks.mean(sum(losses) / accumulation), wait_s


def to_device(inputs: dict[str, Any], device: Device) -> dict[str, Any]:
    import torch

    return {key: value.to(device.torch) if torch.is_tensor(value) else value for key, value in inputs.items()}


def _clip(session: Session) -> float:
    import torch

    limit = session.policy.config.optimizer_grad_clip_norm
    return float(torch.nn.utils.clip_grad_norm_(session.policy.parameters(), limit))


def _explain(
    session: Session, run: Run, trip: Trip, batches: list[Batch], channel_losses: list[list[float]]
) -> None:
    """Gather from all ranks what was in the step's batches, worst channel first."""
    mine: list[Culprit] = []
    places: list[tuple[int, int]] = []
    for batch, losses in zip(batches, channel_losses, strict=True):
        mine += find_culprits(batch, session.channel_names, losses)
        frames = zip(
            batch.places["episode_index"].tolist(), batch.places["frame_index"].tolist(), strict=True
        )
        places += [(int(episode), int(frame)) for episode, frame in frames]
    everything = session.ranks.gather((mine, places))
    run.trip = trip
    run.culprits = sorted(
        (culprit for culprits, _ in everything for culprit in culprits), key=lambda c: -(c.loss_frac or 0.0)
    )
    run.message = describe(trip, run.culprits, [place for _, found in everything for place in found])


def _report(session: Session, run: Run, step: int, learning_rate: float, norm: float, emit: Emit) -> None:
    train = session.job.run.train
    width = (step - 1) % train.log_every + 1
    loss = statistics.fmean(run.losses[-width:])
    run.windows.append((step, loss))
    step_s = statistics.fmean(run.steps_s[-width:])
    emit(
        "window",
        step=step,
        loss=loss,
        lr=learning_rate,
        grad_norm=norm,
        step_s=step_s,
        samples_per_s=train.global_batch / step_s,
        data_wait_s=statistics.fmean(run.data_waits_s[-width:]),
        peak_memory_bytes=session.device.memory_peak_bytes(),
    )


def _save(session: Session, step: int, run: Run, emit: Emit) -> None:
    states = session.ranks.gather(session.device.rng_state())
    if session.ranks.rank == 0:
        entry = checkpoint.save(
            session.job,
            step,
            session.policy,
            session.optimizer,
            session.scheduler,
            session.processors,
            states,
            run.losses,
            identity(session.job, session.proofs.to_json()),
        )
        emit("checkpoint", **entry)
    session.ranks.barrier()


def _windows(losses: tuple[float, ...], width: int) -> list[tuple[int, float]]:
    """The whole windows of the steps before a resume."""
    whole = len(losses) - len(losses) % width
    return [(end, statistics.fmean(losses[end - width : end])) for end in range(width, whole + 1, width)]
