"""The images manifest: the vendor images that ours are built on, by id, and what must be inside."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from stack.manifests.base import Strict
from stack.manifests.wheels import Machine

ImageId = Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")]


class BaseImage(Strict):
    """A vendor's image.

    Attributes:
        name: repository and tag, without the registry that a site takes it from.
        ids: the image id for each architecture, as `docker image inspect` prints it. Unlike a tag it cannot
            move, and unlike a registry's digest it survives `docker save` and `docker load`. None until
            somebody has pulled it and looked.
        environment: which of the image's Python environments to build on, where several hold these versions.
        python: its version.
        packages: the versions that it must hold; the build refuses any other.
        cann: the CANN version that the image must hold; None: any.
    """

    name: str
    ids: dict[Machine, ImageId | None]
    environment: str
    python: str
    packages: dict[str, str]
    cann: str | None = None


class ImagesManifest(Strict):
    schema_: Literal["stack/images/1"] = Field(alias="schema")
    base: BaseImage
