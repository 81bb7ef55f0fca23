"""The door: plan, write, digest, provenance; all or nothing."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from stack.dataset.digest import begin_content_digest
from stack.dataset.model import ClipRef, Dataset
from stack.dataset.pool import Pool, open_pool
from stack.dataset.read_files import files_below
from stack.dataset.write import refuse_replacement, write_v30
from stack.dataset.write_files import WrittenFile
from stack.dataset.write_plan import Caps, FilePlan, Videos, plan_files
from stack.dataset.write_size import output_size, refuse_small_disk
from stack.dataset.write_sources import (
    Snapshot,
    refuse_odd_names,
    refuse_overlap,
    refuse_overlap_with,
    selection_files,
    take_snapshot,
)
from stack.dataset.write_v21 import plan_v21, write_v21
from stack.errors import BadRequest
from stack.files import sha256_text
from stack.folders import hold_target, refuse_existing, whole_folder
from stack.manifests import DatasetManifest, Loaded
from stack.prepare.blueprint import Plan
from stack.prepare.episodes import ranges
from stack.prepare.parts import finished_part, parts_key, remove_strays
from stack.prepare.planning import plan
from stack.prepare.provenance import begin_source_digests, write_provenance
from stack.prepare.split import in_no_part, split_plan
from stack.prepare.transcoding import transcoded


@dataclass(frozen=True)
class Prepared:
    """A dataset that was prepared.

    Attributes:
        widths: feature -> number of channels.
        content_digest: of values and pictures; see `stack.dataset.digest`; of a split, over its parts'.
        notes: what was derived, replaced or worked around.
        plan: what it was made by.
        parts: the datasets of a split, each in a folder of its own below `out`.
    """

    out: Path
    episodes: int
    frames: int
    cameras: tuple[str, ...]
    widths: dict[str, int]
    content_digest: str
    notes: tuple[str, ...]
    plan: Plan
    parts: tuple[Prepared, ...] = ()


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
    announce: Callable[[Plan], None] = lambda _: None,
) -> Prepared:
    """Turn the manifest's deliveries into one dataset at `out`, or into one a part of its `split` below it.

    Sources are never modified. Everything is checked before anything is written; the folder gets its name
    when it is whole and verified. After a kill the next call goes on with what was finished. The result does
    not depend on `jobs` or `executor`.

    Args:
        out: must not exist, unless `replace`.
        videos: `join`, `link` or `transcode`; overrides the manifest's.
        jobs: processes; not given takes all cores.
        executor: address of a Dask scheduler whose workers do the work instead, `tcp://host:port`.
        replace: swap a dataset that is at `out` for the new one, when that stands.
        log: takes one line of progress at a time.
        caps: sizes at which files roll; the manifest's if not given.
        announce: takes the plan, before anything is written.

    Raises:
        StackError: see `plan`, `write_v30` and `open_pool`; `target-exists` where `out` is there.
    """
    refuse_existing(out, replace, do="name another --out, or add --replace to swap it")
    refuse_replacement(out, replace)
    if replace and loaded.manifest.split is not None:
        raise BadRequest(
            "prepare-split-replace",
            "a split writes several datasets, which cannot be swapped as one",
            where=str(out),
            do="name another --out, or move the folder away",
        )
    roots = [loaded.path(source.path) for source in loaded.manifest.sources]
    refuse_odd_names([out, *roots])
    before = take_snapshot(file for root in roots for file in files_below(root))
    # Before anything is put beside the target; links may lead out of a source's folder.
    refuse_overlap_with(out, [*roots, *(file.parent for file in before.marks)])
    with (
        hold_target(out),
        open_pool(jobs, executor=executor, writes=out.parent, reads=roots) as pool,
        _scratch(out) as scratch,
    ):
        made = plan(loaded, videos=videos, jobs=pool, log=log, scratch=scratch)
        made = dataclasses.replace(made, caps=caps or made.caps)
        announce(made)
        refuse_overlap(out, made.selection)
        meta = [file for root in roots for file in files_below(root / "meta")]
        sources = before.only([*meta, *selection_files(made.selection)])
        if made.videos == "transcode":
            made = transcoded(made, loaded.manifest.transcode, scratch, pool, log)
        writing = _Writing(pool, replace, sources, log)
        split = loaded.manifest.split
        if split is None:
            return _write(made, out, writing)
        parts = split_plan(made, split, str(loaded.file))
        key = parts_key(parts.values(), sources, f"{made.videos} {made.caps}")
        with whole_folder(out, resume_key=key) as folder:
            remove_strays(folder, parts)
            written = [_write_part(part, folder / name, writing) for name, part in parts.items()]
            sources.check()
    return _join_parts(made, out, written, in_no_part(made, parts.values()))


@dataclass(frozen=True)
class _Writing:
    pool: Pool
    replace: bool
    sources: Snapshot
    log: Callable[[str], None]


def _write(made: Plan, out: Path, writing: _Writing) -> Prepared:
    mode = _mode(made)
    files = _files(made)
    size = output_size(made.selection, files, videos=mode, infos=made.infos)
    writing.log(size.text())
    refuse_small_disk(size, out)
    # What takes time and needs no other result goes beside the rest.
    source_digests = begin_source_digests(made, writing.pool)
    begun: list[Callable[[], str]] = []
    digests: list[str] = []

    def begin(meant: Dataset, clips: Mapping[ClipRef, str]) -> None:
        begun.append(begin_content_digest(meant, writing.pool, clips))

    def finish(dataset: Dataset, written: tuple[WrittenFile, ...], _: Mapping[ClipRef, str]) -> None:
        digests.append(begun[0]())
        write_provenance(dataset.root, made, written, digests[0], source_digests())

    write = write_v21 if made.version == "v2.1" else write_v30
    write(
        made.selection,
        out,
        plan=files,
        videos=mode,
        jobs=writing.pool,
        replace=writing.replace,
        sources=writing.sources,
        log=writing.log,
        begin=begin,
        finish=finish,
    )
    selection = made.selection
    writing.log(f"{out}: {len(selection.episodes)} episodes, {selection.frames} frames, {digests[0][:12]}")
    return _prepared(made, out, digests[0], files)


def _write_part(part: Plan, out: Path, writing: _Writing) -> Prepared:
    digest = finished_part(out, part)
    if digest is None:
        shutil.rmtree(out, ignore_errors=True)
        return _write(part, out, writing)
    writing.log(f"part {out.name}: finished by an earlier call")
    return _prepared(part, out, digest, _files(part))


def _prepared(made: Plan, out: Path, digest: str, files: FilePlan) -> Prepared:
    selection = made.selection
    notes = (*made.notes, *(str(entry) for entry in made.filled), *files.rolled)
    episodes = len(selection.episodes)
    return Prepared(out, episodes, selection.frames, made.cameras, made.widths, digest, notes, made)


def _join_parts(made: Plan, out: Path, written: Sequence[Prepared], left: str | None) -> Prepared:
    parts = tuple(dataclasses.replace(part, out=out / part.out.name) for part in written)
    digest = sha256_text("".join(f"{part.out.name} {part.content_digest}\n" for part in parts))
    notes = tuple(dict.fromkeys(note for part in parts for note in part.notes))
    notes += (left,) if left is not None else ()
    episodes, frames = sum(p.episodes for p in parts), sum(p.frames for p in parts)
    return Prepared(out, episodes, frames, made.cameras, made.widths, digest, notes, made, parts)


def _files(made: Plan) -> FilePlan:
    if made.version == "v2.1":
        return plan_v21(made.selection, chunks_size=made.caps.files_per_chunk)
    return plan_files(made.selection, caps=made.caps, videos=_mode(made), infos=made.infos)


def _mode(made: Plan) -> Videos:
    """How the writer makes video files: clips that were encoded anew are joined by copying."""
    return "link" if made.videos == "link" else "join"


@contextmanager
def _scratch(out: Path) -> Iterator[Path]:
    """A folder beside the target for pictures that are made up.

    Its name does not change, so that what a killed or interrupted call made serves the next one; it goes when
    the work ends, well or not. Nobody else uses it: the target is held.
    """
    folder = out.parent / f".{out.name}.made-up"
    try:
        yield folder
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    shutil.rmtree(folder, ignore_errors=True)


def outline(loaded: Loaded[DatasetManifest], *, videos: str | None = None, jobs: int | None = None) -> str:
    """What `prepare` would do, and how large the output will be; nothing is written.

    Raises:
        StackError: see `plan`.
    """
    with TemporaryDirectory(prefix="stack-made-up-") as scratch:
        made = plan(loaded, videos=videos, jobs=jobs, scratch=Path(scratch))
        split = loaded.manifest.split
        parts = split_plan(made, split, str(loaded.file)) if split is not None else {}
        lines = [made.text().rstrip()]
        for name, part in parts.items():
            origins = ", ".join(
                f"{s.dataset.name} {ranges(e.index for e in s.episodes)}" for s in part.sources
            )
            lines.append(f"part {name}: {len(part.selection.episodes)} episodes ({origins})")
        if parts and (left := in_no_part(made, parts.values())):
            lines.append(left)
        return "\n".join([*lines, "output", f"  {size_text(made)}"])


def size_text(made: Plan) -> str:
    """How many files a plan gives and how large they will be."""
    files = _files(made)
    return output_size(made.selection, files, videos=made.videos, infos=made.infos).text()
