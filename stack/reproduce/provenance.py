"""What code, packages and machine a run used. Collected without importing torch."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from stack import __version__
from stack.files import sha256_file, write_json, write_text

CHECKOUT = Path(__file__).resolve().parent.parent.parent
LINES = {(3, 10): "production", (3, 11): "production", (3, 12): "current", (3, 13): "current"}


@dataclass(frozen=True)
class Provenance:
    """Attributes:
    revision: git commit of the checkout, or what the image was built from (STACK_REVISION).
    dirty: uncommitted changes; None where there is no git.
    lock: sha256 of the line's lock file, first 16 digits, as the checkout has it.
    installed_lock: the same of the lock that the installed packages came from; None outside `make setup`.
    image: the container image, from STACK_IMAGE.
    """

    version: str
    revision: str | None
    dirty: bool | None
    line: str
    lock: str | None
    installed_lock: str | None
    python: str
    platform: str
    machine: str
    image: str | None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def collect() -> Provenance:
    line = LINES.get(sys.version_info[:2], "unknown")
    # The image's packages come from a lock of their own: the line's, less what the vendor's image holds.
    in_image = "STACK_LOCK" in os.environ and not (Path(sys.prefix) / "stack-env").exists()
    lock_file = CHECKOUT / "manifests" / "locks" / f"{'container' if in_image else line}.txt"
    revision = _git("rev-parse", "HEAD")
    status = _git("status", "--porcelain")
    return Provenance(
        version=__version__,
        revision=revision or os.environ.get("STACK_REVISION"),
        dirty=None if status is None else bool(status),
        line=line,
        lock=sha256_file(lock_file)[:16] if lock_file.exists() else None,
        installed_lock=_installed_lock(),
        python=platform.python_version(),
        platform=platform.platform(),
        machine=platform.machine(),
        image=os.environ.get("STACK_IMAGE"),
    )


def write_provenance(folder: Path, provenance: Provenance) -> None:
    """Put `provenance.json` and the line's lock file into a run folder's `provenance/`."""
    write_json(folder / "provenance" / "provenance.json", provenance.to_json())
    lock = CHECKOUT / "manifests" / "locks" / f"{provenance.line}.txt"
    if lock.is_file():
        write_text(folder / "provenance" / f"lock-{provenance.line}.txt", lock.read_text())


def _git(*arguments: str) -> str | None:
    """Git's answer about the checkout, or None where there is no git or no repository of ours."""
    if not (CHECKOUT / ".git").exists():
        return None
    try:
        done = subprocess.run(
            ["git", "-C", str(CHECKOUT), *arguments], capture_output=True, text=True, timeout=30
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _installed_lock() -> str | None:
    """`scripts/setup.py` names the folder of installed packages after the lock's hash."""
    stamp = Path(sys.prefix) / "stack-env"
    if stamp.exists():
        return stamp.read_text().splitlines()[0].rsplit("-", 1)[-1]
    return os.environ.get("STACK_LOCK")
