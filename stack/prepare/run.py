"""The door: plan, write, digest, provenance; all or nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from stack.dataset.digest import content_digest
from stack.dataset.pool import open_pool
from stack.dataset.read import read_dataset
from stack.dataset.read_files import files_below
from stack.dataset.write import refuse_replacement, write_v30
from stack.dataset.write_files import WrittenFile
from stack.dataset.write_plan import Caps, Videos, plan_files
from stack.dataset.write_size import output_size, refuse_small_disk
from stack.dataset.write_sources import refuse_overlap, selection_files, take_snapshot
from stack.files import refuse_existing
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
    executor: str | None = None,
    replace: bool = False,
    log: Callable[[str], None] = lambda _: None,
    caps: Caps | None = None,
) -> Prepared:
    """Turn the manifest's deliveries into one v3.0 dataset at `out`.

    Sources are never modified. Everything is checked before anything is written; the folder gets its name
    when it is whole and verified. After a kill the next call goes on with what was finished. The result does
    not depend on `jobs` or `executor`.

    Args:
        out: must not exist, unless `replace`.
        videos: `join` or `link`; overrides the manifest's.
        jobs: processes; not given takes all cores.
        executor: address of a Dask scheduler whose workers do the work instead, `tcp://host:port`.
        replace: swap a dataset that is at `out` for the new one, when that stands.
        log: takes one line of progress at a time.
        caps: sizes at which files roll; lerobot's defaults if not given.

    Raises:
        StackError: see `plan`, `write_v30` and `open_pool`; `target-exists` where `out` is there.
    """
    refuse_existing(out, replace, do="name another --out, or add --replace to swap it")
    refuse_replacement(out, replace)
    roots = [loaded.path(source.path) for source in loaded.manifest.sources]
    before = take_snapshot(file for root in roots for file in files_below(root))
    with open_pool(jobs, executor=executor, writes=out.parent, reads=roots) as pool:
        made = plan(loaded, videos=videos, jobs=pool, log=log)
        mode = cast(Videos, made.videos)
        refuse_overlap(out, made.selection, roots)
        files = plan_files(made.selection, caps=caps, videos=mode, infos=made.infos)
        size = output_size(made.selection, files, videos=mode, infos=made.infos)
        log(size.text())
        refuse_small_disk(size, out)
        meta = [file for root in roots for file in files_below(root / "meta")]
        sources = before.only([*meta, *selection_files(made.selection)])
        digests: list[str] = []

        def finish(root: Path, written: tuple[WrittenFile, ...]) -> None:
            digests.append(content_digest(read_dataset(root, name=made.name), jobs=pool))
            write_provenance(root, made, written, digests[0])

        write_v30(
            made.selection,
            out,
            plan=files,
            videos=mode,
            jobs=pool,
            replace=replace,
            sources=sources,
            log=log,
            finish=finish,
        )
    log(f"{out}: {len(made.selection.episodes)} episodes, {made.selection.frames} frames, {digests[0][:12]}")
    return _prepared(made, out, digests[0], (*made.notes, *files.rolled))


def _prepared(made: Plan, out: Path, digest: str, notes: tuple[str, ...]) -> Prepared:
    selection = made.selection
    return Prepared(
        out, len(selection.episodes), selection.frames, selection.cameras, made.widths, digest, notes
    )


def size_text(made: Plan, caps: Caps | None = None) -> str:
    """How many files a plan gives and how large they will be."""
    files = plan_files(made.selection, caps=caps, videos=cast(Videos, made.videos), infos=made.infos)
    return output_size(made.selection, files, videos=made.videos, infos=made.infos).text()
