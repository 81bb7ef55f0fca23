"""Manifests of bundles: what one site gets, named by the manifests that install it there."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from stack.manifests.base import Strict

Machine = Literal["x86_64", "aarch64"]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
PlainFile = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._+~:-]*$")]
# Versions of rpm packages may have a caret.
PackageFile = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._+~^:-]*$")]
# What packages of each kind end in, for a machine and for any.
PACKAGE_ENDS = {
    ("deb", "x86_64"): ("_amd64.deb", "_all.deb"),
    ("deb", "aarch64"): ("_arm64.deb", "_all.deb"),
    ("rpm", "x86_64"): (".x86_64.rpm", ".noarch.rpm"),
    ("rpm", "aarch64"): (".aarch64.rpm", ".noarch.rpm"),
}


class Given(Strict):
    """A file that only the site can provide: a vendor's installer, for example.

    Attributes:
        file: a name or a pattern below the folder of such files; must fit exactly one.
        needed_by: who would miss it.
        sha256: None: whatever is there when the bundle is made is what it must stay.
    """

    name: PlainFile
    file: str
    needed_by: str
    sha256: Sha256 | None = None

    @field_validator("file")
    @classmethod
    def _stays_below(cls, file: str) -> str:
        if file.startswith("/") or ".." in file.split("/"):
            raise ValueError(f"'{file}' must be relative, without '..'")
        return file


class Image(Given):
    """A container image, as `docker save` writes it; plain or gzip.

    Attributes:
        machine: what the image must be for, judged by its own configuration.
        id: the image id (`docker image inspect`); None: any.
    """

    machine: Machine
    id: Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")] | None = None


class Wheels(Strict):
    """Wheelhouses, by target of the wheels manifest."""

    manifest: str
    targets: tuple[str, ...] = Field(min_length=1)


class BundleManifest(Strict):
    """What goes into a bundle, besides the checkout itself, which always does.

    Attributes:
        runs: run manifests; their models and their datasets follow from them.
        packages: packages manifests, one a kind of host.
        images, site: what is taken from the folder of files that the site provides.
    """

    schema_: Literal["stack/bundle/1"] = Field(alias="schema")
    name: PlainFile
    runs: tuple[str, ...] = ()
    wheels: Wheels | None = None
    packages: tuple[str, ...] = ()
    images: tuple[Image, ...] = ()
    site: tuple[Given, ...] = ()

    @model_validator(mode="after")
    def _names_once(self) -> BundleManifest:
        names = [given.name for given in (*self.images, *self.site)]
        if doubled := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"named twice: {', '.join(doubled)}")
        return self


class Package(Strict):
    """One package file of an operating system; unpinned ones cannot be bundled.

    Attributes:
        depends: names of packages that it needs, alternatives as `a|b`; None: nobody has looked. Names that
            the manifest does not list are part of the bare host's system.
        replaces: the bare system's own version of it, which is too old for the packages that need this one.
    """

    name: str
    version: str
    file: PackageFile
    size: int | None = Field(default=None, ge=1)
    sha256: Sha256 | None = None
    depends: tuple[str, ...] | None = None
    replaces: str | None = None


class PackagesManifest(Strict):
    """OS packages of one kind of host, with all that they depend on there.

    Attributes:
        host: distribution and release, `debian-12`.
        needed_by: who installs them.
    """

    schema_: Literal["stack/packages/1"] = Field(alias="schema")
    host: PlainFile
    machine: Machine
    kind: Literal["deb", "rpm"]
    needed_by: str
    packages: tuple[Package, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _files_fit(self) -> PackagesManifest:
        ends = PACKAGE_ENDS[self.kind, self.machine]
        for package in self.packages:
            if not package.file.endswith(ends):
                raise ValueError(f"'{package.file}' does not end in {' or '.join(ends)}")
        names = [package.file for package in self.packages]
        if doubled := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"named twice: {', '.join(doubled)}")
        return self
