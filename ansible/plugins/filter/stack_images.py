"""What is in a saved image, before it is carried to a host."""

from __future__ import annotations

import hashlib
import json
import tarfile
from typing import Any


def archive_images(path: str) -> list[str]:
    """Ids of the images in an archive of `docker save`: `sha256:` of each one's configuration.

    Format: manifest.json, `[{"Config": NAME, ...}]`, in old archives and in those with an OCI layout.

    Raises:
        ValueError: it is no such archive.
    """
    try:
        with tarfile.open(path, "r:*") as archive:
            names = [entry["Config"] for entry in json.loads(_read(archive, "manifest.json"))]
            return ["sha256:" + hashlib.sha256(_read(archive, name)).hexdigest() for name in names]
    except (OSError, EOFError, KeyError, TypeError, ValueError, tarfile.TarError) as error:
        raise ValueError(f"{path} cannot be read as an archive of 'docker save': {error}") from error


def _read(archive: tarfile.TarFile, name: str) -> bytes:
    stream = archive.extractfile(name)
    if stream is None:
        raise ValueError(f"{name} is no file")
    return stream.read()


class FilterModule:
    def filters(self) -> dict[str, Any]:
        return {"archive_images": archive_images}
