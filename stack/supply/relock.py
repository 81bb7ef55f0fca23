"""Make the locks from their inputs with uv, and tell whether they still belong together.

What each lock was made from is kept as a digest in `manifests/locks/inputs.json`, so that a change of
pyproject.toml or of an override file without a new lock is seen without any network.
"""

from __future__ import annotations

import importlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from stack.errors import NotAble, WorkFailed
from stack.faults import Fault, Place
from stack.files import canonical_json, read_json, sha256_file, sha256_text, write_json, write_text
from stack.manifests import WheelsManifest
from stack.manifests.wheels import Lock
from stack.supply.locks import needed, read_lock

Log = Callable[[str], None]
INPUTS = "inputs.json"
_NEVER = "sys_platform == 'never'"
_ALWAYS = ("--generate-hashes", "--no-annotate", "--no-header", "--quiet", "--no-progress")


def make(manifest: WheelsManifest, root: Path, *, only: Sequence[str] = (), log: Log = print) -> list[str]:
    """Rewrite the locks below `root/manifests/locks`; pins that still fit stay as they are.

    Returns:
        the locks whose text changed.

    Raises:
        NotAble: uv is not here. WorkFailed: it found no versions that fit; what it said is told.
    """
    folder = root / "manifests" / "locks"
    changed = []
    for name, lock in manifest.locks.items():
        if only and name not in only:
            continue
        log(f"{name}: compiling")
        text = compile_lock(manifest, name, root)
        file = folder / f"{name}.txt"
        if not file.exists() or file.read_text() != text:
            write_text(file, text)
            changed.append(name)
        digests = read_json(folder / INPUTS) if (folder / INPUTS).exists() else {}
        digests[name] = {"inputs": inputs_digest(lock, root), "lock": sha256_file(file)}
        write_json(folder / INPUTS, {key: digests[key] for key in digests if key in manifest.locks})
    return changed


def drift(manifest: WheelsManifest, root: Path) -> list[Fault]:
    """Locks whose inputs changed since they were made, or that were edited by hand; reads files only."""
    folder = root / "manifests" / "locks"
    digests = read_json(folder / INPUTS, what="record of the locks' inputs")
    faults = []
    for name, lock in manifest.locks.items():
        file, known = folder / f"{name}.txt", digests.get(name)
        if known is None or not file.exists():
            faults.append(_stale(name, "was never made, or is missing"))
        elif known["inputs"] != inputs_digest(lock, root):
            faults.append(_stale(name, "was made from other inputs than those of today"))
        elif known["lock"] != sha256_file(file):
            faults.append(_stale(name, "was edited since it was made"))
    return faults


def _stale(name: str, what: str) -> Fault:
    return Fault(
        "lock-stale",
        "error",
        f"the lock '{name}' {what}",
        "what is installed is not what the project asks for",
        "make locks",
        where=Place(file=f"manifests/locks/{name}.txt"),
    )


def inputs_digest(lock: Lock, root: Path) -> str:
    """sha256 over what decides a lock, the index aside: its entry, its part of the project, its files."""
    folder = root / "manifests" / "locks"
    parts: dict[str, Any] = {"entry": lock.model_dump(mode="json")}
    if lock.extras:
        project = _project(root)
        parts["dependencies"] = project["dependencies"]
        parts["extras"] = {extra: project["optional-dependencies"][extra] for extra in lock.extras}
    parts["overrides"] = {name: (folder / name).read_text() for name in lock.overrides}
    parts["constraints"] = {
        name: [f"{pin} ; {pin.marker}" for pin in read_lock(folder / name)] for name in lock.constraints
    }
    return sha256_text(canonical_json(parts))


def _project(root: Path) -> Any:
    try:
        toml = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    except ImportError:
        raise NotAble("tomli-missing", "Python 3.10 needs tomli for this", do="run 'make setup'") from None
    return toml.loads((root / "pyproject.toml").read_text())["project"]


def compile_lock(manifest: WheelsManifest, name: str, root: Path) -> str:
    """The text of a lock, made anew by uv; the one that is there lends its versions where they fit."""
    lock, folder = manifest.locks[name], root / "manifests" / "locks"
    with tempfile.TemporaryDirectory(prefix="stack-lock-") as scratch:
        out = Path(scratch) / "lock.txt"
        if (folder / f"{name}.txt").exists():
            shutil.copyfile(folder / f"{name}.txt", out)
        command = [find_uv(), "pip", "compile", *_ALWAYS, "--python-version", lock.python, "-o", str(out)]
        command += ["--universal"] if lock.extras or lock.targets_only or len(lock.requirements) > 1 else []
        command += [] if lock.dependencies else ["--no-deps"]
        for option, names in (("--overrides", lock.overrides), ("--constraints", lock.constraints)):
            command += [word for given in names for word in (option, str(folder / given))]
        if lock.requirements:
            source = Path(scratch) / "requirements.in"
            source.write_text("\n".join(lock.requirements) + "\n")
            command.append(str(source))
        else:
            command += [word for extra in lock.extras for word in ("--extra", extra)]
            command.append(str(root / "pyproject.toml"))
        done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
        if done.returncode != 0:
            raise WorkFailed("lock-unsolved", f"no versions fit the lock '{name}':\n{done.stderr.strip()}")
        return _without_idle_pins(manifest, name, out)


def _without_idle_pins(manifest: WheelsManifest, name: str, file: Path) -> str:
    """The lock's text without pins that are installed nowhere.

    Left-out packages come out of uv under a marker that never holds.
    """
    targets = [t for t in manifest.targets.values() if name in t.locks and manifest.locks[name].targets_only]
    pins = read_lock(file)
    wanted = {(pin.name, pin.version) for target in targets for pin in needed(pins, target)}
    entries = re.split(r"^(?=[A-Za-z0-9])", file.read_text(), flags=re.MULTILINE)[1:]
    kept = []
    for pin, text in zip(pins, entries, strict=True):
        never = pin.marker is not None and _NEVER in pin.marker and " or " not in pin.marker
        if not never and (not targets or (pin.name, pin.version) in wanted):
            kept.append(text)
    return "".join(kept)


def find_uv() -> str:
    """uv from UV, from PATH, or the one that `make setup` installed.

    Raises:
        NotAble: there is none.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "stack" / "envs"
    envs = Path(os.environ.get("STACK_ENVS") or cache)
    fetched = sorted(envs.glob("uv-bootstrap-*/bin/uv")) if envs.is_dir() else []
    found = os.environ.get("UV") or shutil.which("uv") or (str(fetched[0]) if fetched else None)
    if found is None:
        raise NotAble("uv-missing", "uv is not installed here", do="run 'make setup', or set UV=/path/to/uv")
    return found
