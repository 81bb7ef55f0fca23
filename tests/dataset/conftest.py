from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

MODULE = "small_deliveries"


def _generator() -> ModuleType:
    """Test folders are no packages: a module that several of them use is loaded by its path."""
    if MODULE not in sys.modules:
        spec = importlib.util.spec_from_file_location(MODULE, Path(__file__).parent / "deliveries.py")
        assert spec is not None and spec.loader is not None
        sys.modules[MODULE] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[MODULE])
    return sys.modules[MODULE]


@pytest.fixture(scope="session")
def deliveries() -> ModuleType:
    """The generator of small deliveries."""
    return _generator()


@pytest.fixture(scope="session")
def delivery(tmp_path_factory: pytest.TempPathFactory, deliveries: ModuleType) -> Path:
    """A clean v2.1 delivery of five episodes and two cameras; tests must not change it."""
    return deliveries.write_delivery(tmp_path_factory.mktemp("v21") / "clean", deliveries.Delivery())
