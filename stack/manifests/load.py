"""Load, override, validate and locate manifests."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from pydantic import ValidationError

from stack.errors import BadRequest, StackError
from stack.files import canonical_json, sha256_text
from stack.manifests.base import Strict
from stack.manifests.strict_yaml import Document, Keys, parse, parse_scalar

if TYPE_CHECKING:
    from stack.manifests.ascend import AscendManifest
    from stack.manifests.bundle import BundleManifest, PackagesManifest
    from stack.manifests.dataset import DatasetManifest
    from stack.manifests.images import ImagesManifest
    from stack.manifests.models import ModelsManifest
    from stack.manifests.run import RunManifest
    from stack.manifests.wheels import WheelsManifest

M = TypeVar("M", bound=Strict)
MANIFESTS_FOLDER = "manifests"


@dataclass(frozen=True)
class Loaded(Generic[M]):
    """A validated manifest, the file it came from, and how to resolve the paths in it."""

    manifest: M
    file: Path
    allow_outside: bool = False

    @property
    def root(self) -> Path:
        """The folder that holds `manifests/`, or the manifest's own folder elsewhere."""
        for parent in self.file.parents:
            if parent.name == MANIFESTS_FOLDER:
                return parent.parent
        return self.file.parent

    def path(self, given: str) -> Path:
        """Resolve a path of the manifest.

        Links are not followed: a link inside the root is its owner's decision.

        Raises:
            BadRequest: it leaves the root and `allow_outside` is not set.
        """
        resolved = Path(os.path.normpath(self.file.parent / given))
        if not self.allow_outside and not resolved.is_relative_to(self.root):
            raise BadRequest(
                "manifest-path-outside",
                f"the path '{given}' leaves the manifest's root {self.root}",
                where=str(self.file),
                do="pass --allow-outside if that is meant",
            )
        return resolved

    @property
    def fingerprint(self) -> str:
        """sha256 of the canonical JSON of the manifest: equal for equal meaning, whatever the layout."""
        return sha256_text(canonical_json(self.manifest.model_dump(mode="json", by_alias=True)))


def load_dataset_manifest(
    file: Path, *, overrides: tuple[str, ...] = (), allow_outside: bool = False
) -> Loaded[DatasetManifest]:
    from stack.manifests.dataset import DatasetManifest

    return _load(DatasetManifest, file, overrides, allow_outside)


def load_models_manifest(
    file: Path, *, overrides: tuple[str, ...] = (), allow_outside: bool = False
) -> Loaded[ModelsManifest]:
    from stack.manifests.models import ModelsManifest

    return _load(ModelsManifest, file, overrides, allow_outside)


def load_run_manifest(
    file: Path, *, overrides: tuple[str, ...] = (), allow_outside: bool = False
) -> Loaded[RunManifest]:
    from stack.manifests.run import RunManifest

    return _load(RunManifest, file, overrides, allow_outside)


def load_wheels_manifest(file: Path) -> Loaded[WheelsManifest]:
    from stack.manifests.wheels import WheelsManifest

    return _load(WheelsManifest, file, (), False)


def load_ascend_manifest(file: Path) -> Loaded[AscendManifest]:
    from stack.manifests.ascend import AscendManifest

    return _load(AscendManifest, file, (), False)


def load_images_manifest(file: Path) -> Loaded[ImagesManifest]:
    from stack.manifests.images import ImagesManifest

    return _load(ImagesManifest, file, (), False)


def load_bundle_manifest(file: Path, *, allow_outside: bool = False) -> Loaded[BundleManifest]:
    from stack.manifests.bundle import BundleManifest

    return _load(BundleManifest, file, (), allow_outside)


def load_packages_manifest(file: Path) -> Loaded[PackagesManifest]:
    from stack.manifests.bundle import PackagesManifest

    return _load(PackagesManifest, file, (), False)


def load_manifest(model: type[M], file: Path, *, allow_outside: bool = False) -> Loaded[M]:
    """Load a room's own kind of manifest."""
    return _load(model, file, (), allow_outside)


def _load(model: type[M], file: Path, overrides: tuple[str, ...], allow_outside: bool) -> Loaded[M]:
    file = Path(os.path.abspath(file))
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadRequest(
            "manifest-unreadable", f"the manifest cannot be read: {error}", where=str(file)
        ) from error
    document = parse(text, str(file))
    if not isinstance(document.data, dict):
        raise BadRequest("manifest-not-a-mapping", "a manifest is a mapping of keys", where=str(file))
    for override in overrides:
        _apply_override(document, override)
    try:
        manifest = model.model_validate(document.data)
    except ValidationError as error:
        raise _to_stack_error(error, document) from error
    return Loaded(manifest, file, allow_outside)


def _apply_override(document: Document, override: str) -> None:
    dotted, equals, text = override.partition("=")
    if not equals or not dotted:
        raise BadRequest("override-malformed", f"--set takes a.b=value, not '{override}'")
    keys: Keys = tuple(int(part) if part.isdigit() else part for part in dotted.split("."))
    target: Any = document.data
    for key in keys[:-1]:
        if isinstance(target, dict) and target.get(str(key)) is None:
            target[str(key)] = {}
        target = _step(target, key, override)
    value = parse_scalar(text)
    last = keys[-1]
    if isinstance(target, list):
        _step(target, last, override)
        target[int(last)] = value
    elif isinstance(target, dict):
        target[str(last)] = value
    else:
        raise _no_such_key(override, last)
    for known in [k for k in document.positions if k[: len(keys)] == keys]:
        del document.positions[known]
    document.positions[keys] = f"--set {override}"


def _step(target: Any, key: str | int, override: str) -> Any:
    try:
        if isinstance(target, list) and isinstance(key, int):
            return target[key]
        if isinstance(target, dict):
            return target[str(key)]
    except IndexError:
        raise _no_such_key(override, key) from None
    raise _no_such_key(override, key)


def _no_such_key(override: str, key: str | int) -> BadRequest:
    return BadRequest("override-no-such-key", f"'{key}' cannot be reached", where=f"--set {override}")


def _to_stack_error(error: ValidationError, document: Document) -> StackError:
    problems = []
    for item in error.errors():
        keys = tuple(item["loc"])
        if item["type"] == "unknown_key":
            keys = (*keys, item["ctx"]["key"])
        message = item["msg"].removeprefix("Value error, ")
        shown = ".".join(str(k) for k in keys)
        problems.append((document.where(keys), f"{shown}: {message}" if shown else message))
    first_where, first_what = problems[0]
    more = "".join(f"\n  also: {what} ({where})" for where, what in problems[1:])
    return BadRequest("manifest-invalid", first_what + more, where=first_where)
