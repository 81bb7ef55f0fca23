"""One model's folder in the mirror: what lies in it, against what the manifest pins."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from stack.errors import BadRequest
from stack.files import sha256_file, sha256_text, tree_files
from stack.manifests.models import Model, ModelFile, ModelOrigin, ModelsManifest

RECORD = "mirror.json"
RECORD_SCHEMA = "stack/mirror/1"


@dataclass(frozen=True)
class MirroredModel:
    """A model that lies whole and verified in the mirror.

    Attributes:
        folder: where its files are.
        origin: `modelscope:OWNER/NAME@REVISION` or `demo:NAME`.
        fetched: files that this call brought; the others were right already.
    """

    name: str
    model: Model = field(repr=False)
    folder: Path
    origin: str
    fetched: tuple[str, ...]

    @property
    def digest(self) -> str:
        """sha256 over the pinned files: equal for equal content, whatever the origin."""
        lines = (f"{f.sha256} {f.size} {f.path}\n" for f in sorted(self.model.files, key=lambda f: f.path))
        return sha256_text("".join(lines))


@dataclass(frozen=True)
class Mismatch:
    """A file that is not what is pinned.

    Attributes:
        code: `missing`, `wrong-size` or `wrong-hash`.
    """

    path: str
    code: str
    what: str
    expected: int | str | None = None
    got: int | str | None = None


def mismatch(folder: Path, file: ModelFile, *, sha256: str | None = None) -> Mismatch | None:
    """Compare one file by size, then by sha256; what is not pinned is not compared.

    Args:
        sha256: the file's own, where it is known already; else it is computed.
    """
    path = folder / file.path
    if not path.is_file():
        return Mismatch(file.path, "missing", "is missing")
    size_bytes = path.stat().st_size
    if file.size is not None and size_bytes != file.size:
        what = f"has the wrong size: expected {file.size} bytes, got {size_bytes}"
        return Mismatch(file.path, "wrong-size", what, file.size, size_bytes)
    if file.sha256 is None:
        return None
    sha256 = sha256 or sha256_file(path)
    if sha256 != file.sha256:
        what = f"has the right size but the wrong content: expected sha256 {file.sha256}, got {sha256}"
        if file.size is None:
            what = f"has the wrong content: expected sha256 {file.sha256}, got {sha256} ({size_bytes} bytes)"
        return Mismatch(file.path, "wrong-hash", what, file.sha256, sha256)
    return None


def left_over(folder: Path, model: Model) -> list[str]:
    """Files in `folder` that neither the manifest lists nor the mirror itself wrote."""
    known = {PurePosixPath(file.path).as_posix() for file in model.files} | {RECORD}
    return [path for p in tree_files(folder) if (path := p.relative_to(folder).as_posix()) not in known]


def origin_text(origin: ModelOrigin) -> str:
    if origin.modelscope is not None:
        return f"modelscope:{origin.modelscope}@{origin.revision}"
    return f"demo:{origin.demo}"


def record(name: str, model: Model) -> dict[str, Any]:
    """What `mirror.json` says; a function of the manifest alone, so that equal mirrors are equal bytes."""
    return {
        "schema": RECORD_SCHEMA,
        "name": name,
        "kind": model.kind,
        "licence": model.licence,
        "origin": origin_text(model.origin),
        "files": {file.path: {"size": file.size, "sha256": file.sha256} for file in model.files},
    }


def select(manifest: ModelsManifest, names: Sequence[str] | None) -> dict[str, Model]:
    """The models of `names`, in the manifest's order; all of them for None.

    Raises:
        BadRequest: a name that the manifest does not have; names the nearest.
    """
    if names is None:
        return dict(manifest.models)
    for name in names:
        if name not in manifest.models:
            near = difflib.get_close_matches(name, manifest.models, n=1, cutoff=0.4)
            hint = f"did you mean '{near[0]}'?" if near else f"known: {', '.join(sorted(manifest.models))}"
            raise BadRequest("mirror-no-such-model", f"the models manifest has no '{name}'; {hint}")
    return {name: model for name, model in manifest.models.items() if name in names}
