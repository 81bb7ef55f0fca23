"""What to do with each episode: use it, look at it, or leave it out; and the manifest lines that do so.

Only faults that belong to single episodes decide. What a slice, a merge or new statistics mend (widths,
scale, shapes of statistics, timestamps that `prepare` writes anew) says nothing against an episode.
"""

from __future__ import annotations

import json
import os
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from stack.audit.kinds import KINDS
from stack.audit.layout import named_data_file
from stack.faults import Fault, Place

if TYPE_CHECKING:
    from stack.audit.evidence import Evidence
    from stack.audit.report import AuditReport

Choice = Literal["use", "look", "drop"]
CHOICES: tuple[Choice, ...] = ("drop", "look", "use")
# Nothing but another copy of the recording mends these.
DROP = frozenset(
    {
        "rows-not-finite",
        "video-undecodable",
        "video-size-changes",
        "video-missing",
        "video-length-differs",
        "file-missing",
        "file-empty",
        "file-truncated",
        "file-unreadable",
        "lfs-pointer",
        "episode-without-rows",
        "unchecked-rows",
        "unchecked-video",
        "picture-missing",
        "picture-damaged",
    }
)
# So too where few episodes have it; where most do, the declaration is wrong and not the episodes.
DROP_IF_FEW = frozenset({"width-differs", "column-missing"})
RESTAMPED = (
    "timestamps-off",
    "timestamps-not-rising",
    "timestamps-global",
    "time-bases-mixed",
    "clock-drift",
)
# `prepare` writes these anew from counted rows and pictures; the episode itself is sound.
MENDED = frozenset(
    {
        *(code for code in RESTAMPED if code != "timestamps-not-rising"),
        "video-not-constant-rate",
        "video-start-not-zero",
        "video-fps-differs",
        "fps-not-whole",
        "index-gaps",
        "episode-order",
        "episode-length-differs",
        "rows-range-wrong",
        "data-file-index-wrong",
        "clip-times-wrong",
        "clip-times-missing",
        "video-codec-differs",
        "video-open-gop",
        "video-size-differs",
        "camera-without-files",
        "key-frames-far-apart",
        "totals-lie",
        "splits-lie",
        "template-does-not-resolve",
    }
)
LOOKED_AT_GROUPS = ("rows", "time", "video", "unchecked")
MOST_FRAC = 0.5  # a delivery of which more than this must go is better sent back
SHOWN = 3
COMMENT_CHARACTERS = 240
COMMENTED = 200  # episodes; the reports have the reasons of all


@dataclass(frozen=True)
class Reason:
    code: str
    message: str


@dataclass(frozen=True)
class Decision:
    """What to do with one episode, and why; no reasons where it is to be used."""

    episode: int
    choice: Choice
    reasons: tuple[Reason, ...] = ()

    def to_json(self) -> dict[str, Any]:
        reasons = [{"code": r.code, "message": r.message} for r in self.reasons]
        return {"episode": self.episode, "choice": self.choice, "reasons": reasons}


def decide(evidence: Evidence, faults: Iterable[Fault]) -> tuple[Decision, ...]:
    """A decision for every episode that has rows or is listed.

    Args:
        faults: as the checks gave them, not folded: folding keeps the first places only.
    """
    owners: dict[str, set[int]] = {}
    for (_, episode), file in evidence.layout.video_of.items():
        owners.setdefault(file, set()).add(episode)
    for file, number in evidence.layout.data_files:
        if number is not None:
            owners.setdefault(file, set()).add(number)
    for span in evidence.rows.spans:
        owners.setdefault(span.file, set()).add(span.episode)
    for entry in evidence.episodes if evidence.is_v3 else ():
        named = named_data_file(evidence, evidence.layout, entry.raw)
        if entry.index is not None and named is not None and named in evidence.rows.unread:
            owners.setdefault(named, set()).add(entry.index)
    listed = {entry.index for entry in evidence.episodes if entry.index is not None}
    return choose(sorted(listed | set(evidence.rows.lengths)), owners, faults)


def choose(
    episodes: Sequence[int], owners: Mapping[str, set[int]], faults: Iterable[Fault]
) -> tuple[Decision, ...]:
    """Decide from plain data. `owners`: row or video file -> the episodes that it holds."""
    known, faults = set(episodes), list(faults)
    few = {
        code
        for code in DROP_IF_FEW
        if 2
        * len({e for f in faults if f.code == code for p in _places(f) for e in _concerned(p, f, owners)})
        <= len(known)
    }
    found: dict[int, dict[Reason, Choice]] = {episode: {} for episode in episodes}
    for fault in faults:
        choice: Choice = "drop" if fault.code in few else _choice(fault)
        if choice == "use":
            continue
        for place in _places(fault):
            for episode in sorted(_concerned(place, fault, owners) & known):
                # A file of many episodes that is short by a frame does not say which one is wrong.
                unsure = place.episode is None and fault.code == "video-length-differs"
                own: Choice = "look" if unsure and len(_concerned(place, fault, owners)) > 1 else choice
                found[episode].setdefault(Reason(fault.code, fault.message), own)
    return tuple(_decision(episode, found[episode]) for episode in episodes)


def _places(fault: Fault) -> tuple[Place, ...]:
    return fault.places or (fault.where,)


def _choice(fault: Fault) -> Choice:
    if fault.data.get("jumps"):
        return "drop"  # rows may be lost or out of order, which nothing numbers over
    if fault.code in MENDED or fault.severity == "note":
        return "use"
    if fault.code in DROP:
        return "drop"
    kind = KINDS.get(fault.code)
    return "look" if kind is not None and kind.group in LOOKED_AT_GROUPS else "use"


def _concerned(place: Place, fault: Fault, owners: Mapping[str, set[int]]) -> set[int]:
    if place.episode is not None:
        return {place.episode}
    named = fault.data.get("episodes")
    if isinstance(named, list):
        return {episode for episode in named if isinstance(episode, int)}
    return set(owners.get(place.file or "", ()))


def _decision(episode: int, found: Mapping[Reason, Choice]) -> Decision:
    choice: Choice = "drop" if "drop" in found.values() else "look" if found else "use"
    worst_first = sorted(found, key=lambda reason: CHOICES.index(found[reason]))
    return Decision(episode, choice, tuple(worst_first))


def chosen(decisions: Iterable[Decision], choice: Choice) -> list[Decision]:
    return [decision for decision in decisions if decision.choice == choice]


def in_ranges(numbers: Sequence[int]) -> str:
    """`[3, 7, 8, 9]` -> `3, "7-9"`, as `exclude_episodes` takes it."""
    parts = []
    for _, run in groupby(enumerate(sorted(numbers)), key=lambda pair: pair[1] - pair[0]):
        own = [number for _, number in run]
        parts += [f'"{own[0]}-{own[-1]}"'] if len(own) > 2 else [str(number) for number in own]
    return ", ".join(parts)


def summary(decisions: Sequence[Decision]) -> str:
    counts = ", ".join(f"{choice} {len(chosen(decisions, choice))}" for choice in reversed(CHOICES))
    return f"{counts} of {len(decisions)} episodes"


def source_lines(report: AuditReport) -> list[str]:
    """Keys of the delivery's entry under `sources:`, without its path; empty where none is needed."""
    lines = []
    dropped = [decision.episode for decision in chosen(report.decisions, "drop")]
    if dropped:
        lines.append(f"exclude_episodes: [{in_ranges(dropped)}]")
    decide = []
    if any(report.of(code) for code in RESTAMPED):
        decide.append("timestamps: restamp")
    if report.of("camera-without-files"):
        decide.append("missing_cameras: drop")
    if decide:
        lines.append(f"decide: {{{', '.join(decide)}}}")
    return lines


def fragment(entries: Sequence[tuple[AuditReport, Path]], beside: Path) -> str:
    """A dataset manifest over one or more deliveries that leaves out what must go.

    Args:
        entries: reports with the folders that they are of.
        beside: the file that it will be written to; the paths in it are relative to that.
    """
    base = os.path.dirname(os.path.abspath(beside))
    return manifest_text([(r, os.path.relpath(os.path.abspath(root), base)) for r, root in entries])


def manifest_text(entries: Sequence[tuple[AuditReport, str]]) -> str:
    """The manifest, with a path for each report's delivery."""
    names = [re.sub(r"[^A-Za-z0-9._-]+", "-", report.facts.name).strip("-._") for report, _ in entries]
    lines = [
        "# What `stack audit` decides. Use it as it is (`stack prepare THIS --out DIR`), or paste from it.",
        "schema: stack/dataset/1",
        f"name: {'-and-'.join(name or 'dataset' for name in names)}",
        "sources:",
    ]
    for report, path in entries:
        lines += [f"  - path: {json.dumps(path, ensure_ascii=False)}"]
        lines += [f"    {line}" for line in [*_comments(report.decisions), *source_lines(report)]]
    slices = list(dict.fromkeys(report.slice for report, _ in entries if report.slice))
    lines += slices[0].splitlines() if slices else []
    if len(slices) > 1:
        lines.append("# The deliveries' channels differ: this slice is the first one's.")
    return "\n".join(lines) + "\n"


def _comments(decisions: Sequence[Decision]) -> Iterator[str]:
    dropped = len(chosen(decisions, "drop"))
    if decisions:
        yield f"# {summary(decisions)}"
    if dropped > MOST_FRAC * len(decisions):
        yield f"# {dropped} of {len(decisions)} episodes must go: better ask for a new delivery."
    odd = [decision for choice in ("drop", "look") for decision in chosen(decisions, choice)]
    for decision in odd[:COMMENTED]:
        why = "; ".join(f"{r.code} ({r.message})" for r in decision.reasons[:SHOWN])
        more = f"; and {len(decision.reasons) - SHOWN} more" if len(decision.reasons) > SHOWN else ""
        text = plain_line(f"{decision.choice} {decision.episode}: {why}{more}")
        short = textwrap.shorten(text, COMMENT_CHARACTERS, placeholder=" ...")
        yield from textwrap.wrap(short, 90, initial_indent="# ", subsequent_indent="#   ")
    if len(odd) > COMMENTED:
        yield f"# And {len(odd) - COMMENTED} episodes more; the reports have their reasons."


def plain_line(text: str) -> str:
    """One line without control characters: names come from the delivery and must not end a comment."""
    return "".join(ch if ch.isprintable() else " " for ch in text)
