"""Package files of a bundle against what a host has installed."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Any
from urllib.parse import unquote


def package_files(paths: list[str], names: list[str]) -> list[dict[str, str]]:
    """`{name, version, path}` of the .deb files that are wanted; apt writes an epoch's colon as %3a.

    Raises:
        ValueError: a package is there in two versions.
    """
    found: dict[str, dict[str, str]] = {}
    for path in sorted(paths):
        name, version, _ = PurePosixPath(path).name.split("_", 2)
        if name not in names:
            continue
        if name in found:
            raise ValueError(f"the bundle has {name} twice: {found[name]['path']} and {path}")
        found[name] = {"name": name, "version": unquote(version), "path": path}
    return [found[name] for name in names if name in found]


def packages_due(
    files: list[dict[str, str]], installed: dict[str, list[dict[str, Any]]]
) -> list[dict[str, str]]:
    """Those of `files` that are not installed in exactly this version.

    Args:
        installed: Ansible's package facts: by name, a list of `{version, ...}`.
    """
    return [
        file
        for file in files
        if file["version"] not in [found["version"] for found in installed.get(file["name"], [])]
    ]


class FilterModule:
    def filters(self) -> dict[str, Any]:
        return {"package_files": package_files, "packages_due": packages_due}
