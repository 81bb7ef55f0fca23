"""Files and layout: what is missing or damaged."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator

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
    _ = (evidence.info, evidence.episodes, evidence.tasks, evidence.stats, evidence.provenance)
    if not evidence.form_only:
        # Videos before rows: the processes that look into them are then copies of a small one.
        _ = (evidence.episode_stats, evidence.videos)
    rows = evidence.rows
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
    unread = sorted(set(evidence.layout.video_files) - set(evidence.videos))
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
    unsure = {miss.camera for miss in layout.misses if miss.unsure}
    nearly = {_folded(name): name for name in evidence.files}
    closed = f"; but {', '.join(evidence.closed[:3])} could not be listed" if evidence.closed else ""
    for camera in evidence.cameras:
        if camera not in with_files | unsure:
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
        elif miss.unsure:
            asked = f"{miss.template} leads to {miss.expected}, which is not there" if miss.expected else ""
            yield TEMPLATE.fault(
                f"{asked or miss.template + ' leads to no file'}; episode {miss.episode} may be in any of: "
                f"{', '.join(miss.unsure)}",
                where=Place("meta/info.json", miss.episode, feature=miss.camera or miss.template),
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
