"""Everything a training needs before its first step: built, loaded, and proven."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from stack.devices import Device
from stack.manifests.run import RunManifest
from stack.train import checkpoint
from stack.train.average import Average
from stack.train.batches import sample_of
from stack.train.data import Order, open_dataset
from stack.train.holdout import Held, hold_out
from stack.train.job import Job
from stack.train.objective import make_objective
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
from stack.train.trainable import Trainable, choose_trainable
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
    """Everything a step needs; made by `open_session`.

    Attributes:
        objective: the module whose forward gives the loss; see `stack.train.objective`.
        trainable: what of the policy is trained.
        average: the moving average of the weights, where one is kept.
        held: the held-out frames, where there are any.
    """

    job: Job
    device: Device
    ranks: Ranks
    dataset: Any
    policy: Any
    objective: Any
    trainable: Trainable
    average: Average | None
    processors: Processors
    optimizer: Any
    scheduler: Any
    order: Order
    held: Held | None
    proofs: Proofs
    start: checkpoint.Progress

    @property
    def run(self) -> RunManifest:
        return self.job.run

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


def open_session(job: Job, device: Device, ranks: Ranks, emit: Emit) -> Session:
    """Build, load and prove everything before the first step.

    Raises:
        StackError: whatever is not as it should be; see `policy`, `weights` and `checkpoint`.
    """
    run, train = job.run, job.run.train
    dataset = open_dataset(job.dataset, run.policy.action_horizon)
    held, frames = hold_out(dataset.meta, train)
    device.seed(train.seed)
    policy = build_policy(run, dataset.meta, device)
    processors = build_processors(policy.config, dataset.meta.stats, job.tokenizer)
    proofs = _prove(job, policy, processors, dataset, emit)
    trainable = choose_trainable(policy, run)
    emit("log", text=trainable.said)
    optimizer = policy.config.get_optimizer_preset().build(trainable.parameters)
    scheduler = policy.config.get_scheduler_preset().build(optimizer, train.steps)
    order = Order(
        frames=dataset.num_frames if frames is None else len(frames),
        batch=train.batch_per_device,
        seed=train.seed,
        world=ranks.world,
        rank=ranks.rank,
        accumulation=train.accumulation,
        chosen=frames,
    )
    # All ranks have built the same policy by now; from here on each draws its own noise.
    device.seed(train.seed + 1 + ranks.rank)
    session = Session(
        job=job,
        device=device,
        ranks=ranks,
        dataset=dataset,
        policy=policy,
        objective=make_objective(policy, run, device),
        trainable=trainable,
        average=None if train.ema_decay is None else Average(trainable.named, train.ema_decay),
        processors=processors,
        optimizer=optimizer,
        scheduler=scheduler,
        order=order,
        held=held,
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
    sample = sample_of(dataset, 0)
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
        session.trainable,
        session.average,
        session.optimizer,
        session.scheduler,
        session.device,
        session.ranks.rank,
    )
    emit("log", text=f"resumed from {found.name}")
    return start
