"""What a saved container image is, by its own word: id, architecture, and whether it is whole.

Formats: `docker save` up to 24 (manifest.json, CONFIG.json, LAYER/layer.tar) and from 25 on (the same
manifest.json over an OCI layout, https://github.com/opencontainers/image-spec/blob/main/image-layout.md).
"""

from __future__ import annotations

import hashlib
import json
import tarfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stack.errors import BadRequest

# GOARCH, as image configurations name it, by the kernel's name.
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_JSON_MAX_BYTES = 16 << 20


@dataclass(frozen=True)
class ImageFacts:
    """Attributes:
    id: `sha256:...` of the configuration, which is the image's id in Docker.
    architecture: GOARCH, `amd64` or `arm64`.
    tags: names that loading gives it.
    """

    id: str
    architecture: str
    os: str
    tags: tuple[str, ...]


def inspect_archive(file: Path) -> tuple[ImageFacts, ...]:
    """Every image in the archive; read to its end, so that a cut one is told.

    Raises:
        BadRequest: no image archive, cut off, or a layer that the image names is not in it.
    """
    small: dict[str, bytes] = {}
    names: set[str] = set()
    try:
        with tarfile.open(file, "r:*") as archive:
            for member in archive:
                name = member.name.removeprefix("./")
                names.add(name)
                if member.isfile() and member.size <= _JSON_MAX_BYTES and _may_be_json(name):
                    stream = archive.extractfile(member)
                    if stream is not None and (first := stream.read(1)) in (b"{", b"["):
                        small[name] = first + stream.read()
    except (tarfile.TarError, EOFError, zlib.error, OSError) as error:
        raise _bad(file, f"it cannot be read to its end: {error or type(error).__name__}") from error
    if "manifest.json" not in small:
        raise _bad(file, "it has no manifest.json; is it made by 'docker save'?")
    try:
        return tuple(_facts(file, entry, small, names) for entry in json.loads(small["manifest.json"]))
    except (ValueError, KeyError, TypeError) as error:
        raise _bad(file, f"its manifest.json is damaged: {error!r}") from error


def _may_be_json(name: str) -> bool:
    return name.endswith(".json") or name.startswith("blobs/")


def _facts(file: Path, entry: dict[str, Any], small: dict[str, bytes], names: set[str]) -> ImageFacts:
    if absent := [layer for layer in entry["Layers"] if layer not in names]:
        raise _bad(file, f"{len(absent)} of its {len(entry['Layers'])} layers are missing")
    raw = small[entry["Config"]]
    config = json.loads(raw)
    id = f"sha256:{hashlib.sha256(raw).hexdigest()}"
    return ImageFacts(id, config["architecture"], config.get("os", "linux"), tuple(entry["RepoTags"] or ()))


def _bad(file: Path, what: str) -> BadRequest:
    return BadRequest("image-archive-bad", what, where=str(file), do="save the image again ('docker save')")
