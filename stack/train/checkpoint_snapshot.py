"""A copy of everything that a checkpoint holds, taken in a step's pause.

It lies in host memory, in buffers that are used again, so that memory stays level.
"""

from __future__ import annotations

import contextlib
import copy
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
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
    """Host memory for copies, and what else stays the same from one checkpoint to the next.

    For an accelerator it is page-locked, where the driver gives that: copies then run at the bus's own speed.
    """

    def __init__(self, *, is_pinned: bool = False) -> None:
        self._held: dict[str, Any] = {}
        self._stamp: dict[str, Any] | None = None
        self._is_pinned = is_pinned
        self._reserving: threading.Thread | None = None

    def stamp(self, session: Session) -> dict[str, Any]:
        """What every checkpoint of a session says of itself; reading it takes as long as the copies."""
        if self._stamp is None:
            proofs = {**session.proofs.to_json(), "trainable": session.trainable.to_json()}
            self._stamp = identity(session.job, proofs)
        return self._stamp

    def reserve(self, session: Session) -> None:
        """Take all memory that a checkpoint of this session needs, in a thread, beside the steps.

        Memory that is new costs a page fault for every 4 KiB, several times a copy's own time. To be called
        after a first step: the optimiser has no state before it.
        """
        # Only shapes are read of what goes on changing.
        groups = [("model", session.trainable.state_dict()), *_raw_groups(session)]

        def touch() -> None:
            for key, tensors in groups:
                self._each(key, tensors, lambda held, _tensor: held.zero_())

        self._reserving = threading.Thread(target=touch, name="checkpoint-memory", daemon=True)
        self._reserving.start()

    def wait(self) -> None:
        """Until the memory is there."""
        if self._reserving is not None:
            self._reserving.join()
            self._reserving = None

    def copy(self, key: str, tensors: Mapping[str, Any]) -> dict[str, Any]:
        """Copies of `tensors`; names that share storage still share it.

        From an accelerator they are only under way: it has to be waited for.
        """
        return self._each(key, tensors, lambda held, tensor: held.copy_(tensor.detach(), non_blocking=True))

    def _each(
        self, key: str, tensors: Mapping[str, Any], fill: Callable[[Any, Any], object]
    ) -> dict[str, Any]:
        shared: dict[tuple[int, tuple[int, ...]], Any] = {}
        found = {}
        for name, tensor in tensors.items():
            place = tensor.data_ptr(), tuple(tensor.shape)
            if place not in shared:
                shared[place] = self._buffer(f"{key}.{name}", tensor)
                fill(shared[place], tensor)
            found[name] = shared[place]
        return found

    def _buffer(self, key: str, tensor: Any) -> Any:
        import torch

        held = self._held.get(key)
        if held is None or held.shape != tensor.shape or held.dtype != tensor.dtype:
            # Zero-dimensional ones (AdamW's step counts) lie on the host anyway.
            is_pinned = self._is_pinned and tensor.dim() > 0
            try:
                held = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=is_pinned)
            except RuntimeError:
                self._is_pinned = False
                held = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")
            self._held[key] = held
        return held


def _raw_groups(session: Session) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """What a checkpoint copies beside the policy as it is used, under the keys of its buffers."""
    trainable, average = session.trainable, session.average
    if average is not None or trainable.adapters is not None:
        yield "trained", trainable.raw_state()
    if average is not None:
        yield "average", average.values
    for index, state in session.optimizer.state_dict()["state"].items():
        yield f"optimizer.{index}", _tensors(state)


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
    buffers.wait()
    with contextlib.nullcontext() if average is None else average.applied():
        model = buffers.copy("model", trainable.state_dict())
        session.device.synchronise()
    copied = {key: buffers.copy(key, tensors) for key, tensors in _raw_groups(session)}
    session.device.synchronise()
    optimizer = session.optimizer.state_dict()
    return Snapshot(
        step=step,
        model=model,
        trained=copied.get("trained"),
        average=copied.get("average"),
        adapters=trainable.adapters,
        config=copy.deepcopy(session.policy.config),
        processors=session.processors,
        optimizer={
            "state": {
                index: {**state, **copied[f"optimizer.{index}"]}
                for index, state in optimizer["state"].items()
            },
            "param_groups": copy.deepcopy(optimizer["param_groups"]),
        },
        scheduler=copy.deepcopy(session.scheduler.state_dict()),
        lerobot_rng=lines.rng_state(),
        rng_states=rng_states,
        losses=list(losses),
        score=score,
        stamp={
            **buffers.stamp(session),
            "step": step,
            "holdout_loss": score,
            "weights_are": _kind(average, trainable),
        },
    )


def _kind(average: Any, trainable: Any) -> str:
    merged = "" if trainable.adapters is None else ", adapters merged into it"
    return ("as trained" if average is None else "the moving average") + merged


def _tensors(state: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in state.items() if hasattr(value, "data_ptr")}
