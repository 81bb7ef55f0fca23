"""Audit: the checks and the fault catalogue; text, JSON and HTML reports.

`audit` is the acceptance test of a delivery and the gate before device time. Each check is a small function
in `stack.audit.checks`, declared together with the fault codes that it may yield; `docs/faults.md` is made of
these declarations.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stack.audit.between import SeveralReport, audit_several
    from stack.audit.kinds import OPENPI, PolicyNeeds
    from stack.audit.report import AuditReport
    from stack.audit.run import audit

__all__ = ["OPENPI", "AuditReport", "PolicyNeeds", "SeveralReport", "audit", "audit_several"]
# Imported when asked for: worker processes that only open videos, and the process that watches over an audit,
# need none of it.
_HOMES = {
    "SeveralReport": "between",
    "audit_several": "between",
    "OPENPI": "kinds",
    "PolicyNeeds": "kinds",
    "AuditReport": "report",
    "audit": "run",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
