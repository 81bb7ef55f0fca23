"""Batches that tripped the guard, kept on disk, and what a replay makes of them.

A kept file has the step's micro-batches as the policy takes them, their raw values and places, and the seeds
of their noise, so that a replay draws the same noise and times.
"""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stack.errors import BadRequest
from stack.train.guard import Culprit, Trip, find_culprits

if TYPE_CHECKING:
    from stack.train.session import Session
    from stack.train.step import Step

KEPT = "kept"
SCHEMA = "stack/kept/1"


@dataclass(frozen=True)
class Replayed:
    """What a kept step gives with the weights at hand.

    Attributes:
        weights_step: the step of the checkpoint whose weights were used; 0: the weights the run started from.
        loss: over this rank's batches; `was`: the loss of the step then, over all ranks.
        grad_norm: before clipping; not averaged over ranks.
    """

    step: int
    rank: int
    world: int
    weights_step: int
    loss: float
    was: float
    grad_norm: float
    culprits: list[Culprit]

    @property
    def is_exact(self) -> bool:
        """Whether weights and batches are the very ones, so that the loss must come out equal."""
        return self.weights_step == self.step - 1 and self.world == 1


def keep(session: Session, trip: Trip, step: Step) -> Path:
    """Write this rank's batches of a step; returns the first rank's file, relative to the run's folder.

    A full disk must not hide what the guard has to say: then nothing is kept.
    """
    import torch

    folder = session.job.out / KEPT
    file = folder / f"step-{trip.step:06d}-rank-{session.ranks.rank}.pt"
    content = {
        "schema": SCHEMA,
        "trip": asdict(trip),
        "loss": step.loss,
        "rank": session.ranks.rank,
        "world": session.ranks.world,
        "batches": [
            {"inputs": b.inputs, "places": b.places, "raw": b.raw, "seed": seed}
            for b, seed in zip(step.batches, step.seeds, strict=True)
        ],
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        partial = file.with_suffix(".partial")
        torch.save(content, partial)
        os.replace(partial, file)
    except (OSError, RuntimeError):
        return Path("(nothing: it could not be written)")
    return Path(KEPT) / f"step-{trip.step:06d}-rank-0.pt"


def read(file: Path) -> dict[str, Any]:
    """Raises BadRequest where the file is no kept batch."""
    import torch

    if not file.is_file():
        raise BadRequest("kept-missing", "there is no kept batch", where=str(file))
    try:
        content: dict[str, Any] = torch.load(file, weights_only=True)
    except Exception as error:
        what = f"the file is no kept batch, or is cut short: {type(error).__name__}"
        raise BadRequest("kept-broken", what, where=str(file)) from error
    if not isinstance(content, dict) or content.get("schema") != SCHEMA:
        raise BadRequest("kept-broken", "the file is no kept batch", where=str(file))
    return content


def replay(session: Session, content: dict[str, Any]) -> Replayed:
    """Take a kept step's forward and backward passes again with the session's weights; nothing is changed."""
    from stack.train.batches import Batch
    from stack.train.step import clip, to_device

    batches = [Batch(b["inputs"], b["places"], b["raw"]) for b in content["batches"]]
    total, count, culprits = 0.0, 0, []
    for batch, given in zip(batches, content["batches"], strict=True):
        session.device.seed_draws(given["seed"])
        loss, summed, counted, by_channel = session.objective(to_device(batch.inputs, session.device))
        (loss / len(batches)).backward()
        total, count = total + float(summed), count + int(counted)
        culprits += find_culprits(
            batch, session.channel_names, by_channel.tolist(), session.run.train.input_limit
        )
    norm = clip(session)
    session.optimizer.zero_grad(set_to_none=True)
    return Replayed(
        step=content["trip"]["step"],
        rank=content["rank"],
        world=content["world"],
        weights_step=session.start.step,
        loss=total / count,
        was=content["loss"],
        grad_norm=norm,
        culprits=culprits,
    )
