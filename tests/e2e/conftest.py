"""One whole run in a folder of its own, shared by the tests that look at it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass(frozen=True)
class Call:
    code: int
    out: str
    err: str
    seconds: float


@dataclass(frozen=True)
class House:
    """A copy of the manifests with a working folder beside it, as in a checkout."""

    root: Path

    def stack(self, *arguments: str) -> Call:
        """Run the command line in a process of its own, from the house's root."""
        started = time.monotonic()
        done = subprocess.run(
            [sys.executable, "-m", "stack", *arguments],
            cwd=self.root,
            capture_output=True,
            text=True,
            timeout=900,
            env={**os.environ, "PYTHONPATH": os.environ["PYTHONPATH"]},
        )
        return Call(done.returncode, done.stdout, done.stderr, time.monotonic() - started)

    @property
    def work(self) -> Path:
        return self.root / "work"


@pytest.fixture(scope="session")
def house(tmp_path_factory: pytest.TempPathFactory, checkout: Path) -> House:
    root = tmp_path_factory.mktemp("house")
    shutil.copytree(checkout / "manifests", root / "manifests")
    return House(root)


@pytest.fixture(scope="session")
def first(house: House) -> Call:
    """The first `stack reproduce` of the demo run."""
    return house.stack("reproduce", "manifests/runs/demo-cpu.yaml")
