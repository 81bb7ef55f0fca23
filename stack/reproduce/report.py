"""The verdict as text for a terminal and as one self-contained HTML page."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

from stack.reproduce.provenance import Provenance
from stack.reproduce.stage import StageResult
from stack.reproduce.verdict import GATES, Row, Verdict

_MARKS = {True: "pass", False: "FAIL", None: "not judged"}


def render_text(verdict: Verdict) -> str:
    """A table: gate, what, expected, got, mark; then the class on a line of its own."""
    cells = [("gate", "what", "expected", "got", "")]
    previous = ""
    for row in _in_gate_order(verdict):
        cells.append((row.gate if row.gate != previous else "", row.name, row.expected, row.got, _mark(row)))
        previous = row.gate
    missing = [gate for gate in GATES if gate not in {row.gate for row in verdict.rows}]
    cells += [(gate, "no expectation in the manifest", "-", "-", _MARKS[None]) for gate in missing]
    widths = [min(46, max(len(line[i]) for line in cells)) for i in range(5)]
    lines = [
        "  ".join(_fit(text, width) for text, width in zip(line, widths, strict=True)).rstrip()
        for line in cells
    ]
    lines.insert(1, "  ".join("-" * width for width in widths))
    if verdict.stopped:
        lines += ["", f"stopped at {verdict.stopped}"]
    return "\n".join([*lines, "", f"verdict of {verdict.run}: {verdict.headline}"])


def render_html(verdict: Verdict, provenance: Provenance, stages: Mapping[str, StageResult]) -> str:
    """The page that stands beside the run: verdict first, then the gates, the stages, the provenance."""
    colour = "#1a7f37" if verdict.good else "#b42318"
    rows = "".join(
        f"<tr class='{_css(row)}'><td>{escape(row.gate)}</td><td>{escape(row.name)}</td>"
        f"<td>{escape(row.expected)}</td><td>{escape(row.got)}</td><td>{_mark(row)}</td></tr>"
        for row in _in_gate_order(verdict)
    )
    steps = "".join(
        f"<tr class='{'pass' if s.good else 'fail'}'><td>{escape(name)}</td><td>{s.seconds:.1f}</td>"
        f"<td>{'good' if s.good else 'not good'}</td><td>{escape(_first(s.message))}</td></tr>"
        for name, s in stages.items()
    )
    facts = "".join(
        f"<tr><td>{escape(key)}</td><td>{escape(str(value))}</td></tr>"
        for key, value in provenance.to_json().items()
    )
    stopped = f"<p>Stopped at {escape(verdict.stopped)}</p>" if verdict.stopped else ""
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{escape(verdict.run)}: {escape(verdict.headline)}</title>
<style>
body {{ font: 15px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem;
  color: #1f2328 }}
h1 {{ font-size: 1.4rem }} h1 b {{ color: {colour} }} h2 {{ font-size: 1.1rem; margin-top: 2rem }}
table {{ border-collapse: collapse; width: 100% }}
td, th {{ text-align: left; padding: .3rem .6rem; border-bottom: 1px solid #d8dee4; vertical-align: top;
  overflow-wrap: anywhere }}
th {{ background: #f6f8fa }} tr.fail td:last-child {{ color: #b42318; font-weight: 600 }}
tr.pass td:last-child {{ color: #1a7f37 }}
td:last-child, td:first-child {{ white-space: nowrap }} tr.open td:last-child {{ color: #9a6700 }}
</style></head><body>
<h1>{escape(verdict.run)}: <b>{escape(verdict.headline)}</b></h1>{stopped}
<h2>Gates</h2>
<table><tr><th>gate</th><th>what</th><th>expected</th><th>got</th><th></th></tr>{rows}</table>
<h2>Stages</h2>
<table><tr><th>stage</th><th>seconds</th><th></th><th></th></tr>{steps}</table>
<h2>Provenance</h2>
<table>{facts}</table>
</body></html>
"""


def _in_gate_order(verdict: Verdict) -> list[Row]:
    return sorted(verdict.rows, key=lambda row: GATES.index(row.gate))


def _mark(row: Row) -> str:
    if row.exact:
        return {True: "equal", False: "not equal", None: "not judged"}[row.ok]
    return _MARKS[row.ok]


def _css(row: Row) -> str:
    if row.ok is None or row.exact:
        return "open"
    return "pass" if row.ok else "fail"


def _first(message: str) -> str:
    return message.strip().splitlines()[0] if message.strip() else ""


def _fit(text: str, width: int) -> str:
    return text.ljust(width) if len(text) <= width else text[: width - 1] + "…"
