"""Build the training image: our layer over a vendor's image, offline, the same bytes every time."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stack import __version__
from stack.errors import BadRequest, NotAble, WorkFailed
from stack.faults import has_errors
from stack.files import canonical_json, sha256_file, sha256_text
from stack.manifests import ImagesManifest, WheelsManifest
from stack.manifests.images import BaseImage
from stack.supply import docker
from stack.supply.wheelhouse import Proof, prove, want

Log = Callable[[str], None]
SENT = ("Dockerfile", "LICENSE", "README.md", "pyproject.toml", "manifests", "scripts/image", "stack")
INPUTS_LABEL = "stack.inputs"
STAGE_LABEL = "stack.stage=build"
DEFAULT_RUN_UID = 10001
_LAST_LINES = 12


@dataclass(frozen=True)
class Base:
    """The image that ours is built on, as the engine has it."""

    name: str
    id: str
    machine: str
    size_bytes: int
    layers: tuple[str, ...]


@dataclass(frozen=True)
class Built:
    """An image of ours.

    Attributes:
        did: False where an image from the same inputs was there already.
        size_bytes: of our layers alone.
        layers: digests of our layers' uncompressed content; equal ones hold equal files.
    """

    tag: str
    id: str
    did: bool
    size_bytes: int
    layers: tuple[str, ...]
    seconds: float


@dataclass(frozen=True)
class Source:
    """The commit that is built: only what is committed goes into an image."""

    revision: str
    epoch_s: int
    dirty: bool


def build(
    root: Path,
    images: ImagesManifest,
    wheels_manifest: WheelsManifest,
    *,
    wheels: Path,
    base: str | None = None,
    tag: str | None = None,
    cann: str | None = None,
    driver_gid: int | None = None,
    run_uid: int = DEFAULT_RUN_UID,
    cache: bool = True,
    log: Log = print,
) -> Built:
    """Build the image, or say that it is there already.

    Args:
        root: the checkout.
        wheels: a wheelhouse for the base's architecture.
        base: a local image in place of the manifest's pinned one.
        cann: the CANN version to insist on in place of the manifest's; `any` takes every one.

    Raises:
        BadRequest: no base, a wheelhouse that is not whole, no git checkout.
        NotAble: no engine, or one of another architecture than the base.
        WorkFailed: the build failed; what it said of its reason is told.
    """
    started = time.monotonic()
    found = _find_base(images.base, base)
    source = _source(root)
    if source.dirty:
        log("there are uncommitted changes; the image is built from the last commit without them")
    proof = _prove_wheels(wheels_manifest, root, found.machine, wheels)
    arguments = _arguments(root, images.base, found, source, proof, cann, driver_gid, run_uid)
    tag = tag or f"stack:{__version__}-{source.revision[:12]}"
    present = docker.inspect_image(tag)
    if present is not None and _label(present, INPUTS_LABEL) == arguments["INPUTS"]:
        return _built(tag, present, found, did=False, started=started)
    log(f"building {tag} over {found.name} ({found.machine}), {len(proof.wheels)} wheels, no network")
    with tempfile.TemporaryDirectory(prefix="stack-image-", dir=wheels.parent) as scratch:
        _stage(root, Path(scratch), wheels, proof)
        code, said = docker.build(Path(scratch), {**arguments, "BASE_IMAGE": found.id}, tag, cache=cache)
    if code != 0:
        raise WorkFailed("image-build", f"the build failed:\n{_reason(said)}", where=tag)
    docker.prune_stages(STAGE_LABEL)
    made = docker.inspect_image(tag)
    assert made is not None  # it was tagged just now
    return _built(tag, made, found, did=True, started=started)


def _find_base(pinned: BaseImage, given: str | None) -> Base:
    machine = docker.engine_machine()
    pinned_id = pinned.ids.get(machine)  # type: ignore[call-overload]
    if given is None and pinned_id is None:
        raise BadRequest(
            "image-base-unpinned",
            f"the base image {pinned.name} is not pinned for {machine}: its id is not known here",
            where="manifests/images.yaml",
            do='pull it on a connected machine and put into base.ids what "docker image inspect --format '
            "'{{.Id}}' IMAGE\" prints, or name a local image: make image BASE=IMAGE",
        )
    facts = docker.inspect_image(given or str(pinned_id))
    if facts is None:
        shown = given or f"{pinned.name} with the id {pinned_id}"
        raise BadRequest(
            "image-base-missing",
            f"the base image is not in this engine: {shown}; nothing is pulled",
            do="docker load --input FILE, then run the same command again",
        )
    base_machine = docker.MACHINES.get(facts["Architecture"], facts["Architecture"])
    if base_machine != machine:
        raise NotAble(
            "image-architecture",
            f"the base image is for {base_machine}, this engine runs {machine}",
            do=f"build on a machine of {base_machine}",
        )
    layers = tuple(facts["RootFS"]["Layers"])
    return Base(given or pinned.name, facts["Id"], machine, int(facts["Size"]), layers)


def _source(root: Path) -> Source:
    def git(*arguments: str) -> str:
        done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True)
        if done.returncode != 0:
            raise BadRequest(
                "image-no-git",
                f"the image is built from a commit, and git says: {done.stderr.strip()}",
                where=str(root),
                do="build from a git clone",
            )
        return done.stdout.strip()

    revision, epoch = git("log", "-1", "--format=%H %ct").split()
    return Source(revision, int(epoch), bool(git("status", "--porcelain", "--", *SENT)))


def _prove_wheels(manifest: WheelsManifest, root: Path, machine: str, wheels: Path) -> Proof:
    name = f"container-{machine}"
    proof = prove(want(manifest, name, root / "manifests" / "locks"), wheels, trust_record=True)
    if has_errors(proof.faults):
        errors = [fault.message for fault in proof.faults if fault.severity == "error"]
        more = f"\n  and {len(errors) - 5} more" if len(errors) > 5 else ""
        raise BadRequest(
            "image-wheels",
            "the folder is no whole wheelhouse for the image:\n  - " + "\n  - ".join(errors[:5]) + more,
            where=str(wheels),
            do=f"stack mirror wheels --for {name} --to {wheels}",
        )
    return proof


def _arguments(
    root: Path,
    wanted: BaseImage,
    base: Base,
    source: Source,
    proof: Proof,
    cann: str | None,
    driver_gid: int | None,
    run_uid: int,
) -> dict[str, str]:
    """The build's arguments; INPUTS is a digest over all of them, the files included by way of the commit."""
    arguments = {
        "PYTHON": wanted.python,
        "PACKAGES": " ".join(f"{name}={version}" for name, version in wanted.packages.items()),
        "ENVIRONMENT": wanted.environment,
        "CANN": cann or wanted.cann or "any",
        "EPOCH": str(source.epoch_s),
        "RUN_UID": str(run_uid),
        "DRIVER_GID": "" if driver_gid is None else str(driver_gid),
        "REVISION": source.revision,
        "LOCK": sha256_file(root / "manifests" / "locks" / "container.txt")[:16],
        "VERSION": __version__,
        "BASE_NAME": base.name,
        "BASE_ID": base.id,
        "CREATED": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(source.epoch_s)),
    }
    return {**arguments, "INPUTS": sha256_text(canonical_json({**arguments, "wheels": proof.lock_digest}))}


def _stage(root: Path, context: Path, wheels: Path, proof: Proof) -> None:
    """What the engine is sent: committed files, and exactly the wheels that were proven."""
    archive = subprocess.run(
        ["git", "-C", str(root), "-c", "tar.umask=0022", "archive", "--format=tar", "HEAD", "--", *SENT],
        capture_output=True,
        check=True,
    )
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as tar:
        tar.extractall(context)
    (context / "wheels").mkdir()
    for wheel in proof.wheels:
        try:
            os.link(wheels / wheel.file, context / "wheels" / wheel.file)
        except OSError:
            shutil.copyfile(wheels / wheel.file, context / "wheels" / wheel.file)


def _reason(said: str) -> str:
    """What our own scripts said, up to their error and its mend; else the last lines."""
    lines = [line for line in said.splitlines() if line.strip()]
    ours = ("error[", "base: ", "  ")
    if any(line.startswith("error[") for line in lines):
        return "\n".join(f"  {line}" for line in lines if line.startswith(ours))
    return "\n".join(f"  {line}" for line in lines[-_LAST_LINES:])


def _label(facts: dict[str, Any], name: str) -> str | None:
    labels = facts["Config"].get("Labels") or {}
    value = labels.get(name)
    return None if value is None else str(value)


def _built(tag: str, facts: dict[str, Any], base: Base, *, did: bool, started: float) -> Built:
    layers = tuple(facts["RootFS"]["Layers"])[len(base.layers) :]
    return Built(
        tag, facts["Id"], did, int(facts["Size"]) - base.size_bytes, layers, time.monotonic() - started
    )
