"""Wheels made by hand, and locks and manifests that pin them."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from stack.manifests import WheelsManifest
from stack.supply.locks import read_lock


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


@pytest.fixture(scope="session")
def torch_npu_wheel(checkout: Path) -> Callable[[str, str], Path]:
    """The wheel that the base lock pins, for a Python (`310`) and a machine; fetched once (34 MB)."""
    (pin,) = [p for p in read_lock(checkout / "manifests" / "locks" / "base.txt") if p.name == "torch-npu"]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "stack" / "wheels"

    def find(python: str, machine: str) -> Path:
        path = cache / f"torch_npu-{pin.version}-cp{python}-cp{python}-manylinux_2_28_{machine}.whl"
        if not path.is_file() or sha256(path) not in pin.hashes:
            pip = [
                getattr(sys, "_base_executable", sys.executable),
                "-m",
                "pip",
                "download",
                "--quiet",
                "--no-deps",
            ]
            pip += [
                "--only-binary=:all:",
                "--python-version",
                python,
                "--platform",
                f"manylinux_2_28_{machine}",
            ]
            pip += ["--retries", "0", "--timeout", "10", "--dest", str(cache), str(pin)]
            done = subprocess.run(pip, capture_output=True, text=True)
            if done.returncode != 0 or not path.is_file():
                pytest.skip(f"{path.name} is neither in {cache} nor to be had from an index")
        assert sha256(path) in pin.hashes
        return path

    return find
