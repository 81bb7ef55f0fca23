"""What is said of columns that cannot be read as declared, and what mends them."""

from __future__ import annotations

import pyarrow as pa

from stack.dataset.model import INDEX_FEATURES, Episode, Feature
from stack.errors import BadRequest


def ragged(column: pa.ChunkedArray, episode: Episode, feature: Feature, width: int) -> BadRequest:
    """The first frame that has not as many values as declared."""
    for frame, value in enumerate(column.to_pylist()):
        got = _count(value)
        if value is None:
            return null_row(
                feature.name, f"frame {frame}", f"{episode.rows.file}, episode {episode.origin.episode}"
            )
        if got != width:
            return BadRequest(
                "rows-width",
                f"{feature.name} is declared {width} wide but has {got} values at frame {frame}",
                where=f"{episode.rows.file}, episode {episode.origin.episode}",
                do="leave the episode out, or correct the feature's shape",
            )
    return BadRequest(
        "rows-width",
        f"{feature.name} does not fit shape {feature.shape}",
        where=f"{episode.rows.file}, episode {episode.origin.episode}",
        do="correct the feature's shape in meta/info.json, or leave the episode out",
    )


def null_row(name: str, place: str, where: str) -> BadRequest:
    """A vector that is null where values have to be; `place` is its frame, or its row of the file."""
    return BadRequest(
        "rows-null",
        f"{name} is null at {place}, where it has to have values",
        where=where,
        do=f"leave the episode out, or fetch its rows again; or {without(name)}",
    )


def mend(feature: Feature) -> str:
    """What makes a column of whole numbers readable."""
    if feature.name == "task_index":
        return (
            "write the numbers of meta/'s task table into task_index; or remove the column from the row "
            "files: it is derived where each episode has one task"
        )
    if feature.name in INDEX_FEATURES:
        return f"remove the column {feature.name} from the row files: it is derived"
    return f"correct its dtype in meta/info.json; or {without(feature.name)}"


def without(name: str) -> str:
    """How a dataset is read without a column."""
    return (
        f"leave {name} out: take it out of meta/info.json, or name the others under 'features' in a manifest"
    )


def _count(value: object) -> int:
    if isinstance(value, list):
        return sum(_count(item) for item in value)
    return 0 if value is None else 1
