"""The report as one self-contained page, for people who were not there: verdict first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from stack.audit import html_plots, html_summary
from stack.audit.apart import sheltered
from stack.audit.catalogue import load_kinds
from stack.audit.html_style import SCRIPT, STYLE
from stack.audit.html_text import coded, esc, plural, sentence
from stack.audit.report import AuditReport
from stack.faults import SEVERITIES, Fault

PLACES_SHOWN = 3
TASKS_SHOWN = 20


@sheltered
def render(report: AuditReport, root: Path | None = None, *, between: tuple[Fault, ...] = ()) -> str:
    """A whole HTML document without outside references.

    Args:
        root: the dataset's folder, for pictures of the places; without it the page has none.
        between: what lies between this dataset and others that it is to be merged with.
    """
    load_kinds()  # the report may have been made in another process
    title = f"Audit of {report.facts.name}"
    return "\n".join(
        [
            '<!doctype html><html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{esc(title)}</title><style>{STYLE}</style></head><body>",
            f"<h1>{esc(title)}</h1>",
            *html_summary.summary(report),
            *html_summary.manifest(report),
            *html_summary.episodes(report),
            *_faults(report.faults),
            *_between(between),
            *_pictures(report, root),
            *html_plots.channels(report),
            *html_plots.section(report),
            *_dataset(report),
            *_coverage(report),
            f"<script>{SCRIPT}</script></body></html>\n",
        ]
    )


def _pictures(report: AuditReport, root: Path | None) -> Iterator[str]:
    if root is None:
        return
    from stack.audit.pictures import strips

    yield from html_plots.pictures(*strips(report, root))


def _faults(faults: tuple[Fault, ...]) -> Iterator[str]:
    yield "<h2>What was found</h2>"
    if not faults:
        yield "<p>Nothing.</p>"
        return
    counts = {s: sum(fault.severity == s for fault in faults) for s in SEVERITIES}
    said = ", ".join(f'<span class="{s}">{counts[s]} of severity {s}</span>' for s in SEVERITIES)
    yield f'<p class="dim">{said}. An error means that training would fail or be wrong; a warning, that it '
    yield "would run and a person should know; a note is worth knowing.</p>"
    yield '<table class="faults" id="faults"><thead><tr><th>Severity</th><th>Fault</th>'
    yield "<th>What it does, and how to mend it</th></tr></thead><tbody>"
    shown: set[str] = set()
    for fault in faults:
        yield _fault(fault, shown)
    yield "</tbody></table>"


def _between(faults: tuple[Fault, ...]) -> Iterator[str]:
    if faults:
        yield "<h2>Between the datasets</h2>"
        yield '<table class="faults"><thead><tr><th>Severity</th><th>Difference</th>'
        yield "<th>What it does, and how to settle it</th></tr></thead><tbody>"
        yield from (_fault(fault, set()) for fault in faults)
        yield "</tbody></table>"


def _fault(fault: Fault, shown: set[str]) -> str:
    mend, _, yaml = fault.mend.partition("\n")
    if yaml and yaml in shown:
        mend, yaml = mend.rstrip(":") + ", as shown above", ""
    shown.add(yaml)
    times = f' <span class="dim">&times;{fault.count:,}</span>' if fault.count > 1 else ""
    places = list(dict.fromkeys(str(place) for place in (fault.places or (fault.where,)) if str(place)))
    where = "".join(f'<div class="dim"><code>{esc(place)}</code></div>' for place in places[:PLACES_SHOWN])
    more = '<div class="dim">and more places</div>' if len(places) > PLACES_SHOWN else ""
    block = f"<pre>{esc(yaml)}</pre>" if yaml else ""
    return (
        f'<tr data-severity="{fault.severity}"><td class="tag {fault.severity}">{fault.severity}</td>'
        f"<td><p><code>{esc(fault.code)}</code>{times}</p><p>{_lines(fault.message)}</p>{where}{more}</td>"
        f"<td><p>{coded(sentence(fault.consequence))}</p><p><b>Mend:</b> {coded(mend)}</p>{block}</td></tr>"
    )


def _lines(message: str) -> str:
    """A long enumeration reads better with one part a line."""
    parts = [esc(part) for part in message.split("; ")]
    return ";<br> ".join(parts) if len(parts) > 2 else "; ".join(parts)


def _dataset(report: AuditReport) -> Iterable[str]:
    facts = report.facts
    yield '<h2>The dataset, as counted</h2><table class="facts"><tbody>'
    lengths = f"{facts.shortest} to {facts.longest} frames" if facts.shortest is not None else "unknown"
    more = len(facts.tasks) - TASKS_SHOWN
    tasks = "; ".join(facts.tasks[:TASKS_SHOWN]) + (f"; and {more} more" if more > 0 else "")
    rows = [
        ("Format", facts.version or "unknown"),
        ("Robot", facts.robot_type or "not given"),
        ("Episodes", f"{facts.episodes}, {lengths}"),
        ("Frames", str(facts.frames)),
        ("Frames a second", f"{facts.fps:g}" if facts.fps else "unknown"),
        ("Tasks", tasks or "none"),
        ("Widths", ", ".join(f"{name} {width}" for name, width in facts.widths.items()) or "none"),
        ("Size", f"{facts.bytes / 1e6:.1f} MB in {facts.files} files"),
    ]
    for camera in facts.cameras:
        size = (
            f"{camera.codec}, {camera.width}x{camera.height}" if camera.width else camera.codec or "no file"
        )
        rows.append((camera.name, f"{size}, {camera.frames} frames in {camera.files} files"))
    for name, value in rows:
        yield f"<tr><th>{esc(name)}</th><td>{esc(value)}</td></tr>"
    yield "</tbody></table>"


def _coverage(report: AuditReport) -> Iterator[str]:
    yield "<h2>What was checked</h2>"
    yield f"<p>{plural(len(report.ran), 'check')} in {report.seconds:.1f} s: "
    yield "; ".join(esc(item.title) for item in report.ran) + ".</p>"
    if report.measures.decoded:
        pictures, seconds = report.measures.decoded
        rate = pictures / max(seconds, 1e-6)
        yield f"<p>Every picture was decoded: {pictures:,} in {seconds:.1f} s, {rate:.0f} a second.</p>"
    yield "<h2>What was not checked</h2>"
    if not report.not_run:
        yield "<p>Every check ran.</p>"
        return
    yield "<p>Whatever these would find stays unknown:</p><ul>"
    for item in report.not_run:
        yield f"<li>{esc(item.title)}: {esc(item.why)}</li>"
    yield "</ul>"
