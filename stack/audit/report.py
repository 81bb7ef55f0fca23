"""What an audit found, as data."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any

from stack.audit.decisions import Decision
from stack.audit.exact import Channel
from stack.audit.kinds import PolicyNeeds
from stack.audit.measures import Measures
from stack.faults import SEVERITIES, Fault, has_errors

SCHEMA = "stack/audit/1"


@dataclass(frozen=True)
class CameraFacts:
    name: str
    files: int
    frames: int
    codec: str | None
    width: int | None
    height: int | None


@dataclass(frozen=True)
class DatasetFacts:
    """What was counted, not what info.json says.

    Attributes:
        widths: vector features and their number of channels as stored.
        shortest, longest: rows of an episode; None where no rows could be read.
    """

    name: str
    version: str | None
    robot_type: str | None
    fps: float | None
    episodes: int
    frames: int
    shortest: int | None
    longest: int | None
    tasks: tuple[str, ...]
    widths: dict[str, int]
    cameras: tuple[CameraFacts, ...]
    files: int
    bytes: int


@dataclass(frozen=True)
class Ran:
    """A check that ran: what it looked at, the codes it could have yielded, and how long it took."""

    name: str
    title: str
    codes: tuple[str, ...]
    found: int
    seconds: float


@dataclass(frozen=True)
class NotRun:
    name: str
    title: str
    why: str


@dataclass(frozen=True)
class AuditReport:
    """The result of an audit; `faults` are folded, errors first.

    Attributes:
        decisions: one for each episode.
        slice: YAML for a manifest's `features:` that keeps channels of a sane scale, where one is needed.
        measures: what the plots show; not part of the JSON.
    """

    facts: DatasetFacts
    faults: tuple[Fault, ...]
    ran: tuple[Ran, ...]
    not_run: tuple[NotRun, ...]
    policy: PolicyNeeds | None = None
    channels: tuple[Channel, ...] = field(default_factory=tuple)
    seconds: float = 0.0
    decisions: tuple[Decision, ...] = ()
    slice: str | None = None
    measures: Measures = field(default_factory=Measures)

    @property
    def ok(self) -> bool:
        """No fault of severity error."""
        return not has_errors(self.faults)

    @property
    def counts(self) -> dict[str, int]:
        """Entries by severity, all three always there."""
        found = Counter(fault.severity for fault in self.faults)
        return {severity: found[severity] for severity in SEVERITIES}

    def of(self, code: str) -> tuple[Fault, ...]:
        return tuple(fault for fault in self.faults if fault.code == code)

    def verdict(self) -> str:
        """One line: can this be trained on?"""
        errors, warnings, notes = (self.counts[s] for s in SEVERITIES)
        judged = f" for {self.policy.name}" if self.policy else ""
        rest = f"{_plural(warnings, 'warning')}, {_plural(notes, 'note')}"
        if errors:
            return f"not ready to train on{judged}: {_plural(errors, 'error')}, {rest}"
        return f"ready to train on{judged}: no errors, {rest}"

    def to_json(self) -> dict[str, Any]:
        """Plain data for JSON; figures that JSON cannot hold become text."""
        policy = None
        if self.policy:
            policy = {k: str(v) if k == "tokenizer" and v else v for k, v in asdict(self.policy).items()}
        return {
            "schema": SCHEMA,
            "ok": self.ok,
            "verdict": self.verdict(),
            "counts": self.counts,
            "facts": asdict(self.facts),
            "policy": policy,
            "faults": [plain(fault.to_json()) for fault in self.faults],
            "decisions": [decision.to_json() for decision in self.decisions],
            "slice": self.slice,
            "channels": [plain(asdict(channel)) for channel in self.channels],
            "ran": [asdict(ran) for ran in self.ran],
            "not_run": [asdict(item) for item in self.not_run],
            "seconds": round(self.seconds, 3),
        }


def _plural(count: int, word: str) -> str:
    return f"{count} {word}" if count == 1 else f"{count} {word}s"


def plain(value: Any) -> Any:
    """Tuples to lists, keys to text, and NaN or infinity to text."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return str(value)
    return value
