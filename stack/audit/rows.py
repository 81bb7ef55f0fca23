"""All rows of a dataset as arrays, with what was odd about how they are stored.

Values keep their stored precision. Pooled over 305,425 rows, 199 float32 channels take 243 MB.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from stack.faults import Place

Array = NDArray[Any]


FLOAT32_BYTES = 4
FLOAT32_MOST = float(np.finfo(np.float32).max)


def finite(values: Array) -> NDArray[np.bool_]:
    """Which numbers are finite once they are loaded as float32."""
    good: NDArray[np.bool_] = np.isfinite(values)
    if values.dtype.kind == "f" and values.dtype.itemsize > FLOAT32_BYTES:
        good &= (values <= FLOAT32_MOST) & (values >= -FLOAT32_MOST)
    return good


@dataclass(frozen=True)
class Span:
    """Consecutive rows of one episode: `start` counts over all files in loading order."""

    episode: int
    file: str
    start: int
    count: int


def in_episode(spans: Iterable[Span]) -> Iterator[tuple[Span, int]]:
    """Each span with the frame of its episode at which it begins: an episode may lie in several pieces."""
    before: dict[int, int] = {}
    for span in spans:
        offset = before.get(span.episode, 0)
        before[span.episode] = offset + span.count
        yield span, offset


@dataclass
class Column:
    """One column over all rows.

    Attributes:
        values: (N, D) numbers; rows that are absent, null or of another width are NaN. None where the
            column holds no numbers.
        present: (N,) rows that have a value of the right width.
        types: arrow types as stored -> the first file that has it.
        null_rows: rows that hold a null, whole or in one element, ascending.
        odd_widths: (row, width) of rows whose width is not D.
        absent_in: row files without this column.
        texts: stored values of a text column.
    """

    values: Array | None
    present: NDArray[np.bool_]
    types: dict[pa.DataType, str]
    null_rows: list[int] = field(default_factory=list)
    odd_widths: list[tuple[int, int]] = field(default_factory=list)
    absent_in: list[str] = field(default_factory=list)

    @property
    def width(self) -> int:
        return 0 if self.values is None else int(self.values.shape[1])

    def whole_numbers(self) -> NDArray[np.int64] | None:
        """(N,) the one-wide column as whole numbers, 0 where absent; None where a present row is not one.

        They may be the column's own values: they are not to be written to.
        """
        if self.values is None or self.width != 1:
            return None
        flat = self.values[:, 0]
        if flat.dtype.kind != "f":
            return flat.astype(np.int64, copy=False)
        own = flat[self.present]
        if not (np.isfinite(own).all() and (own == np.rint(own)).all() and (np.abs(own) < 2.0**62).all()):
            return None
        return np.where(self.present, flat, 0).astype(np.int64)


class NotRead(Exception):
    """Asked for what this audit leaves on disk, see `Evidence.form_only`."""


class UnreadColumn(Column):
    """A column of vectors whose values were left on disk: whoever asks for them learns it by `NotRead`."""

    @property
    def values(self) -> Array | None:
        raise NotRead

    @values.setter
    def values(self, values: Array | None) -> None:
        assert values is None


@dataclass(frozen=True)
class Rows:
    """All rows that could be read.

    Attributes:
        files: row files that could be read, in loading order, with their first row and count.
        unread: row files that could not be.
        doubled: (file, column) of columns that a file holds twice.
        groups: rows of each row group, by file.
    """

    files: tuple[tuple[str, int, int], ...]
    unread: tuple[str, ...]
    spans: tuple[Span, ...]
    columns: dict[str, Column]
    doubled: tuple[tuple[str, str], ...]
    count: int
    groups: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    @cached_property
    def lengths(self) -> dict[int, int]:
        """Rows of each episode."""
        lengths: dict[int, int] = {}
        for span in self.spans:
            lengths[span.episode] = lengths.get(span.episode, 0) + span.count
        return lengths

    @cached_property
    def _starts(self) -> NDArray[np.int64]:
        return np.array([span.start for span in self.spans], np.int64)

    def place(self, row: int, feature: str | None = None, channel: str | None = None) -> Place:
        """Where a row is: file, episode, and frame counted from the episode's first row."""
        at = int(np.searchsorted(self._starts, row, side="right")) - 1
        if at < 0:
            return Place(feature=feature, channel=channel)
        span = self.spans[at]
        return Place(span.file, span.episode, row - span.start, feature, channel)
