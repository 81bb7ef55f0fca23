"""The models manifest: weights and tokenizers, every file pinned by sha256 and size."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from stack.manifests.base import Strict

EMPTY_SHA256 = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


class ModelFile(Strict):
    """One file; `sha256` and `size` may be missing only until `stack mirror pin` has filled them in."""

    path: str
    size: int | None = Field(default=None, ge=0)
    sha256: str | None = Field(default=None, pattern=r"^[0-9a-f]{64}$")

    @field_validator("path")
    @classmethod
    def _stays_inside(cls, path: str) -> str:
        pure = PurePosixPath(path)
        if pure.is_absolute() or ".." in pure.parts or not pure.parts:
            raise ValueError(f"'{path}' must be a relative path without '..'")
        if pure.as_posix() != path or path == "mirror.json":
            raise ValueError(
                f"'{path}' must be written plainly, and not be the mirror's own record mirror.json"
            )
        return path

    @model_validator(mode="after")
    def _not_the_empty_hash(self) -> ModelFile:
        # Listings have been seen that give this for every file.
        if self.sha256 == EMPTY_SHA256 and self.size != 0:
            raise ValueError(
                f"the sha256 of '{self.path}' is that of an empty file, but its size is {self.size}"
            )
        return self


class ModelOrigin(Strict):
    """Where the files come from: exactly one of the two.

    Attributes:
        modelscope: repository id on ModelScope, `owner/name`.
        revision: the repository's revision, for `modelscope`.
        demo: folder below the demo's `models/`, made by `stack demo`.
    """

    modelscope: str | None = Field(default=None, pattern=r"^[\w.-]+/[\w.-]+$")
    revision: str | None = None
    demo: str | None = None

    @model_validator(mode="after")
    def _one_origin(self) -> ModelOrigin:
        if (self.modelscope is None) == (self.demo is None):
            raise ValueError("an origin is either 'modelscope' or 'demo'")
        if self.modelscope is not None and self.revision is None:
            raise ValueError("'modelscope' needs a 'revision'")
        return self


class Golden(Strict):
    """A text and the token ids that the right tokenizer gives for it (BOS included, no padding)."""

    text: str
    ids: tuple[int, ...] = Field(min_length=1)


class Tensors(Strict):
    """What a weights file holds, counted over its header."""

    count: int
    parameters: int
    dtype: str


class Model(Strict):
    kind: Literal["weights", "tokenizer"]
    origin: ModelOrigin
    licence: str
    files: tuple[ModelFile, ...] = Field(min_length=1)
    golden: tuple[Golden, ...] = ()
    tensors: Tensors | None = None

    @model_validator(mode="after")
    def _files_once(self) -> Model:
        paths = [file.path for file in self.files]
        if doubled := sorted({p for p in paths if paths.count(p) > 1}):
            raise ValueError(f"files named twice: {doubled}")
        return self

    @property
    def unpinned(self) -> tuple[str, ...]:
        """Files without a hash or a size; a run refuses them."""
        return tuple(f.path for f in self.files if f.sha256 is None or f.size is None)


ModelName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]  # a folder of the mirror


class ModelsManifest(Strict):
    schema_: Literal["stack/models/1"] = Field(alias="schema")
    models: dict[ModelName, Model] = Field(min_length=1)
