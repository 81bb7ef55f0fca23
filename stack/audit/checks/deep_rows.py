"""Pictures that lie in the rows, decoded one by one for `deep_scan`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray


def count_rows(file: Path) -> int:
    import pyarrow.parquet as pq

    return int(pq.ParquetFile(file).metadata.num_rows)


def row_planes(file: Path, column: str) -> Iterator[tuple[int, tuple[NDArray[np.uint8], ...] | str]]:
    """(row, planes): brightness and two colour planes (H, W), 0 to 255; or why they cannot be decoded."""
    from stack.audit.checks.picture_columns import cells

    try:
        for row, cell in cells(file, column):
            yield row, cell if isinstance(cell, str) else _planes_or_why(cell)
    except Exception as error:  # a damaged page: what comes after it in the file is not reached
        yield -1, f"{type(error).__name__}: {error}"


def _planes_or_why(cell: bytes) -> tuple[NDArray[np.uint8], ...] | str:
    try:
        return planes_of(cell)
    except Exception as error:  # damaged pictures find new ways to fail inside the decoder
        return f"{type(error).__name__}: {error}"


def planes_of(cell: bytes) -> tuple[NDArray[np.uint8], ...]:
    """Planes of an encoded picture.

    Raises:
        StackError: as `stack.dataset.pictures.decode_picture`.
    """
    from av import VideoFrame

    from stack.dataset.pictures import decode_picture

    picture = VideoFrame.from_ndarray(decode_picture(cell, ""), format="rgb24")
    planes = picture.reformat(format="yuvj444p").to_ndarray(format="yuvj444p")
    return tuple(planes)
