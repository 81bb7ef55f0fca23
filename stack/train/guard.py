"""The guard: it stops a training that has gone wrong, and says which data did it."""

from __future__ import annotations

import bisect
import math
import statistics
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

# Normalised values: 98 % of a channel lie within +-1. Ten times that is no longer the channel's range.
RANGE_LIMIT = 10.0
# An untrained policy predicts about 0 where the target is noise minus action: E[loss] = 1 + mean(action^2),
# which is at most 2 while actions are within +-1. It stands in for the median before there is one.
FIRST_MEDIAN = 2.0
CULPRITS_SHOWN = 8
MOVED_FRAC = 0.95  # a loss that has moved is below this share of its start


@dataclass(frozen=True)
class Culprit:
    """A channel whose normalised value is out of range in the batch that tripped the guard.

    Attributes:
        feature, channel: as the dataset names them.
        value: the raw value of largest normalised magnitude; `normalised` is that one normalised.
        loss_frac: this channel's share of the batch's loss; None for a state, which has no loss of its own.
        episode, frame: where it is.
    """

    feature: str
    channel: str
    value: float
    normalised: float
    loss_frac: float | None
    episode: int
    frame: int

    def __str__(self) -> str:
        share = "" if self.loss_frac is None else f", {self.loss_frac:.0%} of the loss"
        return (
            f"{self.feature} '{self.channel}' = {self.value:g}, {self.normalised:.4g} normalised"
            f" (episode {self.episode}, frame {self.frame}{share})"
        )

    def to_json(self) -> dict[str, Any]:
        numbers = {
            name: value if not isinstance(value, float) or math.isfinite(value) else str(value)
            for name, value in vars(self).items()
        }
        return numbers


@dataclass(frozen=True)
class Trip:
    """Why the guard stopped, or would have."""

    outcome: Literal["nonfinite", "exploded", "stalled", "lagging", "beyond"]
    step: int
    message: str


class Guard:
    """Watches losses, gradient norms and ranks, one step after the other.

    Args:
        factor: trip when a loss exceeds this many times the median of all losses before it.
        losses: losses of the steps before, where a run is resumed; None for a step that was skipped.
        stall_steps: trip when the loss has not fallen over the first so many steps; None: never.
        lag_factor, lag_steps: trip when one rank needs this many times the median of all, so long on end.
        input_limit: trip when a normalised input is larger than that; None: never.
    """

    def __init__(
        self,
        factor: float,
        losses: Sequence[float | None] = (),
        *,
        stall_steps: int | None = None,
        lag_factor: float = math.inf,
        lag_steps: int = 1,
        input_limit: float | None = None,
    ) -> None:
        self.input_limit = input_limit
        self.factor, self.stall_steps = factor, stall_steps
        self.lag_factor, self.lag_steps = lag_factor, lag_steps
        # Sorted, so that a median over tens of thousands of steps costs a look-up and not a sort.
        self._sorted = array("d", sorted(loss for loss in losses if loss is not None))
        self._losses = array("d", (loss for loss in losses if loss is not None))
        self._lagging: dict[int, int] = {}

    def inputs(self, step: int, furthest: float) -> Trip | None:
        """Judge the largest magnitude of a step's normalised states and actions."""
        if self.input_limit is None or furthest <= self.input_limit:
            return None
        return Trip(
            "beyond",
            step,
            f"an input of step {step} is {furthest:.4g} once normalised; train.input_limit is "
            f"{self.input_limit:g}, and 98 % of a channel's values lie within 1",
        )

    def loss(self, step: int, loss: float) -> Trip | None:
        """Judge a step's loss before it changes the weights; a good one joins the history."""
        if not math.isfinite(loss):
            return Trip("nonfinite", step, f"the loss of step {step} is {loss}")
        median = self._median()
        if loss > self.factor * median:
            known = (
                f"the median of the {len(self._losses)} steps before"
                if self._losses
                else "what a start can be"
            )
            return Trip(
                "exploded",
                step,
                f"the loss of step {step} is {loss:.6g}, {loss / median:.4g} times {known} ({median:.4g}); "
                f"the limit is {self.factor:g} times",
            )
        self._losses.append(loss)
        bisect.insort(self._sorted, loss)
        return self._stall(step)

    def gradient(self, step: int, norm: float) -> Trip | None:
        if math.isfinite(norm):
            return None
        return Trip("nonfinite", step, f"the gradient norm of step {step} is {norm}")

    def ranks(self, step: int, busy_s: Sequence[float]) -> Trip | None:
        """Judge how long each rank took for its own part of a step."""
        if len(busy_s) < 2:
            return None
        for rank, taken_s in enumerate(busy_s):
            others_s = statistics.median([*busy_s[:rank], *busy_s[rank + 1 :]])
            is_slow = taken_s > self.lag_factor * others_s
            self._lagging[rank] = self._lagging.get(rank, 0) + 1 if is_slow else 0
            if self._lagging[rank] >= self.lag_steps:
                return Trip(
                    "lagging",
                    step,
                    f"rank {rank} needed {taken_s:.3g} s for its part of step {step}, the others "
                    f"{others_s:.3g} s, and was {self.lag_factor:g} times slower for {self.lag_steps} steps "
                    "on end; all ranks wait for it: look at that device and at the disk it reads from",
                )
        return None

    def _median(self) -> float:
        if not self._sorted:
            return FIRST_MEDIAN
        half = len(self._sorted) // 2
        return self._sorted[half] if len(self._sorted) % 2 else sum(self._sorted[half - 1 : half + 1]) / 2

    def _stall(self, step: int) -> Trip | None:
        if self.stall_steps is None or len(self._losses) != self.stall_steps:
            return None
        part = self.stall_steps // 5
        first, last = statistics.fmean(self._losses[:part]), statistics.fmean(self._losses[-part:])
        if last <= MOVED_FRAC * first:
            return None
        return Trip(
            "stalled",
            step,
            f"the loss does not move: its mean was {first:.4g} over the first {part} steps and is {last:.4g} "
            f"over the last {part} of {self.stall_steps}; look at the learning rate, at what is trained, and "
            "at master_weights with bfloat16",
        )


def find_culprits(
    batch: Any,
    names: Mapping[str, Sequence[str]],
    loss_per_channel: Sequence[float] | None,
    limit: float | None = None,
) -> list[Culprit]:
    """Channels of a batch that are not finite or out of range, worst first.

    Args:
        batch: a `stack.train.batches.Batch`.
        names: channel names of `observation.state` and `action`.
        loss_per_channel: mean loss of each action channel over the batch, where known.
        limit: out of range is what is larger once normalised; not given, or larger: `RANGE_LIMIT`.
    """
    import torch

    found = []
    limit = min(RANGE_LIMIT, limit or RANGE_LIMIT)
    for feature in names:
        raw, normalised = batch.raw[feature], batch.inputs[feature]
        samples = normalised.shape[0]
        magnitude = normalised.abs().nan_to_num(nan=math.inf).reshape(samples, -1, normalised.shape[-1])
        flat = magnitude.reshape(-1, magnitude.shape[-1])
        for channel in torch.nonzero(flat.amax(0) > limit).flatten().tolist():
            row = int(flat[:, channel].argmax())
            sample, offset = divmod(row, magnitude.shape[1])
            value = raw.reshape(samples, -1, raw.shape[-1])[sample, offset, channel]
            found.append(
                Culprit(
                    feature=feature,
                    channel=names[feature][channel],
                    value=float(value),
                    normalised=float(normalised.reshape(samples, -1, raw.shape[-1])[sample, offset, channel]),
                    loss_frac=_share(loss_per_channel, channel) if feature == "action" else None,
                    episode=int(batch.places["episode_index"][sample]),
                    frame=int(batch.places["frame_index"][sample]) + _frames_ahead(batch, sample, offset),
                )
            )
    return sorted(found, key=lambda c: (-(c.loss_frac or 0.0), -_size(c.normalised)))


def describe(trip: Trip, culprits: Sequence[Culprit], places: Sequence[tuple[int, int]]) -> str:
    """The message for people: what happened, which frames were in the batch, which channels did it."""
    where = ", ".join(f"episode {episode} frame {frame}" for episode, frame in places)
    lines = [trip.message, f"  batch: {where}"]
    lines += [f"  out of range: {culprit}" for culprit in culprits[:CULPRITS_SHOWN]]
    if len(culprits) > CULPRITS_SHOWN:
        lines.append(f"  and {len(culprits) - CULPRITS_SHOWN} more channels out of range")
    if not culprits:
        lines.append(f"  no input of this batch is beyond {RANGE_LIMIT:g} times its normal range")
    return "\n".join(lines)


def _frames_ahead(batch: Any, sample: int, offset: int) -> int:
    """Actions past an episode's end repeat its last frame."""
    padded = batch.inputs.get("action_is_pad")
    return offset if padded is None else min(offset, int((~padded[sample]).sum()) - 1)


def _share(losses: Sequence[float] | None, channel: int) -> float | None:
    losses = None if losses is None else [float(loss) for loss in losses]
    if losses is None or not math.isfinite(total := sum(losses)) or total <= 0:
        return None
    return losses[channel] / total


def _size(value: float) -> float:
    return abs(value) if math.isfinite(value) else math.inf
