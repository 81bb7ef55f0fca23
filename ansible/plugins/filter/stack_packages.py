"""Package files of a bundle against what a host has installed, and against the manifest that pins them."""

from __future__ import annotations

import hashlib
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import unquote

Listed = dict[str, Any]


def package_closure(listed: list[Listed], roots: list[str]) -> list[str]:
    """`roots` with all that they need among the manifest's packages.

    What the manifest does not list is part of the bare system.

    Args:
        listed: the manifest's packages; `depends` holds names, alternatives as `a|b`.
    """
    by_name = {package["name"]: package for package in listed}
    found: list[str] = []
    due = list(roots)
    while due:
        name = due.pop(0)
        if name in found:
            continue
        found.append(name)
        for need in by_name.get(name, {}).get("depends") or []:
            due += [one for one in need.split("|") if one in by_name]
    return found


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


def listed_files(listed: list[Listed], paths: list[str]) -> list[Listed]:
    """The manifest's packages with `path`, their file in the bundle; None where it is not there."""
    there = {unquote(PurePosixPath(path).name): path for path in paths}
    return [{**package, "path": there.get(unquote(package["file"]))} for package in listed]


def installed_versions(found: list[dict[str, Any]]) -> list[str]:
    """Versions as manifests write them: `version-release` for rpm, with the epoch where it has one."""
    versions = []
    for one in found:
        version = f"{one['version']}-{one['release']}" if one.get("release") else one["version"]
        versions += [version, f"{one['epoch']}:{version}"] if one.get("epoch") else [version]
    return versions


def packages_due(
    files: list[dict[str, Any]], installed: dict[str, list[dict[str, Any]]], exact: list[str] | None = None
) -> list[dict[str, Any]]:
    """Those of `files` that are not installed in exactly this version.

    Args:
        installed: Ansible's package facts: by name, a list of `{version, ...}`.
        exact: packages that must have this version; of the others any will do, because a host may have had
            its own updates, unless it is the one that the list `replaces`. None: all.
    """
    due = []
    for file in files:
        there = installed_versions(installed.get(file["name"], []))
        wanted = exact is None or file["name"] in exact or file.get("replaces") in there
        if not there or (wanted and file["version"] not in there):
            due.append(file)
    return due


def packages_wrong(files: list[dict[str, Any]]) -> list[str]:
    """One line for each file that is missing, or whose bytes are not those that the manifest pins."""
    wrong = []
    for file in files:
        if file["path"] is None:
            wrong.append(f"{file['file']} is not in the bundle")
            continue
        with open(file["path"], "rb") as stream:
            content = stream.read()
        got = hashlib.sha256(content).hexdigest()
        if file.get("sha256") and got != file["sha256"]:
            wrong.append(
                f"{file['path']} is not the pinned file: sha256 {got}, {len(content)} bytes; "
                f"pinned {file['sha256']}, {file.get('size', 'unknown')} bytes"
            )
    return wrong


class FilterModule:
    def filters(self) -> dict[str, Any]:
        return {
            "package_closure": package_closure,
            "package_files": package_files,
            "listed_files": listed_files,
            "packages_due": packages_due,
            "packages_wrong": packages_wrong,
        }
