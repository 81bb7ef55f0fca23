"""The good dataset of bench/audit_good.py and the demo's deliveries, made once."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))  # bench is no part of the installed package

from bench.audit_good import encode, write_v21, write_v30
from stack.audit import apart


@pytest.fixture(scope="session")
def good(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The good dataset by version; never changed."""
    folder = tmp_path_factory.mktemp("good")
    write_v21(folder / "v2.1")
    write_v30(folder / "v3.0")
    return {"v2.1": folder / "v2.1", "v3.0": folder / "v3.0"}


@pytest.fixture
def copy_good(good: dict[str, Path], tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """A copy of the good dataset that a test may damage."""

    def copy(version: str) -> Path:
        return Path(shutil.copytree(good[version], tmp_path / f"small-{version}"))

    yield copy


@pytest.fixture(scope="session")
def encode_video() -> Callable[..., None]:
    return encode


@pytest.fixture(scope="session")
def deliveries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo's two deliveries."""
    from stack.demo.deliveries import write_deliveries

    out = tmp_path_factory.mktemp("demo") / "deliveries"
    write_deliveries(out)
    return out


@pytest.fixture
def in_this_process() -> Iterator[None]:
    """The audit runs where its parts were replaced."""
    with apart.here():
        yield
