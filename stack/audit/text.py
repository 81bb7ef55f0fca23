"""The report for a terminal: plain text, errors first, the verdict last."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from stack.audit.decisions import plain_line, source_lines, summary
from stack.audit.report import AuditReport
from stack.faults import SEVERITIES, Fault

WIDTH = 100
DECISIONS_SHOWN = 10
WIDTHS_SHOWN = 20
_MERGE = {
    "settles": "stack prepare settles it",
    "with a manifest line": "a line in the dataset manifest settles it",
    "refuses": "no merge may settle it",
}
_HEADINGS = {"error": "ERRORS", "warning": "WARNINGS", "note": "NOTES"}


def render(report: AuditReport) -> str:
    """The whole report; ends with one verdict line and a newline."""
    lines = [*_facts(report), ""]
    shown: set[str] = set()
    for severity in SEVERITIES:
        own = [fault for fault in report.faults if fault.severity == severity]
        if own:
            lines += [f"{_HEADINGS[severity]} ({len(own)})", ""]
            for fault in own:
                lines += [*_fault(fault, shown), ""]
    lines += [*_decisions(report), *_coverage(report)]
    lines += ["", f"verdict: {report.verdict()}"]
    return "\n".join(lines) + "\n"


def render_between(names: Sequence[str], faults: Sequence[Fault]) -> str:
    """What lies between datasets; ends with one line and a newline."""
    lines = [f"BETWEEN {', '.join(names)}", ""]
    for fault in faults:
        lines += [*_fault(fault, set())]
        lines += [f"    merge: {_MERGE.get(str(fault.data.get('merge')), 'not known')}", ""]
    errors = sum(fault.severity == "error" for fault in faults)
    lines += [f"between: {len(faults)} differences, {errors} of them errors"]
    return "\n".join(lines) + "\n"


def _facts(report: AuditReport) -> list[str]:
    facts = report.facts
    fps = f"{facts.fps:g} fps" if facts.fps else "fps unknown"
    lines = [
        f"{facts.name}: {facts.version or 'unknown layout'}, {facts.episodes} episodes,"
        f" {facts.frames} frames, {fps}, {facts.files} files, {facts.bytes / 1e6:.1f} MB"
    ]
    if facts.widths:
        shown = [f"{name} {width}" for name, width in facts.widths.items() if width > 1]
        more = f" and {len(shown) - WIDTHS_SHOWN} more" if len(shown) > WIDTHS_SHOWN else ""
        lines.append("  widths:  " + (", ".join(shown[:WIDTHS_SHOWN]) + more or "all 1"))
    for camera in facts.cameras:
        what = f"{camera.codec} {camera.width}x{camera.height}" if camera.width else camera.codec or "no file"
        lines.append(f"  camera:  {camera.name}  {what}, {camera.files} files, {camera.frames} frames")
    return lines


def _fault(fault: Fault, shown: set[str]) -> list[str]:
    times = f"  x{fault.count}" if fault.count > 1 else ""
    lines = [f"  {fault.code}{times}"]
    lines += _wrapped("", fault.message)
    if where := str(fault.where):
        more = [str(place) for place in fault.places[1:3] if str(place) != where]
        lines += _wrapped("at: ", "; ".join([where, *more]) + (" ..." if len(fault.places) > 3 else ""))
    lines += _wrapped("means: ", fault.consequence)
    mend, _, yaml = fault.mend.partition("\n")
    repeated = yaml in shown and bool(yaml)
    lines += _wrapped("mend: ", mend.rstrip(":") + ", as shown above" if repeated else mend)
    if not repeated:
        lines += [f"      {line}" for line in yaml.splitlines()]
    shown.add(yaml)
    return lines


def _decisions(report: AuditReport) -> list[str]:
    """What is not simply used, with the first reason, and the lines for the manifest."""
    if not report.decisions:
        return []
    lines = [f"episodes: {summary(report.decisions)}"]
    odd = [d for choice in ("drop", "look") for d in report.decisions if d.choice == choice]
    for decision in odd[:DECISIONS_SHOWN]:
        first, *rest = decision.reasons
        more = f" (and {len(rest)} more)" if rest else ""
        said = f"{decision.episode}: {first.code}, {plain_line(first.message)}{more}"
        lines += _wrapped(f"{decision.choice} ", said)
    if len(odd) > DECISIONS_SHOWN:
        lines.append(
            f"    and {len(odd) - DECISIONS_SHOWN} more; --json, --html and --decisions have them all"
        )
    if wanted := source_lines(report):
        lines += ["  in the dataset manifest, under the source:", *(f"      {line}" for line in wanted)]
    return [*lines, ""]


def _wrapped(label: str, text: str) -> list[str]:
    return textwrap.wrap(
        label + text,
        WIDTH,
        initial_indent="    ",
        subsequent_indent="    " + " " * len(label),
        break_long_words=False,
        break_on_hyphens=False,
    )


def _coverage(report: AuditReport) -> list[str]:
    lines = [f"checked: {len(report.ran)} checks in {report.seconds:.1f} s"]
    if report.measures.decoded:
        pictures, seconds = report.measures.decoded
        lines.append(f"decoded: {pictures} pictures, {pictures / max(seconds, 1e-6):.0f} a second")
    lines += [f"not checked: {item.title}: {item.why}" for item in report.not_run]
    return lines
