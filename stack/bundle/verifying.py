"""Is a bundle whole, and is it what its manifest asks for?"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from stack.bundle.content import SCRIPTS_FOLDER, base_of, content_of
from stack.bundle.items import Hashes
from stack.bundle.parts import NOWHERE, Places
from stack.bundle.planning import plan
from stack.errors import BadRequest, Exit
from stack.files import read_json
from stack.manifests import Loaded
from stack.manifests.bundle import BundleManifest


def verify_bundle(folder: Path, *, bases: Sequence[Path] = (), expect: str | None = None) -> tuple[Exit, str]:
    """Run the verifier over a bundle: this checkout's, not the one that lies in it.

    Returns:
        its exit code (see scripts/bundle/verify-bundle.py) and what it printed.
    """
    command = [sys.executable, str(SCRIPTS_FOLDER / "verify-bundle.py"), str(folder)]
    command += [word for base in bases for word in ("--base", str(base))]
    command += [] if expect is None else ["--expect", expect]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return Exit(done.returncode), done.stdout


def compare(
    loaded: Loaded[BundleManifest], folder: Path, *, places: Places = NOWHERE, base: Path | None = None
) -> list[str]:
    """What the manifests need and the bundle has not, or the other way round; one line each."""
    content = read_json(folder / "bundle.json", what="bundle's content")
    try:
        held = {item["path"]: item for item in content["items"]}
    except (TypeError, KeyError) as error:
        raise BadRequest("bundle-damaged", f"bundle.json is damaged: {error!r}", where=str(folder)) from error
    with tempfile.TemporaryDirectory(prefix="stack-bundle-") as scratch:
        hashes = Hashes(folder.parent / f".{folder.name}.hashes.json")
        wish, revision, targets = plan(loaded, places, hashes, Path(scratch))
        wanted = content_of(loaded.manifest.name, revision, wish.items, targets, base_of(base))
    lines = [f"missing: {missing}" for missing in wish.missing]
    needed = {item["path"]: item for item in wanted.items}
    for path in sorted(needed.keys() | held.keys()):
        if path not in held:
            lines.append(f"missing: {path}: needed by: {', '.join(needed[path]['needed_by'])}")
        elif path not in needed:
            lines.append(f"extra: {path}: no manifest needs it now; it was for: {_owners(held[path])}")
        elif held[path]["sha256"] != needed[path]["sha256"]:
            lines.append(f"changed: {path}: needed by: {_owners(held[path])}")
    return lines


def _owners(item: dict[str, list[str]]) -> str:
    return ", ".join(item["needed_by"])
