"""Files that are shown with a run: sent once, and again when they changed; never from outside its folder."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from stack.files import canonical_json, sha256_file
from stack.tracking.remote import Remote
from stack.tracking.replay import Replay
from stack.tracking.secrets import holds_secret
from stack.tracking.watermark import Sent

LIMIT_BYTES = 64 << 20
EVENTS = "events.json"
PROXIED = "mlflow-artifacts:"


def is_proxied(run: Any) -> bool:
    """Whether the server takes the run's artifacts; else a client would write them to a path of its own."""
    return str(run.info.artifact_uri).startswith(PROXIED)


def send_artifacts(fresh: Replay, folder: Path, root: Path, sent: Sent, run: Any, remote: Remote) -> int:
    """Send what the journal in `folder` names and the server has not; how many files were sent.

    What cannot be sent becomes a note of the run: gone, too large, not below `root`, or with a secret in it;
    and everything, where the run's experiment is older than the server's artifact proxy.
    """
    if not is_proxied(run):
        if fresh.artifacts or fresh.events:
            fresh.note(
                f"no artifact was sent: its experiment keeps them at {run.info.artifact_uri}, a path of the "
                "server's host from before artifacts were proxied; rename the experiment and ship again"
            )
        return 0
    count = 0
    for path_text, to in fresh.artifacts:
        path = (folder / path_text).resolve()
        reason = _why_not(path, root.resolve())
        if reason is not None:
            fresh.note(f"artifact {path_text}: {reason}")
            continue
        target = f"{to.strip('/')}/{path.name}".lstrip("/")
        state = {"size_bytes": path.stat().st_size, "sha256": sha256_file(path)}
        if sent.artifacts.get(target) != state:
            try:
                remote.log_artifact(sent.mlflow_run_id, path, to.strip("/"))
            except FileNotFoundError:
                fresh.note(f"artifact {path_text}: taken away while it was being sent")
                continue
            sent.artifacts[target] = state
            count += 1
    return count + _send_events(fresh, sent, remote)


def _why_not(path: Path, root: Path) -> str | None:
    if not path.is_relative_to(root):
        return "outside the run folder, so not sent"
    if not path.is_file():
        return "not there, so not sent"
    size_bytes = path.stat().st_size
    if size_bytes > LIMIT_BYTES:
        return f"{size_bytes} bytes, more than {LIMIT_BYTES}; record such files by path and hash"
    if holds_secret(path):
        return "holds a login or a secret of this environment, so not sent"
    return None


def _send_events(fresh: Replay, sent: Sent, remote: Remote) -> int:
    if not fresh.events:
        return 0
    text = canonical_json({"run_id": fresh.run_id, "count": fresh.events_count, "events": fresh.events})
    state = {"size_bytes": len(text.encode()), "sha256": hashlib.sha256(text.encode()).hexdigest()}
    if sent.artifacts.get(EVENTS) == state:
        return 0
    remote.log_text(sent.mlflow_run_id, text, EVENTS)
    sent.artifacts[EVENTS] = state
    return 1
