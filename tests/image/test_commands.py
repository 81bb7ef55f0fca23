"""The commands: what they print and how they end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from .conftest import Site, write_wheel


@pytest.fixture
def project(site: Site) -> Site:
    site.pin("app", "1.0", write_wheel(site.wheels, "app", "1.0", metadata="License-Expression: MIT"))
    site.root.joinpath("manifests", "wheels.yaml").write_text(
        yaml.safe_dump(site.manifest().model_dump(mode="json", by_alias=True))
    )
    return site


def stack(project: Site, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "stack", *words],
        capture_output=True,
        text=True,
        cwd=project.root,
        env=os.environ,
    )


def test_a_carried_wheelhouse_is_verified_listed_and_a_damaged_one_refused(project: Site) -> None:
    verify = ("mirror", "wheels", "--for", "site", "--to", "wheels", "--verify")
    good = stack(project, *verify)
    assert good.returncode == 0 and "1 wheels" in good.stdout and "every file of the locks" in good.stdout
    listed = stack(project, "mirror", "sbom", "--for", "site", "--wheels", "wheels", "--to", "sbom.json")
    assert listed.returncode == 0 and "MIT (1): app" in listed.stdout
    assert json.loads(Path(project.root / "sbom.json").read_text())["components"][0]["name"] == "app"
    again = stack(project, "mirror", "wheels", "--for", "site", "--to", "wheels")
    assert again.returncode == 0 and "nothing to do" in again.stdout
    (wheel,) = project.wheels.glob("*.whl")
    wheel.write_bytes(wheel.read_bytes()[:-1])
    bad = stack(project, *verify)
    assert bad.returncode == 1 and "error[wheels-hash]" in bad.stdout and wheel.name in bad.stdout
    assert "Traceback" not in bad.stderr


def test_an_unknown_target_is_a_bad_request(project: Site) -> None:
    done = stack(project, "mirror", "wheels", "--for", "sight", "--to", "wheels")
    assert done.returncode == 2 and "did you mean 'site'" in done.stderr
