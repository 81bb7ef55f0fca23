"""info.json: there, whole, and true."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from stack.audit.declared import declared_features
from stack.audit.evidence import Evidence, whole
from stack.audit.kinds import Case, check, kind
from stack.audit.trouble import Trouble
from stack.faults import Fault, Place, Severity

INFO = "meta/info.json"
INFO_MISSING = kind(
    "info-missing",
    "error",
    "files",
    title="meta/info.json is not there",
    consequence="no loader takes the folder for a dataset; openpi's statistics step stops or waits",
    mend="deliver meta/info.json; every other metadata file is read by what it says",
)
INFO_NOT_JSON = kind(
    "info-not-json",
    "error",
    "files",
    title="meta/info.json is not a JSON object",
    consequence="no loader takes the folder for a dataset",
    mend="correct the file; the message says where reading stopped",
)
INFO_KEY = kind(
    "info-key-wrong",
    "error",
    "files",
    title="a key of info.json that loaders need is absent or of the wrong type",
    consequence="loading stops with a KeyError or TypeError",
    mend="add the key with the right value; `stack prepare` writes all of them anew",
    also={
        "warning": "for keys that only merging and recording on need: robot_type, and in v3.0 chunks_size, "
        "data_files_size_in_mb, video_files_size_in_mb"
    },
)
VERSION = kind(
    "version-differs",
    "error",
    "files",
    title="codebase_version is not that of the layout on disk",
    consequence="loaders choose how to read by this string and then miss the files",
    mend="set codebase_version to the layout that is there",
)
NEEDS_CONVERSION = kind(
    "format-needs-conversion",
    "warning",
    "files",
    title="the dataset is in format v2.x",
    consequence="lerobot 0.4 and later read v3.0 only",
    mend="stack prepare MANIFEST.yaml --out DIR   (or: stack convert SRC DST --to v3.0)",
)
TOTALS = kind(
    "totals-lie",
    "error",
    "files",
    title="a total in info.json is not what was counted",
    consequence="v3.0: total_frames is the dataset's length, too small drops frames silently, too big raises "
    "IndexError; merging takes totals as offsets",
    mend="write the counted numbers into info.json",
    also={
        "warning": "for totals that no reader of v3.0 uses: total_videos, total_chunks, total_tasks; where "
        "the first two are absent, lerobot's converter of v2.1 stops with a KeyError"
    },
)
SPLITS = kind(
    "splits-lie",
    "warning",
    "files",
    title="a split in info.json names episodes that are not there, or is no slice",
    consequence="lerobot's loader does not read splits; people and other tools do",
    mend='write the split over the counted episodes, such as `{"train": "0:N"}`',
    also={"note": "where there is none"},
)
FPS_NOT_WHOLE = kind(
    "fps-not-whole",
    "warning",
    "time",
    title="fps is not a whole number",
    consequence="lerobot's v3.0 tools cut it to a whole number; all times then drift",
    mend="keep the true rate and convert with a tool that keeps it, or record at a whole rate",
)


@check("info.json", INFO_MISSING, INFO_NOT_JSON, INFO_KEY, FPS_NOT_WHOLE)
def info_whole(case: Case) -> Iterator[Fault]:
    evidence = case.evidence
    if INFO not in evidence.files:
        shut = "; the folder meta cannot be listed" if "meta" in evidence.closed else ""
        yield INFO_MISSING.fault(
            f"the folder has no meta/info.json{shut}{_instead(evidence)}", where=Place(INFO)
        )
        return
    info = evidence.info
    for problem in evidence.problems:
        if (problem.file, problem.trouble) == (INFO, Trouble.NOT_JSON):
            yield INFO_NOT_JSON.fault(problem.detail, where=Place(INFO))
    if not info:
        return
    yield from _wrong_keys(evidence)
    yield from _wrong_entries(info.get("features"))
    if evidence.fps is not None and evidence.fps != int(evidence.fps):
        yield FPS_NOT_WHOLE.fault(
            f"fps is {evidence.fps}; lerobot's tools take {int(evidence.fps)}", where=Place(INFO)
        )


def _instead(evidence: Evidence) -> str:
    """Where the file is instead, if it can be told."""
    for name in evidence.files:
        if name.endswith(f"/{INFO}"):
            return f"; there is {name}: audit {name[: -len(INFO) - 1]}, not the folder above"
        if name.replace("\\", "/") == INFO:
            return f"; there is '{name}': whoever unpacked it took backslashes for letters of the name"
    return ""


def _wrong_keys(evidence: Evidence) -> Iterator[Fault]:
    info = evidence.info
    text, number = "a path template", "a whole number above 0"
    sizes = ("chunks_size", "data_files_size_in_mb", "video_files_size_in_mb")
    merged: Severity = "warning"  # loaders of v3.0 do without
    chunks: Severity = merged if evidence.is_v3 else "error"
    wanted: tuple[tuple[str, bool, str, Severity], ...] = (
        ("codebase_version", isinstance(info.get("codebase_version"), str), 'text such as "v3.0"', "error"),
        ("fps", evidence.fps is not None, "a number above 0", "error"),
        ("features", bool(declared_features(info)), "an object with an entry for each feature", "error"),
        ("data_path", isinstance(info.get("data_path"), str), text, "error"),
        ("video_path", isinstance(info.get("video_path"), str) or not evidence.cameras, text, "error"),
        ("robot_type", "robot_type" in info, "text, or null", merged),
        *(
            (key, (whole(info.get(key)) or 0) > 0, number, chunks)
            for key in sizes[: 3 if evidence.is_v3 else 1]
        ),
    )
    for key, is_good, right, severity in wanted:
        if not is_good:
            got = repr(info[key])[:60] if key in info else "absent"
            place = Place(INFO, feature=key)
            yield INFO_KEY.fault(f"{key} is {got}; it must be {right}", where=place, severity=severity)


def _wrong_entries(features: Any) -> Iterator[Fault]:
    for name, entry in features.items() if isinstance(features, dict) else ():
        has = isinstance(entry, dict)
        if not has or not isinstance(entry.get("dtype"), str) or not isinstance(entry.get("shape"), list):
            yield INFO_KEY.fault(
                f"feature {name} has no dtype and shape of the right type", where=Place(INFO, feature=name)
            )


@check("the format's version", VERSION, NEEDS_CONVERSION)
def format_version(case: Case) -> Iterator[Fault]:
    evidence = case.evidence
    declared, layout = evidence.info.get("codebase_version"), evidence.version
    if isinstance(declared, str) and layout is not None and declared != layout:
        yield VERSION.fault(
            f"codebase_version is {declared!r} but the files are laid out as {layout}", where=Place(INFO)
        )
    if layout in ("v2.0", "v2.1") and (case.policy is None or case.policy.name != "openpi"):
        yield NEEDS_CONVERSION.fault(f"the layout is {layout}", where=Place(INFO))


@check("totals and splits", TOTALS, SPLITS)
def totals(case: Case) -> Iterator[Fault]:
    evidence = case.evidence
    info = evidence.info
    if not info:
        return
    for key, right in counted_totals(evidence).items():
        if key not in info:
            if key != "total_tasks":
                yield TOTALS.fault(
                    f"{key} is absent; counted: {right}",
                    where=Place(INFO, feature=key),
                    severity="error" if key in ("total_episodes", "total_frames") else "warning",
                )
            continue
        if whole(info[key]) != right:
            yield TOTALS.fault(
                f"{key} is {info[key]!r}; counted: {right}",
                where=Place(INFO, feature=key),
                severity="error" if key in ("total_episodes", "total_frames") else "warning",
                data={"stated": info[key], "counted": right},
            )
    yield from _splits(info.get("splits"), len(evidence.episodes))


def counted_totals(evidence: Evidence) -> dict[str, int]:
    """The totals that info.json may state, counted; those that cannot be counted are left out."""
    cameras = {camera for camera, _ in evidence.layout.video_of}
    chunks = {name.split("/")[1] for name, _ in evidence.layout.data_files}
    counted: dict[str, int] = {"total_episodes": len(evidence.episodes)}
    if not evidence.rows.unread:
        counted["total_frames"] = evidence.rows.count
    if not evidence.is_v3:
        counted["total_videos"] = len(cameras) * len(evidence.episodes)
        counted["total_chunks"] = len(chunks)
    if evidence.tasks.entries:
        counted["total_tasks"] = len(evidence.tasks.entries)
    return counted


def _splits(splits: Any, episodes: int) -> Iterator[Fault]:
    if splits is None:
        said = "info.json states no splits; lerobot writes one, train, over all episodes"
        yield SPLITS.fault(said, where=Place(INFO, feature="splits"), severity="note")
        return
    for name, text in splits.items() if isinstance(splits, dict) else [("splits", splits)]:
        match = re.fullmatch(r"(\d+):(\d+)", text) if isinstance(text, str) else None
        if match is None:
            message = f'split {name} is {text!r}, not a slice such as "0:{episodes}"'
        elif int(match[2]) > episodes or int(match[1]) >= int(match[2]):
            message = f"split {name} is {text}, but there are {episodes} episodes"
        else:
            continue
        yield SPLITS.fault(message, where=Place(INFO, feature="splits"))
