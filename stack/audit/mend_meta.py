"""Repairs in info.json: only what can be counted or read elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from stack.audit.declared import flat_names
from stack.audit.evidence import Evidence, whole
from stack.audit.layout import DEFAULT_TEMPLATES
from stack.audit.mend_declared import declared_changes
from stack.audit.mend_keys import key_changes
from stack.audit.mend_step import Left, Step
from stack.files import read_json, write_json

INFO = "meta/info.json"
Info = dict[str, Any]
# Forms of paths that writers use; one is taken only where it leads to every file that is there.
_PATHS = {
    (False, "data_path"): (DEFAULT_TEMPLATES[False, "data_path"],),
    (False, "video_path"): (
        DEFAULT_TEMPLATES[False, "video_path"],
        "videos/{video_key}/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.mp4",
    ),
    (True, "data_path"): (DEFAULT_TEMPLATES[True, "data_path"],),
    (True, "video_path"): (DEFAULT_TEMPLATES[True, "video_path"],),
}


def info_steps(evidence: Evidence) -> Iterator[Step | Left]:
    if not evidence.info:
        return
    for code, text, change in _info_changes(evidence):
        if isinstance(change, str):
            yield Left(code, change)
        else:
            yield Step((code,), INFO, text, partial(_change_info, change=change))


def _change_info(root: Path, *, change: Callable[[Info], None]) -> None:
    info = read_json(root / INFO)
    change(info)
    write_json(root / INFO, info)


def _info_changes(evidence: Evidence) -> Iterator[tuple[str, str, Callable[[Info], None] | str]]:
    info = evidence.info
    yield from _totals(evidence)
    splits, count = info.get("splits"), len(evidence.episodes)
    right = {"train": f"0:{count}"}
    if isinstance(splits, dict) and list(splits) == ["train"] and splits != right and count:
        yield "splits-lie", f"splits: {splits} becomes {right}", _set("splits", right)
    elif isinstance(splits, dict) and len(splits) > 1:
        yield "splits-lie", "", "where one split ends and the next begins cannot be counted"
    if evidence.version and info.get("codebase_version") != evidence.version:
        text = (
            f"codebase_version: {info.get('codebase_version')} becomes {evidence.version}, as the files lie"
        )
        yield "version-differs", text, _set("codebase_version", evidence.version)
    yield from _templates(evidence)
    yield from key_changes(evidence)
    yield from declared_changes(evidence)
    for name, feature in evidence.features.items():
        if "fps" in feature.raw:
            yield "feature-fps-entry", f"{name}: fps entry taken out", _drop(name, "fps")
        raw, names = feature.raw.get("names"), flat_names(feature.raw.get("names"))
        nested = isinstance(raw, list) and any(isinstance(item, list) for item in raw)
        if nested and names is not None and len(feature.shape) == 1 and len(names) == feature.shape[0]:
            yield "names-do-not-fit", f"{name}: names from a list of lists to one list", _names(name, names)
        if feature.is_camera and len(feature.shape) == 3 and (names is None or len(names) != 3):
            first = feature.shape[0] in (1, 3, 4) and feature.shape[2] not in (1, 3, 4)
            axes = ["channels", "height", "width"] if first else ["height", "width", "channels"]
            yield "names-do-not-fit", f"{name}: names {raw} become the axes {axes}", _names(name, axes)
        if feature.dtype == "video":
            yield from _video_entry(evidence, name)


def _set(key: str, value: Any) -> Callable[[Info], None]:
    return lambda info: info.update({key: value})


def _drop(feature: str, key: str) -> Callable[[Info], None]:
    return lambda info: info["features"][feature].pop(key, None)


def _names(feature: str, names: list[str]) -> Callable[[Info], None]:
    return lambda info: info["features"][feature].update(names=names)


def _totals(evidence: Evidence) -> Iterator[tuple[str, str, Callable[[Info], None] | str]]:
    from stack.audit.checks.info import counted_totals

    wrong = {
        key: right
        for key, right in counted_totals(evidence).items()
        if (key in evidence.info and whole(evidence.info[key]) != right)
        or (key not in evidence.info and key != "total_tasks")
    }
    gone = [m for m in evidence.layout.misses if m.template == "data_path" and not m.found]
    if wrong and (evidence.rows.unread or gone):
        yield "totals-lie", "", "rows are missing or unreadable: what is there is not all that there was"
        return
    for key, right in wrong.items():
        yield "totals-lie", f"{key}: {evidence.info.get(key)} becomes {right}", _set(key, right)


def _templates(evidence: Evidence) -> Iterator[tuple[str, str, Callable[[Info], None] | str]]:
    layout = evidence.layout
    for key in ("data_path", "video_path"):
        moved = [miss for miss in layout.misses if miss.template == key and miss.found]
        if not moved and key not in layout.bad_templates:
            continue
        given = evidence.info.get(key)
        for path in _PATHS[evidence.is_v3, key]:
            if path != given and _leads_to_all(evidence, key, path):
                text = f"{key}: {given} becomes {path}, which leads to every file that is there"
                yield "template-does-not-resolve", text, _set(key, path)
                break
        else:
            yield "template-does-not-resolve", "", f"no usual form of {key} leads to the files that are there"


def _leads_to_all(evidence: Evidence, key: str, path: str) -> bool:
    """Whether the template gives the place of each file that was found for an episode, and there are some."""
    if evidence.is_v3:
        return False
    chunks = evidence.info.get("chunks_size")
    chunks = chunks if isinstance(chunks, int) and chunks > 0 else 1000
    found: list[tuple[str | None, int | None, str]]
    if key == "data_path":
        found = [(None, episode, file) for file, episode in evidence.layout.data_files]
    else:
        found = [(camera, episode, file) for (camera, episode), file in evidence.layout.video_of.items()]
    return bool(found) and all(
        episode is not None
        and path.format(video_key=camera, episode_index=episode, episode_chunk=episode // chunks) == file
        for camera, episode, file in found
    )


def _video_entry(evidence: Evidence, name: str) -> Iterator[tuple[str, str, Callable[[Info], None] | str]]:
    """Codec, pixel format and size as the files are, where all files of the camera agree."""
    from stack.audit.checks.video import codec_of, declared_size

    files = {file for (camera, _), file in evidence.layout.video_of.items() if camera == name}
    videos = [evidence.videos[file] for file in files if file in evidence.videos]
    if not videos or len({(v.codec, v.pix_fmt, v.width, v.height) for v in videos}) > 1:
        return
    video, feature = videos[0], evidence.features[name]
    key = next((k for k in ("info", "video_info") if isinstance(feature.raw.get(k), dict)), None)
    stated = feature.raw[key] if key else {}
    new: dict[str, Any] = {}
    if isinstance(stated.get("video.codec"), str) and codec_of(stated["video.codec"]) != video.codec:
        new["video.codec"] = video.codec
    if isinstance(stated.get("video.pix_fmt"), str) and stated["video.pix_fmt"] != video.pix_fmt:
        new["video.pix_fmt"] = video.pix_fmt
    if new and key:
        changed, entry = dict(new), key
        text = f"{name}: {', '.join(f'{k} {stated.get(k)} becomes {v}' for k, v in new.items())}"
        yield "video-codec-differs", text, lambda info: info["features"][name][entry].update(changed)
    if declared_size(feature) not in (None, (video.width, video.height)):
        size: dict[str, Any] = {
            "shape": [video.height, video.width, 3],
            "names": ["height", "width", "channels"],
        }
        text = f"{name}: shape {list(feature.shape)} becomes {size['shape']}, as the files are"
        yield "video-size-differs", text, lambda info: info["features"][name].update(size)
