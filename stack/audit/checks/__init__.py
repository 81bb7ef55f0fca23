"""The checks, one module a group. Importing this package registers them all, in the order they run."""

from stack.audit.checks import (  # noqa: F401, I001  (the order is the order of the report)
    files,
    info,
    episodes,
    columns,
    rows,
    time,
    video,
    clips,
    tasks,
    stats,
    quantiles,
    policy,
    scale,
    deep,
)
