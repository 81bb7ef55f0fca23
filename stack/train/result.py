"""What a training came to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from stack.errors import Exit
from stack.files import read_json

Outcome = Literal[
    "finished", "stopped", "nonfinite", "exploded", "stalled", "lagging", "oom", "killed", "crashed"
]
RESULT = "result.json"
_EXITS: Mapping[str, Exit] = {"finished": Exit.OK, "stopped": Exit.INTERRUPTED}


@dataclass(frozen=True)
class TrainResult:
    """`out/result.json`, as it is written by the trainer; None where a run ended before it was known.

    Attributes:
        outcome: `finished`; `stopped` by a signal, with a checkpoint; `nonfinite`, `exploded`, `stalled` or
            `lagging` by the guard; `oom`; `killed` by somebody's signal; `crashed`.
        message: for people; names the culprits where the guard stopped.
        steps: steps done, over all attempts.
        first_losses: of the first ten steps; None for one that was skipped.
        skipped: {step, outcome, message} of each step that the guard left out, in this attempt.
        evaluations: {step, loss, frames, action_error} of each evaluation on held-out
            episodes, in this attempt.
        trainable: {trained, frozen, tensors, frozen_sha256}: see `stack.train.trainable.Trainable`.
        checkpoint_stop_s: median of what the steps stood still for a checkpoint.
        windows: (last step, mean loss) of each `log_every` steps.
        first_fifth, last_fifth: mean loss of these parts of the steps done.
        final_loss: the last fifth's mean.
        nonfinite: steps whose loss or gradient norm was not finite.
        step_s, data_wait_s: medians over this attempt's steps, warm-up of two left out where there are more.
        weights: see `stack.train.weights.WeightsProof`.
        golden: {ok, checked}.
        device: {kind, name}; `world` is how many of them took part.
        outside_connections: attempts to leave the machine, all refused.
        checkpoints: {step, path (relative to the run's folder), bytes, sha256 (of the weights)} of each kept.
        culprits: see `stack.train.guard.Culprit`.
    """

    outcome: Outcome
    message: str
    steps: int = 0
    first_losses: tuple[float | None, ...] = ()
    windows: tuple[tuple[int, float], ...] = ()
    first_fifth: float | None = None
    last_fifth: float | None = None
    last_to_first_fifth: float | None = None
    final_loss: float | None = None
    nonfinite: int = 0
    step_s: float | None = None
    samples_per_s: float | None = None
    data_wait_s: float | None = None
    data_wait_frac: float | None = None
    checkpoint_stop_s: float | None = None
    peak_memory_bytes: int | None = None
    weights: dict[str, Any] | None = None
    golden: dict[str, Any] = field(default_factory=lambda: {"ok": False, "checked": 0})
    stats_proven: bool = False
    prompt_tokens: int | None = None
    outside_connections: tuple[str, ...] = ()
    line: str | None = None
    versions: dict[str, str] = field(default_factory=dict)
    parameters: int | None = None
    seed: int | None = None
    device: dict[str, Any] = field(default_factory=dict)
    world: int | None = None
    checkpoints: tuple[dict[str, Any], ...] = ()
    culprits: tuple[dict[str, Any], ...] = ()
    skipped: tuple[dict[str, Any], ...] = ()
    evaluations: tuple[dict[str, Any], ...] = ()
    trainable: dict[str, Any] | None = None

    @property
    def exit(self) -> Exit:
        return _EXITS.get(self.outcome, Exit.WORK_FAILED)

    def to_json(self) -> dict[str, Any]:
        return {item.name: getattr(self, item.name) for item in fields(self)}

    @staticmethod
    def read(out: Path) -> TrainResult:
        """The result of the run in folder `out`.

        Raises:
            BadRequest: there is none, or it is broken.
        """
        return TrainResult.from_json(read_json(out / RESULT, what="training's result"))

    @staticmethod
    def from_json(raw: Mapping[str, Any]) -> TrainResult:
        """A result as `to_json` gave it; what it has besides is of another release, and left out."""
        known = {item.name for item in fields(TrainResult)}
        values = {name: value for name, value in raw.items() if name in known}
        for name in (
            "first_losses",
            "outside_connections",
            "checkpoints",
            "culprits",
            "skipped",
            "evaluations",
        ):
            values[name] = tuple(values.get(name, ()))
        values["windows"] = tuple((step, loss) for step, loss in values.get("windows", ()))
        return TrainResult(**values)


def fifths(losses: Sequence[float | None]) -> tuple[float, float] | None:
    """Mean loss of the first and of the last fifth of the steps; None below five steps.

    Steps that were skipped do not count; where one of the fifths has no other, there is no mean.
    """
    part = len(losses) // 5
    if part == 0:
        return None
    first, last = ([x for x in side if x is not None] for side in (losses[:part], losses[-part:]))
    if not first or not last:
        return None
    return sum(first) / len(first), sum(last) / len(last)
