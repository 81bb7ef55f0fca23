"""Wheels made by hand, and locks and manifests that pin them."""

from __future__ import annotations

import hashlib
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from stack.manifests import WheelsManifest


def write_wheel(folder: Path, name: str, version: str, tag: str = "py3-none-any", metadata: str = "") -> Path:
    """A wheel as PEP 427 has it, with just enough inside."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-{version}-{tag}.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{name}/__init__.py", f"__version__ = '{version}'\n")
        archive.writestr(
            f"{name}-{version}.dist-info/METADATA",
            f"Metadata-Version: 2.4\nName: {name}\nVersion: {version}\n{metadata}\n",
        )
        archive.writestr(
            f"{name}-{version}.dist-info/WHEEL", f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: {tag}\n"
        )
        archive.writestr(f"{name}-{version}.dist-info/RECORD", "")
    return path


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@dataclass
class Site:
    """A folder with a wheels manifest of one lock, and the wheels that it pins."""

    root: Path
    pins: list[str]

    @property
    def locks(self) -> Path:
        return self.root / "manifests" / "locks"

    @property
    def wheels(self) -> Path:
        return self.root / "wheels"

    def pin(
        self, name: str, version: str, *files: Path, marker: str = "", hashes: tuple[str, ...] = ()
    ) -> None:
        known = [*hashes, *(sha256(file) for file in files)]
        head = f"{name}=={version}" + (f" ; {marker}" if marker else "")
        self.pins.append(head + "".join(f" \\\n    --hash=sha256:{h}" for h in known) + "\n")
        self.locks.mkdir(parents=True, exist_ok=True)
        (self.locks / "app.txt").write_text("".join(self.pins))

    def manifest(self, machine: str = "aarch64", python: str = "3.10", glibc: str = "2.28") -> WheelsManifest:
        return WheelsManifest.model_validate(
            {
                "schema": "stack/wheels/1",
                "locks": {"app": {"requirements": ["app"], "python": "3.10"}},
                "targets": {"site": {"locks": ["app"], "python": python, "machine": machine, "glibc": glibc}},
            }
        )


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path, [])
