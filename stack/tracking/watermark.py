"""What a server has of a journal already. It only saves work: believing less gives the same result.

The server says how far the points have come, in the tag `stack.shipped`, set after they were taken: a
number of bytes and a hash of so much of the journal, so that a copy that went another way is not taken for
this one. The file `.shipped.json` beside the journal says which artifacts were sent; it is believed where it
holds the server's present mark.
"""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stack.files import write_json
from stack.tracking import names

WATERMARK = ".shipped.json"


@dataclass
class Sent:
    """What the server is known to have; `artifacts` has size and sha256 by the artifact's path."""

    mlflow_run_id: str
    shipped_bytes: int = 0
    mark: str = ""
    artifacts: dict[str, dict[str, Any]] = field(default_factory=dict)

    def advance(self, content: bytes, whole_bytes: int) -> None:
        """All points in the first `whole_bytes` of the journal have been taken."""
        self.shipped_bytes, self.mark = whole_bytes, mark_of(content, whole_bytes)


def known(folder: Path, run: Any, content: bytes) -> Sent:
    """What the server's run and the file in `folder` agree on; nothing where they do not."""
    sent = Sent(run.info.run_id)
    mark = run.data.tags.get(names.SHIPPED, "")
    count = mark.partition(" ")[0]
    if not count.isdigit() or mark != mark_of(content, int(count)):
        return sent
    sent.shipped_bytes, sent.mark = int(count), mark
    with suppress(OSError, ValueError, KeyError, TypeError):
        saved = json.loads((folder / WATERMARK).read_text())
        if (saved["mlflow_run_id"], saved["mark"]) == (sent.mlflow_run_id, mark):
            sent.artifacts = dict(saved["artifacts"])
    return sent


def remember(folder: Path, sent: Sent) -> None:
    if not folder.is_dir():
        return  # renamed meanwhile, as a stage is that has become whole; it must not come back
    # A read-only copy of a run folder ships as well; its artifacts are then sent each time.
    with suppress(OSError):
        write_json(folder / WATERMARK, vars(sent))


def mark_of(content: bytes, count: int) -> str:
    """The mark of a journal's first `count` bytes; empty where it has not that many."""
    return f"{count} {hashlib.sha256(content[:count]).hexdigest()[:12]}" if count <= len(content) else ""
