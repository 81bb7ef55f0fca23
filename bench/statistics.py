"""Exact statistics of a parquet of vectors, feature by feature over worker processes: what one run measures.

Usage: python -m bench.statistics FILE
"""

from __future__ import annotations

import sys
from pathlib import Path

import pyarrow.parquet as pq

from stack.dataset.pool import open_pool
from stack.dataset.stats_pooled import PooledJob, pooled_stats


def main(file: Path) -> None:
    names = pq.read_schema(file).names
    with open_pool(None) as pool:
        jobs = [PooledJob(file.parent, (file.name,), name) for name in names]
        for name, stats in zip(names, pool.map(pooled_stats, jobs), strict=True):
            print(name, stats.count[0], stats.q01[0], stats.q99[0])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
