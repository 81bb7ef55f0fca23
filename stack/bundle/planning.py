"""From a bundle manifest to the list of all that it needs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from stack.bundle.items import Hashes, Item, Missing, Wish
from stack.bundle.parts import CHECKOUT_TAR, Places, checkout, datasets_of, given, models_of, packages_of
from stack.files import sha256_file
from stack.manifests import Loaded, load_packages_manifest, load_run_manifest, load_wheels_manifest
from stack.manifests.bundle import BundleManifest, Wheels
from stack.supply.wheelhouse import prove, want

Targets = Mapping[str, Mapping[str, str]]


def plan(
    loaded: Loaded[BundleManifest], places: Places, hashes: Hashes, scratch: Path
) -> tuple[Wish, str, Targets]:
    """All items and all gaps, the checkout's commit, and the targets that wheels are for.

    Args:
        scratch: a folder for the checkout's tar, needed until the items are copied.

    Raises:
        BadRequest: a manifest is wrong or not there; the checkout has uncommitted changes.
    """
    tar, revision = checkout(loaded.root, scratch)
    wish, targets = plan_parts(loaded, places, hashes)
    wish.add(Item(CHECKOUT_TAR, tar, tar.stat().st_size, sha256_file(tar), ("everything",)))
    return wish, revision, targets


def plan_parts(loaded: Loaded[BundleManifest], places: Places, hashes: Hashes) -> tuple[Wish, Targets]:
    """As `plan`, for all but the checkout itself."""
    manifest, wish = loaded.manifest, Wish()
    for path in manifest.runs:
        run = load_run_manifest(loaded.path(path), allow_outside=loaded.allow_outside)
        models_of(run, loaded.root, places, wish)
        datasets_of(run, loaded.root, wish, hashes)
    targets = {} if manifest.wheels is None else _wheels(loaded, manifest.wheels, places, wish)
    for path in manifest.packages:
        packages_of(load_packages_manifest(loaded.path(path)).manifest, places, wish)
    given((*manifest.images, *manifest.site), places, wish, hashes)
    return wish, targets


def _wheels(loaded: Loaded[BundleManifest], wheels: Wheels, places: Places, wish: Wish) -> Targets:
    """Every wheel that a target's locks pin; the wheelhouse is proven against them first."""
    manifest = load_wheels_manifest(loaded.path(wheels.manifest))
    targets: dict[str, dict[str, str]] = {}
    for name in wheels.targets:
        wanted = want(manifest.manifest, name, manifest.file.parent / "locks")
        target, owner = manifest.manifest.targets[name], f"machine {name}"
        targets[name] = {
            "python": target.python,
            "machine": target.machine,
            "locks": " ".join(target.locks),
        }
        folder = None if places.wheels is None else places.wheels
        if folder is not None and (folder / name).is_dir():
            folder = folder / name
        if folder is None or not folder.is_dir():
            what = f"{len(wanted.pins)} wheels, and no wheelhouse at {folder}"
            wish.missing.append(Missing(f"wheels/{name}", what, (owner,), _fetch(name, "DIR")))
            continue
        proof = prove(wanted, folder, trust_record=True)
        for wheel in proof.wheels:
            source = folder / wheel.file
            wish.add(Item(f"wheels/{name}/{wheel.file}", source, wheel.size_bytes, wheel.sha256, (owner,)))
        for pin in proof.missing:
            do = _fetch(name, str(folder))
            wish.missing.append(Missing(f"wheels/{name}", f"no right wheel of {pin}", (owner,), do))
    return targets


def _fetch(target: str, folder: str) -> str:
    return f"stack mirror wheels --for {target} --to {folder}"
