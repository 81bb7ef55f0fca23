"""Where the episodes of a source came from, if it was prepared itself: its own provenance, carried on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

PATH = "meta/provenance.json"
Steps = list[dict[str, Any]]


def ancestry(root: Path) -> dict[int, Steps]:
    """Episode of a prepared dataset -> the sources that it came through, the nearest first.

    Each step is `{"source": name, "source_episode": number}`. Empty where there is no provenance, or one that
    somebody else wrote.
    """
    try:
        told = json.loads((root / PATH).read_text(encoding="utf-8"))
        return {
            int(entry["episode"]): [
                {"source": str(entry["source"]), "source_episode": int(entry["source_episode"])},
                *(
                    {"source": str(s["source"]), "source_episode": int(s["source_episode"])}
                    for s in _before(entry)
                ),
            ]
            for entry in told["episodes"]
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def _before(entry: dict[str, Any]) -> Steps:
    return list(entry.get("before", ()))


def ancestors(root: Path) -> list[dict[str, Any]]:
    """The `sources` of a prepared dataset's provenance: paths, versions and digests as they were then."""
    try:
        told = json.loads((root / PATH).read_text(encoding="utf-8"))["sources"]
    except (OSError, ValueError, KeyError, TypeError):
        return []
    return told if isinstance(told, list) else []
