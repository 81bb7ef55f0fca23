"""Locks as data, what a target installs of them, and drift."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest
from packaging.markers import default_environment
from packaging.tags import sys_tags

from stack.errors import BadRequest
from stack.manifests import WheelsManifest, load_wheels_manifest
from stack.manifests.wheels import Target
from stack.supply.locks import needed, read_lock, target_pins
from stack.supply.relock import drift, make
from stack.supply.target import find_target, tags

from .conftest import Site

H = "0" * 64


@pytest.fixture(scope="session")
def manifest(checkout: Path) -> WheelsManifest:
    return load_wheels_manifest(checkout / "manifests" / "wheels.yaml").manifest


def target(**changed: str) -> Target:
    return Target.model_validate(
        {"locks": ["app"], "python": "3.10", "machine": "aarch64", "glibc": "2.28", **changed}
    )


@pytest.mark.parametrize(
    "text",
    ["app==1.0\n", f"app>=1.0 \\\n    --hash=sha256:{H}\n", "--index-url x\n",
     f"    --hash=sha256:{H}\n", "app @ https://example.org/app.whl\n",
     f"app==1.0 ; nonsense \\\n    --hash=sha256:{H}\n"],
)  # fmt: skip
def test_what_is_no_hashed_pin_is_refused_with_its_place(tmp_path: Path, text: str) -> None:
    file = tmp_path / "app.txt"
    file.write_text(text)
    with pytest.raises(BadRequest) as refused:
        read_lock(file)
    assert str(file) in refused.value.where


def test_markers_decide_per_target(site: Site) -> None:
    for name, marker in (
        ("everywhere", ""), ("arm", "platform_machine == 'aarch64'"), ("old", "python_full_version < '3.11'"),
        ("windows", "sys_platform == 'win32'"), ("pypy", "implementation_name == 'pypy'"),
        ("patch", "python_full_version >= '3.10.4'"),
    ):  # fmt: skip
        site.pin(name, "1.0", marker=marker, hashes=(H,))
    pins = read_lock(site.locks / "app.txt")
    assert {p.name for p in needed(pins, target())} == {"everywhere", "arm", "old", "patch"}
    assert {p.name for p in needed(pins, target(machine="x86_64", python="3.11"))} == {"everywhere", "patch"}


def test_this_machine_as_a_target_needs_what_pip_would_install_here(
    checkout: Path, manifest: WheelsManifest
) -> None:
    """Independent of our own marker variables: packaging's, of the running interpreter."""
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    machine = os.uname().machine
    here = target(python=version, machine=machine)
    line = "production" if sys.version_info < (3, 12) else "current"
    pins = read_lock(checkout / "manifests" / "locks" / f"{line}.txt")
    expected = {str(p) for p in pins if p.holds({**default_environment(), "extra": ""})}
    assert {str(p) for p in needed(pins, here)} == expected


def test_tags_are_those_that_this_interpreter_takes_too() -> None:
    """The right order and content: packaging's own list for this interpreter, cut at the target's glibc."""
    machine = os.uname().machine
    here = target(python=f"{sys.version_info[0]}.{sys.version_info[1]}", machine=machine)
    ours = list(tags(here))
    newer = {f"manylinux_2_{minor}_{machine}" for minor in range(29, 100)}
    theirs = [tag for tag in sys_tags() if tag.platform not in newer]
    assert ours == theirs


def test_two_locks_that_disagree_are_refused(site: Site) -> None:
    site.pin("app", "1.0", hashes=(H,))
    (site.locks / "more.txt").write_text(f"app==2.0 \\\n    --hash=sha256:{H}\n")
    manifest = WheelsManifest.model_validate(
        {
            "schema": "stack/wheels/1",
            "locks": {name: {"requirements": [name], "python": "3.10"} for name in ("app", "more")},
            "targets": {"site": {**target().model_dump(), "locks": ["app", "more"]}},
        }
    )
    with pytest.raises(BadRequest, match=r"app==1\.0 and app==2\.0"):
        target_pins(manifest, "site", site.locks)


def test_an_unknown_target_names_the_nearest(manifest: WheelsManifest) -> None:
    with pytest.raises(BadRequest, match="did you mean 'container-aarch64'"):
        find_target(manifest, "container-arm64")


def test_every_target_of_the_project_resolves(checkout: Path, manifest: WheelsManifest) -> None:
    for name in manifest.targets:
        assert target_pins(manifest, name, checkout / "manifests" / "locks")


def test_the_container_has_the_production_line_without_what_the_base_holds(
    checkout: Path, manifest: WheelsManifest
) -> None:
    locks = checkout / "manifests" / "locks"
    base = {pin.name: pin.version for pin in read_lock(locks / "base.txt")}
    assert base == {"torch": "2.7.1", "torchvision": "0.22.1", "torch-npu": "2.7.1.post6"}
    for machine in ("aarch64", "x86_64"):
        here = manifest.targets[f"container-{machine}"]
        container = {p.name: p.version for p in needed(read_lock(locks / "container.txt"), here)}
        production = {p.name: p.version for p in needed(read_lock(locks / "production.txt"), here)}
        assert not set(container) & set(base) and not [
            name for name in container if name.startswith("nvidia")
        ]
        assert container.items() <= production.items()
        assert container["lerobot"] == "0.4.0"


def test_the_images_manifest_asks_for_the_base_lock(checkout: Path) -> None:
    from stack.manifests import load_images_manifest

    packages = load_images_manifest(checkout / "manifests" / "images.yaml").manifest.base.packages
    base = read_lock(checkout / "manifests" / "locks" / "base.txt")
    assert {name.replace("_", "-"): version for name, version in packages.items()} == {
        p.name: p.version for p in base
    }


def test_no_lock_is_stale(checkout: Path, manifest: WheelsManifest) -> None:
    assert [fault.message for fault in drift(manifest, checkout)] == []


@pytest.fixture
def project(tmp_path: Path, checkout: Path) -> Path:
    shutil.copy(checkout / "pyproject.toml", tmp_path)
    shutil.copytree(checkout / "manifests", tmp_path / "manifests")
    return tmp_path


@pytest.mark.parametrize(
    ("file", "old", "new", "stale"),
    [
        ("pyproject.toml", "av>=15,<16", "av>=15.1,<16", {"production", "current", "container", "server"}),
        ("pyproject.toml", '"psycopg[binary]"', '"psycopg"', {"production", "current", "server"}),
        ("pyproject.toml", "line-length = 110", "line-length = 100", set()),
        (
            "manifests/locks/slim.txt",
            "docker ;",
            "docker-py ;",
            {"production", "current", "container", "server"},
        ),
        ("manifests/locks/slim-container.txt", "torchvision ;", "other ;", {"container"}),
        (
            "manifests/locks/production.txt",
            "numpy==2.2.6",
            "numpy==2.2.5",
            {"production", "container", "server"},
        ),
        ("manifests/locks/controller.txt", "ansible-core==2.17.14", "ansible-core==2.17.13", {"controller"}),
    ],
)
def test_a_change_of_inputs_makes_exactly_its_locks_stale(
    project: Path, manifest: WheelsManifest, file: str, old: str, new: str, stale: set[str]
) -> None:
    text = (project / file).read_text()
    assert old in text
    (project / file).write_text(text.replace(old, new, 1))
    found = {Path(str(fault.where.file)).stem for fault in drift(manifest, project)}
    assert found == stale


@pytest.mark.skipif("STACK_INDEX" not in os.environ, reason="asks an index for versions; set STACK_INDEX=1")
def test_making_the_locks_again_changes_nothing(project: Path, manifest: WheelsManifest) -> None:
    assert make(manifest, project) == []


@pytest.mark.skipif("STACK_INDEX" not in os.environ, reason="asks an index for versions; set STACK_INDEX=1")
def test_a_changed_input_makes_another_lock(project: Path, manifest: WheelsManifest) -> None:
    text = (project / "pyproject.toml").read_text().replace('"psycopg[binary]"', '"psycopg"')
    (project / "pyproject.toml").write_text(text)
    assert make(manifest, project, only=["server"]) == ["server"]
    assert "psycopg-binary" not in (project / "manifests" / "locks" / "server.txt").read_text()
