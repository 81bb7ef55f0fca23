"""The training loop: lerobot's policy, processors and dataset; our order, guard, checkpoints and clock."""

from __future__ import annotations

import statistics
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from stack.train import kept
from stack.train.ahead import Ahead
from stack.train.batches import told_of_dead_workers
from stack.train.checkpoint_snapshot import take
from stack.train.checkpoint_write import Writer
from stack.train.data import Collate, loader
from stack.train.guard import Culprit, Guard, Trip, describe, find_culprits
from stack.train.holdout import Evaluation, evaluate
from stack.train.session import Emit, Session
from stack.train.step import Step, clip, forward_backward


@dataclass
class Run:
    """What the loop found; numbers of this process's steps, and of all steps where they are losses.

    Attributes:
        losses: one a step; None for a step that was skipped.
        skipped: steps that the guard left out of the training, with the reason.
        evaluations: step -> what was found on the held-out episodes.
        saves_s: seconds that the loop stood still for each checkpoint.
    """

    losses: list[float | None]
    windows: list[tuple[int, float]] = field(default_factory=list)
    steps_s: array[float] = field(default_factory=lambda: array("d"))
    data_waits_s: array[float] = field(default_factory=lambda: array("d"))
    saves_s: list[float] = field(default_factory=list)
    skipped: list[Trip] = field(default_factory=list)
    evaluations: dict[int, Evaluation] = field(default_factory=dict)
    trip: Trip | None = None
    culprits: list[Culprit] = field(default_factory=list)
    message: str = ""
    is_stopped: bool = False


def train_loop(session: Session, emit: Emit, should_stop: Callable[[], bool]) -> Run:
    """Train from where the session starts to the manifest's last step, a stop, or the guard.

    Raises:
        NotAble: the last checkpoint could not be written.
        WorkFailed: a sample cannot be read, a loader's worker has died, or a frozen tensor has changed.
    """
    run = Run(losses=list(session.start.losses))
    run.windows = _windows(session.start.losses, session.run.train.log_every)
    writer = Writer(session.job, emit)
    writer.buffers.stamp(session)
    try:
        with told_of_dead_workers():
            _steps(session, run, writer, emit, should_stop)
    finally:
        writer.wait()
        writer.buffers.wait()
    if session.trainable.trained < session.trainable.total:
        session.trainable.prove_frozen()
    writer.refuse_lost_end()
    return run


def _steps(session: Session, run: Run, writer: Writer, emit: Emit, should_stop: Callable[[], bool]) -> None:
    batches = iter(_loader(session))
    try:
        _step_by_step(session, run, batches, writer, emit, should_stop)
    finally:
        if isinstance(batches, Ahead):
            batches.close()


def _step_by_step(
    session: Session,
    run: Run,
    batches: Iterator[Any],
    writer: Writer,
    emit: Emit,
    should_stop: Callable[[], bool],
) -> None:
    train, device = session.run.train, session.device
    guard = Guard(
        train.explosion_factor,
        run.losses,
        stall_steps=train.stall_steps,
        lag_factor=train.lag_factor,
        lag_steps=train.lag_steps,
        input_limit=train.input_limit,
    )
    model = session.ranks.wrap(session.objective, device)
    device.reset_memory_peak()
    for number in range(session.start.step + 1, train.steps + 1):
        started = time.perf_counter()
        step = forward_backward(session, model, batches, number, should_stop())
        # A loss that joins the guard's history must be one that is trained on.
        trip = guard.inputs(number, step.furthest) or guard.loss(number, step.loss)
        trip = trip or guard.ranks(number, step.busy_s)
        norm = float("nan") if trip else clip(session)
        trip = trip or guard.gradient(number, norm)
        if trip is not None and not _may_skip(session, run, trip):
            _explain(session, run, trip, step)
            emit("trip", step=number, message=run.message)
            if trip.outcome == "lagging":
                _save_before(session, run, writer, number)
            return
        learning_rate = session.scheduler.get_last_lr()[0]
        if trip is None:
            session.optimizer.step()
            if session.average is not None:
                session.average.update()
        else:
            _skip(session, run, trip, step, emit)
        session.scheduler.step()
        session.optimizer.zero_grad(set_to_none=True)
        device.synchronise()
        run.losses.append(step.loss if trip is None else None)
        run.steps_s.append(time.perf_counter() - started)
        run.data_waits_s.append(step.wait_s)
        if len(run.steps_s) == 1:
            emit("first-step", step=number, cpu_s=time.process_time())
            if session.ranks.rank == 0:
                writer.buffers.reserve(session)
        if number % train.log_every == 0 or number == train.steps:
            _report(session, run, number, learning_rate, norm, emit)
        run.is_stopped = step.should_stop and number < train.steps
        _evaluate_and_save(session, run, writer, number, emit)
        if run.is_stopped:
            run.message = f"stopped after step {number} of {train.steps}, saved; go on with --resume"
            return


def _loader(session: Session) -> Any:
    policy = session.policy.config
    collate = Collate(session.processors.before, session.dataset.meta.camera_keys, policy.image_resolution)
    return loader(
        session.dataset,
        session.order,
        collate,
        session.run.train,
        first_step=session.start.step,
        last_step=session.run.train.steps,
    )


def _may_skip(session: Session, run: Run, trip: Trip) -> bool:
    train = session.run.train
    if train.on_bad_step == "stop" or trip.outcome not in ("nonfinite", "exploded", "beyond"):
        return False
    return len(run.skipped) < train.max_skipped


def _skip(session: Session, run: Run, trip: Trip, step: Step, emit: Emit) -> None:
    """Leave a step out: its data are used up, the weights stay, and it is counted and told."""
    run.skipped.append(trip)
    file = kept.keep(session, trip, step)
    emit(
        "skip",
        step=trip.step,
        message=f"{trip.message}; the step is left out ({len(run.skipped)} of at most "
        f"{session.run.train.max_skipped}), its batch is kept in {file.name}",
    )


def _explain(session: Session, run: Run, trip: Trip, step: Step) -> None:
    """Gather from all ranks what was in the step's batches, worst channel first, and keep the batches."""
    mine: list[Culprit] = []
    places: list[tuple[int, int]] = []
    for batch, losses in zip(step.batches, step.channel_losses, strict=True):
        mine += find_culprits(batch, session.channel_names, losses.tolist(), session.run.train.input_limit)
        frames = zip(
            batch.places["episode_index"].tolist(), batch.places["frame_index"].tolist(), strict=True
        )
        places += [(int(episode), int(frame)) for episode, frame in frames]
    file = kept.keep(session, trip, step)
    everything = session.ranks.gather((mine, places))
    run.trip = trip
    run.culprits = sorted(
        (culprit for culprits, _ in everything for culprit in culprits), key=lambda c: -(c.loss_frac or 0.0)
    )
    run.message = describe(trip, run.culprits, [place for _, found in everything for place in found])
    run.message += f"\n  the batch is kept, below the training's folder: stack train --replay {file}"


def _report(session: Session, run: Run, step: int, learning_rate: float, norm: float, emit: Emit) -> None:
    train = session.run.train
    width = (step - 1) % train.log_every + 1
    known = [loss for loss in run.losses[-width:] if loss is not None]
    if not known:
        return
    loss = statistics.fmean(known)
    run.windows.append((step, loss))
    step_s = statistics.fmean(run.steps_s[-width:])
    wait_s = statistics.fmean(run.data_waits_s[-width:])
    emit(
        "window",
        step=step,
        loss=loss,
        lr=learning_rate,
        grad_norm=norm,
        step_s=step_s,
        samples_per_s=train.global_batch / step_s,
        data_wait_s=wait_s,
        data_wait_frac=wait_s / step_s,
        memory_bytes=session.device.memory_now_bytes(),
        peak_memory_bytes=session.device.memory_peak_bytes(),
        skipped=len(run.skipped),
        cpu_s=time.process_time(),
    )


def _evaluate_and_save(session: Session, run: Run, writer: Writer, step: int, emit: Emit) -> None:
    train = session.run.train
    is_save = step % train.save_every == 0 or step == train.steps or run.is_stopped
    holdout = train.holdout
    if holdout is not None and (is_save or step % holdout.every == 0) and not run.is_stopped:
        found = evaluate(session)
        run.evaluations[step] = found
        emit("evaluation", step=step, **found.to_json())
    if is_save:
        _save(session, run, writer, step)
        if run.is_stopped or step == train.steps:
            writer.wait()


def _save(session: Session, run: Run, writer: Writer, step: int) -> None:
    started = time.perf_counter()
    states = session.ranks.gather(session.device.rng_state())
    if session.ranks.rank == 0:
        writer.wait()
        score = run.evaluations[step].loss if step in run.evaluations else None
        snapshot = take(session, step, run.losses, states, score, writer.buffers)
        stopped_s = time.perf_counter() - started
        run.saves_s.append(stopped_s)
        writer.start(snapshot, stopped_s)


def _save_before(session: Session, run: Run, writer: Writer, trip_step: int) -> None:
    """Keep what was trained before a step that was not taken, where nothing is wrong with it but its pace.

    A resume is exact all the same: each batch's noise is seeded anew.
    """
    step = trip_step - 1
    if step > session.start.step:
        if step % session.run.train.save_every:
            _save(session, run, writer, step)
        run.message += f"\n  step {step} is saved; go on with --resume once that is mended"


def _windows(losses: Sequence[float | None], width: int) -> list[tuple[int, float]]:
    """The whole windows of the steps before a resume."""
    whole = len(losses) - len(losses) % width
    windows = []
    for end in range(width, whole + 1, width):
        known = [loss for loss in losses[end - width : end] if loss is not None]
        if known:
            windows.append((end, statistics.fmean(known)))
    return windows
