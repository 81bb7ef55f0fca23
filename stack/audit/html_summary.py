"""The page's first screen: verdict, what the faults would have cost, what to do next; and the episodes."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from stack.audit.decisions import (
    MENDED,
    MOST_FRAC,
    Choice,
    Decision,
    chosen,
    in_ranges,
    manifest_text,
    source_lines,
)
from stack.audit.html_text import coded, esc, plural, sentence
from stack.audit.kinds import KINDS
from stack.audit.report import AuditReport
from stack.faults import Fault

COSTS = 6
REASONS = 3
EPISODES_SHOWN = 200
ALONE_MOST = 8  # episodes with the same kinds of reasons that get a row each
RANGES_CHARACTERS = 200
SLICED = frozenset(
    {
        "state-too-wide",
        "action-too-wide",
        "channel-extreme-scale",
        "channel-rare-binary",
        "prompt-too-long",
    }
)
LISTED = frozenset({"extra-policy-feature", "policy-feature-missing"})


def summary(report: AuditReport) -> Iterator[str]:
    facts, counts = report.facts, report.counts
    fps = f"{facts.fps:g} fps" if facts.fps else "fps unknown"
    minutes = f", {facts.frames / facts.fps / 60:.1f} min" if facts.fps else ""
    yield f'<div class="dim">{esc(facts.version or "unknown layout")} · '
    listed = len(report.decisions)
    lost = f" of {listed}, the others without rows that can be read" if listed > facts.episodes else ""
    yield f"{plural(facts.episodes, 'episode')}{lost} · "
    yield f"{plural(facts.frames, 'frame')} ({fps}{minutes}) · {plural(len(facts.cameras), 'camera')} · "
    yield f"{facts.bytes / 1e6:,.1f} MB</div>"
    verdict = sentence(report.verdict())
    yield f'<div class="verdict{"" if report.ok else " bad"}">{esc(verdict)}</div>'
    yield '<div class="tiles">'
    for word, number in (
        ("error", counts["error"]),
        ("warning", counts["warning"]),
        ("note", counts["note"]),
    ):
        yield f'<div class="tile"><b class="{word}">{number:,}</b>{word if number == 1 else word + "s"}</div>'
    if report.decisions:
        tiles: tuple[tuple[Choice, str], ...] = (
            ("use", "to use"),
            ("look", "to look at"),
            ("drop", "to leave out"),
        )
        for choice, said in tiles:
            number = len(chosen(report.decisions, choice))
            word = "episode" if number == 1 else "episodes"
            yield f'<div class="tile"><b class="{choice}">{number:,}</b>{word} {said}</div>'
    yield '</div><div class="brief"><div><h3>What it would have cost</h3>'
    yield from _costs(report)
    yield "</div><div><h3>What to do next</h3><ol>"
    yield from (f"<li>{step}</li>" for step in steps(report))
    yield "</ol></div></div>"


def _costs(report: AuditReport) -> Iterator[str]:
    first: dict[str, Fault] = {}
    for fault in report.faults:
        if fault.severity == "error":
            first.setdefault(fault.code, fault)
    if not first:
        yield "<p>Nothing was found that would stop a training or make it wrong.</p>"
        return
    yield "<p>Trained on as it is:</p><ul>"
    for fault in list(first.values())[:COSTS]:
        kind = KINDS.get(fault.code)
        title = kind.title if kind else fault.code
        yield f"<li><b>{esc(sentence(title))}</b> {coded(sentence(fault.consequence))}</li>"
    yield "</ul>"
    if len(first) > COSTS:
        yield f"<p>And {plural(len(first) - COSTS, 'kind')} of error more, below.</p>"


def steps(report: AuditReport) -> list[str]:
    """What to do, in order, as escaped HTML; every error and warning is in one of the steps."""
    serious = [fault for fault in report.faults if fault.severity != "note"]
    found: list[str] = []
    left = {fault.code for fault in serious}
    dropped, looked = chosen(report.decisions, "drop"), chosen(report.decisions, "look")
    if dropped:
        own = [decision.episode for decision in dropped]
        text = f"Leave out {plural(len(own), 'episode')} of {len(report.decisions):,} ({in_ranges(own)})"
        if len(own) == len(report.decisions):
            text += ": nothing would be left, better ask for a new delivery"
        elif len(own) > MOST_FRAC * len(report.decisions):
            text += "; with so many, better ask for a new delivery"
        codes = left & _only_in_episodes(report)
        found.append(f"{esc(text)}: <code>exclude_episodes: [{esc(in_ranges(own))}]</code>. {_named(codes)}")
        left -= codes
    if looked:
        own = [decision.episode for decision in looked]
        codes = {r.code for d in looked for r in d.reasons} & left
        shown = f"episode {in_ranges(own)}" if len(own) == 1 else f"episodes {in_ranges(own)}"
        has_frames = any(f.where.frame is not None for f in serious if f.code in codes)
        below = " (pictures of the places stand below)" if has_frames else ""
        found.append(f"Look at {esc(shown)}{below}, and use or exclude them. {_named(codes)}")
        left -= codes
    decide = [line for line in source_lines(report) if line.startswith("decide")]
    if decide:
        codes = {c for c in left if "decide:" in (KINDS[c].mend if c in KINDS else "")}
        found.append(f"Settle in the manifest: <code>{esc(decide[0])}</code>. {_named(codes)}")
        left -= codes
    if report.slice and left & SLICED:
        found.append(f"Keep the channels that the manifest below lists. {_named(left & (SLICED | LISTED))}")
        left -= SLICED | LISTED
    prepared = {
        c for c in left if c in MENDED or any("stack prepare" in f.mend for f in serious if f.code == c)
    }
    # By hand first: what is prepared then is whole.
    for code in sorted(left - prepared):
        fault = next(fault for fault in serious if fault.code == code)
        mend = fault.mend.partition("\n")[0].rstrip(":")
        found.append(f"{coded(sentence(mend))} {_place(fault)}{_named({code})}")
    if prepared:
        found.append(
            f"Run <code>stack prepare</code>: it writes the dataset anew and mends {_named(prepared, '')}"
        )
    if not serious:
        return ["Train on it."]
    if report.ok and not (dropped or decide or report.slice or left):
        return [*found, "Then train on it: nothing here stops a training or makes it wrong."]
    return [*found, "Audit again what <code>stack prepare</code> wrote, before it goes to a training."]


def _place(fault: Fault) -> str:
    """The first place, and how many more there are."""
    if not str(fault.where):
        return ""
    more = f" and {plural(fault.count - 1, 'place')} more" if fault.count > 1 else ""
    return f'<span class="dim">At <code>{esc(str(fault.where))}</code>{more}.</span> '


def _only_in_episodes(report: AuditReport) -> set[str]:
    """Codes that go with the dropped episodes: none of their places is elsewhere."""
    codes = {reason.code for decision in chosen(report.decisions, "drop") for reason in decision.reasons}
    kept = {reason.code for decision in chosen(report.decisions, "look") for reason in decision.reasons}
    of_all = {
        fault.code
        for fault in report.faults
        if any((place.file or "").startswith("meta/") for place in (fault.places or (fault.where,)))
    }
    return codes - kept - of_all - MENDED


def _named(codes: set[str], before: str = "Mends ") -> str:
    if not codes:
        return ""
    listed = ", ".join(f"<code>{esc(code)}</code>" for code in sorted(codes))
    return f'<span class="dim">{before}{listed}.</span>'


def manifest(report: AuditReport) -> Iterator[str]:
    """The lines to paste, where any are needed."""
    if not (report.slice or source_lines(report)):
        return
    text = manifest_text([(report, f"PATH/TO/{report.facts.name}")])
    yield "<h2>The manifest that mends it</h2>"
    yield '<p class="dim">Ready for <code>stack prepare</code> once the path is right; '
    yield "<code>stack audit --decisions FILE</code> writes it with the path.</p>"
    yield f'<pre class="long">{esc(text)}</pre>'


def _alike(decisions: list[Decision]) -> list[list[Decision]]:
    """Episodes one by one, but many with the same kinds of reasons together."""
    kinds: dict[tuple[Choice, tuple[str, ...]], list[Decision]] = {}
    for decision in decisions:
        codes = tuple(dict.fromkeys(reason.code for reason in decision.reasons))
        kinds.setdefault((decision.choice, codes), []).append(decision)
    return [
        group
        for own in kinds.values()
        for group in ([own] if len(own) > ALONE_MOST else [[decision] for decision in own])
    ]


def _episode_row(group: list[Decision]) -> str:
    first = group[0]
    why = "".join(
        f"<p><code>{esc(reason.code)}</code> {esc(reason.message)}</p>" for reason in first.reasons[:REASONS]
    )
    more = len(first.reasons) - REASONS
    why += f'<p class="dim">and {plural(more, "reason")} more</p>' if more > 0 else ""
    named = str(first.episode)
    if len(group) > 1:
        named = textwrap.shorten(in_ranges([d.episode for d in group]).replace('"', ""), RANGES_CHARACTERS)
        of_first = f"Of episode {first.episode}; the other {len(group) - 1:,} have reasons of the same kinds:"
        why = f'<p class="dim">{of_first}</p>{why}'
    return (
        f'<tr><td class="num">{esc(named)}</td><td class="tag {first.choice}">{first.choice}</td>'
        f"<td>{why}</td></tr>"
    )


def episodes(report: AuditReport) -> Iterator[str]:
    """Decisions with their reasons, the same reasons of many episodes once; those to use are counted only."""
    if not report.decisions:
        return
    yield '<h2 id="episodes">Decision on each episode</h2>'
    odd = [*chosen(report.decisions, "drop"), *chosen(report.decisions, "look")]
    used = [decision.episode for decision in chosen(report.decisions, "use")]
    if odd:
        yield '<table class="episodes"><thead><tr><th>Episode</th><th>Decision</th>'
        yield "<th>Why</th></tr></thead><tbody>"
        groups = _alike(odd)
        yield from map(_episode_row, groups[:EPISODES_SHOWN])
        yield "</tbody></table>"
        if left := sum(len(group) for group in groups[EPISODES_SHOWN:]):
            yield f"<p>{left:,} more are left out here; the JSON report has them all.</p>"
    said = f"{plural(len(used), 'episode')} to use as they are: {in_ranges(used)}".replace('"', "")
    yield f'<p class="use">{esc(said) if used else "No episode can be used as it is"}.</p>'
    yield '<p class="dim">Only what belongs to single episodes decides here. What a slice, new statistics or '
    yield "<code>stack prepare</code> mend says nothing against an episode.</p>"
