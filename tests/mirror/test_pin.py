"""`pin` prints lines that, once pasted, make `get` work; it believes neither a damaged file nor the hub."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from stack.demo.models import write_models
from stack.errors import BadRequest, WorkFailed
from stack.manifests import load_models_manifest
from stack.mirror import get, pin, verify
from stack.mirror.pinning import pinned_models


@pytest.fixture
def weights(hub: Any) -> None:
    safetensors = pytest.importorskip("safetensors.numpy")
    tensors = {"a": np.zeros((3, 4), np.float32), "b": np.ones(5, np.float32)}
    hub.files["model.safetensors"] = safetensors.save(tensors)


@pytest.mark.usefixtures("weights")
def test_printed_lines_pin_the_model_and_nothing_is_fetched_twice(
    hub: Any, manifest: Any, tmp_path: Path
) -> None:
    loaded = manifest(unpinned=("config.json", "model.safetensors"))
    before = loaded.file.read_bytes()

    (pinned,) = pinned_models(loaded, tmp_path / "mirror", endpoint=hub.endpoint)

    assert loaded.file.read_bytes() == before  # never edited
    assert not (tmp_path / "mirror" / "toy").exists()  # and never put in place
    assert pinned.tensors is not None
    assert (pinned.tensors.count, pinned.tensors.parameters, pinned.tensors.dtype) == (2, 17, "F32")
    printed = pin(loaded, tmp_path / "mirror", endpoint=hub.endpoint)
    assert printed == pinned.yaml()
    text = before.decode().split("    files:")[0] + printed
    loaded.file.write_text(text, encoding="utf-8")
    hub.served.clear()
    now = load_models_manifest(loaded.file)
    get(now, tmp_path / "mirror", endpoint=hub.endpoint)
    assert hub.fetched() == []
    assert verify(now.manifest, tmp_path / "mirror") == []


@pytest.mark.usefixtures("weights")
def test_listing_that_differs_from_what_came_cannot_be_pinned(
    hub: Any, manifest: Any, tmp_path: Path
) -> None:
    hub.listed_sha256["config.json"] = "1" * 64
    with pytest.raises(WorkFailed, match="but the hub lists"):
        pin(manifest(unpinned=("config.json",)), tmp_path / "mirror", endpoint=hub.endpoint)


@pytest.mark.usefixtures("weights")
def test_known_hash_is_enforced_while_the_size_is_pinned(hub: Any, manifest: Any, tmp_path: Path) -> None:
    loaded = manifest(unpinned=("config.json",))
    text = loaded.file.read_text().replace(
        "{path: config.json}", f"{{path: config.json, sha256: '{'2' * 64}'}}"
    )
    loaded.file.write_text(text)
    with pytest.raises(WorkFailed, match=f"expected sha256 {'2' * 64}"):
        pin(load_models_manifest(loaded.file), tmp_path / "mirror", endpoint=hub.endpoint)


def test_weights_that_are_no_weights_cannot_be_pinned(hub: Any, manifest: Any, tmp_path: Path) -> None:
    hub.files["model.safetensors"] = b"<html>please log in</html>"
    with pytest.raises(BadRequest, match="not a whole safetensors file"):
        pin(manifest(unpinned=("model.safetensors",)), tmp_path / "mirror", endpoint=hub.endpoint)


@pytest.mark.usefixtures("weights")
def test_tensors_that_the_manifest_states_are_enforced(hub: Any, manifest: Any, tmp_path: Path) -> None:
    more = "    tensors: {count: 2, parameters: 18, dtype: F32}\n"
    loaded = manifest(unpinned=("model.safetensors",), more=more)
    with pytest.raises(WorkFailed, match="18 parameters"):
        pin(loaded, tmp_path / "mirror", endpoint=hub.endpoint)


def test_tokenizer_gets_golden_encodings(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    write_models(tmp_path / "demo" / "models")
    file = tmp_path / "models.yaml"
    file.write_text(
        "schema: stack/models/1\nmodels:\n  t:\n    kind: tokenizer\n    origin: {demo: toy-tokenizer}\n"
        "    licence: x\n    files: [{path: tokenizer.json}]\n"
    )
    (pinned,) = pinned_models(load_models_manifest(file), tmp_path / "mirror", demo=tmp_path / "demo")
    lines: dict[str, Any] = yaml.safe_load(textwrap.dedent(pinned.yaml()))
    assert lines["files"][0]["size"] == (tmp_path / "demo/models/toy-tokenizer/tokenizer.json").stat().st_size
    assert [item["ids"][0] for item in lines["golden"]] == [2, 2]
    assert "把红色方块" in lines["golden"][1]["text"]


def test_carried_copy_is_pinned_without_the_hub(hub: Any, manifest: Any, tmp_path: Path) -> None:
    place = tmp_path / "mirror" / "toy"
    (place / "sub").mkdir(parents=True)
    hub.files.pop("model.safetensors")
    for path, content in hub.files.items():
        (place / path).write_bytes(content)

    loaded = manifest(unpinned=("config.json",))
    for _ in range(2):
        (pinned,) = pinned_models(loaded, tmp_path / "mirror", endpoint=hub.endpoint)

    assert hub.requests == []
    assert {file.path: file.size for file in pinned.files} == {p: len(c) for p, c in hub.files.items()}


def test_pinned_models_are_left_alone(hub: Any, manifest: Any, tmp_path: Path) -> None:
    text = pin(manifest(), tmp_path / "mirror", endpoint=hub.endpoint)
    assert text.startswith("# nothing to pin")
    assert hub.requests == []
