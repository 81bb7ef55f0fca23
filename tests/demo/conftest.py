from __future__ import annotations

from pathlib import Path

import pytest

from stack.demo.deliveries import write_deliveries


@pytest.fixture(scope="session")
def deliveries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo's two deliveries; read only."""
    out = tmp_path_factory.mktemp("demo") / "deliveries"
    write_deliveries(out)
    return out
