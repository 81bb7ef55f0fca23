"""Files and layout: what is missing, damaged, or lies there for nothing."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from pathlib import PurePosixPath

from stack.audit.kinds import Case, check, kind
from stack.audit.trouble import Problem, Trouble
from stack.faults import Fault, Place

FILE_EMPTY = kind(
    "file-empty",
    "error",
    "files",
    title="a file has no bytes",
    consequence="the loader stops on it, or silently counts it as nothing",
    mend="copy or record the file again; if the source is gone, exclude its episodes",
)
LFS_POINTER = kind(
    "lfs-pointer",
    "error",
    "files",
    title="a Git-LFS pointer lies where a file should be",
    consequence="the file's contents never came along; loaders fail with a message about its format",
    mend="run `git lfs pull` where the dataset was cloned, then deliver it again",
)
FILE_TRUNCATED = kind(
    "file-truncated",
    "error",
    "files",
    title="a file ends too early",
    consequence="its rows or pictures cannot be read; the writer was stopped or the copy broke off",
    mend="copy the file again; if it was cut while recording, exclude its episodes",
)
FILE_UNREADABLE = kind(
    "file-unreadable",
    "error",
    "files",
    title="a file cannot be read as what its name says",
    consequence="its contents take no part in training, or loading fails",
    mend="copy or record the file again; if the source is gone, exclude its episodes",
)
META_NOT_JSON = kind(
    "meta-not-json",
    "error",
    "files",
    title="a metadata file, or a line of one, is not JSON",
    consequence="loading stops there, or what the line says is lost",
    mend="correct the line, or write the file again from the rows",
)
META_DOUBTFUL = kind(
    "meta-json-doubtful",
    "warning",
    "files",
    title="a metadata file is JSON that readers understand differently",
    consequence="of a key that stands twice Python keeps the last value, others the first, or refuse; NaN "
    "and Infinity are no JSON at all. Which value was meant, nobody can tell",
    mend="in the file write each key once, and a number or null in place of NaN",
)
UNCHECKED_ROWS = kind(
    "unchecked-rows",
    "error",
    "unchecked",
    title="rows could not be checked",
    consequence="whatever is wrong in these rows stays unknown",
    mend="mend the files named under the other faults and audit again",
)
UNCHECKED_VIDEO = kind(
    "unchecked-video",
    "error",
    "unchecked",
    title="videos could not be checked",
    consequence="whatever is wrong in these pictures stays unknown",
    mend="mend the files named under the other faults and audit again",
)
FILE_MISSING = kind(
    "file-missing",
    "error",
    "files",
    title="the metadata name a row file that is not there",
    consequence="the loader asks the hub for it; offline that is a connection error that hides the cause",
    mend="copy the file again, or exclude its episode",
)
VIDEO_MISSING = kind(
    "video-missing",
    "error",
    "video",
    title="an episode has no video although its camera has others",
    consequence="the loader asks the hub for it; offline that is a connection error that hides the cause",
    mend="copy the file again, or exclude the episode",
)
CAMERA_WITHOUT_FILES = kind(
    "camera-without-files",
    "error",
    "video",
    title="info.json declares a camera that has no file at all",
    consequence="the loader asks the hub for it; offline that is a connection error that hides the cause",
    mend="take the camera out of info.json, or in the dataset manifest: `decide: {missing_cameras: drop}`",
)
TEMPLATE = kind(
    "template-does-not-resolve",
    "error",
    "files",
    title="a path template of info.json does not lead to the files",
    consequence="loaders build paths from the template and find nothing, although the files are there",
    mend="correct the template in info.json to the paths that exist",
)
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
_TROUBLE_KINDS = {
    Trouble.EMPTY: FILE_EMPTY,
    Trouble.LFS_POINTER: LFS_POINTER,
    Trouble.TRUNCATED: FILE_TRUNCATED,
    Trouble.UNREADABLE: FILE_UNREADABLE,
    Trouble.NOT_JSON: META_NOT_JSON,
    Trouble.DOUBTFUL_JSON: META_DOUBTFUL,
}


@check(
    "every file opened",
    FILE_EMPTY,
    LFS_POINTER,
    FILE_TRUNCATED,
    FILE_UNREADABLE,
    META_NOT_JSON,
    META_DOUBTFUL,
    UNCHECKED_ROWS,
    UNCHECKED_VIDEO,
)
def files_open(case: Case) -> Iterator[Fault]:
    evidence = case.evidence
    _ = (evidence.info, evidence.episodes, evidence.tasks, evidence.stats, evidence.episode_stats)
    _ = evidence.provenance
    # Videos first: the processes that look into them are then copies of a small one.
    videos, rows = evidence.videos, evidence.rows
    problems = {(p.file, p.line, p.trouble): p for p in evidence.problems}
    empty = [n for n, size in evidence.files.items() if size == 0 and n.startswith("meta/")]
    for name in empty:
        known = (name, None, Trouble.EMPTY)
        problems.setdefault(known, Problem(name, Trouble.EMPTY, "the file has no bytes"))
    for problem in problems.values():
        if (problem.file, problem.trouble) == ("meta/info.json", Trouble.NOT_JSON):
            continue  # info-not-json says it
        where = f"{problem.file}:{problem.line}" if problem.line else problem.file
        found = _TROUBLE_KINDS[problem.trouble]
        yield found.fault(f"{where}: {problem.detail}", where=Place(problem.file))
    if rows.unread:
        total = len(evidence.layout.data_files)
        yield UNCHECKED_ROWS.fault(
            f"{len(rows.unread)} of {total} row files could not be read; no check saw their rows, and"
            " totals and statistics over all rows were not compared",
            places=tuple(Place(name) for name in rows.unread),
            count=len(rows.unread),
        )
    unread = sorted(set(evidence.layout.video_files) - set(videos))
    if unread:
        yield UNCHECKED_VIDEO.fault(
            f"{len(unread)} of {len(evidence.layout.video_files)} video files could not be read",
            places=tuple(Place(name) for name in unread),
            count=len(unread),
        )


@check("every file that the metadata name", FILE_MISSING, VIDEO_MISSING, CAMERA_WITHOUT_FILES, TEMPLATE)
def files_there(case: Case) -> Iterator[Fault]:
    evidence, layout = case.evidence, case.evidence.layout
    for name, why in layout.bad_templates.items():
        yield TEMPLATE.fault(why, where=Place("meta/info.json", feature=name))
    with_files = {camera for camera, _ in layout.video_of}
    nearly = {_folded(name): name for name in evidence.files}
    closed = f"; but {', '.join(evidence.closed[:3])} could not be listed" if evidence.closed else ""
    for camera in evidence.cameras:
        if camera not in with_files:
            wanted = next((m.expected for m in layout.misses if m.camera == camera), "")
            yield CAMERA_WITHOUT_FILES.fault(
                f"{camera} is declared as video, but no file of it is there"
                + (f" (looked for {wanted})" if wanted else "")
                + _nearly(nearly, wanted)
                + closed,
                where=Place("meta/info.json", feature=camera),
            )
    for miss in layout.misses:
        place = Place(miss.expected or None, miss.episode, feature=miss.camera)
        if miss.found:
            if miss.template not in layout.bad_templates:
                yield TEMPLATE.fault(
                    f"{miss.template} leads to {miss.expected}, which is not there; found: {miss.found}",
                    where=Place(miss.found, miss.episode, feature=miss.template),
                )
        elif miss.camera is None:
            near = _nearly(nearly, miss.expected)
            yield FILE_MISSING.fault(
                f"the rows of episode {miss.episode} are not there{near}{closed}", where=place
            )
        elif miss.camera in with_files:
            near = _nearly(nearly, miss.expected)
            yield VIDEO_MISSING.fault(
                f"episode {miss.episode} has no video of {miss.camera}{near}{closed}", where=place
            )


def _folded(name: str) -> str:
    return unicodedata.normalize("NFC", name).casefold()


def _nearly(files: dict[str, str], wanted: str) -> str:
    """What to say where another file system would take a file that is there for the wanted one."""
    found = files.get(_folded(wanted)) if wanted else None
    return f"; {found!a} is there, which differs in case or Unicode form" if found else ""


@check("files that nobody named", FILE_UNLISTED, LEFT_OVER)
def files_over(case: Case) -> Iterator[Fault]:
    evidence = case.evidence
    unlisted = set(evidence.layout.unlisted)
    declared = set(evidence.cameras)
    for name in sorted(unlisted):
        camera = next((part for part in PurePosixPath(name).parts if part in declared), None)
        if name.startswith("videos/") and camera is None:
            yield LEFT_OVER.fault(f"{name} belongs to no declared camera", where=Place(name))
        else:
            yield FILE_UNLISTED.fault(f"{name} belongs to no listed episode", where=Place(name))
    for name in evidence.files:
        if name not in unlisted and (why := _why_left_over(name, evidence.is_v3)):
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
