"""What lies in the folder, or beside it, that nobody named; and recordings that were interrupted."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import PurePosixPath

from stack.audit.kinds import Case, check, kind
from stack.faults import Fault, Place

FILE_UNLISTED = kind(
    "file-unlisted",
    "error",
    "files",
    title="a row or video file belongs to no listed episode",
    consequence="converters and loaders take every file they find: all later episodes shift by one",
    mend="add the episode to the metadata, or move the file out of the dataset",
)
LEFT_OVER = kind(
    "left-over-file",
    "note",
    "files",
    title="a file that is no part of the format",
    consequence="none for training; it takes room, and some tools stumble over it",
    mend="delete it from the delivery",
)
OLD_COPY = kind(
    "old-copy-beside",
    "warning",
    "files",
    title="a folder of the same name with _old lies beside a v2.1 dataset",
    consequence="lerobot's converter takes it for its own backup: it deletes this dataset without asking and "
    "converts the old one",
    mend="move the old folder elsewhere, or convert with `stack convert`, which touches neither",
)
INTERRUPTED = kind(
    "interrupted-recording",
    "error",
    "files",
    title="the recording stopped before it was whole",
    consequence="there is nothing, or less than was recorded, to train on",
    mend="let the recorder finish (or encode the pictures that are left in images/), then export again",
)
_META_FILES = {
    "meta/info.json",
    "meta/stats.json",
    "meta/episodes.jsonl",
    "meta/tasks.jsonl",
    "meta/episodes_stats.jsonl",
    "meta/tasks.parquet",
    "meta/subtasks.parquet",
    "meta/modality.json",
    "meta/provenance.json",
}
_V2_ONLY = {"meta/episodes.jsonl", "meta/tasks.jsonl", "meta/episodes_stats.jsonl"}
_AT_ROOT = re.compile(r"^(readme|license|licence|\.gitattributes|\.gitignore|dataset_card|changelog)", re.I)


@check("files that nobody named", FILE_UNLISTED, LEFT_OVER)
def files_over(case: Case) -> Iterator[Fault]:
    evidence = case.evidence
    unlisted = set(evidence.layout.unlisted)
    used = set(evidence.layout.video_of.values())
    declared = set(evidence.cameras)
    for name in sorted(unlisted):
        camera = next((part for part in PurePosixPath(name).parts if part in declared), None)
        if name.startswith("videos/") and camera is None:
            yield LEFT_OVER.fault(f"{name} belongs to no declared camera", where=Place(name))
        else:
            yield FILE_UNLISTED.fault(f"{name} belongs to no listed episode", where=Place(name))
    for name in evidence.files:
        if name not in unlisted and name not in used and (why := _why_left_over(name, evidence.is_v3)):
            yield LEFT_OVER.fault(f"{name}: {why}", where=Place(name))


def _why_left_over(name: str, is_v3: bool) -> str:
    path = PurePosixPath(name)
    top = path.parts[0]
    if len(path.parts) == 1:
        return "" if _AT_ROOT.match(path.name) else "no file of the format lies at the top"
    if any(part.startswith(".") or part.endswith("~") or part == "__MACOSX" for part in path.parts):
        return "a hidden or backup file"
    if top == "meta":
        known = name in _META_FILES or (is_v3 and name.startswith("meta/episodes/"))
        if is_v3 and name in _V2_ONLY:
            return "metadata of the v2.1 layout beside those of v3.0"
        return "" if known and path.suffix in (".json", ".jsonl", ".parquet") else "not read by any loader"
    if top == "data":
        return "" if path.suffix == ".parquet" else "not a parquet file"
    if top == "videos":
        return "" if path.suffix == ".mp4" else "not an mp4 file"
    return "recorder scratch pictures" if top == "images" else f"no folder of the format is called {top}"


@check("what lies beside the folder", OLD_COPY)
def beside(case: Case) -> Iterator[Fault]:
    root = case.evidence.root.resolve()
    old = root.with_name(f"{root.name}_old")
    if not case.evidence.is_v3 and old.is_dir():
        yield OLD_COPY.fault(f"{old.name} lies beside {root.name}", where=Place(f"../{old.name}"))


@check("whether the recording is whole", INTERRUPTED)
def recording_whole(case: Case) -> Iterator[Fault]:
    evidence = case.evidence
    if not evidence.info:
        return
    if not evidence.episodes and not evidence.layout.data_files:
        yield INTERRUPTED.fault(
            "no episode is listed and no row file is there", where=Place("meta/info.json")
        )
        return
    pictures = [name for name in evidence.files if name.startswith("images/")]
    episodes: dict[tuple[str, int], int] = {}
    for name in pictures:
        if match := re.match(r"images/([^/]+)/episode[_-](\d+)/", name):
            key = (match[1], int(match[2]))
            episodes[key] = episodes.get(key, 0) + 1
    for (camera, episode), count in sorted(episodes.items()):
        file = evidence.layout.video_of.get((camera, episode))
        encoded = evidence.videos[file].frames if file in evidence.videos and not evidence.is_v3 else None
        if file is None or (encoded is not None and encoded < count):
            have = "no video" if file is None else f"a video of {encoded} frames"
            yield INTERRUPTED.fault(
                f"episode {episode} has {count} pictures of {camera} in images/ and {have}",
                where=Place(f"images/{camera}", episode, feature=camera),
            )
