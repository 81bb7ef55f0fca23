"""meta/provenance.json: where every episode came from, what was done, and the hash of what was written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from stack import __version__
from stack.dataset.pool import Pool
from stack.dataset.write_files import WrittenFile
from stack.files import sha256_file, sha256_text, tree_files, write_json
from stack.prepare.ancestry import PATH, Steps, ancestors, ancestry
from stack.prepare.blueprint import Plan, SourcePlan, renamed_from

SCHEMA = "stack/provenance/1"


def begin_source_digests(made: Plan, pool: Pool) -> Callable[[], list[str]]:
    """Begin `source_digest` of each source; returns a function that waits for them."""
    begun = pool.begin(source_digest, [source.dataset.root for source in made.sources])
    return lambda: list(begun)


def write_provenance(
    root: Path,
    made: Plan,
    files: Sequence[WrittenFile],
    content_digest: str,
    source_digests: Sequence[str],
) -> None:
    """Write it into a dataset that is complete otherwise; `files` are all its other files."""
    earlier = {source.dataset.name: ancestry(source.dataset.root) for source in made.sources}
    write_json(
        root / PATH,
        {
            "schema": SCHEMA,
            "tool": {"name": "stack", "version": __version__},
            "name": made.name,
            "content_digest": content_digest,
            "sources": [_source(*pair) for pair in zip(made.sources, source_digests, strict=True)],
            "episodes": [
                {
                    "episode": s.episode.index,
                    "source": s.episode.origin.dataset,
                    "source_episode": s.episode.origin.episode,
                    "frames": s.episode.length,
                    **_before(earlier[s.episode.origin.dataset].get(s.episode.origin.episode)),
                }
                for s in made.selection.episodes
            ],
            "operations": _operations(made),
            "camera_statistics": _camera_statistics(made),
            "files": {f.path: {"sha256": f.sha256, "size": f.size_bytes} for f in files},
        },
    )


def _camera_statistics(made: Plan) -> dict[str, Any]:
    """Where meta/ has the statistics of cameras from."""
    quantiles = "of the sampled pictures"
    if made.kept_clips:
        quantiles = (
            "of the pictures that were decoded, each clip weighing as many pictures as its statistics were "
            "taken of; of single episodes as stored, where they were"
        )
    return {
        "asked": made.camera_statistics,
        "clips_as_stored": made.kept_clips,
        "pictures_checked": made.checked_pictures,
        "clips_sampled": made.sampled_clips,
        "quantiles": quantiles,
    }


def _before(steps: Steps | None) -> dict[str, Steps]:
    return {"before": steps} if steps else {}


def _source(source: SourcePlan, rows_digest: str) -> dict[str, Any]:
    earlier = ancestors(source.dataset.root)
    return {
        "name": source.dataset.name,
        "path": source.given,
        "version": source.dataset.version,
        "rows_digest": rows_digest,
        "episodes": len(source.dataset.episodes),
        "frames": source.dataset.frames,
        **({"sources": earlier} if earlier else {}),
    }


def source_digest(root: Path) -> str:
    """sha256 over the meta and row files of a dataset: sorted lines of digest, size and relative path."""
    lines = []
    for folder in ("meta", "data"):
        for file in tree_files(root / folder):
            name = file.relative_to(root).as_posix()
            lines.append(f"{sha256_file(file)} {file.stat().st_size} {name}\n")
    return sha256_text("".join(lines))


def _operations(made: Plan) -> list[dict[str, Any]]:
    """What was done to the sources, in order."""
    done: list[dict[str, Any]] = []
    for source in made.sources:
        name = source.dataset.name
        taken = {episode.index for episode in source.episodes}
        left_out = [e.index for e in source.dataset.episodes if e.index not in taken]
        if left_out:
            done.append({"do": "exclude-episodes", "source": name, "episodes": left_out})
        for feature, reason in source.dropped.items():
            done.append({"do": "drop-feature", "source": name, "feature": feature, "reason": reason})
        for out, given in source.cameras.items():
            if out != given:
                done.append({"do": "rename-camera", "source": name, "from": given, "to": out})
        for out, takes in made.selection.recipes[name].columns.items():
            if (whole := renamed_from(out, takes)) and out not in source.cameras:
                done.append({"do": "rename-feature", "source": name, "from": whole, "to": out})
        if source.restamped_s is not None:
            done.append({"do": "restamp", "source": name, "worst_difference_s": source.restamped_s})
        done.extend(_slices(made, name))
    done.extend({"do": "reconcile", **entry.to_json()} for entry in made.reconciled)
    done.extend({"do": "edit-task", "from": a, "to": b} for a, b in made.task_edits.items())
    done.extend({"do": "cast", "feature": name, "dtype": dtype} for name, dtype in made.casts.items())
    done.extend(
        {"do": "fill-black", "source": name, "camera": entry.camera, "episodes": list(numbers)}
        for entry in made.filled
        for name, numbers in entry.episodes.items()
    )
    done.append({"do": "write", "version": made.version, "videos": made.videos})
    return done


def _slices(made: Plan, source: str) -> list[dict[str, Any]]:
    sliced = []
    for feature, takes in made.selection.recipes[source].columns.items():
        if any(take.channels is not None for take in takes):
            parts = [
                {"from": t.feature.name, "channels": None if t.channels is None else list(t.channels)}
                for t in takes
            ]
            sliced.append({"do": "slice", "source": source, "feature": feature, "parts": parts})
    return sliced
