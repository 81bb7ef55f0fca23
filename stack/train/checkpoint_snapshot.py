"""A copy of everything that a checkpoint holds, taken in a step's pause.

It lies in host memory, in buffers that are used again, so that memory stays level.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stack.train import lines
from stack.train.identity import identity
from stack.train.policy import Processors

if TYPE_CHECKING:
    from stack.train.session import Session

MARGIN_BYTES = 16 * 1024**2  # what stands in a checkpoint beside its tensors: tokenizer, processors, JSON


@dataclass(frozen=True)
class Snapshot:
    """All that a checkpoint holds, on the host, of one instant.

    Attributes:
        model: tensors of the policy as it is to be used, by lerobot's names.
        trained: what is trained, as it is, where `model` does not say it; `average`: its moving average.
        optimizer, scheduler: their state dicts; `lerobot_rng`: what lerobot restores its generators from.
        rng_states: one of each rank.
        score: loss on the held-out episodes, where one was taken.
    """

    step: int
    model: dict[str, Any]
    trained: dict[str, Any] | None
    average: dict[str, Any] | None
    adapters: Any
    config: Any
    processors: Processors
    optimizer: dict[str, Any]
    scheduler: dict[str, Any]
    lerobot_rng: dict[str, Any]
    rng_states: Sequence[Mapping[str, Any]]
    losses: list[float | None]
    score: float | None
    stamp: dict[str, Any]

    @property
    def bytes(self) -> int:
        tensors = [*self.model.values(), *(self.trained or {}).values(), *(self.average or {}).values()]
        tensors += [
            value
            for state in self.optimizer["state"].values()
            for value in state.values()
            if hasattr(value, "nbytes")
        ]
        return sum({tensor.data_ptr(): int(tensor.nbytes) for tensor in tensors}.values()) + MARGIN_BYTES


class Buffers:
    """Host memory for copies, and what else stays the same from one checkpoint to the next."""

    def __init__(self) -> None:
        self._held: dict[str, Any] = {}
        self._stamp: dict[str, Any] | None = None

    def stamp(self, session: Session) -> dict[str, Any]:
        """What every checkpoint of a session says of itself; reading it takes as long as the copies."""
        if self._stamp is None:
            proofs = {**session.proofs.to_json(), "trainable": session.trainable.to_json()}
            self._stamp = identity(session.job, proofs)
        return self._stamp

    def copy(self, key: str, tensors: Mapping[str, Any]) -> dict[str, Any]:
        """Copies of `tensors`; names that share storage still share it."""
        shared: dict[tuple[int, tuple[int, ...]], Any] = {}
        return {
            name: shared.setdefault(
                (tensor.data_ptr(), tuple(tensor.shape)), self._one(f"{key}.{name}", tensor, shared)
            )
            for name, tensor in tensors.items()
        }

    def _one(self, key: str, tensor: Any, shared: Mapping[Any, Any]) -> Any:
        import torch

        place = tensor.data_ptr(), tuple(tensor.shape)
        if place in shared:
            return shared[place]
        held = self._held.get(key)
        if held is None or held.shape != tensor.shape or held.dtype != tensor.dtype:
            held = self._held[key] = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")
        held.copy_(tensor.detach())
        return held


def take(
    session: Session,
    step: int,
    losses: Sequence[float | None],
    rng_states: Sequence[Mapping[str, Any]],
    score: float | None,
    buffers: Buffers,
) -> Snapshot:
    """Copy everything that a checkpoint of this instant needs."""
    trainable, average = session.trainable, session.average
    if average is None:
        model = buffers.copy("model", trainable.state_dict())
    else:
        with average.applied():
            model = buffers.copy("model", trainable.state_dict())
    is_partial = average is not None or trainable.adapters is not None
    optimizer = session.optimizer.state_dict()
    stamp = buffers.stamp(session)
    return Snapshot(
        step=step,
        model=model,
        trained=buffers.copy("trained", trainable.raw_state()) if is_partial else None,
        average=buffers.copy("average", average.values) if average is not None else None,
        adapters=trainable.adapters,
        config=copy.deepcopy(session.policy.config),
        processors=session.processors,
        optimizer={
            "state": {
                index: _copied(buffers, f"optimizer.{index}", state)
                for index, state in optimizer["state"].items()
            },
            "param_groups": copy.deepcopy(optimizer["param_groups"]),
        },
        scheduler=copy.deepcopy(session.scheduler.state_dict()),
        lerobot_rng=lines.rng_state(),
        rng_states=rng_states,
        losses=list(losses),
        score=score,
        stamp={**stamp, "step": step, "holdout_loss": score, "weights_are": _kind(average, trainable)},
    )


def _kind(average: Any, trainable: Any) -> str:
    merged = "" if trainable.adapters is None else ", adapters merged into it"
    return ("as trained" if average is None else "the moving average") + merged


def _copied(buffers: Buffers, key: str, state: Mapping[str, Any]) -> dict[str, Any]:
    tensors = {name: value for name, value in state.items() if hasattr(value, "data_ptr")}
    rest = {name: value for name, value in state.items() if name not in tensors}
    return {**buffers.copy(key, tensors), **rest}
