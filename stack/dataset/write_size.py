"""How large an output will be, known from its plan, and whether it fits."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from stack.dataset.pictures import picture_bytes
from stack.dataset.progress import byte_count
from stack.dataset.selection import Selection
from stack.dataset.video import VideoInfo, probe
from stack.dataset.write_plan import INDEX_BYTES, FilePlan, clip_bytes, row_bytes
from stack.errors import NotAble


@dataclass(frozen=True)
class OutputSize:
    """Attributes:
    rows_bytes: at most: rows are compressed.
    video_bytes: None where pictures are encoded anew, which nobody can foretell.
    linked_bytes: what hard links make part of the output without copying it.
    """

    data_files: int
    video_files: int
    rows_bytes: float
    video_bytes: float | None
    linked_bytes: float

    def text(self) -> str:
        rows = f"{_files(self.data_files, 'data')}, at most {byte_count(self.rows_bytes)}"
        if not self.video_files:
            return rows
        if self.video_bytes is None:
            videos = "of a size that encoding decides"
        elif self.linked_bytes:
            videos = f"{byte_count(self.linked_bytes)} linked, not copied, where the file system can"
        else:
            videos = f"about {byte_count(self.video_bytes)}"
        return f"{rows}; {_files(self.video_files, 'video')}, {videos}"


def _files(count: int, kind: str) -> str:
    return f"{count} {kind} file" + ("" if count == 1 else "s")


def output_size(
    selection: Selection, plan: FilePlan, *, videos: str, infos: Mapping[Path, VideoInfo] | None = None
) -> OutputSize:
    """The size of a planned output.

    Args:
        videos: `join`, `link` or `transcode`.
        infos: what probing the source videos gave, where the caller has it already.
    """
    known = infos or {}

    def info(file: Path) -> VideoInfo:
        return known[file] if file in known else probe(file)

    width = INDEX_BYTES + sum(row_bytes(feature) for feature in selection.vectors.values())
    rows = float(selection.frames * width)
    for name in selection.pictures:
        for selected in selection.episodes:
            rows += picture_bytes(selected.episode.rows, selection.source_feature(selected, name).name)
    clips = sum(clip_bytes(clip, info) for entry in plan.videos for clip in entry.clips)
    return OutputSize(
        data_files=len(plan.data),
        video_files=len(plan.videos),
        rows_bytes=rows,
        video_bytes={"join": clips, "link": 0.0}.get(videos),
        linked_bytes=clips if videos == "link" else 0.0,
    )


def refuse_small_disk(size: OutputSize, out: Path) -> None:
    """Refuse before hours of writing what cannot fit: the videos alone are larger than what is free.

    Raises:
        NotAble: naming both numbers.
    """
    here = next(folder for folder in out.absolute().parents if folder.is_dir())
    free_bytes = shutil.disk_usage(here).free
    if size.video_bytes is not None and size.video_bytes > free_bytes:
        raise NotAble(
            "disk-too-small",
            f"the videos take about {byte_count(size.video_bytes)}, and {byte_count(free_bytes)} are free; "
            "nothing was written",
            where=str(here),
            do="make room, name another place, or choose --videos link where the sources lie on that disk",
        )
