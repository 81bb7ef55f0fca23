"""Equal faults as one entry, so that a report stays one that people read."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from stack.faults import PLACES_KEPT, Fault, fold

FEATURES_MOST = 30  # entries of one code and severity, one a feature
NAMED = 10


def fold_for_report(faults: Iterable[Fault]) -> list[Fault]:
    """As `stack.faults.fold`; where very many features share a code, one entry stands for the later ones."""
    groups: dict[tuple[str, str], list[Fault]] = {}
    for fault in fold(faults):
        groups.setdefault((fault.severity, fault.code), []).append(fault)
    return [entry for group in groups.values() for entry in _at_most(group)]


def _at_most(group: list[Fault]) -> list[Fault]:
    if len(group) <= FEATURES_MOST:
        return group
    kept, rest = group[: FEATURES_MOST - 1], group[FEATURES_MOST - 1 :]
    names = [fault.where.feature or "" for fault in rest]
    shown = ", ".join(names[:NAMED]) + (", ..." if len(names) > NAMED else "")
    places = [place for fault in rest for place in (fault.places or (fault.where,))]
    whole = replace(
        rest[0],
        message=f"{len(rest)} features more have the same: {shown}. Of the first: {rest[0].message}",
        count=sum(fault.count for fault in rest),
        where=replace(rest[0].where, feature=None, channel=None),
        places=tuple(places[:PLACES_KEPT]),
        data={"features": names},
    )
    return [*kept, whole]
