"""The wheels manifest: how each lock is made, and which machines its wheels are carried to."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from stack.manifests.base import Strict

Machine = Literal["x86_64", "aarch64"]
PlainName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_-]*$")]  # a file or folder name


class Lock(Strict):
    """One file of hashed pins below `manifests/locks`, and what it is compiled from.

    Attributes:
        extras: of pyproject.toml, together with the project's own dependencies; or
        requirements: lines of a requirements file, instead of the project.
        overrides, constraints: files and locks below `manifests/locks`. A constraint lends its versions.
        python: the lowest version that the lock is for.
        dependencies: False pins the named packages alone.
        targets_only: drop what no target of this lock installs.
    """

    extras: tuple[str, ...] = ()
    requirements: tuple[str, ...] = ()
    overrides: tuple[str, ...] = ()
    constraints: tuple[str, ...] = ()
    python: str = Field(pattern=r"^3\.\d+$")
    dependencies: bool = True
    targets_only: bool = False

    @model_validator(mode="after")
    def _one_source(self) -> Lock:
        if bool(self.extras) == bool(self.requirements):
            raise ValueError("a lock is compiled from 'extras' of the project or from 'requirements'")
        return self


class Target(Strict):
    """A kind of machine that wheels are carried to.

    Attributes:
        locks: what is installed there.
        python: the interpreter's version, `3.10`.
        glibc: the C library's version there; wheels for a newer one do not load.
    """

    locks: tuple[str, ...] = Field(min_length=1)
    python: str = Field(pattern=r"^3\.\d+$")
    machine: Machine
    glibc: str = Field(pattern=r"^2\.\d+$")


class WheelsManifest(Strict):
    schema_: Literal["stack/wheels/1"] = Field(alias="schema")
    locks: dict[PlainName, Lock] = Field(min_length=1)
    targets: dict[PlainName, Target] = Field(min_length=1)

    @model_validator(mode="after")
    def _locks_are_known(self) -> WheelsManifest:
        for name, target in self.targets.items():
            if unknown := [lock for lock in target.locks if lock not in self.locks]:
                raise ValueError(f"target '{name}' names locks that are not listed: {', '.join(unknown)}")
        return self
