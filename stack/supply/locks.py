"""Locks as data: pins with markers and hashes, and which of them a target installs.

The format is pip's requirements file with `--hash` options, one pin an entry, as uv writes it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from packaging.markers import InvalidMarker, Marker
from packaging.utils import canonicalize_name

from stack.errors import BadRequest
from stack.manifests import WheelsManifest
from stack.manifests.wheels import Target

_PIN = re.compile(
    r"^(?P<name>[A-Za-z0-9][\w.-]*)==(?P<version>[\w.+!-]+)\s*(?:;\s*(?P<marker>[^\\]+?))?\s*\\?$"
)
_HASH = re.compile(r"^\s+--hash=sha256:(?P<sha256>[0-9a-f]{64})\s*\\?$")
# Patch releases are not part of a target; a marker may name one, and a pin that either end needs is needed.
_PATCHES = ("0", "99")


@dataclass(frozen=True)
class Pin:
    """One package of a lock.

    Attributes:
        name: canonical (PEP 503).
        marker: where it is installed; None: everywhere.
        hashes: sha256 of every file of this release, for all platforms.
    """

    name: str
    version: str
    marker: str | None
    hashes: frozenset[str] = field(repr=False)

    def holds(self, environment: Mapping[str, str]) -> bool:
        return self.marker is None or Marker(self.marker).evaluate(dict(environment))

    def __str__(self) -> str:
        return f"{self.name}=={self.version}"


def read_lock(file: Path) -> tuple[Pin, ...]:
    """The pins of a lock file, in its order.

    Raises:
        BadRequest: it is not there, or a line is none that a lock of hashed pins has.
    """
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        raise BadRequest("lock-missing", "the lock is not there", where=str(file), do="make locks") from None
    pins: list[Pin] = []
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        if found := _HASH.match(line):
            if not pins:
                raise _bad_line(file, number, line)
            last = pins.pop()
            pins.append(Pin(last.name, last.version, last.marker, last.hashes | {found["sha256"]}))
        elif found := _PIN.match(line):
            pins.append(Pin(canonicalize_name(found["name"]), found["version"], found["marker"], frozenset()))
        else:
            raise _bad_line(file, number, line)
    for pin in pins:
        _check(pin, file)
    return tuple(pins)


def _check(pin: Pin, file: Path) -> None:
    if not pin.hashes:
        raise BadRequest("lock-no-hash", f"{pin} has no hash", where=str(file), do="make locks")
    if pin.marker is not None:
        try:
            Marker(pin.marker)
        except InvalidMarker as error:
            raise BadRequest("lock-bad-marker", f"the marker of {pin}: {error}", where=str(file)) from error


def _bad_line(file: Path, number: int, line: str) -> BadRequest:
    what = f"'{line.strip()[:60]}' is no pin with hashes (NAME==VERSION --hash=sha256:...)"
    return BadRequest("lock-bad-line", what, where=f"{file}:{number}", do="make locks")


def environments(target: Target) -> tuple[dict[str, str], ...]:
    """The marker variables of a target (PEP 508), for the first and the last patch release of its Python."""
    shared = {
        "implementation_name": "cpython",
        "os_name": "posix",
        "platform_machine": target.machine,
        "platform_python_implementation": "CPython",
        "platform_release": "",
        "platform_system": "Linux",
        "platform_version": "",
        "python_version": target.python,
        "sys_platform": "linux",
        "extra": "",
    }
    return tuple(
        {**shared, "python_full_version": full, "implementation_version": full}
        for full in (f"{target.python}.{patch}" for patch in _PATCHES)
    )


def needed(pins: Sequence[Pin], target: Target) -> tuple[Pin, ...]:
    """The pins that a target installs, each once."""
    where = environments(target)
    return tuple(dict.fromkeys(pin for pin in pins if any(pin.holds(e) for e in where)))


def target_pins(manifest: WheelsManifest, name: str, locks_folder: Path) -> tuple[Pin, ...]:
    """What a named target installs from all its locks.

    Raises:
        BadRequest: the manifest has no such target; a lock is missing or malformed; two locks disagree.
    """
    target = manifest.targets[name]
    found: dict[str, Pin] = {}
    for lock in target.locks:
        for pin in needed(read_lock(locks_folder / f"{lock}.txt"), target):
            other = found.setdefault(pin.name, pin)
            if other.version != pin.version:
                raise BadRequest(
                    "locks-disagree",
                    f"target '{name}' would install both {other} and {pin}",
                    where=str(locks_folder / f"{lock}.txt"),
                    do="make locks",
                )
    return tuple(found[name] for name in sorted(found))
