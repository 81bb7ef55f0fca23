"""A plan in parts: each a dataset of its own, by fractions, episodes or tasks."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import replace

from stack.dataset.selection import Selected
from stack.errors import BadRequest
from stack.manifests.dataset import OfTasks, Part
from stack.prepare.blueprint import Plan
from stack.prepare.cameras import Filled
from stack.prepare.episodes import ranges


def split_plan(made: Plan, parts: Mapping[str, Part], where: str) -> dict[str, Plan]:
    """Name -> plan of that part, episodes renumbered in their order.

    Fractions draw episodes by a hash of their source and number, so that parts are mixed over all sources and
    an episode's draw does not depend on the machine. Counts are whole numbers nearest to the fractions
    (largest remainder); a part of a fraction gets at least one episode.

    Raises:
        BadRequest: an episode or task that the plan does not have, an episode in two parts, or a part without
            an episode.
    """
    chosen = _by_fraction(made, parts) if _has_fractions(parts) else _by_number(made, parts, where)
    if empty := [name for name, numbers in chosen.items() if not numbers]:
        raise BadRequest(
            "prepare-split-empty",
            f"split.{empty[0]} gets none of the {len(made.selection.episodes)} episodes",
            where=where,
            do=f"give split.{empty[0]} more, or leave it out",
        )
    return {name: _part(made, name, numbers) for name, numbers in chosen.items()}


def in_no_part(made: Plan, parts: Iterable[Plan]) -> str | None:
    """A note of the episodes that no part takes; None where there are none."""
    taken = {selected.episode.origin for part in parts for selected in part.selection.episodes}
    left: dict[str, list[int]] = {}
    for selected in made.selection.episodes:
        origin = selected.episode.origin
        if origin not in taken:
            left.setdefault(origin.dataset, []).append(origin.episode)
    if not left:
        return None
    told = ", ".join(f"{name} {ranges(numbers)}" for name, numbers in left.items())
    count = sum(map(len, left.values()))
    return f"split: {count} of {len(made.selection.episodes)} episodes are in no part ({told})"


def _has_fractions(parts: Mapping[str, Part]) -> bool:
    return any(isinstance(part, float) for part in parts.values())


def _by_fraction(made: Plan, parts: Mapping[str, Part]) -> dict[str, list[int]]:
    def draw(selected: Selected) -> str:
        origin = selected.episode.origin
        return hashlib.sha256(f"{origin.dataset}/{origin.episode}".encode()).hexdigest()

    drawn = [s.episode.index for s in sorted(made.selection.episodes, key=draw)]
    fractions = {name: part for name, part in parts.items() if isinstance(part, float)}
    rest = [name for name in parts if name not in fractions]
    left = 1 - sum(fractions.values())
    if rest:
        fractions[rest[0]] = max(left, 0.0)
        left = 0.0
    counts = _whole(fractions, len(drawn), left)
    chosen: dict[str, list[int]] = {}
    at = 0
    for name in parts:
        chosen[name] = sorted(drawn[at : at + counts[name]])
        at += counts[name]
    return chosen


def _whole(fractions: Mapping[str, float], total: int, left: float) -> dict[str, int]:
    """Counts that add up to what the fractions leave of `total`, by the largest remainder."""
    given = total - round(total * left)
    exact = {name: total * fraction for name, fraction in fractions.items()}
    counts = {name: int(value + 1e-9) for name, value in exact.items()}
    by_remainder = sorted(exact, key=lambda name: counts[name] - exact[name])
    for name in by_remainder[: max(0, given - sum(counts.values()))]:
        counts[name] += 1
    for name in [name for name, count in counts.items() if count == 0 and total >= len(counts)]:
        counts[max(counts, key=lambda other: counts[other])] -= 1
        counts[name] = 1
    return counts


def _by_number(made: Plan, parts: Mapping[str, Part], where: str) -> dict[str, list[int]]:
    known = {selected.episode.index for selected in made.selection.episodes}
    chosen: dict[str, list[int]] = {}
    for name, part in parts.items():
        if isinstance(part, OfTasks):
            chosen[name] = _of_tasks(made, name, part, where)
        if not isinstance(part, tuple):
            continue
        if missing := [number for number in part if number not in known]:
            raise BadRequest(
                "prepare-no-such-episode",
                f"split.{name} names episode {missing[0]}, but the prepared dataset has {ranges(known)}",
                where=where,
                do=f"correct split.{name}; `stack prepare --dry-run` shows the numbers",
            )
        chosen[name] = sorted(part)
    taken: dict[int, str] = {}
    for name, numbers in chosen.items():
        for number in numbers:
            if taken.setdefault(number, name) != name:
                raise BadRequest(
                    "prepare-split-overlap",
                    f"episode {number} of the prepared dataset is in split.{taken[number]} and in "
                    f"split.{name}",
                    where=where,
                    do="an episode of several tasks goes by its number: name it in one part, or exclude it",
                )
    listed = set(taken)
    for name, part in parts.items():
        if part == "rest":
            chosen[name] = sorted(known - listed)
    return {name: chosen[name] for name in parts}


def _of_tasks(made: Plan, name: str, part: OfTasks, where: str) -> list[int]:
    known = made.selection.tasks
    if unknown := [text for text in part.tasks if text not in known]:
        raise BadRequest(
            "prepare-no-such-task",
            f"split.{name} names the task '{unknown[0]}'; the prepared dataset has: "
            + "; ".join(f"'{text}'" for text in known),
            where=where,
            do="copy the text as it will be written, after the edits under 'tasks'",
        )
    wanted = set(part.tasks)
    return [s.episode.index for s in made.selection.episodes if wanted & set(s.episode.tasks)]


def _part(made: Plan, name: str, numbers: list[int]) -> Plan:
    selection = made.selection
    taken = set(numbers)
    kept = [s for s in selection.episodes if s.episode.index in taken]
    episodes = tuple(replace(s, episode=replace(s.episode, index=n)) for n, s in enumerate(kept))
    used = {text for s in episodes for text in s.episode.tasks}
    sources = []
    for source in made.sources:
        numbers_of = {s.episode.origin.episode for s in kept if s.recipe == source.dataset.name}
        sources.append(replace(source, episodes=tuple(e for e in source.episodes if e.index in numbers_of)))
    own = {(s.recipe, s.episode.origin.episode) for s in kept}
    return replace(
        made,
        filled=tuple(entry for entry in (_own(entry, own) for entry in made.filled) if entry.episodes),
        name=f"{made.name}-{name}",
        selection=replace(
            selection,
            name=f"{made.name}-{name}",
            episodes=episodes,
            tasks=tuple(text for text in selection.tasks if text in used),
        ),
        sources=tuple(sources),
    )


def _own(entry: Filled, own: set[tuple[str, int]]) -> Filled:
    """What is filled in one part."""
    episodes = {
        source: tuple(number for number in numbers if (source, number) in own)
        for source, numbers in entry.episodes.items()
    }
    return replace(entry, episodes={source: numbers for source, numbers in episodes.items() if numbers})
