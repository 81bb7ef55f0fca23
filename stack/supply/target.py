"""Which wheels a target machine can load: its tags, best first."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from packaging.tags import Tag, compatible_tags, cpython_tags

from stack.errors import BadRequest
from stack.manifests import WheelsManifest
from stack.manifests.wheels import Target

# The oldest glibc that the manylinux tags name for a machine, and the names from before PEP 600.
_OLDEST_MINOR = {"x86_64": 5, "aarch64": 17}
_LEGACY = {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}


def find_target(manifest: WheelsManifest, name: str) -> Target:
    """Raises BadRequest for a name that the manifest does not have; names the nearest."""
    if name in manifest.targets:
        return manifest.targets[name]
    near = difflib.get_close_matches(name, manifest.targets, n=1)
    hint = f"did you mean '{near[0]}'?" if near else f"known: {', '.join(manifest.targets)}"
    raise BadRequest("wheels-no-such-target", f"the wheels manifest has no target '{name}'; {hint}")


def platforms(target: Target) -> tuple[str, ...]:
    """Platform tags that the target's C library can load, newest first (PEP 600)."""
    newest = int(target.glibc.partition(".")[2])
    found: list[str] = []
    for minor in range(newest, _OLDEST_MINOR[target.machine] - 1, -1):
        found.append(f"manylinux_2_{minor}_{target.machine}")
        if minor in _LEGACY:
            found.append(f"{_LEGACY[minor]}_{target.machine}")
    return (*found, f"linux_{target.machine}")


def tags(target: Target) -> dict[Tag, int]:
    """Every tag that loads on the target, with its rank; 0 is the best."""
    version = tuple(int(part) for part in target.python.split("."))
    interpreter = f"cp{version[0]}{version[1]}"
    names = platforms(target)
    ordered: Iterable[Tag] = (
        *cpython_tags(version, abis=[interpreter], platforms=names),
        *compatible_tags(version, interpreter=interpreter, platforms=names),
    )
    return {tag: rank for rank, tag in enumerate(dict.fromkeys(ordered))}
