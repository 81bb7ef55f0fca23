"""What a fault code is, what a check is, and the two registries that the catalogue is made of.

A check is a small function from a `Case` to faults. It is registered together with the kinds of fault that
it may yield, so that the catalogue, the report's list of what ran, and the tests all read the same source.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from stack.faults import Fault, Place, Severity

if TYPE_CHECKING:
    from stack.audit.evidence import Evidence

GROUPS = (
    "files",
    "columns",
    "rows",
    "time",
    "video",
    "tasks",
    "statistics",
    "policy",
    "openpi",
    "between",
    "unchecked",
)


@dataclass(frozen=True)
class PolicyNeeds:
    """What a policy needs of a dataset; the defaults are those of lerobot's pi0.5.

    Attributes:
        max_state_dim, max_action_dim: widths that the policy pads to.
        action_horizon: actions predicted at once (lerobot's `chunk_size`).
        tokenizer_max_length: prompts longer than this are cut at the right.
        tokenizer: folder with `tokenizer.json`; without it prompt lengths are estimated.
        warn_magnitude, max_magnitude: normalised action magnitudes |y| that are a warning and an error. One
            step at |y| = 30 alone adds 900 to that step's squared error, where training starts at about 1
            to 2 and ends below 0.05.
        reads_stats_json: whether quantiles are taken from the dataset's own statistics; else it computes its
            own from the rows.
        span_added: what is added to q99 - q01 before dividing; None for lerobot's rule.
    """

    name: str = "pi05"
    max_state_dim: int = 32
    max_action_dim: int = 32
    action_horizon: int = 50
    tokenizer_max_length: int = 200
    tokenizer: Path | None = None
    warn_magnitude: float = 10.0
    max_magnitude: float = 30.0
    reads_stats_json: bool = True
    span_added: float | None = None


# openpi's pi0.5: 32 wide, horizon 50; it adds 1e-6 to the range and computes its own quantiles.
OPENPI = PolicyNeeds(name="openpi", reads_stats_json=False, span_added=1e-6)


@dataclass(frozen=True)
class Case:
    """What a check is given: the evidence on disk, and what it is judged for."""

    evidence: Evidence
    policy: PolicyNeeds | None
    deep: bool
    log: Callable[[str], None] = lambda _: None


@dataclass(frozen=True)
class Kind:
    """One entry of the catalogue.

    Attributes:
        severity: as a rule; a check may yield another one where `also` lists it.
        also: when the severity differs, in words; empty when it never does.
    """

    code: str
    severity: Severity
    group: str
    title: str
    consequence: str
    mend: str
    also: Mapping[Severity, str] = field(default_factory=dict)

    def fault(
        self,
        message: str,
        *,
        where: Place | None = None,
        severity: Severity | None = None,
        consequence: str | None = None,
        mend: str | None = None,
        count: int = 1,
        places: tuple[Place, ...] = (),
        data: dict[str, Any] | None = None,
    ) -> Fault:
        chosen = severity or self.severity
        if chosen != self.severity and chosen not in self.also:
            raise ValueError(f"{self.code} is never of severity {chosen}")
        return Fault(
            code=self.code,
            severity=chosen,
            message=_shortened(message),
            consequence=consequence or self.consequence,
            mend=mend or self.mend,
            where=where or (places[0] if places else Place()),
            count=count,
            places=places,
            data=data or {},
        )


MESSAGE_MOST = 2000  # characters: texts of a delivery may be of any length


def _shortened(message: str) -> str:
    if len(message) <= MESSAGE_MOST:
        return message
    return f"{message[: MESSAGE_MOST - 100]} ... ({len(message):,} characters)"


CheckFunction = Callable[[Case], Iterable[Fault]]
F = TypeVar("F", bound=CheckFunction)


@dataclass(frozen=True)
class Check:
    """A registered check.

    Attributes:
        needs: `policy`, `openpi` and `deep` where it runs only when asked for.
    """

    name: str
    title: str
    kinds: tuple[Kind, ...]
    needs: frozenset[str]
    function: CheckFunction


KINDS: dict[str, Kind] = {}
CHECKS: list[Check] = []


def kind(
    code: str,
    severity: Severity,
    group: str,
    *,
    title: str,
    consequence: str,
    mend: str,
    also: Mapping[Severity, str] | None = None,
) -> Kind:
    """Declare a fault code; each is declared once, beside the check that yields it."""
    if code in KINDS:
        raise ValueError(f"the fault code {code} is declared twice")
    if group not in GROUPS:
        raise ValueError(f"{code}: no group is called {group}")
    KINDS[code] = Kind(code, severity, group, title, consequence, mend, also or {})
    return KINDS[code]


def check(title: str, *kinds: Kind, needs: Iterable[str] = ()) -> Callable[[F], F]:
    """Register a check; `title` says in a few words what it looked at, for the list of what ran."""

    def register(function: F) -> F:
        name = function.__name__.strip("_").replace("_", "-")
        CHECKS.append(Check(name, title, kinds, frozenset(needs), function))
        return function

    return register
