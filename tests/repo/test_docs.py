"""What is written down twice is compared."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from stack.cli import cli
from stack.errors import Exit


def commands(group: click.Group, prefix: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    found = []
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            found += commands(command, (*prefix, name))
        else:
            found.append((*prefix, name))
    return found


def pages(checkout: Path) -> list[Path]:
    return [checkout / "README.md", *sorted((checkout / "docs").glob("*.md"))]


@pytest.mark.parametrize("path", commands(cli), ids=" ".join)
def test_every_command_has_help_with_one_example_that_parses(path: tuple[str, ...]) -> None:
    result = CliRunner().invoke(cli, [*path, "--help"])
    assert result.exit_code == 0
    examples = re.findall(r"Example: stack (.+)", result.output)
    assert len(examples) == 1 and examples[0].startswith(" ".join(path))


def test_every_documented_stack_command_exists(checkout: Path) -> None:
    known = {" ".join(path) for path in commands(cli)}
    groups = {path[0] for path in commands(cli) if len(path) > 1}
    unknown = []
    sources = [*pages(checkout), *sorted((checkout / "stack").rglob("*.py"))]
    for page in sources:
        for words in re.findall(r"`(?:\.venv/bin/)?stack ([a-z]+(?: [a-z]+)?)", page.read_text()):
            first = words.split()[0]
            name = words if first in groups else first
            if name not in known | groups:
                unknown.append(f"{page.relative_to(checkout)}: stack {words}")
    assert unknown == []


def test_every_make_target_in_the_docs_exists_and_has_help(checkout: Path) -> None:
    makefile = (checkout / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z-]+):.*## ", makefile, re.MULTILINE))
    phony = set(re.search(r"^\.PHONY: (.+)$", makefile, re.MULTILINE)[1].split())  # type: ignore[index]
    assert targets == phony
    named = {
        target
        for page in pages(checkout)
        for target in re.findall(r"(?:^|`)make ([a-z-]+)", page.read_text(), re.MULTILINE)
    }
    assert named <= targets


def test_relative_links_resolve(checkout: Path) -> None:
    broken = []
    for page in pages(checkout):
        for link in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            if not link.startswith("http") and not (page.parent / link).exists():
                broken.append(f"{page.name}: {link}")
    assert broken == []


def test_exit_codes_are_the_documented_ones(checkout: Path) -> None:
    table = (checkout / "docs" / "runbook.md").read_text()
    documented = {int(code) for code in re.findall(r"^\| (\d+) \|", table, re.MULTILINE)}
    assert documented == {int(code) for code in Exit}


def test_the_version_table_is_what_the_project_pins(checkout: Path) -> None:
    table = (checkout / "docs" / "setup.md").read_text()
    for line in ("production", "current"):
        lock = (checkout / "manifests" / "locks" / f"{line}.txt").read_text()
        row = next(row for row in table.splitlines() if row.startswith(f"| {line} |"))
        for package in ("torch", "lerobot", "transformers"):
            version = re.search(rf"^{package}==([\w.]+)", lock, re.MULTILINE)
            assert version is not None and version[1] in row


def test_locks_are_hashed_and_name_no_index(checkout: Path) -> None:
    for name in ("production", "current", "bootstrap"):
        lock = (checkout / "manifests" / "locks" / f"{name}.txt").read_text()
        entries = re.split(r"\n(?=[A-Za-z0-9])", lock.strip())
        assert entries and all("--hash=sha256:" in entry for entry in entries)
        assert "://" not in lock and "--index" not in lock


def test_help_is_quick_and_heavy_packages_stay_out() -> None:
    code = "import sys, stack.cli; print(len({'numpy', 'pydantic', 'yaml'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "0"
