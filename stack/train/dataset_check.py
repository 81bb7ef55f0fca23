"""Whether a prepared dataset is all there, before lerobot opens it, which asks a hub for what it misses."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from stack.devices import is_out_of_memory
from stack.errors import BadRequest, StackError
from stack.files import read_json

VERSION = "v3."
METADATA = ("info.json", "stats.json", "tasks.parquet")
EPISODES = "episodes"
NORMALISED, QUANTILES = ("observation.state", "action"), ("q01", "q99")


def check_version(root: Path) -> None:
    """Raises BadRequest where the dataset is of a version that lerobot cannot train on."""
    info = root / "meta" / "info.json"
    raw = read_json(info, what="dataset's info")
    version = str(raw.get("codebase_version", "not given")) if isinstance(raw, dict) else "not given"
    if not version.startswith(VERSION):
        raise BadRequest(
            "dataset-version",
            f"the dataset is of version {version}, and training reads {VERSION}0",
            where=str(info),
            do="run 'stack convert' on it, or 'stack prepare'",
        )


def check_metadata(root: Path) -> None:
    """Raises BadRequest where a file of `meta/` is not there, the version is another, or statistics lack."""
    meta = root / "meta"
    missing = [meta / name for name in METADATA if not (meta / name).is_file()]
    if not any((meta / EPISODES).rglob("*.parquet")):
        missing.append(meta / EPISODES)
    _refuse(root, missing)
    check_version(root)
    check_statistics(root)


def check_statistics(root: Path) -> None:
    """Raises BadRequest where state or action cannot be normalised, by q01 and q99 of each channel."""
    file = root / "meta" / "stats.json"
    info, stats = read_json(root / "meta" / "info.json"), read_json(file, what="dataset's statistics")
    for feature in NORMALISED:
        entry = info.get("features", {}).get(feature)
        if entry is None:
            continue  # the policy says so, with all that it needs
        width = math.prod(entry["shape"])
        for name in QUANTILES:
            given = stats.get(feature, {}).get(name) if isinstance(stats, dict) else None
            values = given if isinstance(given, list) else []
            is_finite = all(isinstance(value, (int, float)) and math.isfinite(value) for value in values)
            if len(values) != width or not is_finite:
                found = (
                    f"{len(values)} values" if len(values) != width else "values that are no finite numbers"
                )
                raise BadRequest(
                    "dataset-statistics",
                    f"{name} of {feature} has {found}, and the feature has {width} channels",
                    where=str(file),
                    do=f"run 'stack stats {root} --write'",
                )


def check_episodes(meta: Any, horizon: int) -> None:
    """Raises BadRequest where there are none, none is as long as a chunk of actions, or a file is missing.

    Args:
        meta: lerobot's own.
    """
    if not meta.total_episodes or not meta.total_frames:
        raise BadRequest("dataset-empty", "the dataset has no episode to train on", where=str(meta.root))
    longest = max(int(length) for length in meta.episodes["length"])
    if horizon > longest:
        raise BadRequest(
            "horizon-beyond-episodes",
            f"policy.action_horizon is {horizon}, and the longest episode has {longest} frames",
            where=str(meta.root),
            do="make the horizon what the policy predicts at once, such as 50",
        )
    _check_files(meta)


def _check_files(meta: Any) -> None:
    wanted = {
        meta.data_path.format(chunk_index=chunk, file_index=file) for chunk, file in _places(meta, "data")
    }
    for key in meta.video_keys:
        wanted |= {
            meta.video_path.format(video_key=key, chunk_index=chunk, file_index=file)
            for chunk, file in _places(meta, f"videos/{key}")
        }
    _refuse(meta.root, [meta.root / name for name in sorted(wanted) if not (meta.root / name).is_file()])


@contextmanager
def told_of_what_lerobot_cannot_read(root: Path) -> Iterator[None]:
    """Turn what lerobot's reader raises into one error.

    Raises:
        BadRequest: it cannot read the dataset.
    """
    try:
        yield
    except StackError:
        raise
    except Exception as error:
        if is_out_of_memory(error):
            raise
        words = str(error).strip().splitlines() or [""]
        raise BadRequest(
            "dataset-unreadable",
            f"lerobot cannot read the dataset: {type(error).__name__}: {words[0]}",
            where=str(root),
            do="run 'stack audit' on it, and prepare it anew",
        ) from error


def _places(meta: Any, of: str) -> set[tuple[int, int]]:
    """(chunk, file) of all episodes."""
    chunks, files = meta.episodes[f"{of}/chunk_index"], meta.episodes[f"{of}/file_index"]
    return {(int(chunk), int(file)) for chunk, file in zip(chunks, files, strict=True)}


def _refuse(root: Path, missing: list[Path]) -> None:
    if missing:
        more = f", and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise BadRequest(
            "dataset-incomplete",
            f"the dataset misses {missing[0].relative_to(root)}{more}; lerobot would ask a hub for it",
            where=str(root),
            do="copy it again whole, or prepare it anew",
        )
