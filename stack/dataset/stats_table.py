"""Statistics of many episodes side by side: one array a statistic, not a hundred small ones an episode."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import TypeAlias

import numpy as np

from stack.dataset.stats import Stats

NAMES = tuple(field.name for field in fields(Stats))
# Feature -> statistics whose arrays have a leading axis, one place an episode.
StatsTable: TypeAlias = dict[str, Stats]


def put(table: StatsTable, place: int, episodes: int, stats: Mapping[str, Stats]) -> None:
    """Fill one place of a table of so many episodes, which all have the same features."""
    for feature, own in stats.items():
        if feature not in table:
            given = {name: getattr(own, name) for name in NAMES}
            table[feature] = Stats(
                **{name: np.empty((episodes, *array.shape), array.dtype) for name, array in given.items()}
            )
        for name in NAMES:
            getattr(table[feature], name)[place] = getattr(own, name)


def take(table: StatsTable, place: int) -> dict[str, Stats]:
    """Feature -> statistics of one episode."""
    return {
        feature: Stats(**{name: getattr(entry, name)[place] for name in NAMES})
        for feature, entry in table.items()
    }
