"""The one writer of datasets, and v3.0 with it: planned, written in parallel, verified, then renamed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from stack.dataset.model import ClipRef, Dataset
from stack.dataset.pool import Jobs, Pool, open_pool
from stack.dataset.progress import Log
from stack.dataset.selection import Selection
from stack.dataset.stats import Stats
from stack.dataset.stats_pooled import Pooling
from stack.dataset.stats_stored import Evidence, pool_cameras
from stack.dataset.stats_table import StatsTable
from stack.dataset.write_check import begin_data_checks, check_same, check_written, meant_dataset
from stack.dataset.write_files import (
    INDEX_DTYPES,
    VideoDone,
    WrittenFile,
)
from stack.dataset.write_meta import write_episodes, write_info, write_stats, write_tasks
from stack.dataset.write_plan import FilePlan, Videos, plan_files
from stack.dataset.write_resume import RECORDS, Work, Workshop, clear_records
from stack.dataset.write_sources import Snapshot, refuse_overlap, selection_files, take_snapshot
from stack.dataset.write_work import Made, Works, plan_works
from stack.errors import BadRequest, NotAble, StackError, WorkFailed
from stack.files import sha256_file, sha256_text, tree_files
from stack.folders import disk_error, whole_folder

KEY_LENGTH = 16
TURNED = "turned"  # a folder beside the records, for what statistics are counted from


@dataclass(frozen=True)
class Written:
    """A dataset on disk; `files` are all of its files in order of path."""

    root: Path
    plan: FilePlan
    files: tuple[WrittenFile, ...]


Pooled: TypeAlias = Callable[[], dict[str, Stats]]
ClipDigests: TypeAlias = Mapping[ClipRef, str]
Begin: TypeAlias = Callable[[Dataset, ClipDigests], None]
Finish: TypeAlias = Callable[[Dataset, tuple[WrittenFile, ...], ClipDigests], None]


@dataclass(frozen=True)
class Version:
    """What differs between versions: which files there are, the meta folder, and its check."""

    plan: Callable[[Selection, Videos], FilePlan]
    write_meta: Callable[[Path, Selection, FilePlan, Made, Pooled], None]
    check: Callable[[Path, Selection, FilePlan], Dataset]
    is_pooled: bool  # whether the meta folder holds statistics over all rows

    def write(
        self,
        selection: Selection,
        out: Path,
        *,
        plan: FilePlan | None = None,
        videos: Videos = "join",
        jobs: Jobs = None,
        replace: bool = False,
        sources: Snapshot | None = None,
        log: Log = lambda _: None,
        begin: Begin | None = None,
        finish: Finish | None = None,
    ) -> Written:
        """Write a selection as a dataset by the contract that this version's readers rely on.

        `index` runs over the files in order of their names; statistics are exact over all rows; seconds are
        frame counts over fps. v3.0 numbers files without gaps and has one row group an episode; v2.1 has one
        file an episode, its videos cut at exact frames: packets are copied, and pictures are encoded anew
        where a cut asks for it (see `stack.dataset.video.cut`). The output does not depend on `jobs`. All is
        read back and checked before the folder gets its name. A kill leaves no target folder, or the old one;
        the next call with the same selection on unchanged sources keeps the files that were finished.

        Args:
            out: must not exist, unless `replace`.
            plan: made here if not given.
            videos: `join` or `link`, which hard-links files that are whole.
            replace: swap a dataset that is at `out` for the new one, when that stands.
            sources: the source files as they were before the selection was made; taken here if not given.
            begin: called when all rows and videos stand and the meta folder does not yet, with the dataset as
                it will be read back and `clip_digest` of each clip as it was read back, to begin other work.
            finish: called before the rename with what was read back, its files, and the same digests, to add
                files of its own.

        Raises:
            BadRequest: `out` exists, or holds a source; nothing is selected; a source cannot be read.
            NotAble: another process writes there; the disk is full or read-only.
            WorkFailed: writing failed, a source changed, or what was written is not what was meant.
        """
        if not selection.episodes:
            raise BadRequest("write-no-episodes", "no episode is selected, so there is nothing to write")
        sources = sources or take_snapshot(selection_files(selection))
        plan = plan or self.plan(selection, videos)
        refuse_overlap(out, selection)
        refuse_replacement(out, replace)
        works = plan_works(selection, plan, videos)
        try:
            with whole_folder(out, replace=replace, resume_key=_key(works)) as root, open_pool(jobs) as pool:
                dataset, files, clips = _fill(root, selection, plan, works, self, pool, log, begin)
                if finish is not None:
                    finish(dataset, files, clips)
                sources.check()
                clear_records(root)
        except (StackError, OSError) as error:
            if isinstance(error, NotAble):
                raise
            if told := disk_error(error, out):
                raise told from error
            if isinstance(error, StackError):
                raise
            raise WorkFailed("write-failed", f"writing failed: {error}", where=str(out)) from error
        return Written(out, plan, files)


def refuse_replacement(out: Path, replace: bool) -> None:
    """`replace` is for datasets: a folder that is none was named by mistake."""
    if replace and out.is_dir() and any(out.iterdir()) and not (out / "meta" / "info.json").is_file():
        raise BadRequest(
            "target-not-dataset",
            "the target is a folder that is no dataset (no meta/info.json); it is not replaced",
            where=str(out),
            do="name another --out, or move the folder away",
        )


def _key(works: Works) -> str:
    keys = [work.key for group in (works.data, works.videos, works.samples) for work in group]
    return sha256_text("\n".join(keys))[:KEY_LENGTH]


def _fill(
    root: Path,
    selection: Selection,
    plan: FilePlan,
    works: Works,
    version: Version,
    pool: Pool,
    log: Log,
    begin: Begin | None,
) -> tuple[Dataset, tuple[WrittenFile, ...], ClipDigests]:
    log(f"writing {len(works.data)} data files and {len(works.videos)} video files")
    shop = Workshop(root, pool, [*works.data, *works.videos, *works.samples], log)
    groups: dict[str, Sequence[Work[Any]]] = {
        "data files": works.data,
        "video files": works.videos,
        "clips sampled for camera statistics": works.samples,
    }
    finished = shop.run("frames", groups)
    data = next(finished)
    checks = begin_data_checks(root, selection, plan, pool)
    pooling = _begin_pooled(root, selection, plan, pool) if version.is_pooled else None
    movies, sampled = finished
    if pooling is not None:
        pooling.go_on()
    clips = _clip_digests(root, movies)
    meant = meant_dataset(root, selection, plan)
    if begin is not None:
        begin(meant, clips)
    samples: dict[tuple[str, int], Evidence] = dict(zip(works.sampled, sampled, strict=True))
    for selected in selection.episodes:
        samples.update({(camera, selected.episode.index): kept for camera, kept in selected.kept.items()})

    def rows_stats(number: int) -> StatsTable:
        return shop.whole(works.data[number], data[number]).stats or {}

    made = Made(data, movies, samples, rows_stats)
    version.write_meta(root, selection, plan, made, pooling.result if pooling is not None else dict)
    log("checking what was written")
    for _ in checks:
        pass
    dataset = version.check(root, selection, plan)
    check_same(dataset, meant)
    return dataset, _all_files(root, [d.file for d in data] + [m.file for m in movies]), clips


def _clip_digests(root: Path, movies: Sequence[VideoDone]) -> dict[ClipRef, str]:
    return {
        ClipRef(root / movie.file.path, first, frames): digest
        for movie in movies
        for first, frames, digest in movie.clips
    }


def _begin_pooled(root: Path, selection: Selection, plan: FilePlan, pool: Pool) -> Pooling:
    """Statistics over all rows as they were written, while videos still are."""
    vectors = {name: f for name, f in selection.vectors.items() if f.dtype != "string"}
    kinds = {name: np.dtype((feature.dtype, feature.shape)) for name, feature in vectors.items()}
    kinds |= {name: np.dtype((dtype, (1,))) for name, dtype in INDEX_DTYPES.items()}
    paths = tuple(entry.path for entry in plan.data)
    return Pooling(root, paths, kinds, selection.frames, pool, root / RECORDS / TURNED)


def _write_meta(root: Path, selection: Selection, plan: FilePlan, made: Made, finish_pooled: Pooled) -> None:
    write_info(root, selection, plan, made.infos(plan))
    write_tasks(root, selection.tasks)
    write_episodes(root, selection, plan, made.stats(selection, plan))
    pooled = finish_pooled()
    for name, feature in selection.vectors.items():
        if len(feature.shape) > 1:
            pooled[name] = pooled[name].reshaped(feature.shape)
    for camera in (*selection.cameras, *selection.pictures):
        taken = [sample for (name, _), sample in made.samples.items() if name == camera]
        pooled[camera] = pool_cameras(taken)
    write_stats(root, pooled)


V30 = Version(
    lambda selection, videos: plan_files(selection, videos=videos), _write_meta, check_written, is_pooled=True
)
write_v30 = V30.write


def _all_files(root: Path, hashed: list[WrittenFile]) -> tuple[WrittenFile, ...]:
    known = {file.path: file for file in hashed}
    files = []
    for path in tree_files(root):
        name = path.relative_to(root).as_posix()
        if name.startswith(f"{RECORDS}/"):
            continue
        files.append(known.get(name) or WrittenFile(name, sha256_file(path), path.stat().st_size))
    return tuple(files)
