"""The manifests of bundles and packages that the project holds, and what they refuse."""

from __future__ import annotations

from pathlib import Path

import pytest

from stack.bundle.items import Hashes
from stack.bundle.parts import Places
from stack.bundle.planning import plan_parts
from stack.errors import BadRequest
from stack.manifests import load_bundle_manifest, load_packages_manifest

CHECKOUT = Path(__file__).resolve().parents[2]
BUNDLES = sorted((CHECKOUT / "manifests" / "bundles").glob("*.yaml"))
PACKAGES = sorted((CHECKOUT / "manifests" / "packages").glob("*.yaml"))


@pytest.mark.parametrize("file", BUNDLES, ids=lambda file: file.stem)
def test_bundles_name_what_exists_and_all_that_is_missing_has_an_owner(file: Path, tmp_path: Path) -> None:
    wish, targets = plan_parts(load_bundle_manifest(file), Places(site=tmp_path), Hashes(tmp_path / "h.json"))
    assert wish.missing and targets  # nothing lies here: models, wheels and installers are all named
    assert all(missing.needed_by and missing.do for missing in wish.missing)


def test_real_site_needs_weights_tokenizer_data_image_and_installers(tmp_path: Path) -> None:
    file = CHECKOUT / "manifests" / "bundles" / "site-910b.yaml"
    wish, _ = plan_parts(load_bundle_manifest(file), Places(site=tmp_path), Hashes(tmp_path / "h.json"))
    named = {missing.path for missing in wish.missing}
    for part in (
        "checkout/mirror/pi05_base/model.safetensors",
        "checkout/mirror/paligemma-3b-pt-224-tokenizer/tokenizer.json",
        "wheels/container-aarch64",
        "images/stack",
        "site/driver",
        "site/docker-runtime",
    ):
        assert part in named
    assert any("task_5867" in path for path in named)


@pytest.mark.parametrize("file", PACKAGES, ids=lambda file: file.stem)
def test_packages_are_pinned(file: Path) -> None:
    manifest = load_packages_manifest(file).manifest
    assert all(package.sha256 and package.size for package in manifest.packages)
    assert file.stem == f"{manifest.host}-{manifest.machine}"


@pytest.mark.parametrize(
    ("kind", "file", "fits"),
    [
        ("rpm", "docker-engine-25.0.3-1.oe2403.aarch64.rpm", True),
        ("rpm", "python3-pip-23.3-1.oe2403.noarch.rpm", True),
        ("rpm", "docker-engine-25.0.3-1.oe2403.x86_64.rpm", False),
        ("rpm", "runc-1.1~rc1^git2-1.oe2403.aarch64.rpm", True),
        ("rpm", "a/runc-1.1-1.oe2403.aarch64.rpm", False),
        ("deb", "make_4.3-4.1_arm64.deb", True),
        ("deb", "make_4.3-4.1_amd64.deb", False),
        ("deb", "../make_4.3-4.1_arm64.deb", False),
    ],
)
def test_packages_must_fit_the_machine(kind: str, file: str, fits: bool, tmp_path: Path) -> None:
    text = "schema: stack/packages/1\nhost: some\nmachine: aarch64\nneeded_by: x\n"
    text += f"kind: {kind}\npackages: [{{name: x, version: '1', file: {file}}}]\n"
    (tmp_path / "p.yaml").write_text(text)
    if fits:
        load_packages_manifest(tmp_path / "p.yaml")
    else:
        with pytest.raises(BadRequest):
            load_packages_manifest(tmp_path / "p.yaml")
