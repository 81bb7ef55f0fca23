"""The toy world of the training tests, loaded by its path: test folders are no packages."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

_NAME = "stack_tests_train_world"
_spec = importlib.util.spec_from_file_location(
    _NAME, Path(__file__).resolve().parent.parent / "train" / "conftest.py"
)
assert _spec is not None and _spec.loader is not None
_world = importlib.util.module_from_spec(_spec)
sys.modules[_NAME] = _world
_spec.loader.exec_module(_world)

offline_home, torch_module, toys, world = (
    _world.offline_home,
    _world.torch_module,
    _world.toys,
    _world.world,
)
