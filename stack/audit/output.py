"""The audit's checks on a dataset that was written here a moment ago."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from stack.dataset.memory import give_back, keep_little

if TYPE_CHECKING:
    from stack.audit.report import AuditReport

# Writing reads every file back and hashes it; deliveries, not outputs, hold the same take or video twice.
JUST_PROVEN = {
    "files-as-written": "every file was read back and hashed while it was written",
    "episodes-equal": "a matter of the deliveries; `stack audit` on them looks for it",
    "videos-equal": "a matter of the deliveries; `stack audit` on them looks for it",
}


def audit_output(root: Path, *, values: bool = True) -> AuditReport:
    """As `stack.audit.audit`, in this process: what was written here crashes no reader.

    Args:
        values: also run what reads vectors, statistics of episodes and videos, which are held meanwhile.
            Without, memory hardly grows with the frames, and `not_run` names what was left.

    Raises:
        BadRequest: there is no such folder.
    """
    keep_little()
    give_back()  # what the writing needed, before the audit's own code comes on top

    from stack.audit.evidence import Evidence
    from stack.audit.run import judge

    return judge(Evidence(root, form_only=not values), left_out=JUST_PROVEN)


def said_of(report: AuditReport, *, values: bool = True) -> str:
    """One line, and one more for each error.

    Args:
        values: as it was given to `audit_output`; a dataset whose values nobody judged is not called ready.
    """
    verdict = report.verdict()
    if not values:
        counted = verdict.partition(": ")[2]
        verdict = f"its form has {counted}; its values and videos are for `stack audit`, or for --audit here"
    lines = [f"audit of {report.facts.name}: {verdict}"]
    lines += [f"  {f.code}: {f.message} ({f.where})" for f in report.faults if f.severity == "error"]
    return "\n".join(lines)
