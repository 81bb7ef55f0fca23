"""Audit: the checks and the fault catalogue; text, JSON and HTML reports.

`audit` is the acceptance test of a delivery and the gate before device time. Each check is a small function
in `stack.audit.checks`, declared together with the fault codes that it may yield; `docs/faults.md` is made of
these declarations.
"""

from stack.audit.between import SeveralReport, audit_several
from stack.audit.kinds import OPENPI, PolicyNeeds
from stack.audit.report import AuditReport
from stack.audit.run import audit

__all__ = ["OPENPI", "AuditReport", "PolicyNeeds", "SeveralReport", "audit", "audit_several"]
