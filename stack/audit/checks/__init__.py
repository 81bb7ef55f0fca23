"""The checks, one module a group. Importing this package registers them all, in the order they run."""

from stack.audit.checks import (  # noqa: F401, I001  (the order is the order of the report)
    files,
    integrity,
    info,
    episodes,
    columns,
    rows,
    time,
    clock,
    video,
    clips,
    picture_columns,
    tasks,
    stats,
    origin,
    quantiles,
    policy,
    scale,
    openpi,
    deep,
    deep_cameras,
)
