"""The audit's checks on a dataset that was written here a moment ago."""

from __future__ import annotations

from pathlib import Path

from stack.audit.evidence import Evidence
from stack.audit.report import AuditReport
from stack.audit.run import judge

# Writing reads every file back and hashes it; deliveries, not outputs, hold the same take or video twice.
JUST_PROVEN = {
    "files-as-written": "every file was read back and hashed while it was written",
    "episodes-equal": "a matter of the deliveries; `stack audit` on them looks for it",
    "videos-equal": "a matter of the deliveries; `stack audit` on them looks for it",
}


def audit_output(root: Path) -> AuditReport:
    """As `stack.audit.audit`, in this process: what was written here crashes no reader.

    Raises:
        BadRequest: there is no such folder.
    """
    return judge(Evidence(root), left_out=JUST_PROVEN)


def said_of(report: AuditReport) -> str:
    """One line, and one more for each error."""
    lines = [f"audit of {report.facts.name}: {report.verdict()}"]
    lines += [f"  {f.code}: {f.message} ({f.where})" for f in report.faults if f.severity == "error"]
    return "\n".join(lines)
