"""Which episodes of a source the manifest asks for: by number and by task."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass

from stack.dataset.model import Dataset, Episode
from stack.dataset.selection import Recipe, frame_tasks
from stack.errors import BadRequest
from stack.manifests.dataset import Source


@dataclass(frozen=True)
class LeftOut:
    """Contains the episodes, by number, that the manifest leaves out of a source."""

    source: Source

    def __contains__(self, number: object) -> bool:
        kept = self.source.keep_episodes
        return number in self.source.exclude_episodes or (kept is not None and number not in kept)


def choose_episodes(dataset: Dataset, source: Source, where: str) -> tuple[Episode, ...]:
    """The episodes to take, ascending.

    Raises:
        BadRequest: an episode or task that does not exist, one that is both kept and excluded, or none is
            left.
    """
    chosen = _by_task(dataset, source, _by_number(dataset, source, where), where)
    if not chosen:
        raise BadRequest(
            "prepare-no-episodes",
            f"no episode of source '{dataset.name}' is left",
            where=where,
            do="remove the source, or keep an episode of it",
        )
    return chosen


def _by_number(dataset: Dataset, source: Source, where: str) -> tuple[Episode, ...]:
    known = {episode.index: episode for episode in dataset.episodes}
    for key, numbers in (
        ("exclude_episodes", source.exclude_episodes),
        ("keep_episodes", source.keep_episodes or ()),
    ):
        if missing := [number for number in numbers if number not in known]:
            raise BadRequest(
                "prepare-no-such-episode",
                f"{key} of source '{dataset.name}' names episode {_listed(missing)}, "
                f"but it has episodes {ranges(known)}",
                where=where,
                do=f"correct {key}",
            )
    kept = set(source.keep_episodes) if source.keep_episodes is not None else set(known)
    if both := sorted(kept & set(source.exclude_episodes)) if source.keep_episodes is not None else []:
        raise BadRequest(
            "prepare-episode-both", f"episodes {_listed(both)} are both kept and excluded", where=where
        )
    return tuple(known[i] for i in sorted(kept - set(source.exclude_episodes)))


def _by_task(
    dataset: Dataset, source: Source, episodes: tuple[Episode, ...], where: str
) -> tuple[Episode, ...]:
    """An episode counts for every task that a frame of it has, whatever the meta files list."""
    if source.keep_tasks is None and not source.exclude_tasks:
        return episodes
    recipe = Recipe({}, dict(dataset.tasks))
    tasks = {episode.index: set(frame_tasks(episode, recipe)) for episode in episodes}
    known = set(dataset.tasks.values()).union(*tasks.values())
    for key, texts in (("keep_tasks", source.keep_tasks or ()), ("exclude_tasks", source.exclude_tasks)):
        if unknown := [text for text in texts if text not in known]:
            near = difflib.get_close_matches(unknown[0], sorted(known), n=1, cutoff=0.5)
            hint = f"; did you mean '{near[0]}'?" if near else ""
            raise BadRequest(
                "prepare-no-such-task",
                f"{key} of source '{dataset.name}' names the task '{unknown[0]}'{hint}; it has: "
                + "; ".join(f"'{text}'" for text in sorted(known)),
                where=where,
                do="copy the text exactly as it was delivered",
            )
    kept = [e for e in episodes if source.keep_tasks is None or tasks[e.index] & set(source.keep_tasks)]
    return tuple(e for e in kept if not tasks[e.index] & set(source.exclude_tasks))


def _listed(numbers: Iterable[int]) -> str:
    return ", ".join(str(number) for number in numbers)


def ranges(numbers: Iterable[int]) -> str:
    """`0-4, 7`: a short form of a set of numbers."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs) or "none"
