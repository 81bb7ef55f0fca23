"""What is in a wheelhouse and under which licences: a CycloneDX 1.6 bill of materials.

The document is a function of locks and wheels: no clock and no random number, so that equal wheelhouses give
equal bytes. Format: CycloneDX 1.6 JSON (ECMA-424); package URLs: purl-spec, type pypi.
"""

from __future__ import annotations

import email.parser
import uuid
import zipfile
from dataclasses import dataclass
from email.message import Message
from pathlib import Path
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from stack import __version__
from stack.errors import BadRequest
from stack.faults import has_errors
from stack.files import sha256_text
from stack.manifests import WheelsManifest
from stack.manifests.wheels import Target
from stack.supply.licences import Licence, licence_of
from stack.supply.locks import environments
from stack.supply.target import find_target
from stack.supply.wheelhouse import Proof, WheelFile, prove, want

SPEC_VERSION = "1.6"
_NAMESPACE = uuid.uuid5(uuid.NAMESPACE_URL, "urn:stack:sbom")


@dataclass(frozen=True)
class Component:
    """One wheel: where it came from, what it needs, under which licence."""

    wheel: WheelFile
    licence: Licence
    needs: tuple[str, ...]  # canonical names, those of the same wheelhouse only

    @property
    def purl(self) -> str:
        return f"pkg:pypi/{self.wheel.pin.name}@{self.wheel.pin.version.replace('+', '%2B')}"

    def to_json(self) -> dict[str, Any]:
        licence: dict[str, Any]
        if self.licence.expression is not None:
            licence = {"expression": self.licence.expression}
        else:
            licence = {"license": {"name": self.licence.said or "unknown"}}
        return {
            "type": "library",
            "bom-ref": self.purl,
            "name": self.wheel.pin.name,
            "version": self.wheel.pin.version,
            "purl": self.purl,
            "hashes": [{"alg": "SHA-256", "content": self.wheel.sha256}],
            "licenses": [licence],
            "properties": [
                {"name": "stack:file", "value": self.wheel.file},
                {"name": "stack:size_bytes", "value": str(self.wheel.size_bytes)},
            ],
        }


def components(proof: Proof, target: Target, folder: Path) -> tuple[Component, ...]:
    """Read every wheel of a whole wheelhouse.

    Raises:
        BadRequest: a wheel without metadata.
    """
    names = {wheel.pin.name for wheel in proof.wheels}
    environment = environments(target)[0]
    found = []
    for wheel in proof.wheels:
        metadata = _metadata(folder / wheel.file)
        needs = sorted(_needs(metadata, environment) & names)
        found.append(Component(wheel, licence_of(metadata), tuple(needs)))
    return tuple(found)


def read_components(
    manifest: WheelsManifest, name: str, locks_folder: Path, folder: Path
) -> tuple[Proof, tuple[Component, ...]]:
    """Prove a target's wheelhouse and read its wheels.

    Raises:
        BadRequest: no such target; the wheelhouse is not whole; a wheel without metadata.
    """
    target = find_target(manifest, name)
    proof = prove(want(manifest, name, locks_folder), folder, trust_record=True)
    if has_errors(proof.faults):
        first = next(fault for fault in proof.faults if fault.severity == "error")
        what = (
            f"the wheelhouse for {name} is not whole, and what is missing cannot be listed: {first.message}"
        )
        raise BadRequest("sbom-not-whole", what, where=str(folder), do=first.mend)
    return proof, components(proof, target, folder)


def table(parts: tuple[Component, ...]) -> str:
    """Licences with their packages; last what names no single licence, and what says nothing."""
    groups: dict[tuple[int, str], list[str]] = {}
    for part in parts:
        rank = 0 if part.licence.expression else 1 if part.licence.said else 2
        shown = part.licence.expression or f"in its own words: {part.licence.said}"
        groups.setdefault((rank, shown if rank < 2 else "UNKNOWN"), []).append(part.wheel.pin.name)
    return "\n".join(
        f"{name} ({len(names)}): {', '.join(names)}" for (_, name), names in sorted(groups.items())
    )


def bill(proof: Proof, parts: tuple[Component, ...]) -> dict[str, Any]:
    """The bill of materials of a target's wheels."""
    by_name = {part.wheel.pin.name: part.purl for part in parts}
    top = f"stack-{proof.target}"
    needed = {name for part in parts for name in part.needs}
    roots = [part.purl for part in parts if part.wheel.pin.name not in needed]
    content = sha256_text("".join(f"{part.wheel.sha256}\n" for part in parts))
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": SPEC_VERSION,
        "serialNumber": f"urn:uuid:{uuid.uuid5(_NAMESPACE, top + content)}",
        "version": 1,
        "metadata": {
            "component": {"type": "application", "bom-ref": top, "name": top, "version": __version__},
            "properties": [{"name": "stack:lock", "value": proof.lock_digest}],
        },
        "components": [part.to_json() for part in parts],
        "dependencies": [
            {"ref": top, "dependsOn": roots},
            *({"ref": part.purl, "dependsOn": [by_name[name] for name in part.needs]} for part in parts),
        ],
    }


def _metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        names = [n for n in archive.namelist() if n.count("/") == 1 and n.endswith(".dist-info/METADATA")]
        if len(names) != 1:
            what = f"the wheel holds {len(names)} METADATA files, not one"
            raise BadRequest("sbom-no-metadata", what, where=str(wheel))
        return email.parser.BytesParser().parsebytes(archive.read(names[0]))


def _needs(metadata: Message, environment: dict[str, str]) -> set[str]:
    found: set[str] = set()
    for text in metadata.get_all("Requires-Dist", []):
        try:
            requirement = Requirement(str(text))
        except InvalidRequirement:
            continue  # an old package's own dialect; the lock, not this, decides what is installed
        if requirement.marker is None or requirement.marker.evaluate(environment):
            found.add(canonicalize_name(requirement.name))
    return found
