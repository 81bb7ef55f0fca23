"""The JSON schemas of the audit's reports, made of the same dataclasses as the reports.

`python -m stack.audit.schema > docs/audit.schema.json` writes that of one dataset's report, `python -m
stack.audit.schema several > docs/audit_several.schema.json` that of several; a test compares them.
"""

from __future__ import annotations

import sys
import types
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from stack.audit.between import SCHEMA as SEVERAL
from stack.audit.decisions import Decision
from stack.audit.exact import Channel
from stack.audit.kinds import PolicyNeeds
from stack.audit.report import SCHEMA, DatasetFacts, NotRun, Ran
from stack.faults import SEVERITIES, Place
from stack.files import canonical_json

DIALECT = "https://json-schema.org/draft/2020-12/schema"
_SIMPLE: dict[Any, Any] = {
    str: {"type": "string"},
    int: {"type": "integer"},
    bool: {"type": "boolean"},
    # NaN and infinity, which JSON cannot hold, are written as text.
    float: {"anyOf": [{"type": "number"}, {"enum": ["nan", "inf", "-inf"]}]},
    type(None): {"type": "null"},
    Path: {"type": "string"},
    Any: {},
}


def report_schema() -> dict[str, Any]:
    """The schema of `AuditReport.to_json()`."""
    properties = {
        "schema": {"const": SCHEMA},
        "ok": {"type": "boolean"},
        "verdict": {"type": "string"},
        "counts": _object({severity: _natural() for severity in SEVERITIES}),
        "facts": _of(DatasetFacts),
        "policy": _of(PolicyNeeds | None),
        "faults": {"type": "array", "items": _fault()},
        "decisions": {"type": "array", "items": _of(Decision)},
        "slice": _of(str | None),
        "channels": {"type": "array", "items": _of(Channel)},
        "ran": {"type": "array", "items": _of(Ran)},
        "not_run": {"type": "array", "items": _of(NotRun)},
        "seconds": {"type": "number"},
    }
    title = "Report of `stack audit`"
    return {"$schema": DIALECT, "title": title, **_object(properties)}


def several_schema() -> dict[str, Any]:
    """The schema of `SeveralReport.to_json()`: a report for each dataset, and what lies between them.

    A fault between datasets says under `data.merge` who may settle it.
    """
    report = {key: value for key, value in report_schema().items() if key != "$schema"}
    between = _fault()
    merge = {"enum": ["settles", "with a manifest line", "refuses"]}
    between["properties"]["data"] = {"type": "object", "properties": {"merge": merge}, "required": ["merge"]}
    properties = {
        "schema": {"const": SEVERAL},
        "ok": {"type": "boolean"},
        "datasets": {"type": "object", "additionalProperties": report},
        "between": {"type": "array", "items": between},
    }
    head = {"$schema": DIALECT, "title": "Report of `stack audit` on several datasets"}
    return {**head, **_object(properties)}


def _fault() -> dict[str, Any]:
    return _object(
        {
            "code": {"type": "string"},
            "severity": {"enum": list(SEVERITIES)},
            "where": _place(),
            "message": {"type": "string"},
            "consequence": {"type": "string"},
            "mend": {"type": "string"},
            "count": _natural(),
            "places": {"type": "array", "items": _place()},
            "data": {"type": "object"},
        }
    )


def _place() -> dict[str, Any]:
    """Only what is known of a place is written."""
    known = {name: _simple(kind) for name, kind in get_type_hints(Place).items()}
    return {"type": "object", "properties": known, "required": [], "additionalProperties": False}


def _simple(kind: Any) -> dict[str, Any]:
    (given,) = (part for part in get_args(kind) if part is not type(None))
    return _of(given)


def _natural() -> dict[str, Any]:
    return {"type": "integer", "minimum": 0}


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": sorted(properties),
        "additionalProperties": False,
    }


def _of(kind: Any) -> dict[str, Any]:
    if kind in _SIMPLE:
        return dict(_SIMPLE[kind])
    if is_dataclass(kind) and isinstance(kind, type):
        hints = get_type_hints(kind)
        return _object({f.name: _of(hints[f.name]) for f in fields(kind)})
    origin, args = get_origin(kind), get_args(kind)
    if origin is Literal:
        return {"enum": list(args)}
    if origin in (Union, types.UnionType):
        return {"anyOf": [_of(part) for part in args]}
    if origin in (tuple, list):
        return {"type": "array", "items": _of(args[0])}
    if origin is dict:
        return {"type": "object", "additionalProperties": _of(args[1])}
    raise TypeError(f"the report holds {kind}, for which no schema is known")


if __name__ == "__main__":
    print(canonical_json(several_schema() if "several" in sys.argv[1:] else report_schema()), end="")
