"""The whole promise, for real: a bundle made here installs and reproduces in a container without a network.

Takes half an hour and 10 GB, so that it runs only when asked:

    STACK_DOCKER=1 STACK_WHEELS=/path/to/wheelhouse make test ARGS=tests/bundle/test_offline_reproduce.py
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from stack.bundle import bundle
from stack.bundle.parts import Places
from stack.demo.models import write_models
from stack.manifests import load_bundle_manifest, load_models_manifest
from stack.mirror import get

CHECKOUT = Path(__file__).resolve().parents[2]
WHEELS = os.environ.get("STACK_WHEELS")


@pytest.mark.e2e
@pytest.mark.skipif(
    os.environ.get("STACK_DOCKER") != "1", reason="takes half an hour; asked for by STACK_DOCKER=1"
)
@pytest.mark.skipif(WHEELS is None, reason="STACK_WHEELS must name the wheelhouse for laptop-x86_64")
def test_bundle_installs_and_reproduces_without_a_network(tmp_path: Path) -> None:
    write_models(tmp_path / "demo" / "models")
    models = load_models_manifest(CHECKOUT / "manifests" / "models.yaml")
    get(models, tmp_path / "mirror", names=["toy-pi05", "toy-tokenizer"], demo=tmp_path / "demo")
    places = Places(mirror=tmp_path / "mirror", wheels=Path(WHEELS or ""))
    manifest = load_bundle_manifest(CHECKOUT / "manifests" / "bundles" / "demo.yaml")
    bundle(manifest, tmp_path / "bundle", places=places)

    script = CHECKOUT / "scripts" / "offline_reproduce.sh"
    done = subprocess.run(["sh", str(script), str(tmp_path / "bundle"), str(tmp_path / "scratch")])

    assert done.returncode == 0, (tmp_path / "scratch" / "offline.log").read_text()[-3000:]
    counted = json.loads((tmp_path / "scratch" / "offline.json").read_text())
    assert set(counted) == {"install", "reproduce", "again"}
    for step in counted.values():
        assert (step["exit"], step["calls"], step["packets_without_route"]) == (0, 0, 0)
        assert step["interfaces"] == ["lo"]
