"""Exact statistics of a parquet of vectors, feature by feature over worker processes: what one run measures.

Usage: python -m bench.statistics FILE
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from stack.dataset.pool import open_pool
from stack.dataset.stats_pooled import pooled_features


def main(file: Path) -> None:
    with pq.ParquetFile(file) as parquet:
        kinds = {field.name: np.dtype(("f4", (field.type.list_size,))) for field in parquet.schema_arrow}
        rows = parquet.metadata.num_rows
    with open_pool(None) as pool:
        for name, stats in pooled_features(file.parent, (file.name,), kinds, rows, pool)().items():
            print(name, stats.count[0], stats.q01[0], stats.q99[0])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
