"""Exact statistics of a parquet of vectors, feature by feature over worker processes: what one run measures.

Usage: python -m bench.statistics FILE
"""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow.parquet as pq

from stack.dataset.pool import open_pool
from stack.dataset.stats_pooled import Pooling


def main(file: Path) -> None:
    with pq.ParquetFile(file) as parquet:
        kinds = {field.name: np.dtype(("f4", (field.type.list_size,))) for field in parquet.schema_arrow}
        rows = parquet.metadata.num_rows
    with open_pool(None) as pool, TemporaryDirectory(dir=file.parent) as scratch:
        pooling = Pooling(file.parent, (file.name,), kinds, rows, pool, Path(scratch) / "turned")
        for name, stats in pooling.result().items():
            print(name, stats.count[0], stats.q01[0], stats.q99[0])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
