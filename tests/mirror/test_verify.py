"""`verify` finds every kind of wrongness that is planted, and none in a good mirror."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stack.demo.models import write_models
from stack.errors import BadRequest
from stack.manifests import Loaded, ModelsManifest, load_models_manifest
from stack.mirror import get, verify

MANIFEST = Path(__file__).resolve().parents[2] / "manifests" / "models.yaml"
TOYS = ("toy-pi05", "toy-tokenizer")


@pytest.fixture(scope="session")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("demo")
    write_models(folder / "models")
    return folder


@pytest.fixture
def loaded() -> Loaded[ModelsManifest]:
    return load_models_manifest(MANIFEST)


@pytest.fixture
def mirror(loaded: Loaded[ModelsManifest], demo: Path, tmp_path: Path) -> Path:
    get(loaded, tmp_path / "mirror", names=TOYS, demo=demo)
    return tmp_path / "mirror"


def codes(loaded: Loaded[ModelsManifest], mirror: Path) -> list[str]:
    return [fault.code for fault in verify(loaded.manifest, mirror, names=TOYS)]


def test_good_mirror_has_no_fault(loaded: Any, mirror: Path) -> None:
    assert verify(loaded.manifest, mirror, names=TOYS) == []


def test_flipped_bit(loaded: Any, mirror: Path) -> None:
    file = mirror / "toy-pi05" / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)

    (fault,) = verify(loaded.manifest, mirror, names=TOYS)

    assert (fault.code, fault.severity) == ("mirror-file-wrong-hash", "error")
    assert fault.where.file == "toy-pi05/model.safetensors"
    assert fault.data["expected"] != fault.data["got"] and len(str(fault.data["got"])) == 64


def test_truncated_file(loaded: Any, mirror: Path) -> None:
    file = mirror / "toy-pi05" / "model.safetensors"
    with file.open("r+b") as stream:
        stream.truncate(1_000_000)
    (fault,) = verify(loaded.manifest, mirror, names=TOYS)
    assert fault.code == "mirror-file-wrong-size"
    assert fault.data == {"expected": 1_419_344, "got": 1_000_000}


def test_missing_left_over_and_absent_are_all_found(loaded: Any, mirror: Path) -> None:
    (mirror / "toy-tokenizer" / "tokenizer_config.json").unlink()
    (mirror / "toy-tokenizer" / "chat_template.jinja").write_text("{{ x }}")
    (mirror / "toy-pi05").rename(mirror / "old")

    faults = verify(loaded.manifest, mirror)

    found = {(fault.code, fault.where.file) for fault in faults}
    assert ("mirror-file-missing", "toy-tokenizer/tokenizer_config.json") in found
    assert ("mirror-left-over", "toy-tokenizer/chat_template.jinja") in found
    assert ("mirror-model-missing", "toy-pi05") in found
    assert ("mirror-left-over", "old") in found
    assert {fault.severity for fault in faults if fault.code == "mirror-left-over"} == {"warning"}


def test_unpinned_file_is_not_called_good(hub: Any, manifest: Any, tmp_path: Path) -> None:
    (tmp_path / "m" / "toy" / "sub").mkdir(parents=True)
    for path, content in hub.files.items():
        (tmp_path / "m" / "toy" / path).write_bytes(content)
    loaded = manifest(unpinned=("config.json",))
    (fault,) = verify(loaded.manifest, tmp_path / "m")
    assert (fault.code, fault.severity) == ("unchecked-mirror-file", "error")


def test_manifest_that_is_wrong_about_its_own_weights(mirror: Path) -> None:
    overrides = ("models.toy-pi05.tensors.parameters=351425",)
    loaded = load_models_manifest(MANIFEST, overrides=overrides)
    (fault,) = verify(loaded.manifest, mirror, names=TOYS)
    assert fault.code == "mirror-tensors-differ"
    assert "351,424" in fault.message and "351,425" in fault.message


def test_weights_that_were_pinned_broken(hub: Any, manifest: Any, tmp_path: Path) -> None:
    """The hub's file of this test is no safetensors file, and the manifest pins it all the same."""
    loaded = manifest(more="    tensors: {count: 1, parameters: 1, dtype: F32}\n")
    get(loaded, tmp_path / "m", endpoint=hub.endpoint)
    (fault,) = verify(loaded.manifest, tmp_path / "m")
    assert fault.code == "mirror-weights-broken" and fault.where.file == "toy/model.safetensors"


def test_manifest_that_is_wrong_about_its_own_tokenizer(mirror: Path) -> None:
    overrides = ("models.toy-tokenizer.golden.1.ids.4=7",)
    loaded = load_models_manifest(MANIFEST, overrides=overrides)
    (fault,) = verify(loaded.manifest, mirror, names=TOYS)
    assert fault.code == "mirror-golden-differs" and "id 4 differs" in fault.message


def test_unknown_name(loaded: Any, tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match="did you mean 'toy-pi05'"):
        verify(loaded.manifest, tmp_path, names=["toy-pi5"])


def test_place_outside_the_mirror_is_refused_by_the_manifest(tmp_path: Path) -> None:
    text = MANIFEST.read_text(encoding="utf-8")
    for good, bad in (
        ("  toy-pi05:\n", "  ../toy-pi05:\n"),
        ("{path: README.md,", "{path: ../x,"),
        ("{path: README.md,", "{path: mirror.json,"),
    ):
        assert good in text
        (tmp_path / "models.yaml").write_text(text.replace(good, bad), encoding="utf-8")
        with pytest.raises(BadRequest) as caught:
            load_models_manifest(tmp_path / "models.yaml")
        assert caught.value.id == "manifest-invalid"
