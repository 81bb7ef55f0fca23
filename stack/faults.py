"""A fault: one thing wrong with a dataset, host, weight or configuration, as data."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Literal

Severity = Literal["error", "warning", "note"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "note")
PLACES_KEPT = 5


@dataclass(frozen=True)
class Place:
    """Where a fault is. Only what is known is given."""

    file: str | None = None  # relative to the dataset's root where there is one
    episode: int | None = None
    frame: int | None = None
    feature: str | None = None
    channel: str | None = None  # an element of a vector feature, by name or index

    def __str__(self) -> str:
        parts = [self.file] if self.file else []
        parts += [f"episode {self.episode}"] if self.episode is not None else []
        parts += [f"frame {self.frame}"] if self.frame is not None else []
        parts += [self.feature] if self.feature else []
        parts += [self.channel] if self.channel else []
        return ", ".join(parts)

    def to_json(self) -> dict[str, Any]:
        return {k: v for k, v in vars(self).items() if v is not None}


@dataclass(frozen=True)
class Fault:
    """One thing wrong.

    Attributes:
        code: stable, kebab-case; listed in docs/faults.md.
        severity: `error`: training would fail or be wrong; `warning`: it would run, a person should know.
        message: what is wrong, with numbers.
        consequence: what it would do to training.
        mend: what to do about it, ready to paste where possible.
        where: the first place.
        count: how many equal faults this entry stands for.
        places: the first `PLACES_KEPT` places.
        data: numbers behind the message, for the JSON report.
    """

    code: str
    severity: Severity
    message: str
    consequence: str
    mend: str
    where: Place = Place()
    count: int = 1
    places: tuple[Place, ...] = ()
    data: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {
            "code": self.code,
            "severity": self.severity,
            "where": self.where.to_json(),
            "message": self.message,
            "consequence": self.consequence,
            "mend": self.mend,
            "count": self.count,
            "places": [p.to_json() for p in (self.places or (self.where,))],
            "data": self.data,
        }


def fold(faults: Iterable[Fault]) -> list[Fault]:
    """Fold equal faults (same code, severity and feature) into one entry with a count, errors first."""
    groups: dict[tuple[str, str, str | None], list[Fault]] = {}
    for fault in faults:
        groups.setdefault((fault.code, fault.severity, fault.where.feature), []).append(fault)
    folded = []
    for group in groups.values():
        places = [place for fault in group for place in (fault.places or (fault.where,))]
        folded.append(
            replace(
                group[0],
                count=sum(fault.count for fault in group),
                places=tuple(places[:PLACES_KEPT]),
            )
        )
    return sorted(folded, key=lambda f: (SEVERITIES.index(f.severity), f.code, f.where.feature or ""))


def has_errors(faults: Iterable[Fault]) -> bool:
    return any(fault.severity == "error" for fault in faults)
