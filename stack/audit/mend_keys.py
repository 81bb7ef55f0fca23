"""Repairs of keys that info.json lacks: where the files prove the value, or it means nothing for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from stack.audit.evidence import Evidence, whole
from stack.audit.layout import CHUNKS_SIZE, DEFAULT_TEMPLATES
from stack.audit.trouble import Trouble

Info = dict[str, Any]
# (fault code, what is done or empty, how, or why it is left)
Change = tuple[str, str, Callable[[Info], None] | str]
CODE = "info-key-wrong"
# lerobot's own values; they say how large files may grow that are written from now on.
SIZES = {"data_files_size_in_mb": 100, "video_files_size_in_mb": 200}


def key_changes(evidence: Evidence) -> Iterator[Change]:
    for problem in evidence.problems:
        if problem.trouble is Trouble.DOUBTFUL_JSON:
            why = "cannot be told; a file that another repair rewrites keeps the last, as Python reads it"
            yield "meta-json-doubtful", "", f"{problem.file}: which value was meant {why}"
    yield from _templates(evidence)
    yield from _sizes(evidence)
    if "robot_type" not in evidence.info:
        yield CODE, "robot_type: absent becomes null, for unknown", _set("robot_type", None)


def _templates(evidence: Evidence) -> Iterator[Change]:
    layout = evidence.layout
    for key, found in (("data_path", layout.data_files), ("video_path", layout.video_of)):
        given = evidence.info.get(key)
        if isinstance(given, str) or (key == "video_path" and not evidence.cameras):
            continue
        usual = DEFAULT_TEMPLATES[evidence.is_v3, key]
        # A file that is nowhere says nothing against the template; one that lies elsewhere does.
        if found and not any(miss.template == key and miss.found for miss in layout.misses):
            text = f"{key}: {given} becomes {usual}, which leads to every file that is there"
            yield CODE, text, _set(key, usual)
        else:
            yield CODE, "", f"the usual {key}, {usual}, does not lead to the files that are there"


def _sizes(evidence: Evidence) -> Iterator[Change]:
    chunks = evidence.info.get("chunks_size")
    if (whole(chunks) or 0) <= 0:
        # In v2.x it is part of every path: without it files were looked for by the usual one.
        elsewhere = any(miss.found for miss in evidence.layout.misses)
        if evidence.is_v3 or (evidence.layout.data_files and not elsewhere):
            text = f"chunks_size: {chunks} becomes {CHUNKS_SIZE}, the usual one"
            yield CODE, text, _set("chunks_size", CHUNKS_SIZE)
        else:
            yield CODE, "", f"files do not lie in chunks of {CHUNKS_SIZE} episodes, the usual chunks_size"
    for key, usual in SIZES.items() if evidence.is_v3 else ():
        if (whole(evidence.info.get(key)) or 0) <= 0:
            text = f"{key}: {evidence.info.get(key)} becomes {usual}, the usual one"
            yield CODE, text, _set(key, usual)


def _set(key: str, value: Any) -> Callable[[Info], None]:
    return lambda info: info.update({key: value})
