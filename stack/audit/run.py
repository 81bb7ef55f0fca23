"""Run the checks on a dataset's folder."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from stack.audit.advice import safe_slice
from stack.audit.apart import sheltered
from stack.audit.deadline import TimeUp, deadline
from stack.audit.decisions import Decision, decide
from stack.audit.evidence import Evidence
from stack.audit.exact import ACTION, STATE, Channel, channels
from stack.audit.facts import facts_or_less, in_one_line, no_facts
from stack.audit.folding import fold_for_report
from stack.audit.kinds import Case, Check, PolicyNeeds, kind
from stack.audit.measures import Measures, measure
from stack.audit.report import AuditReport, DatasetFacts, NotRun, Ran
from stack.audit.rows import NotRead
from stack.audit.shelter import work_bounded
from stack.errors import BadRequest
from stack.faults import Fault, Place

UNCHECKED_CHECK = kind(
    "unchecked-check",
    "error",
    "unchecked",
    title="a check broke off",
    consequence="what it looks for stays unknown; this is our fault, not the dataset's",
    mend="report the message together with the file that it names",
)
TIME_UP = kind(
    "unchecked-time-up",
    "error",
    "unchecked",
    title="the time given to the audit was up before every check had run",
    consequence="whatever the other checks look for stays unknown",
    mend="audit again without --max-seconds, or with more",
)


def _silent(_: str) -> None:
    return None


@sheltered
def audit(
    root: Path,
    *,
    policy: PolicyNeeds | None = None,
    deep: bool = False,
    max_seconds: float | None = None,
    log: Callable[[str], None] = _silent,
) -> AuditReport:
    """Check a delivery or a prepared dataset of any version, without torch, lerobot or a network.

    Damaged bytes may crash the libraries that read them; so the work is done in another process
    (`stack.audit.apart`), and the report says which files were left alone.

    Args:
        root: the folder that holds meta/, data/ and videos/.
        policy: also judge it for this policy.
        deep: also decode every picture.
        max_seconds: stop then, and report what was found and what stays unchecked.
        log: takes one line of progress now and then.

    Raises:
        BadRequest: there is no such folder. Anything wrong inside it is a fault in the report.
        WorkFailed: the other process died although no file can be blamed (memory).
    """
    return judge(Evidence(root), policy=policy, deep=deep, max_seconds=max_seconds, log=log)


def judge(
    evidence: Evidence,
    *,
    policy: PolicyNeeds | None = None,
    deep: bool = False,
    max_seconds: float | None = None,
    log: Callable[[str], None] = _silent,
    left_out: Mapping[str, str] | None = None,
) -> AuditReport:
    """As `audit`, in this process, of evidence that the caller goes on to use.

    Args:
        left_out: names of checks that are not wanted -> why, as the report says it.

    Raises:
        BadRequest: there is no such folder.
    """
    if not evidence.root.is_dir():
        raise BadRequest(
            "audit-no-folder",
            "there is no such folder",
            where=str(evidence.root),
            do="name the folder that holds meta/",
        )
    started = time.perf_counter()
    run = _Run(Case(evidence, policy, deep, log), log, max_seconds, left_out or {})
    run.plan()  # before the clock runs: a report names all that it did not get to
    try:
        with work_bounded(max_seconds), deadline(max_seconds):
            run.all_checks()
            run.count(evidence)
    except TimeUp:
        run.stop_early()
    return AuditReport(
        facts=run.facts or no_facts(evidence),
        faults=tuple(fold_for_report(run.faults)),
        ran=tuple(run.ran),
        not_run=tuple(run.not_run),
        policy=policy,
        channels=run.channels,
        decisions=run.decisions,
        slice=run.slice,
        measures=run.measures,
        seconds=time.perf_counter() - started,
    )


@dataclass
class _Run:
    """What has been found so far; also what is left of it where time is up."""

    case: Case
    log: Callable[[str], None]
    max_seconds: float | None
    left_out: Mapping[str, str]
    faults: list[Fault] = field(default_factory=list)
    ran: list[Ran] = field(default_factory=list)
    not_run: list[NotRun] = field(default_factory=list)
    left: list[Check] = field(default_factory=list)
    facts: DatasetFacts | None = None
    channels: tuple[Channel, ...] = ()
    decisions: tuple[Decision, ...] = ()
    slice: str | None = None
    measures: Measures = field(default_factory=Measures)

    def plan(self) -> None:
        # Imported late: the catalogue is also run as a script, and it imports this module.
        from stack.audit.catalogue import load_checks

        self.left = [check for check in load_checks() if _concerns(check, self.case)]

    def all_checks(self) -> None:
        started = time.perf_counter()
        while self.left:
            if self.max_seconds is not None and time.perf_counter() - started > self.max_seconds:
                raise TimeUp
            self._one(self.left[0])
            del self.left[0]

    def _one(self, check: Check) -> None:
        if why := self._why_not(check):
            self.not_run.append(NotRun(check.name, check.title, why))
            return
        self.log(f"audit: {check.title}")
        before, known = time.perf_counter(), len(self.faults)
        if broke := _run(check, self.case, self.faults):
            self.not_run.append(NotRun(check.name, check.title, broke))
            return
        codes = tuple(kind.code for kind in check.kinds)
        seconds = time.perf_counter() - before
        self.ran.append(Ran(check.name, check.title, codes, len(self.faults) - known, seconds))

    def _why_not(self, check: Check) -> str:
        return self.left_out.get(check.name, "") or _why_not(check, self.case)

    def count(self, evidence: Evidence) -> None:
        self.facts, broke = facts_or_less(evidence)
        if broke:
            self.faults.append(UNCHECKED_CHECK.fault(f"counting broke off: {broke}"))
        self.channels = _channels(evidence, self.case.policy)
        self.slice = _slice(evidence, self.channels, self.case.policy)
        try:
            self.decisions = decide(evidence, self.faults)
            self.measures = measure(evidence)
        except NotRead:
            return  # then no page is made of them
        except Exception as error:  # what breaks them has broken checks too, which say more
            self.faults.append(UNCHECKED_CHECK.fault(f"deciding on episodes broke off: {in_one_line(error)}"))

    def stop_early(self) -> None:
        """Say what stays unchecked; nothing is read any more."""
        wanted = [check for check in self.left if not self._why_not(check)]
        why = f"time was up after {self.max_seconds:g} s"
        self.not_run += [NotRun(check.name, check.title, why) for check in wanted]
        said = "; ".join(check.title for check in wanted) or "only the counting for the summary"
        self.faults.append(
            TIME_UP.fault(
                f"after {self.max_seconds:g} s {len(wanted)} checks had not run to their end: {said}",
                data={"max_seconds": self.max_seconds, "checks": [check.name for check in wanted]},
            )
        )


def _concerns(check: Check, case: Case) -> bool:
    """Whether to speak of the check at all: those for another policy than the named one are left out."""
    return not ("openpi" in check.needs and case.policy is not None and case.policy.name != "openpi")


def _why_not(check: Check, case: Case) -> str:
    if "policy" in check.needs and case.policy is None:
        return "no policy was named (--for pi05)"
    if "openpi" in check.needs and (case.policy is None or case.policy.name != "openpi"):
        return "not asked for (--for openpi)"
    if "deep" in check.needs and not case.deep:
        return "not asked for (--deep)"
    return ""


def _run(check: Check, case: Case, faults: list[Fault]) -> str:
    """Add the check's faults; gives why it did not get to its end, if so. What it had found is kept."""
    try:
        for fault in check.function(case):
            faults.append(fault)
    except NotRead:
        return "values and videos were left unread"
    except Exception as error:  # a check that dies on some dataset must not hide what the others find
        said = in_one_line(error)
        faults.append(
            UNCHECKED_CHECK.fault(f"'{check.title}' broke off: {said}", where=Place(feature=check.name))
        )
        return said
    return ""


def _channels(evidence: Evidence, policy: PolicyNeeds | None) -> tuple[Channel, ...]:
    if policy is None:
        return ()
    try:
        return tuple(channels(evidence, policy))
    except Exception:  # told by the checks that need them
        return ()


def _slice(evidence: Evidence, known: tuple[Channel, ...], needs: PolicyNeeds | None) -> str | None:
    """The slice to paste, where a channel is unfit or a vector too wide; None where all may stay."""
    if needs is None or not known:
        return None
    widths = {STATE: needs.max_state_dim, ACTION: needs.max_action_dim}
    fits = all(sum(c.feature == name for c in known) <= width for name, width in widths.items())
    if fits and all(c.largest <= needs.warn_magnitude for c in known):
        return None
    try:
        return safe_slice(evidence.features, known, needs)
    except Exception:  # told by the checks that offer it
        return None
