"""Packages that import their names when they are first used give the same names as their lists say."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest


@pytest.mark.parametrize("package", ["stack.manifests", "stack.tracking"])
def test_every_listed_name_is_there_whatever_was_imported_before(package: str) -> None:
    """A module of the same name as a function would hide it, once somebody has imported the module."""
    lists = importlib.import_module(package).__all__
    code = (
        "import importlib, pkgutil, sys, types\n"
        f"package = importlib.import_module({package!r})\n"
        "if 'first' in sys.argv:\n"
        "    for found in pkgutil.iter_modules(package.__path__):\n"
        "        found.ispkg or importlib.import_module(f'{package.__name__}.{found.name}')\n"
        "for name in package.__all__:\n"
        "    assert not isinstance(getattr(package, name), types.ModuleType), name\n"
    )
    for order in ("first", "last"):
        child = subprocess.run([sys.executable, "-c", code, order], capture_output=True, text=True)
        assert child.returncode == 0, child.stderr
    assert lists == sorted(lists)


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = importlib.import_module("stack.manifests").nothing


def test_reading_one_manifest_does_not_build_the_others() -> None:
    code = (
        "import sys; from stack.manifests import load_dataset_manifest, DatasetManifest; "
        "print([m for m in ('run', 'bundle', 'ascend') if f'stack.manifests.{m}' in sys.modules])"
    )
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert child.stdout.strip() == "[]"
