"""Written rows on their way into statistics: some at a time, however the files were packed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from stack.dataset.arrow import flattened, numbers_of

READ_BYTES = 1 << 20
READ_ROWS = 512  # a few hundred kB, which the decoder keeps in memory that it has: thrice as fast as 2,048
GROUPS_BYTES = 2 << 20


def batches(
    file: Path, columns: Sequence[str], groups: tuple[int, int] | None = None
) -> Iterator[pa.RecordBatch]:
    """These columns of a file, `READ_ROWS` rows at most at a time.

    Args:
        groups: the first row group, and the one behind the last; all if not given.
    """
    # Pages come through a buffer: a row group may be larger than all that is held otherwise.
    with pq.ParquetFile(file, buffer_size=READ_BYTES) as parquet:
        first, stop = groups or (0, parquet.num_row_groups)
        for together in _small_groups(parquet.metadata, range(first, stop)):
            yield from parquet.iter_batches(READ_ROWS, together, list(columns), use_threads=False)
            pa.default_memory_pool().release_unused()  # or each group is decoded into new memory


def _small_groups(metadata: pq.FileMetaData, groups: range) -> Iterator[list[int]]:
    """Row groups that are read at once, all of which a reader holds: only small ones together."""
    together: list[int] = []
    held = 0
    for group in groups:
        size = metadata.row_group(group).total_byte_size
        if together and held + size > GROUPS_BYTES:
            yield together
            together, held = [], 0
        together.append(group)
        held += size
    if together:
        yield together


def numbers_in(batch: pa.RecordBatch, feature: str) -> NDArray[Any]:
    """(n,) numbers, or (n, all values of a frame) of lists however deep."""
    chunk = batch.column(feature)  # pyarrow reads `action` for `action.raw` too
    frames, nested = len(chunk), False
    while pa.types.is_list(chunk.type) or pa.types.is_fixed_size_list(chunk.type):
        chunk, nested = flattened(chunk), True
    values = numbers_of(chunk)
    return values.reshape(frames, -1) if nested else values


@dataclass(frozen=True)
class GroupRows:
    """Row groups `groups` (half-open) of a written file; see `stack.dataset.stats_columns.RowsOf`."""

    file: Path
    features: tuple[str, ...]
    groups: tuple[int, int]

    def blocks(self) -> Iterator[dict[str, NDArray[Any]]]:
        for batch in batches(self.file, self.features, self.groups):
            yield {feature: numbers_in(batch, feature) for feature in self.features}
            del batch  # while the next one is read


def group_pieces(
    files: Sequence[Path], features: tuple[str, ...], rows_at_least: int
) -> Iterator[tuple[GroupRows, int]]:
    """All row groups in order, so many rows together, and how many these are; files are not joined."""
    for file in files:
        metadata = pq.read_metadata(file)
        first = rows = 0
        for n in range(metadata.num_row_groups):
            rows += metadata.row_group(n).num_rows
            if rows >= rows_at_least or n + 1 == metadata.num_row_groups:
                yield GroupRows(file, features, (first, n + 1)), rows
                first, rows = n + 1, 0
