"""Packages whose names are imported when they are first used, so that a command loads only what it needs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazily(package: str, places: Mapping[str, tuple[str, ...]]) -> Callable[[str], Any]:
    """A module's `__getattr__` (PEP 562).

    Args:
        package: the package's `__name__`.
        places: module of the package -> the names that it gives.
    """
    module_of = {name: module for module, names in places.items() for name in names}

    def get(name: str) -> Any:
        if name not in module_of:
            raise AttributeError(f"module '{package}' has no attribute '{name}'")
        return getattr(import_module(f"{package}.{module_of[name]}"), name)

    return get
