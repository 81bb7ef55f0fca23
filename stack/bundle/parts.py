"""The parts of a bundle: what the manifests that install at the site need, and where it lies here."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from stack.bundle.image_archive import ARCHITECTURES, inspect_archive
from stack.bundle.items import Hashes, Item, Missing, Wish
from stack.errors import BadRequest, NotAble, StackError
from stack.files import tree_files
from stack.manifests import Loaded, RunManifest, load_dataset_manifest, load_models_manifest
from stack.manifests.bundle import Given, Image, PackagesManifest
from stack.manifests.models import Model

CHECKOUT = "checkout"
CHECKOUT_TAR = "checkout.tar"


@dataclass(frozen=True)
class Places:
    """Where things lie on the connected machine; None: not given.

    Attributes:
        mirror: `stack mirror get`'s folder; None: each run's own.
        wheels: a wheelhouse, for all targets, or with one folder a target.
        site: files that the site provides: images/, packages/HOST/, and what `site` of the manifest names.
    """

    mirror: Path | None = None
    wheels: Path | None = None
    site: Path | None = None


NOWHERE = Places()


def checkout(root: Path, into: Path) -> tuple[Path, str]:
    """The checkout's committed files as a tar, the same bytes for the same commit; and the commit.

    Raises:
        BadRequest: no git checkout, or changes in it that are not committed.
    """

    def git(*arguments: str) -> str:
        try:
            done = subprocess.run(
                ["git", "-C", str(root), *arguments], capture_output=True, text=True, check=False
            )
        except FileNotFoundError as error:
            raise NotAble("bundle-no-git", "git is not installed", do="install git") from error
        if done.returncode != 0:
            raise BadRequest(
                "bundle-no-checkout",
                f"git cannot read the checkout: {done.stderr.strip()}",
                where=str(root),
                do="make bundles from a git checkout of stack",
            )
        return done.stdout

    if changed := git("status", "--porcelain").splitlines():
        shown = ", ".join(line[3:] for line in changed[:5])
        raise BadRequest(
            "bundle-uncommitted",
            f"{len(changed)} files of the checkout are not committed and would not be carried: {shown}",
            where=str(root),
            do="commit them, or move them away",
        )
    target = into / CHECKOUT_TAR
    git("archive", "--format=tar", f"--output={target}", "HEAD")
    return target, git("rev-parse", "HEAD").strip()


def models_of(run: Loaded[RunManifest], root: Path, places: Places, wish: Wish) -> None:
    """The models of a run, at the place where its manifest looks for them."""
    manifest = run.manifest
    owner = f"run {manifest.name}"
    models = load_models_manifest(run.path(manifest.models), allow_outside=run.allow_outside)
    place = _inside(run.path(manifest.mirror), root, "mirror")
    mirror = places.mirror or run.path(manifest.mirror)
    for name in (manifest.policy.weights, manifest.policy.tokenizer):
        model = models.manifest.models.get(name)
        if model is None:
            raise BadRequest(
                "bundle-no-such-model", f"'{name}' is not in the models manifest", where=str(models.file)
            )
        for item in _model_items(name, model, mirror, place, owner):
            wish.add(item) if isinstance(item, Item) else wish.missing.append(item)


def _model_items(name: str, model: Model, mirror: Path, place: str, owner: str) -> Iterator[Item | Missing]:
    for file in model.files:
        path, source = f"{place}/{name}/{file.path}", mirror / name / file.path
        get = f"stack mirror get MODELS.yaml --to {mirror} --only {name}"
        if file.size is None or file.sha256 is None:
            pin = f"stack mirror pin MODELS.yaml --to {mirror} --only {name}"
            yield Missing(path, "its size or sha256 is not pinned", (owner,), pin)
        elif not source.is_file():
            yield Missing(path, f"it is not at {source}", (owner,), get)
        elif source.stat().st_size != file.size:
            size = source.stat().st_size
            yield Missing(path, f"it has {size} bytes, {file.size} are pinned", (owner,), get)
        else:
            yield Item(path, source, file.size, file.sha256, (owner,))


def datasets_of(run: Loaded[RunManifest], root: Path, wish: Wish, hashes: Hashes) -> None:
    """The deliveries of a run, where its dataset manifest looks for them; the demo's are made on the spot."""
    manifest = run.manifest
    dataset = load_dataset_manifest(run.path(manifest.dataset), allow_outside=run.allow_outside)
    demo = None if manifest.demo is None else run.path(manifest.demo)
    for source in dataset.manifest.sources:
        folder = dataset.path(source.path)
        if demo is not None and folder.is_relative_to(demo):
            continue
        place, owner = _inside(folder, root, f"datasets/{folder.name}"), f"run {manifest.name}"
        files = tree_files(folder) if folder.is_dir() else []
        if not files:
            wish.missing.append(Missing(place, f"no delivery at {folder}", (owner,), "bring it there"))
        for file in files:
            path = f"{place}/{file.relative_to(folder).as_posix()}"
            wish.add(Item(path, file, file.stat().st_size, hashes.sha256(file), (owner,)))


def _inside(path: Path, root: Path, other: str) -> str:
    """A place of the checkout as a place of the bundle, so that a manifest's relative paths hold there."""
    return f"{CHECKOUT}/{path.relative_to(root).as_posix()}" if path.is_relative_to(root) else other


def packages_of(manifest: PackagesManifest, places: Places, wish: Wish) -> None:
    owner = f"{manifest.needed_by} on {manifest.host} {manifest.machine}"
    place = f"packages/{manifest.host}-{manifest.machine}"
    for package in manifest.packages:
        path = f"{place}/{package.file}"
        source = None if places.site is None else places.site / path
        if package.size is None or package.sha256 is None:
            wish.missing.append(Missing(path, "its size or sha256 is not pinned", (owner,), "pin it"))
        elif source is None or not source.is_file():
            wish.missing.append(Missing(path, f"it is not at {source}", (owner,), "put it below --site"))
        else:
            wish.add(Item(path, source, package.size, package.sha256, (owner,)))


def given(wanted: Sequence[Given], places: Places, wish: Wish, hashes: Hashes) -> None:
    """Images and installers from the site's own folder; images are opened and judged by what is inside."""
    for item in wanted:
        part = "images" if isinstance(item, Image) else "site"
        owner = (item.needed_by,)
        found = sorted(places.site.glob(item.file)) if places.site is not None else []
        if len(found) != 1:
            count = "nothing fits" if not found else f"{len(found)} files fit"
            what, do = f"{count} '{item.file}' below {places.site}", "provide exactly one (--site DIR)"
            wish.missing.append(Missing(f"{part}/{item.name}", what, owner, do))
            continue
        file, sha256 = found[0], hashes.sha256(found[0])
        wrong = None
        if item.sha256 is not None and sha256 != item.sha256:
            wrong = f"{file} has sha256 {sha256}, {item.sha256} is pinned"
        elif isinstance(item, Image):
            wrong = _image_wrong(item, file)
        if wrong is None:
            wish.add(Item(f"{part}/{file.name}", file, file.stat().st_size, sha256, owner))
        else:
            wish.missing.append(Missing(f"{part}/{item.name}", wrong, owner, "provide the right one"))


def _image_wrong(image: Image, file: Path) -> str | None:
    try:
        images = inspect_archive(file)
    except StackError as error:
        return f"{file}: {error.what}"
    for facts in images:
        wanted = ARCHITECTURES[image.machine]
        if facts.architecture != wanted:
            return f"the image in {file} is for {facts.architecture}, {wanted} is needed ({image.machine})"
        if image.id is not None and facts.id != image.id:
            return f"the image in {file} is {facts.id}, {image.id} is pinned"
    return None if images else f"{file} holds no image"
