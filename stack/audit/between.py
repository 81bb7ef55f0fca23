"""Datasets against one another, before they are merged: what differs, and whether a merge may settle it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from stack.audit import between_kinds as kinds
from stack.audit.apart import sheltered
from stack.audit.between_kinds import between_fault
from stack.audit.between_units import SHOWN, units_differ
from stack.audit.declared import flat_names
from stack.audit.evidence import Evidence
from stack.audit.kinds import PolicyNeeds
from stack.audit.profile import Profile, profile_of
from stack.audit.report import AuditReport, plain
from stack.audit.run import judge
from stack.audit.takes import repeats
from stack.dataset.model import Feature
from stack.errors import BadRequest
from stack.faults import Fault, Place, fold, has_errors

SCHEMA = "stack/audit-between/1"
# Keys of a feature's entry that other checks compare.
_COMPARED = {"dtype", "shape", "names"}


@dataclass(frozen=True)
class SeveralReport:
    """A report of each dataset, and what lies between them."""

    reports: Mapping[str, AuditReport]
    faults: tuple[Fault, ...]

    @property
    def ok(self) -> bool:
        return not has_errors(self.faults) and all(report.ok for report in self.reports.values())

    def to_json(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "ok": self.ok,
            "datasets": {name: report.to_json() for name, report in self.reports.items()},
            "between": [plain(fault.to_json()) for fault in self.faults],
        }


@sheltered
def audit_several(
    roots: Sequence[Path],
    *,
    policy: PolicyNeeds | None = None,
    deep: bool = False,
    max_seconds: float | None = None,
    log: Callable[[str], None] = lambda _: None,
) -> SeveralReport:
    """Audit each dataset, then compare them; only one dataset's rows are held at a time.

    Args:
        max_seconds: for each dataset.

    Raises:
        BadRequest: fewer than two folders, one named twice, or one that is not there.
    """
    if len(roots) < 2 or len({root.resolve() for root in roots}) < len(roots):
        raise BadRequest(
            "audit-not-several",
            f"comparing needs at least two different folders, not {', '.join(map(str, roots))}",
            do="name each dataset once",
        )
    reports: dict[str, AuditReport] = {}
    profiles = []
    for root, name in zip(roots, _names(roots), strict=True):
        log(f"audit: {name}")
        evidence = Evidence(root)
        report = judge(evidence, policy=policy, deep=deep, max_seconds=max_seconds, log=log)
        reports[name] = report
        if not report.of("unchecked-time-up"):
            profiles.append(profile_of(evidence, name))
    return SeveralReport(reports, tuple(compare(profiles)))


def _names(roots: Sequence[Path]) -> list[str]:
    names = [root.resolve().name for root in roots]
    return names if len(set(names)) == len(names) else [str(root) for root in roots]


def compare(profiles: Sequence[Profile]) -> list[Fault]:
    """All faults between these datasets, folded; each says under `merge` who may settle it."""
    faults: list[Fault] = []
    if len(profiles) < 2:
        return faults
    faults += _heads(profiles)
    for name in sorted({name for profile in profiles for name in profile.features}):
        faults += _feature(name, profiles)
    faults += _tasks(profiles)
    for a, b in combinations(profiles, 2):
        faults += _duplicates(a, b)
        faults += units_differ(a, b)
    return fold(faults)


def _heads(profiles: Sequence[Profile]) -> Iterator[Fault]:
    for kind, key, merge in (
        (kinds.FPS, "fps", "refuses"),
        (kinds.ROBOT, "robot_type", "with a manifest line"),
        (kinds.VERSION, "version", "settles"),
    ):
        values = {profile.name: getattr(profile, key) for profile in profiles}
        if len({str(value) for value in values.values()}) > 1:
            place = Place(profiles[1].info, feature=key)
            yield between_fault(kind, f"{key}: {_pairs(values)}", merge, place, data={"values": values})


def _pairs(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{value} in {name}" for name, value in values.items())


def _feature(name: str, profiles: Sequence[Profile]) -> Iterator[Fault]:
    have = [profile for profile in profiles if name in profile.features]
    lack = [profile.name for profile in profiles if name not in profile.features]
    if lack:
        where = Place(f"{lack[0]}/meta/info.json", feature=name)
        there = ", ".join(profile.name for profile in have)
        message = f"{name} is in {there}, not in {', '.join(lack)}"
        yield between_fault(kinds.FEATURE, message, "with a manifest line", where)
    if len(have) < 2:
        return
    features = {profile.name: profile.features[name] for profile in have}
    place = Place(have[1].info, feature=name)
    if any(feature.is_camera for feature in features.values()):
        yield from _camera(name, have, place)
    else:
        yield from _vector(name, have, features, place)
    yield from _entries(name, features, place)


def _vector(
    name: str, have: Sequence[Profile], features: Mapping[str, Feature], place: Place
) -> Iterator[Fault]:
    widths = {p.name: p.widths.get(name) or int(np.prod(p.features[name].shape or (1,))) for p in have}
    if len(set(widths.values())) > 1:
        message = f"{name} is {_pairs(widths)} wide"
        yield between_fault(kinds.WIDTH, message, "with a manifest line", place, data={"widths": widths})
    else:
        yield from _names_differ(name, features, place)
    types = {p.name: p.stored.get(name, p.features[name].dtype) for p in have}
    declared = {p.name: p.features[name].dtype for p in have}
    groups = {_group(dtype) for dtype in declared.values()}
    if len(groups) > 1:
        message = f"{name} is {_pairs(declared)}"
        yield between_fault(kinds.DTYPE, message, "refuses", place, severity="error")
    elif len(set(types.values())) > 1 or len(set(declared.values())) > 1:
        yield between_fault(kinds.DTYPE, f"{name} is stored as {_pairs(types)}", "settles", place)


def _group(dtype: str) -> str:
    if dtype.startswith(("float", "double", "half")):
        return "fractions"
    return "texts" if dtype in ("string", "language") else "whole numbers"


def _names_differ(name: str, features: Mapping[str, Feature], place: Place) -> Iterator[Fault]:
    given = {source: feature.names for source, feature in features.items() if feature.names is not None}
    if given and len(given) < len(features):
        lack = ", ".join(source for source in features if source not in given)
        message = f"{name} has no names in {lack}"
        yield between_fault(kinds.NAMES, message, "settles", place, severity="note")
    if not given:
        return
    (first_source, first), *others = given.items()
    for source, names in others:
        if names == first or len(names) != len(first):
            continue
        at = next(i for i, (a, b) in enumerate(zip(first, names, strict=True)) if a != b)
        message = f"{name}: channel {at} is '{first[at]}' in {first_source} and '{names[at]}' in {source}"
        where = Place(f"{source}/meta/info.json", feature=name, channel=f"{names[at]} [{at}]")
        same = sorted(names) == sorted(first)
        yield between_fault(kinds.ORDER if same else kinds.NAMES, message, "with a manifest line", where)


def _camera(name: str, have: Sequence[Profile], place: Place) -> Iterator[Fault]:
    found: dict[tuple[str, str, str], tuple[str, int]] = {}
    for profile in have:
        for video, episode in profile.videos.get(name, {}).items():
            found.setdefault(video, (profile.name, episode))
    if len(found) > 1:
        said = "; ".join(
            f"{' '.join(video)} in {source} (episode {episode})"
            for video, (source, episode) in list(found.items())[:SHOWN]
        )
        message = f"{name}: {said}"
        if len({size for _, size, _ in found}) > 1:
            yield between_fault(kinds.VIDEO, message, "refuses", place)
        else:
            yield between_fault(kinds.VIDEO, message, "settles", place, severity="note")
    forms = {profile.name: profile.features[name].dtype for profile in have}
    if len(set(forms.values())) > 1:
        message = f"{name} is {_pairs(forms)}"
        yield between_fault(kinds.DTYPE, message, "refuses", place, severity="error")


def _entries(name: str, features: Mapping[str, Feature], place: Place) -> Iterator[Fault]:
    """Keys of the entries that are written differently although they say the same, or nothing of weight."""
    keys = sorted({key for feature in features.values() for key in feature.raw} - _COMPARED)
    differ = [key for key in keys if len({repr(f.raw.get(key)) for f in features.values()}) > 1]
    raw_names = {source: feature.raw.get("names") for source, feature in features.items()}
    flat = {tuple(flat_names(value) or ()) for value in raw_names.values()}
    if len({repr(value) for value in raw_names.values()}) > 1 and len(flat) == 1:
        differ.append("names (in form)")
    shapes = {feature.shape for feature in features.values() if feature.is_camera}
    if len(shapes) > 1:
        differ.append("shape")
    for key in differ:
        values = {source: _short(feature.raw.get(key.split(" ")[0])) for source, feature in features.items()}
        message = f"{name}.{key}: {_pairs(values)}"
        yield between_fault(kinds.ENTRY, message, "settles", place, data={"key": key})


def _short(value: Any) -> str:
    text = "none" if value is None else str(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _tasks(profiles: Sequence[Profile]) -> Iterator[Fault]:
    seen: dict[str, tuple[str, str]] = {}
    for profile in profiles:
        for text in profile.tasks:
            key = re.sub(r"[\W_]+", "", text).casefold()
            source, first = seen.setdefault(key, (profile.name, text))
            if first != text and source != profile.name:
                message = f"{first!r} in {source} and {text!r} in {profile.name}"
                yield between_fault(
                    kinds.TASKS, message, "with a manifest line", Place(f"{profile.name}/meta/tasks")
                )


def _duplicates(a: Profile, b: Profile) -> Iterator[Fault]:
    for digest, episode in b.takes.items():
        if digest in a.takes:
            yield between_fault(
                kinds.DUPLICATE,
                f"episode {episode} of {b.name} has the rows of episode {a.takes[digest]} of {a.name}",
                "with a manifest line",
                Place(b.name, episode),
                data={"of": [a.name, a.takes[digest]]},
            )
    equal = {episode for digest, episode in b.takes.items() if digest in a.takes}
    for repeat in repeats(a.numbers, b.numbers) if a.numbers and b.numbers else ():
        if repeat.later not in equal:
            shift = f", from frame {repeat.lag} of it on" if repeat.lag > 0 else ""
            yield between_fault(
                kinds.DUPLICATE,
                f"episode {repeat.later} of {b.name} has, to rounding, the rows of episode {repeat.earlier}"
                f" of {a.name}{shift}, in {repeat.frames} frames",
                "with a manifest line",
                Place(b.name, repeat.later),
                data={"of": [a.name, repeat.earlier], "lag_frames": repeat.lag, "frames": repeat.frames},
            )
