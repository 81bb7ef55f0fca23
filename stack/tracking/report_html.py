"""Pieces of a report's page: tables, values as text, the page around them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timezone
from html import escape
from typing import Any

from stack.drawing import number
from stack.tracking.secrets import redacted_text

STYLE = """
body { font: 15px/1.5 system-ui, "Noto Sans", "Noto Sans CJK SC", sans-serif; max-width: 62rem;
  margin: 2rem auto; padding: 0 1rem 4rem; color: #1c2733 }
h1 { font-size: 1.45rem; margin-bottom: .2rem } h2 { font-size: 1.15rem; margin-top: 2.2rem;
  border-top: 1px solid #d8dee5; padding-top: .8rem } h3 { font-size: 1rem; margin: 1.2rem 0 .3rem }
table { border-collapse: collapse; width: 100% } td, th { text-align: left; vertical-align: top;
  padding: .3rem .6rem; border-bottom: 1px solid #d8dee5; overflow-wrap: anywhere }
th { background: #f4f6f8; font-weight: 600 } td.num, th.num { text-align: right; white-space: nowrap;
  font-variant-numeric: tabular-nums } td:first-child { white-space: nowrap }
.dim { color: #5b6875 } .bad { color: #b3261e; font-weight: 600 } .good { color: #1d6b3f; font-weight: 600 }
.a { color: #365f8c; font-weight: 600 } .b { color: #b3261e; font-weight: 600 }
svg { max-width: 100%; height: auto; display: block; margin: .4rem 0 }
.curves { display: grid; grid-template-columns: 1fr 1fr; gap: .4rem 1rem }
.curves svg[width='900'] { grid-column: 1 / 3 } .good, .bad { white-space: nowrap }
summary { cursor: pointer; font-weight: 600; margin: .6rem 0 }
@media print { tr, svg { break-inside: avoid } }
"""


def flat(value: Any, at: str = "") -> Iterable[tuple[str, str]]:
    """A JSON value as (dotted key, text) pairs."""
    if isinstance(value, Mapping):
        for key, entry in value.items():
            yield from flat(entry, f"{at}.{key}" if at else str(key))
    elif isinstance(value, list) and any(isinstance(entry, (dict, list)) for entry in value):
        for index, entry in enumerate(value):
            yield from flat(entry, f"{at}[{index}]")
    else:
        yield at, "none" if value is None else str(value)


def table(rows: Iterable[Sequence[str]], head: Sequence[str], *, numeric: bool = False) -> str:
    """Rows as a table; with `numeric`, all columns but the first stand at the right."""
    kind = " class='num'" if numeric else ""
    top = "".join(f"<th{kind if index else ''}>{escape(cell)}</th>" for index, cell in enumerate(head))
    body = "".join(
        "<tr>" + "".join(f"<td{kind if i else ''}>{_cell(str(c))}</td>" for i, c in enumerate(row)) + "</tr>"
        for row in rows
    )
    return f"<table>{f'<tr>{top}</tr>' if any(head) else ''}{body}</table>"


def _cell(text: str) -> str:
    shown = escape(text if len(text) <= 2000 else f"{text[:2000]} ...")
    return {"pass": "<span class='good'>pass</span>", "FAIL": "<span class='bad'>FAIL</span>"}.get(
        text, shown
    )


def figure(key: str, value: float) -> str:
    """A value with the unit that its name says."""
    if key.endswith("_bytes"):
        return size(value)
    if key.endswith("duration_s"):
        return duration(value)
    is_seconds = key.endswith("_s") and not key.endswith("_per_s")
    return f"{number(value)} s" if is_seconds else number(value)


def size(value: float) -> str:
    """Bytes for people."""
    return f"{value / 1e9:.3f} GB" if value >= 1e8 else f"{value / 1e6:.3f} MB"


def duration(seconds: float) -> str:
    """Seconds for people."""
    if seconds < 120:
        return f"{seconds:.1f} s"
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60:02d} min" if minutes >= 60 else f"{minutes} min"


def when(ms: int) -> str:
    """Milliseconds since the epoch as a time in UTC."""
    return datetime.fromtimestamp(ms / 1000, tz=timezone.utc).strftime("%Y-%m-%d %H:%M UTC")


def page(title: str, parts: Iterable[str]) -> str:
    """The whole page; no secret of this environment stands in it."""
    body = redacted_text("\n".join(parts))
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f"<style>{STYLE}</style></head><body>\n{body}\n</body></html>\n"
    )
