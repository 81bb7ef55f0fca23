"""Parts of a split that an earlier call finished before it was killed: found again, checked, and kept."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from pathlib import Path

from stack.dataset.own_code import code_digest
from stack.dataset.write_sources import Snapshot
from stack.files import sha256_file, sha256_text, tree_files
from stack.folders import PARTIAL_MARK
from stack.prepare.ancestry import PATH
from stack.prepare.blueprint import Plan

KEY_LENGTH = 16


def parts_key(parts: Iterable[Plan], sources: Snapshot, packing: str) -> str:
    """A name for the work of a split: equal only for the same plans on unchanged sources by the same code.

    Args:
        packing: whatever else decides the files, as text.
    """
    marks = (f"{file} {mark.size_bytes} {mark.mtime_ns}" for file, mark in sorted(sources.marks.items()))
    plans = (f"{part.name}\n{part.text()}" for part in parts)
    return sha256_text("\n".join((code_digest(), packing, *plans, *marks)))[:KEY_LENGTH]


def finished_part(root: Path, part: Plan) -> str | None:
    """The content digest of a part that stands whole: it got its name when it was checked, and every file
    still has the hash that its provenance tells. None where it must be written."""
    try:
        told = json.loads((root / PATH).read_text(encoding="utf-8"))
        files, digest = told["files"], str(told["content_digest"])
        episodes = [(entry["source"], entry["source_episode"]) for entry in told["episodes"]]
        meant = {name: entry["sha256"] for name, entry in files.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    origins = [(s.episode.origin.dataset, s.episode.origin.episode) for s in part.selection.episodes]
    if told.get("name") != part.name or episodes != origins:
        return None
    there = {file.relative_to(root).as_posix(): file for file in tree_files(root)}
    there.pop(PATH, None)
    if there.keys() != meant.keys() or any(sha256_file(there[name]) != meant[name] for name in meant):
        return None
    return digest


def remove_strays(folder: Path, names: Iterable[str]) -> None:
    """Take away what is no part, and no half-written part, of a split."""
    known = tuple(names)
    for entry in list(folder.iterdir()):
        half = any(entry.name.startswith(f".{name}{PARTIAL_MARK}") for name in known)
        if entry.name in known or half:
            continue
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()
