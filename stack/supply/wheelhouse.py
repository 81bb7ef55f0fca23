"""Is a folder of wheels all that a target needs, and nothing else? Proven from the locks alone.

A wheelhouse is a flat folder. For each target that was proven in it, it holds a record
`TARGET.wheels.json` with the files' sizes and hashes: a function of manifest and locks, so that equal
wheelhouses are equal bytes. The record's own time says when its files were hashed last.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.tags import Tag
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename

from stack.errors import BadRequest
from stack.faults import Fault, Place
from stack.files import read_json, sha256_file, sha256_text, write_json
from stack.manifests import WheelsManifest
from stack.supply.locks import Pin, target_pins
from stack.supply.target import find_target, tags

RECORD_END = ".wheels.json"
RECORD_SCHEMA = "stack/wheelhouse/1"
SDIST_ENDS = (".tar.gz", ".zip", ".tar.bz2", ".tgz")


@dataclass(frozen=True)
class WheelFile:
    """A file that is what a lock pins and that the target can load."""

    pin: Pin
    file: str
    size_bytes: int
    sha256: str


@dataclass(frozen=True)
class Proof:
    """What a folder holds for a target.

    Attributes:
        missing: pins without a right file.
        faults: everything that is wrong, missing and left over; empty for a whole wheelhouse.
    """

    target: str
    lock_digest: str
    wheels: tuple[WheelFile, ...]
    missing: tuple[Pin, ...]
    faults: tuple[Fault, ...]

    @property
    def size_bytes(self) -> int:
        return sum(wheel.size_bytes for wheel in self.wheels)


@dataclass(frozen=True)
class Wanted:
    """What a target needs, worked out once: pins by name, and tags with their rank."""

    target: str
    pins: dict[str, Pin]
    tags: dict[Tag, int]

    @property
    def digest(self) -> str:
        """sha256 over pins and hashes: two equal ones need the same files."""
        lines = (f"{pin} {' '.join(sorted(pin.hashes))}\n" for _, pin in sorted(self.pins.items()))
        return sha256_text(self.target + "\n" + "".join(lines))


def want(manifest: WheelsManifest, name: str, locks_folder: Path) -> Wanted:
    """Raises BadRequest: no such target, or a lock that is missing, malformed or in disagreement."""
    target = find_target(manifest, name)
    pins = target_pins(manifest, name, locks_folder)
    return Wanted(name, {pin.name: pin for pin in pins}, tags(target))


def prove(wanted: Wanted, folder: Path, *, trust_record: bool = False) -> Proof:
    """Compare a folder with what a target needs.

    Args:
        trust_record: a file that the target's record lists with this size, and that has not been touched
            since the record was written, is not hashed again.

    Raises:
        BadRequest: the folder is not there.
    """
    if not folder.is_dir():
        raise BadRequest("wheels-no-folder", "the folder of wheels is not there", where=str(folder))
    known = _recorded(wanted, folder) if trust_record else {}
    right: dict[str, WheelFile] = {}
    faults: list[Fault] = []
    others = _others(folder, wanted.target)
    for path in sorted(folder.iterdir()):
        if path.name.endswith(RECORD_END) or path.name.startswith("."):
            continue
        if path.is_dir():
            faults.append(_extra(path, "is a folder, and a wheelhouse has none"))
            continue
        found = _judge(wanted, path, known.get(path.name))
        if isinstance(found, WheelFile):
            if found.pin.name in right:
                faults.append(_two(right[found.pin.name], found))
            right.setdefault(found.pin.name, found)
        elif path.name not in others:
            faults.append(found)
    missing = tuple(pin for name, pin in sorted(wanted.pins.items()) if name not in right)
    faults += [_missing(pin, wanted.target, folder) for pin in missing]
    wheels = tuple(right[name] for name in sorted(right))
    return Proof(wanted.target, wanted.digest, wheels, missing, tuple(faults))


def record(proof: Proof, folder: Path) -> None:
    """Write the record of a whole wheelhouse."""
    files = {wheel.file: {"size": wheel.size_bytes, "sha256": wheel.sha256} for wheel in proof.wheels}
    write_json(
        folder / f"{proof.target}{RECORD_END}",
        {"schema": RECORD_SCHEMA, "target": proof.target, "lock": proof.lock_digest, "files": files},
    )


def _recorded(wanted: Wanted, folder: Path) -> dict[str, Any]:
    """Files of the target's record that nobody has touched since it was written."""
    file = folder / f"{wanted.target}{RECORD_END}"
    if not file.exists():
        return {}
    content, written_ns = read_json(file, what="wheelhouse's record"), file.stat().st_mtime_ns
    untouched = {}
    for name, facts in content.get("files", {}).items():
        path = folder / name
        if path.is_file() and path.stat().st_size == facts["size"] and path.stat().st_mtime_ns <= written_ns:
            untouched[name] = facts
    return untouched


def _others(folder: Path, target: str) -> set[str]:
    """Files that belong to another target's wheels in the same folder."""
    found: set[str] = set()
    for file in folder.glob(f"*{RECORD_END}"):
        if file.name != f"{target}{RECORD_END}":
            found |= set(read_json(file, what="wheelhouse's record").get("files", {}))
    return found


def _judge(wanted: Wanted, path: Path, known: Any | None) -> WheelFile | Fault:
    """One file against the locks: its name, whether the target loads it, and its content."""
    if path.name.endswith(SDIST_ENDS):
        return _fault(
            "wheels-sdist", path, "is a source distribution, which a machine without network cannot build"
        )
    try:
        name, version, _build, file_tags = parse_wheel_filename(path.name)
    except InvalidWheelFilename:
        return _extra(path, "is no wheel")
    pin = wanted.pins.get(canonicalize_name(name))
    if pin is None:
        return _extra(path, f"is of a package that {wanted.target} does not install")
    if str(version) != pin.version:
        return _extra(path, f"is version {version}; the lock pins {pin.version}")
    if not any(tag in wanted.tags for tag in file_tags):
        shown = ", ".join(sorted(str(tag) for tag in file_tags))
        return _fault("wheels-tag", path, f"does not load on {wanted.target}: its tags are {shown}")
    sha256 = known["sha256"] if known else sha256_file(path)
    if sha256 not in pin.hashes:
        what = f"has other content than the lock pins: its sha256 {sha256} is none of {len(pin.hashes)}"
        return _fault("wheels-hash", path, what)
    return WheelFile(pin, path.name, path.stat().st_size, sha256)


def _fault(code: str, path: Path, what: str) -> Fault:
    return Fault(
        code,
        "error",
        f"{path.name} {what}",
        "an installation from this folder would fail, or bring what nobody has checked",
        "move it away and run the fetch again",
        where=Place(file=path.name),
    )


def _extra(path: Path, what: str) -> Fault:
    return Fault(
        "wheels-extra",
        "warning",
        f"{path.name} {what}",
        "it is carried for nothing, and was checked against nothing",
        "move it away, or pin it in a lock",
        where=Place(file=path.name),
    )


def _missing(pin: Pin, target: str, folder: Path) -> Fault:
    return Fault(
        "wheels-missing",
        "error",
        f"{pin} has no right file here",
        f"an installation on {target} from this folder would fail",
        f"stack mirror wheels --for {target} --to {folder}",
        where=Place(file=pin.name),
    )


def _two(first: WheelFile, second: WheelFile) -> Fault:
    return Fault(
        "wheels-two-files",
        "warning",
        f"{second.file} and {first.file} are both right for {first.pin}",
        "one is carried for nothing",
        "move one away",
        where=Place(file=second.file),
    )
