"""The report as one self-contained page, for people who were not there: verdict first."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from stack.audit.exact import Channel
from stack.audit.report import AuditReport
from stack.faults import SEVERITIES, Fault

_STYLE = """
:root { --ink: #1c2733; --dim: #5b6875; --line: #d8dee5; --soft: #f4f6f8;
  --error: #b3261e; --warning: #8a5a00; --note: #365f8c; --good: #1d6b3f; }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 76rem; padding: 2rem 1.5rem 4rem; color: var(--ink); background: #fff;
  font: 15px/1.5 system-ui, "Segoe UI", "Noto Sans", "Noto Sans CJK SC", sans-serif; }
h1 { font-size: 1.5rem; margin: 0 0 .25rem; }
h2 { font-size: 1.1rem; margin: 2.25rem 0 .5rem; }
.verdict { border-left: .4rem solid var(--good); background: var(--soft); padding: .9rem 1.1rem;
  margin: 1rem 0; font-size: 1.15rem; }
.verdict.bad { border-color: var(--error); }
.dim { color: var(--dim); }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; vertical-align: top; padding: .45rem .6rem; border-bottom: 1px solid var(--line); }
th { font-weight: 600; background: var(--soft); position: sticky; top: 0; }
td.num, th.num { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
code, pre { font: 13px/1.45 ui-monospace, "DejaVu Sans Mono", monospace; }
pre { background: var(--soft); padding: .6rem .8rem; overflow-x: auto; margin: .4rem 0 0; white-space: pre; }
.tag { font-weight: 600; white-space: nowrap; }
.error { color: var(--error); } .warning { color: var(--warning); } .note { color: var(--note); }
td p { margin: 0 0 .35rem; overflow-wrap: anywhere; }
.scroll { overflow-x: auto; }
table.faults { table-layout: fixed; } table.faults td:last-child { overflow: hidden; }
.faults th:first-child { width: 6.5rem; } .faults th:nth-child(2) { width: 47%; }
tr.over td { background: #fdf0ef; }
@media print { th { position: static; } body { padding: 0; } }
"""


def render(report: AuditReport) -> str:
    """A whole HTML document without scripts or outside references."""
    facts = report.facts
    title = f"Audit of {facts.name}"
    return "\n".join(
        [
            '<!doctype html><html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body>",
            f"<h1>{escape(title)}</h1>",
            f'<div class="dim">{escape(_one_line(report))}</div>',
            f'<div class="verdict{"" if report.ok else " bad"}">{escape(_sentence(report))}</div>',
            *_faults(report.faults),
            *_dataset(report),
            *_channels(report),
            *_coverage(report),
            "</body></html>\n",
        ]
    )


def _one_line(report: AuditReport) -> str:
    facts = report.facts
    fps = f"{facts.fps:g} fps" if facts.fps else "fps unknown"
    return (
        f"{facts.version or 'unknown layout'} · {facts.episodes} episodes · {facts.frames} frames · {fps} · "
        f"{len(facts.cameras)} cameras"
    )


def _sentence(report: AuditReport) -> str:
    verdict = report.verdict()
    return verdict[0].upper() + verdict[1:] + "."


def _faults(faults: tuple[Fault, ...]) -> Iterable[str]:
    yield "<h2>What was found</h2>"
    if not faults:
        yield "<p>Nothing.</p>"
        return
    counts = {s: sum(fault.severity == s for fault in faults) for s in SEVERITIES}
    yield (
        '<p class="dim">'
        + ", ".join(f'<span class="{s}">{counts[s]} of severity {s}</span>' for s in SEVERITIES)
        + ". An error means that training would fail or be wrong; a warning, that it would run and a person "
    )
    yield "should know; a note is worth knowing.</p>"
    yield '<table class="faults"><thead><tr><th>Severity</th><th>Fault</th>'
    yield "<th>What it does, and how to mend it</th></tr></thead><tbody>"
    shown: set[str] = set()
    for fault in faults:
        yield _fault(fault, shown)
    yield "</tbody></table>"


def _fault(fault: Fault, shown: set[str]) -> str:
    mend, _, yaml = fault.mend.partition("\n")
    if yaml and yaml in shown:
        mend, yaml = mend.rstrip(":") + ", as shown above", ""
    shown.add(yaml)
    times = f' <span class="dim">&times;{fault.count}</span>' if fault.count > 1 else ""
    places = [str(place) for place in (fault.places or (fault.where,)) if str(place)]
    where = "".join(f'<div class="dim"><code>{escape(place)}</code></div>' for place in places[:3])
    more = '<div class="dim">and more places</div>' if fault.count > 3 and len(places) > 3 else ""
    block = f"<pre>{escape(yaml)}</pre>" if yaml else ""
    return (
        f'<tr><td class="tag {fault.severity}">{fault.severity}</td>'
        f"<td><p><code>{escape(fault.code)}</code>{times}</p><p>{_lines(fault.message)}</p>{where}{more}</td>"
        f"<td><p>{escape(_upper(fault.consequence))}.</p><p><b>Mend:</b> {escape(mend)}</p>{block}</td></tr>"
    )


def _lines(message: str) -> str:
    """A long enumeration reads better with one part a line."""
    parts = escape(message).split("; ")
    return ";<br> ".join(parts) if len(parts) > 2 else "; ".join(parts)


def _upper(text: str) -> str:
    # pi0.5 and from_index are written small wherever they stand.
    return text[:1].upper() + text[1:] if text.split(" ")[0].isalpha() else text


def _dataset(report: AuditReport) -> Iterable[str]:
    facts = report.facts
    yield "<h2>The dataset, as counted</h2><table><tbody>"
    lengths = f"{facts.shortest} to {facts.longest} frames" if facts.shortest is not None else "unknown"
    rows = [
        ("Format", facts.version or "unknown"),
        ("Robot", facts.robot_type or "not given"),
        ("Episodes", f"{facts.episodes}, {lengths}"),
        ("Frames", str(facts.frames)),
        ("Frames a second", f"{facts.fps:g}" if facts.fps else "unknown"),
        ("Tasks", "; ".join(facts.tasks) or "none"),
        ("Widths", ", ".join(f"{name} {width}" for name, width in facts.widths.items()) or "none"),
        ("Size", f"{facts.bytes / 1e6:.1f} MB in {facts.files} files"),
    ]
    for camera in facts.cameras:
        size = (
            f"{camera.codec}, {camera.width}x{camera.height}" if camera.width else camera.codec or "no file"
        )
        rows.append((camera.name, f"{size}, {camera.frames} frames in {camera.files} files"))
    for name, value in rows:
        yield f"<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>"
    yield "</tbody></table>"


def _channels(report: AuditReport) -> Iterable[str]:
    if not report.policy or not report.channels:
        return
    needs = report.policy
    yield f"<h2>Channels as {escape(needs.name)} sees them</h2>"
    yield (
        '<p class="dim">Normalised: y = 2 (x &minus; q01) / (q99 &minus; q01) &minus; 1, not clipped. '
        f"Actions beyond |y| = {needs.max_magnitude:g} are errors, beyond {needs.warn_magnitude:g} warnings. "
        f"q01 and q99 are those of {escape(report.channels[0].source)}. Loss: what the channel alone adds "
        "to the mean loss of the worst sample; a healthy training starts at about 1 to 2 in all.</p>"
    )
    heads = ("q01", "q99", "min", "max", "largest |y|", "outside &plusmn;1", "loss")
    yield '<div class="scroll"><table><thead><tr><th>Feature</th><th>Channel</th>'
    yield "".join(f'<th class="num">{head}</th>' for head in heads) + "</tr></thead><tbody>"
    for channel in report.channels:
        yield _channel(channel, needs.warn_magnitude)
    yield "</tbody></table></div>"


def _channel(channel: Channel, limit: float) -> str:
    loss = "" if channel.chunk_loss is None else f"{channel.chunk_loss:.3g}"
    cells = [f"{v:.4g}" for v in (channel.q01, channel.q99, channel.low, channel.high, channel.largest)]
    cells += [f"{channel.outside_frac:.1%}", loss]
    if channel.is_constant:
        cells[4] = "constant"
    over = ' class="over"' if channel.largest > limit else ""
    numbers = "".join(f'<td class="num">{cell}</td>' for cell in cells)
    return f"<tr{over}><td>{escape(channel.feature)}</td><td>{escape(channel.name)}</td>{numbers}</tr>"


def _coverage(report: AuditReport) -> Iterable[str]:
    yield "<h2>What was checked</h2>"
    yield f"<p>{len(report.ran)} checks in {report.seconds:.1f} s: "
    yield escape("; ".join(item.title for item in report.ran)) + ".</p>"
    if report.not_run:
        yield "<p>Not checked:</p><ul>"
        for item in report.not_run:
            yield f"<li>{escape(item.title)}: {escape(item.why)}</li>"
        yield "</ul>"
