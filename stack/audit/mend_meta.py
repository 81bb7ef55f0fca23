"""Repairs in info.json, the episode table and the task table: only what can be counted or read elsewhere."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from stack.audit.clips import ClipSpan
from stack.audit.declared import flat_names
from stack.audit.evidence import Evidence, whole
from stack.audit.layout import DEFAULT_TEMPLATES, named_data_file
from stack.audit.mend_declared import declared_changes
from stack.audit.mend_keys import key_changes
from stack.audit.mend_step import Left, Step
from stack.files import read_json, write_json, write_text

INFO, EPISODES, TASKS = "meta/info.json", "meta/episodes.jsonl", "meta/tasks.parquet"
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


def table_steps(evidence: Evidence) -> Iterator[Step | Left]:
    """The episode table from the counted rows, the task table in order."""
    changes = list(_entry_changes(evidence))
    if changes and not evidence.rows.unread:
        codes = tuple(dict.fromkeys(code for code, *_ in changes))
        files = sorted({file for _, file, *_ in changes})
        for file in files:
            own = [change for change in changes if change[1] == file]
            said = "; ".join(
                f"episode {episode}: {key} {old!r:.40} becomes {new!r:.40}"
                for _, _, episode, key, old, new in own[:4]
            )
            more = f"; and {len(own) - 4} more" if len(own) > 4 else ""
            edits = {(episode, key): new for _, _, episode, key, _, new in own}
            apply = _edit_table if evidence.is_v3 else _edit_lines
            yield Step(codes, file, said + more, partial(apply, file=file, edits=edits))
    yield from _task_table(evidence)


def _entry_changes(evidence: Evidence) -> Iterator[tuple[str, str, int, str, Any, Any]]:
    """(code, file, episode, key, old, new)."""
    numbers = [entry.index for entry in evidence.episodes]
    if None in numbers or len(set(numbers)) < len(numbers):
        return
    rows = evidence.rows
    first = {span.episode: span for span in reversed(rows.spans)}
    texts = _texts_of_rows(evidence)
    for entry in evidence.episodes:
        index = entry.index
        if index is None or index not in rows.lengths:
            continue
        length = rows.lengths[index]
        if entry.length != length:
            yield "episode-length-differs", entry.file, index, "length", entry.length, length
        own = texts.get(index)
        if own and (not isinstance(entry.tasks, list) or not set(own) <= set(map(str, entry.tasks))):
            yield "task-differs", entry.file, index, "tasks", entry.tasks, own
        if not evidence.is_v3:
            continue
        start = first[index].start
        for key, right in (("dataset_from_index", start), ("dataset_to_index", start + length)):
            if whole(entry.raw.get(key)) != right:
                yield "rows-range-wrong", entry.file, index, key, entry.raw.get(key), right
        named = named_data_file(evidence, evidence.layout, entry.raw)
        place = _chunk_and_file(evidence, first[index].file)
        if named is not None and named != first[index].file and place is not None:
            for key, right in zip(("data/chunk_index", "data/file_index"), place, strict=True):
                yield "data-file-index-wrong", entry.file, index, key, entry.raw.get(key), right
    yield from _clip_changes(evidence)


def _texts_of_rows(evidence: Evidence) -> dict[int, list[str]]:
    column = evidence.rows.columns.get("task_index")
    numbers = column.whole_numbers() if column is not None and column.present.all() else None
    texts = {whole(entry.index): entry.text for entry in evidence.tasks.entries}
    found: dict[int, list[str]] = {}
    for span in evidence.rows.spans if numbers is not None else ():
        assert numbers is not None
        own = [texts.get(int(n)) for n in np.unique(numbers[span.start : span.start + span.count])]
        found[span.episode] = [text for text in own if isinstance(text, str)] if None not in own else []
    return found


def _chunk_and_file(evidence: Evidence, file: str) -> tuple[int, int] | None:
    chunk, _, name = file.removeprefix("data/").partition("/")
    numbers = chunk.removeprefix("chunk-"), name.removeprefix("file-").removesuffix(".parquet")
    return (int(numbers[0]), int(numbers[1])) if all(n.isdigit() for n in numbers) else None


def _clip_changes(evidence: Evidence) -> Iterator[tuple[str, str, int, str, Any, Any]]:
    if not evidence.is_v3:
        return
    entries = {entry.index: entry for entry in evidence.episodes}
    for camera, spans in evidence.clips.items():
        for span, right in _right_times(evidence, spans):
            entry = entries.get(span.episode)
            for key, got, want in zip(("from", "to"), (span.start_s, span.stop_s), right, strict=True):
                if entry is not None and (got is None or abs(got - want) > 1e-4):
                    column = f"videos/{camera}/{key}_timestamp"
                    yield "clip-times-wrong", entry.file, span.episode, column, got, want


def _right_times(evidence: Evidence, spans: list[ClipSpan]) -> Iterator[tuple[ClipSpan, tuple[float, float]]]:
    """Each clip's true times, in files that hold exactly the frames of their episodes, in order."""
    by_file: dict[str, list[ClipSpan]] = {}
    for span in spans:
        by_file.setdefault(span.file, []).append(span)
    for file, own in by_file.items():
        video, fps = evidence.videos.get(file), evidence.fps
        lengths = [span.length for span in own]
        if video is None or fps is None or None in lengths or video.frames != sum(n or 0 for n in lengths):
            continue
        own = sorted(own, key=lambda span: span.episode)
        known = [span.start_s for span in own if span.start_s is not None]
        if known != sorted(known):
            continue  # clips may lie in another order than the episodes
        before = 0
        for span in own:
            after = before + (span.length or 0)
            yield span, (before / fps, after / fps)
            before = after


def _edit_lines(root: Path, *, file: str, edits: dict[tuple[int, str], Any]) -> None:
    lines = []
    for line in (root / file).read_text(encoding="utf-8").splitlines():
        try:
            entry = json.loads(line)
        except ValueError:
            entry = None
        if isinstance(entry, dict) and (index := whole(entry.get("episode_index"))) is not None:
            entry.update({key: value for (episode, key), value in edits.items() if episode == index})
            line = json.dumps(entry, ensure_ascii=False)
        lines.append(line + "\n")
    write_text(root / file, "".join(lines))


def _edit_table(root: Path, *, file: str, edits: dict[tuple[int, str], Any]) -> None:
    table = pq.ParquetFile(root / file).read()
    numbers = [whole(n) for n in table.column("episode_index").to_pylist()]
    for key in dict.fromkeys(key for _, key in edits):
        if key not in table.column_names:
            continue
        values = table.column(key).to_pylist()
        for row, episode in enumerate(numbers):
            if episode is not None and (episode, key) in edits:
                values[row] = edits[episode, key]
        at = table.column_names.index(key)
        table = table.set_column(at, key, pa.array(values, table.schema.field(key).type))
    pq.write_table(table, root / file)


def _task_table(evidence: Evidence) -> Iterator[Step | Left]:
    tasks = evidence.tasks
    numbers = [whole(entry.index) for entry in tasks.entries]
    texts = [entry.text for entry in tasks.entries]
    if not evidence.is_v3 or not numbers or not all(isinstance(text, str) for text in texts):
        return
    in_order = numbers == list(range(len(numbers)))
    if in_order and tasks.layout == "pandas-index":
        return
    if sorted(n for n in numbers if n is not None) != list(range(len(numbers))) or len(set(texts)) < len(
        texts
    ):
        yield Left("task-order", "the task numbers have holes or doubles: rows would have to change too")
        return
    right = [text for _, text in sorted(zip(numbers, texts, strict=True))]
    said = [] if in_order else ["sorted by task_index"]
    said += [] if tasks.layout == "pandas-index" else ["texts as the pandas index"]
    codes = ("task-order",) * (not in_order) + ("task-not-text",) * (tasks.layout != "pandas-index")
    yield Step(codes, TASKS, "; ".join(said), partial(_write_tasks, texts=right))


def _write_tasks(root: Path, *, texts: list[Any]) -> None:
    from stack.dataset.write_meta import write_tasks

    write_tasks(root, texts)
