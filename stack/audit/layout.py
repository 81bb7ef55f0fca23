"""Which file holds what: as the templates say, and where they do not resolve, as the file names say."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stack.audit.evidence import Evidence

DEFAULT_TEMPLATES: Mapping[tuple[bool, str], str] = {
    (False, "data_path"): "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet",
    (False, "video_path"): "videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4",
    (True, "data_path"): "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
    (True, "video_path"): "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4",
}
_WIDE_FIELD = re.compile(r"\{[^}]*[0-9]{4,}[^}]*\}")
VIDEO_FOLDERS = ("videos/", "video/")
_EPISODE_FILE = re.compile(r"(?:^|/)episode[_-](\d+)\.\w+$")
CHUNKS_SIZE = 1000


@dataclass(frozen=True)
class Miss:
    """A file that the metadata ask for.

    Attributes:
        found: another file that holds the same episode, if any.
        unsure: the files that may hold it, where there are several and none of them is taken.
    """

    template: str
    expected: str
    episode: int | None
    camera: str | None = None
    found: str | None = None
    unsure: tuple[str, ...] = ()


@dataclass
class Layout:
    """Where the files are.

    Attributes:
        data_files: row files with the episode each holds (v2.x; None in v3.0), in the order a loader reads.
        video_of: (camera, episode) -> video file that exists.
        misses: files asked for and not there under that name.
        unlisted: row and video files that no metadata names.
        bad_templates: template name -> why it can never resolve.
    """

    data_files: list[tuple[str, int | None]] = field(default_factory=list)
    video_of: dict[tuple[str, int], str] = field(default_factory=dict)
    misses: list[Miss] = field(default_factory=list)
    unlisted: list[str] = field(default_factory=list)
    bad_templates: dict[str, str] = field(default_factory=dict)

    @property
    def video_files(self) -> list[str]:
        return sorted(set(self.video_of.values()))


def locate(evidence: Evidence) -> Layout:
    return _locate_v3(evidence) if evidence.is_v3 else _locate_v2(evidence)


def _template(evidence: Evidence, name: str) -> str:
    given = evidence.info.get(name)
    return given if isinstance(given, str) else DEFAULT_TEMPLATES[evidence.is_v3, name]


def _videos(evidence: Evidence) -> set[str]:
    endings = (".mp4", PurePosixPath(_template(evidence, "video_path")).suffix or ".mp4")
    return {name for name in evidence.files if name.startswith(VIDEO_FOLDERS) and name.endswith(endings)}


def absurd_width(template: str) -> bool:
    """Whether a field is asked to be thousands of digits wide, which would fill the memory."""
    return bool(_WIDE_FIELD.search(template))


def _resolve(layout: Layout, name: str, template: str, **values: Any) -> str:
    if absurd_width(template):
        layout.bad_templates[name] = f"'{template[:80]}' asks for fields of thousands of digits"
        return ""
    try:
        return template.format(**values)
    except (KeyError, IndexError, ValueError, AttributeError, TypeError, OverflowError) as error:
        known = ", ".join(values)
        layout.bad_templates[name] = (
            f"'{template}' cannot be filled in: {type(error).__name__} {error}; known keys: {known}"
        )
        return ""


def _locate_v2(evidence: Evidence) -> Layout:
    layout = Layout()
    data = {name for name in evidence.files if name.startswith("data/") and name.endswith(".parquet")}
    videos = _videos(evidence)
    numbered = _by_episode(data)
    listed = [entry.index for entry in evidence.episodes if entry.index is not None]
    chunks = evidence.info.get("chunks_size")
    chunks = chunks if isinstance(chunks, int) and chunks > 0 else CHUNKS_SIZE
    used: set[str] = set()
    own = {camera: _by_episode({n for n in videos if f"/{camera}/" in n}) for camera in evidence.cameras}
    for episode in sorted(set(listed) if listed else numbered):
        values = {"episode_chunk": episode // chunks, "episode_index": episode}
        expected = _resolve(layout, "data_path", _template(evidence, "data_path"), **values)
        file = _pick(layout, "data_path", expected, data, numbered.get(episode, []), episode)
        if file:
            layout.data_files.append((file, episode))
            used.add(file)
        for camera in evidence.cameras:
            expected = _resolve(
                layout, "video_path", _template(evidence, "video_path"), video_key=camera, **values
            )
            found = own[camera].get(episode, [])
            file = _pick(layout, "video_path", expected, videos, found, episode, camera)
            if file:
                layout.video_of[camera, episode] = file
                used.add(file)
    layout.unlisted = _unlisted(data | videos, used)
    return layout


def _pick(
    layout: Layout,
    template: str,
    expected: str,
    present: set[str],
    numbered: list[str],
    episode: int,
    camera: str | None = None,
) -> str | None:
    if expected in present:
        return expected
    found = numbered[0] if numbered else None
    layout.misses.append(Miss(template, expected, episode, camera, found))
    return found


def _by_episode(names: set[str]) -> dict[int, list[str]]:
    numbered: dict[int, list[str]] = {}
    for name in sorted(names):
        if match := _EPISODE_FILE.search(name):
            numbered.setdefault(int(match[1]), []).append(name)
    return numbered


def _locate_v3(evidence: Evidence) -> Layout:
    layout = Layout()
    data = sorted(n for n in evidence.files if n.startswith("data/") and n.endswith(".parquet"))
    videos = _videos(evidence)
    rows_of, pictures_of = _by_episode(set(data)), _by_camera(evidence, videos)
    layout.data_files = [(name, None) for name in data]
    for entry in evidence.episodes:
        if entry.index is None:
            continue
        expected = named_data_file(evidence, layout, entry.raw)
        if expected is not None and expected not in data:
            usual = _data_file(entry.raw, DEFAULT_TEMPLATES[True, "data_path"], layout)
            found = {name for name in (usual, *rows_of.get(entry.index, [])) if name in data}
            layout.misses.append(_missed("data_path", expected, entry.index, None, found))
        for camera in evidence.cameras:
            chunk, file = (
                _number(entry.raw, f"videos/{camera}/{key}") for key in ("chunk_index", "file_index")
            )
            if chunk is None or file is None:
                continue
            template = _template(evidence, "video_path")
            values = {"video_key": camera, "chunk_index": chunk, "file_index": file}
            expected = _resolve(layout, "video_path", template, **values)
            if expected in videos:
                layout.video_of[camera, entry.index] = expected
                continue
            likely = {expected, DEFAULT_TEMPLATES[True, "video_path"].format(**values)}
            likely |= {_in_other_folder(name) for name in likely}
            likely |= set(pictures_of.get((camera, entry.index), []))
            miss = _missed("video_path", expected, entry.index, camera, likely & videos)
            layout.misses.append(miss)
            if miss.found:
                layout.video_of[camera, entry.index] = miss.found
    layout.unlisted = _unlisted(videos, set(layout.video_of.values()))
    return layout


def _missed(template: str, expected: str, episode: int, camera: str | None, found: set[str]) -> Miss:
    """What was not found where it was asked for: another file is taken only where one alone can be meant."""
    only = next(iter(found)) if len(found) == 1 else None
    return Miss(template, expected, episode, camera, only, () if only else tuple(sorted(found)))


def _in_other_folder(name: str) -> str:
    """The same path below `video/` for one below `videos/`, and the reverse."""
    folder, other = VIDEO_FOLDERS if name.startswith(VIDEO_FOLDERS[0]) else VIDEO_FOLDERS[::-1]
    return other + name.removeprefix(folder) if name.startswith(folder) else name


def _by_camera(evidence: Evidence, videos: set[str]) -> dict[tuple[str, int], list[str]]:
    """(camera, episode) -> files that are called so, below a folder that is called as the camera."""
    found: dict[tuple[str, int], list[str]] = {}
    cameras = set(evidence.cameras)
    for episode, names in _by_episode(videos).items():
        for name in names:
            own = cameras.intersection(name.split("/")[:-1])
            if len(own) == 1:
                found.setdefault((own.pop(), episode), []).append(name)
    return found


def _unlisted(present: set[str], used: set[str]) -> list[str]:
    """What lies where the format has its files; of a folder `video/`, only what is found there counts."""
    return sorted(name for name in present - used if not name.startswith("video/"))


def named_data_file(evidence: Evidence, layout: Layout, raw: Mapping[str, Any]) -> str | None:
    """The row file that a v3.0 episode row names, or None where it names none."""
    return _data_file(raw, _template(evidence, "data_path"), layout)


def _data_file(raw: Mapping[str, Any], template: str, layout: Layout) -> str | None:
    chunk, file = (_number(raw, f"data/{key}", f"data_{key}") for key in ("chunk_index", "file_index"))
    if chunk is None or file is None:
        return None
    return _resolve(layout, "data_path", template, chunk_index=chunk, file_index=file)


def _number(raw: Mapping[str, Any], *keys: str) -> int | None:
    from stack.audit.evidence import whole

    for key in keys:
        if (value := whole(raw.get(key))) is not None:
            return value
    return None
