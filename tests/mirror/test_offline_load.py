"""A model whose processors named a hub loads from its folder, in a network namespace that leads nowhere."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from stack.demo.models import write_models
from stack.errors import BadRequest
from stack.files import tree_files
from stack.manifests import Loaded, ModelsManifest, load_models_manifest
from stack.mirror import get, localise

CHECKOUT = Path(__file__).resolve().parents[2]
HUB_NAME = "google/paligemma-3b-pt-224"
OFFLINE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE")


def child(*arguments: Any, **more: Any) -> subprocess.CompletedProcess[str]:
    script = Path(__file__).parent / "lerobot_child.py"
    command = [sys.executable, str(script), *map(str, arguments)]
    return subprocess.run([*more.pop("before", []), *command], capture_output=True, text=True, **more)


@pytest.fixture(scope="session")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("demo")
    write_models(folder / "models")
    return folder


@pytest.fixture(scope="session")
def published(tmp_path_factory: pytest.TempPathFactory, demo: Path) -> Path:
    """A model as its owners publish it: lerobot's own processor files, with a hub's name in them."""
    pytest.importorskip("lerobot")
    folder = demo / "models" / "published"
    tokenizer = demo / "models" / "toy-tokenizer"
    done = child("save", folder, tokenizer)
    assert done.returncode == 0, done.stderr
    file = folder / "policy_preprocessor.json"
    assert str(tokenizer) in file.read_text()
    file.write_text(file.read_text().replace(str(tokenizer), HUB_NAME))
    shutil.copyfile(demo / "models" / "toy-pi05" / "model.safetensors", folder / "model.safetensors")
    return folder


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory, published: Path) -> Loaded[ModelsManifest]:
    ours = (CHECKOUT / "manifests" / "models.yaml").read_text(encoding="utf-8")
    lines = [
        "  published:",
        "    kind: weights",
        "    origin: {demo: published}",
        "    licence: x",
        "    files:",
    ]
    for file in tree_files(published):
        sha256, size = hashlib.sha256(file.read_bytes()).hexdigest(), file.stat().st_size
        lines.append(f"      - {{path: {file.relative_to(published)}, size: {size}, sha256: {sha256}}}")
    file = tmp_path_factory.mktemp("manifests") / "models.yaml"
    file.write_text(ours + "\n" + "\n".join(lines) + "\n", encoding="utf-8")
    return load_models_manifest(file)


@pytest.fixture
def mirror(models: Loaded[ModelsManifest], demo: Path, tmp_path: Path) -> Path:
    get(models, tmp_path / "mirror", names=["published", "toy-tokenizer"], demo=demo)
    return tmp_path / "mirror"


@pytest.mark.lerobot
def test_loads_with_no_attempt_to_leave(
    models: Loaded[ModelsManifest], mirror: Path, demo: Path, tmp_path: Path
) -> None:
    made = localise(models, mirror, "published", "toy-tokenizer", tmp_path / "local")
    assert made.replaced == (("policy_preprocessor.json", HUB_NAME),)
    golden = [[item.text, list(item.ids)] for item in models.manifest.models["toy-tokenizer"].golden]
    (tmp_path / "golden.json").write_text(json.dumps(golden))
    if os.geteuid() != 0 or shutil.which("strace") is None or shutil.which("unshare") is None:
        pytest.skip("counting attempts needs root, unshare and strace")
    counter = [sys.executable, str(CHECKOUT / "scripts" / "offline_count.py"), str(tmp_path / "counted.json")]
    # Nothing tells the libraries that they are offline: local folders alone must do.
    environment = {k: v for k, v in os.environ.items() if k not in OFFLINE} | {"HOME": str(tmp_path)}

    done = child(
        "load",
        tmp_path / "local",
        demo / "models" / "toy-pi05",
        tmp_path / "golden.json",
        before=["unshare", "-n", *counter, "load", "--"],
        env=environment,
    )

    assert done.returncode == 0, done.stderr[-3000:]
    counted = json.loads((tmp_path / "counted.json").read_text())["load"]
    assert (counted["calls"], counted["packets_without_route"]) == (0, 0), counted["first_calls"]
    assert counted["interfaces"] == ["lo"]
    loaded = json.loads(done.stdout.splitlines()[-1])
    assert loaded == {"filled": 1.0, "tokenizer": str(tmp_path / "local" / "tokenizer")}


@pytest.mark.lerobot
def test_the_mirror_stays_as_pinned_and_a_second_call_does_nothing(
    models: Loaded[ModelsManifest], mirror: Path, tmp_path: Path
) -> None:
    before = {file: file.read_bytes() for file in tree_files(mirror)}
    lines: list[str] = []
    first = localise(models, mirror, "published", "toy-tokenizer", tmp_path / "local")
    second = localise(models, mirror, "published", "toy-tokenizer", tmp_path / "local", log=lines.append)
    assert first.is_new and not second.is_new and "nothing to do" in lines[0]
    assert {file: file.read_bytes() for file in tree_files(mirror)} == before
    (tmp_path / "local" / "policy_preprocessor.json").write_text("{}")
    assert localise(models, mirror, "published", "toy-tokenizer", tmp_path / "local").is_new
    assert HUB_NAME not in (tmp_path / "local" / "policy_preprocessor.json").read_text()


@pytest.mark.lerobot
def test_refusals(models: Loaded[ModelsManifest], mirror: Path, tmp_path: Path, demo: Path) -> None:
    with pytest.raises(BadRequest, match="no processor of the model names a tokenizer"):
        get(models, mirror, names=["toy-pi05"], demo=demo)
        localise(models, mirror, "toy-pi05", "toy-tokenizer", tmp_path / "local")
    with pytest.raises(BadRequest, match="did you mean 'published'"):
        localise(models, mirror, "publishd", "toy-tokenizer", tmp_path / "local")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.doc").write_text("years of work")
    with pytest.raises(BadRequest, match="holds something else"):
        localise(models, mirror, "published", "toy-tokenizer", tmp_path / "full")
    (mirror / "published" / "model.safetensors").write_bytes(b"x")
    with pytest.raises(BadRequest, match=r"'published' is not whole in the mirror: model\.safetensors"):
        localise(models, mirror, "published", "toy-tokenizer", tmp_path / "local")
    assert not (tmp_path / "local").exists()
