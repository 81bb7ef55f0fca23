"""One optimiser step: micro-batches forward and backward, what all ranks found, and the clipping."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from stack.devices import Device
from stack.train.batches import Batch, next_batch
from stack.train.session import Session


@dataclass(frozen=True)
class Step:
    """What a step's forward and backward passes gave; `loss` and `should_stop` are equal on all ranks.

    Attributes:
        batches, channel_losses, seeds: this rank's micro-batches, the loss of each action channel in them,
            and what their noise was drawn from.
        loss: over all counted elements of all micro-batches and ranks.
        wait_s: what this rank waited for its data.
        busy_s: by rank, from the step's start to its own loss, the wait included; 0 where there is one rank.
        should_stop: some rank was asked to.
        furthest: the largest magnitude of a normalised input, over all ranks.
    """

    batches: list[Batch]
    channel_losses: list[Any]
    seeds: list[int]
    loss: float
    wait_s: float
    busy_s: list[float]
    should_stop: bool
    furthest: float = 0.0


def forward_backward(
    session: Session, model: Any, batches: Iterator[Batch], number: int, should_stop: bool
) -> Step:
    """Take the micro-batches of step `number`, counted from 1.

    Gradients are left in the parameters, averaged over the ranks.
    """
    accumulation, device = session.run.train.accumulation, session.device
    taken, channel_losses, sums, counts, seeds = [], [], [], [], []
    wait_s = busy_s = 0.0
    started = time.perf_counter()
    for micro in range(accumulation):
        asked = time.perf_counter()
        batch = next_batch(batches, session.dataset, partial(session.order.frames_of, number - 1, micro))
        wait_s += time.perf_counter() - asked
        is_last = micro == accumulation - 1
        # Gradients need to meet those of the other ranks only once a step.
        silent = contextlib.nullcontext() if is_last or session.ranks.world == 1 else model.no_sync()
        seeds.append(session.order.noise_seed(number - 1, micro))
        device.seed_draws(seeds[-1])
        with silent:
            loss, total, count, by_channel = model(to_device(batch.inputs, device))
            if is_last and session.ranks.world > 1:
                # Read before the backward pass, where the ranks begin to wait for each other.
                device.synchronise()
                busy_s = time.perf_counter() - started
            (loss / accumulation).backward()
        sums.append(total)
        counts.append(count)
        channel_losses.append(by_channel)
        taken.append(batch)
    furthest = max(batch.furthest for batch in taken)
    own = (sum(map(float, sums)), sum(map(int, counts)), busy_s, should_stop, furthest)
    everyone = session.ranks.gather(own)
    counted = sum(each[1] for each in everyone)
    return Step(
        batches=taken,
        channel_losses=channel_losses,
        seeds=seeds,
        loss=sum(each[0] for each in everyone) / counted if counted else math.nan,
        wait_s=wait_s,
        busy_s=[each[2] for each in everyone],
        should_stop=any(each[3] for each in everyone),
        furthest=max(each[4] for each in everyone),
    )


def to_device(inputs: dict[str, Any], device: Device) -> dict[str, Any]:
    import torch

    return {key: value.to(device.torch) if torch.is_tensor(value) else value for key, value in inputs.items()}


def clip(session: Session) -> float:
    """Clip the gradients to the policy's limit; returns their norm before it."""
    import torch

    limit = session.policy.config.optimizer_grad_clip_norm
    return float(torch.nn.utils.clip_grad_norm_(session.trainable.parameters, limit))
