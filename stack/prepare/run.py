"""The door: plan, write, digest, provenance; all or nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from stack.dataset.digest import content_digest
from stack.dataset.pool import open_pool
from stack.dataset.read import read_dataset
from stack.dataset.write import write_v30
from stack.dataset.write_files import WrittenFile
from stack.dataset.write_plan import Caps, Videos, plan_files
from stack.errors import BadRequest
from stack.manifests import DatasetManifest, Loaded
from stack.prepare.blueprint import Plan
from stack.prepare.planning import plan
from stack.prepare.provenance import write_provenance


@dataclass(frozen=True)
class Prepared:
    """A dataset that was prepared.

    Attributes:
        widths: feature -> number of channels.
        content_digest: of values and pictures; see `stack.dataset.digest`.
        notes: what was derived, replaced or worked around.
    """

    out: Path
    episodes: int
    frames: int
    cameras: tuple[str, ...]
    widths: dict[str, int]
    content_digest: str
    notes: tuple[str, ...]


def prepare(
    loaded: Loaded[DatasetManifest],
    *,
    out: Path,
    videos: str | None = None,
    jobs: int | None = None,
    log: Callable[[str], None] = lambda _: None,
    caps: Caps | None = None,
) -> Prepared:
    """Turn the manifest's deliveries into one v3.0 dataset at `out`.

    Sources are never modified. Everything is checked before anything is written; the folder gets its name
    when it is whole and verified. The result does not depend on `jobs`.

    Args:
        out: must not exist.
        videos: `join` or `link`; overrides the manifest's.
        jobs: processes; not given takes all cores.
        log: takes one line of progress at a time.
        caps: sizes at which files roll; lerobot's defaults if not given.

    Raises:
        StackError: see `plan`; `target-exists` where `out` is there.
    """
    if out.exists():
        raise BadRequest(
            "target-exists",
            "the target folder exists already; nothing was written",
            where=str(out),
            do="name another --out, or move the folder away",
        )
    with open_pool(jobs) as pool:
        made = plan(loaded, videos=videos, jobs=pool, log=log)
        mode = cast(Videos, made.videos)
        files = plan_files(made.selection, caps=caps, videos=mode, infos=made.infos)
        digests: list[str] = []

        def finish(root: Path, written: tuple[WrittenFile, ...]) -> None:
            digests.append(content_digest(read_dataset(root, name=made.name), jobs=pool))
            write_provenance(root, made, written, digests[0])

        write_v30(made.selection, out, plan=files, videos=mode, jobs=pool, log=log, finish=finish)
    log(f"{out}: {len(made.selection.episodes)} episodes, {made.selection.frames} frames, {digests[0][:12]}")
    return _prepared(made, out, digests[0], (*made.notes, *files.rolled))


def _prepared(made: Plan, out: Path, digest: str, notes: tuple[str, ...]) -> Prepared:
    selection = made.selection
    return Prepared(
        out, len(selection.episodes), selection.frames, selection.cameras, made.widths, digest, notes
    )
