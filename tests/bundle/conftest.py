"""A small site: a checkout in git, a mirror, a wheelhouse, packages and a saved image, in manifests."""

from __future__ import annotations

import hashlib
import io
import json
import subprocess
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from stack.bundle.parts import Places
from stack.manifests import load_bundle_manifest

LAYOUTS = ("docker-20", "oci")


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def save_image(file: Path, architecture: str, *, layout: str = "docker-20", mode: str = "w") -> str:
    """Write an archive as `docker save` does, by its documented layout; returns the image's id."""
    layer = bytes(range(256)) * 400
    config = json.dumps({"architecture": architecture, "os": "linux", "rootfs": {"diff_ids": []}}).encode()
    id = sha256(config)
    if layout == "oci":
        names = (f"blobs/sha256/{id}", f"blobs/sha256/{sha256(layer)}")
    else:
        names = (f"{id}.json", "0123/layer.tar")
    manifest = [{"Config": names[0], "RepoTags": ["site/stack:1"], "Layers": [names[1]]}]
    file.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(file, mode) as archive:
        for name, content in (
            (names[1], layer),
            (names[0], config),
            ("manifest.json", json.dumps(manifest).encode()),
        ):
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return f"sha256:{id}"


@dataclass
class Site:
    """Attributes:
    root: the checkout.
    places: where models, wheels and the site's own files lie.
    files: content by its place in the bundle, as a test wrote it; the checkout's tar is not among them.
    """

    root: Path
    places: Places
    files: dict[str, bytes]

    @property
    def manifest(self) -> Any:
        return load_bundle_manifest(self.root / "manifests" / "bundles" / "site.yaml")

    def commit(self) -> None:
        git = ["git", "-C", str(self.root), "-c", "user.name=t", "-c", "user.email=t@t.t"]
        subprocess.run([*git, "add", "-A"], check=True)
        subprocess.run([*git, "commit", "-q", "-m", "x"], check=True)

    def edit(self, manifest: str, old: str, new: str) -> None:
        """Change a manifest, and commit it."""
        file = self.root / "manifests" / manifest
        text = file.read_text()
        assert old in text
        file.write_text(text.replace(old, new))
        self.commit()


RUN = """schema: stack/run/1
name: small
purpose: a run of the tests
dataset: ../datasets/small.yaml
models: ../models.yaml
mirror: ../../work/mirror
policy: {type: pi05, weights: weights, tokenizer: tokenizer, action_horizon: 10, dtype: float32}
device: {kind: cpu, count: 1}
train: {steps: 1, batch_per_device: 1, global_batch: 1, save_every: 1}
expect: {}
"""
DATASET = """schema: stack/dataset/1
name: small
sources: [{path: ../../data/task_1}]
features: {action: [{from: action}]}
"""
BUNDLE = """schema: stack/bundle/1
name: site
runs: [../runs/small.yaml]
wheels: {manifest: ../wheels.yaml, targets: [laptop-x86_64]}
packages: [../packages/debian.yaml]
images:
  - {name: stack, file: images/stack*.tar, machine: aarch64, needed_by: training hosts}
site:
  - {name: driver, file: "hdk/*driver*.run", needed_by: role driver}
"""


@pytest.fixture
def site(tmp_path: Path) -> Site:
    root, mirror, wheels, given = (tmp_path / n for n in ("checkout", "mirror", "wheels", "given"))
    files: dict[str, bytes] = {}

    def put(folder: Path, name: str, content: bytes, place: str) -> bytes:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        files[place] = content
        return content

    models = "schema: stack/models/1\nmodels:\n"
    for name, kind, file in (
        ("weights", "weights", "model.safetensors"),
        ("tokenizer", "tokenizer", "t/t.json"),
    ):
        content = put(mirror, f"{name}/{file}", name.encode() * 9000, f"checkout/work/mirror/{name}/{file}")
        models += f"  {name}:\n    kind: {kind}\n    licence: x\n    origin: {{demo: x}}\n"
        models += f"    files: [{{path: {file}, size: {len(content)}, sha256: {sha256(content)}}}]\n"
    lock = ""
    for name in ("alpha", "beta"):
        wheel = f"{name}-1.0-py3-none-any.whl"
        content = put(wheels, wheel, name.encode() * 1000, f"wheels/laptop-x86_64/{wheel}")
        lock += f"{name}==1.0 \\\n    --hash=sha256:{sha256(content)}\n"
    make = "packages/debian-12-x86_64/make_4.3_amd64.deb"
    deb = put(given, make, b"deb" * 500, make)
    put(given, "hdk/npu-driver_26.1_linux.run", b"#!/bin/sh\n" * 99, "site/npu-driver_26.1_linux.run")
    save_image(given / "images" / "stack-arm.tar", "arm64")
    files["images/stack-arm.tar"] = (given / "images" / "stack-arm.tar").read_bytes()
    for name in ("a.parquet", "b.mp4"):
        put(root / "data" / "task_1", name, name.encode() * 3000, f"checkout/data/task_1/{name}")
    for name, text in (
        ("models.yaml", models),
        ("runs/small.yaml", RUN),
        ("datasets/small.yaml", DATASET),
        ("bundles/site.yaml", BUNDLE),
        ("locks/only.txt", lock),
        (
            "wheels.yaml",
            "schema: stack/wheels/1\nlocks: {only: {requirements: [alpha, beta], python: '3.10'}}\n"
            "targets: {laptop-x86_64: {locks: [only], python: '3.11', machine: x86_64, glibc: '2.28'}}\n",
        ),
        (
            "packages/debian.yaml",
            "schema: stack/packages/1\nhost: debian-12\nmachine: x86_64\nkind: deb\n"
            "needed_by: role packages\n"
            f"packages: [{{name: make, version: '4.3', file: make_4.3_amd64.deb, "
            f"size: {len(deb)}, sha256: {sha256(deb)}}}]\n",
        ),
    ):  # fmt: skip
        file = root / "manifests" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    (root / ".gitignore").write_text("/work/\n/data/\n")
    (root / "playbook.yml").write_text("- hosts: all\n")
    subprocess.run(["git", "init", "-q", "-b", "main", str(root)], check=True)
    made = Site(root, Places(mirror, wheels, given), files)
    made.commit()
    return made


Verify = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def verify() -> Verify:
    """Runs the verifier that lies in a bundle, as a bare host would."""

    def run(folder: Path, *arguments: Any, python: str = "python3") -> subprocess.CompletedProcess[str]:
        command = [python, "-I", str(folder / "verify-bundle.py"), *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True)

    return run
