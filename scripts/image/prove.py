"""Inside the image build: is every pin of the lock installed, and does everything fit what the base holds?

    python prove.py LOCKS_FOLDER ENVIRONMENT

Prints the packages with versions and where each comes from. Runs in the environment that it proves.
"""

from __future__ import annotations

import importlib.metadata
import sys
from pathlib import Path

from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from stack.supply.locks import read_lock


def main(locks: Path, environment: Path) -> int:
    pins = pinned(locks / "container.txt")
    base = pinned(locks / "base.txt")
    left_out = set().union(*(names_left_out(file) for file in sorted(locks.glob("slim*.txt"))))
    problems, lines = [], []
    for name, version in sorted(pins.items()):
        problems += wrong_version(name, version, environment)
        problems += unfit(name, left_out - set(base))
        lines.append(f"{name} {version} lock")
    for name, version in sorted(base.items()):
        got = installed(name)
        if got is None or got.split("+")[0] != version:
            problems.append(f"{name}: the base must hold {version}, it holds {got}")
        lines.append(f"{name} {got} base")
    if problems:
        shown = "".join(f"\n  - {problem}" for problem in problems)
        print(f"error[image-packages]: the packages do not fit together:{shown}", file=sys.stderr)
        print(
            "  do: take a base with the versions of manifests/locks/base.txt, or make locks", file=sys.stderr
        )
        return 3
    print("\n".join(lines))
    return 0


def pinned(file: Path) -> dict[str, str]:
    here = {**default_environment(), "extra": ""}
    return {pin.name: pin.version for pin in read_lock(file) if pin.holds(here)}


def names_left_out(file: Path) -> set[str]:
    lines = (line.split(";")[0].strip() for line in file.read_text().splitlines() if "'never'" in line)
    return {canonicalize_name(name) for name in lines}


def installed(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def wrong_version(name: str, version: str, environment: Path) -> list[str]:
    got = installed(name)
    if got != version:
        return [f"{name}: the lock pins {version}, {got} is installed"]
    place = Path(str(importlib.metadata.distribution(name).locate_file("")))
    if environment not in place.parents:
        return [f"{name} comes from {place}, not from {environment}"]
    return []


def unfit(name: str, left_out: set[str]) -> list[str]:
    """Requirements of one package that the environment, base included, does not meet."""
    problems = []
    for text in importlib.metadata.requires(name) or ():
        requirement = Requirement(text)
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        needs = canonicalize_name(requirement.name)
        got = installed(needs)
        if got is None and needs not in left_out:
            problems.append(f"{name} requires {requirement}, which is not installed")
        elif got is not None and not requirement.specifier.contains(got, prereleases=True):
            problems.append(f"{name} requires {requirement}, {got} is installed")
    return problems


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
