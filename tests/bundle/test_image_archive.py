"""A saved image is judged by what is in it, never by its name."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pytest

from stack.bundle import bundle
from stack.bundle.image_archive import inspect_archive
from stack.errors import BadRequest, StackError
from tests.bundle.conftest import LAYOUTS, save_image


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("mode", ["w", "w:gz"])
def test_facts(layout: str, mode: str, tmp_path: Path) -> None:
    id = save_image(tmp_path / "x.tar", "amd64", layout=layout, mode=mode)
    (facts,) = inspect_archive(tmp_path / "x.tar")
    assert (facts.id, facts.architecture, facts.tags) == (id, "amd64", ("site/stack:1",))


@pytest.mark.parametrize("mode", ["w", "w:gz"])
def test_cut_archive(mode: str, tmp_path: Path) -> None:
    save_image(tmp_path / "x.tar", "amd64", mode=mode)
    content = (tmp_path / "x.tar").read_bytes()
    for share in (0.9, 0.5, 0.01):
        (tmp_path / "cut.tar").write_bytes(content[: int(len(content) * share)])
        with pytest.raises(BadRequest):
            inspect_archive(tmp_path / "cut.tar")


def test_no_archive(tmp_path: Path) -> None:
    (tmp_path / "x.tar").write_bytes(gzip.compress(b"hello"))
    with pytest.raises(BadRequest) as caught:
        inspect_archive(tmp_path / "x.tar")
    assert caught.value.id == "image-archive-bad"


def test_image_of_another_architecture_is_refused(site: Any, tmp_path: Path) -> None:
    assert site.places.site
    save_image(site.places.site / "images" / "stack-arm.tar", "amd64")  # the name says arm
    with pytest.raises(StackError, match=r"is for amd64, arm64 is needed \(aarch64\).*training hosts"):
        bundle(site.manifest, tmp_path / "out", places=site.places)


def test_image_of_another_id_is_refused(site: Any, tmp_path: Path) -> None:
    pinned = f"sha256:{'0' * 64}"
    site.edit("bundles/site.yaml", "machine: aarch64,", f"machine: aarch64, id: '{pinned}',")
    with pytest.raises(StackError, match=f"{pinned} is pinned"):
        bundle(site.manifest, tmp_path / "out", places=site.places)
