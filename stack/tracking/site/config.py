"""The file that describes a site's tracking server."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import Field, field_validator, model_validator

from stack.manifests.base import Strict
from stack.manifests.load import load_manifest
from stack.tracking.login import require_private
from stack.tracking.site.place import DATABASE, Place

HOST_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?(:\d{1,5})?")


class Admin(Strict):
    """The first user. Without `password_file` the password is taken from the environment."""

    user: str = Field(default="admin", pattern=r"^[\w.@-]+$")
    password_file: str | None = None


class SiteManifest(Strict):
    """A site's tracking server.

    Attributes:
        folder: artifacts, the session key and the lock; with SQLite the database too.
        database: `postgresql+psycopg://USER@HOST:PORT/NAME` without a password, or `sqlite`.
        database_passfile: libpq's password file (`host:port:database:user:password`), mode 0600.
        listen: HOST:PORT of the server itself; the proxy in front of it is what people reach.
        names: how people and programs name the server in addresses: `tracking.example`, with `:port` where
            the port is not 443.
        workers: processes.
        pool: database connections that a worker keeps; it may open twice as many for a while.
        default_permission: what a user may do with what others made; shippers of a team share experiments,
            so it is EDIT.
        login_cache_s: for how long a worker believes a login that it has checked. A check takes a good part
            of a second of processor time, on purpose, and a shipper asks often; a changed password or a
            removed user is known to every worker after that long.
        plain_http: allow `listen` to be reached from other hosts without TLS.
    """

    folder: str
    database: str
    database_passfile: str | None = None
    listen: str
    names: tuple[str, ...] = Field(min_length=1)
    workers: int = Field(default=2, ge=1, le=32)
    pool: int = Field(default=5, ge=1, le=100)
    admin: Admin = Admin()
    default_permission: Literal["READ", "USE", "EDIT", "MANAGE", "NO_PERMISSIONS"] = "EDIT"
    login_cache_s: int = Field(default=30, ge=0, le=600)
    plain_http: bool = False

    @field_validator("database")
    @classmethod
    def _plain_address(cls, database: str) -> str:
        if database == "sqlite":
            return database
        # The given text is not shown: it may hold what must not be in it.
        if not database.startswith("postgresql+psycopg://"):
            raise ValueError("a database is 'sqlite' or begins with 'postgresql+psycopg://'")
        rest = database.removeprefix("postgresql+psycopg://")
        login = rest.partition("/")[0].rpartition("@")[0]
        if ":" in login or "password" in rest.partition("?")[2]:
            raise ValueError(
                "a password stands in the database's address, where logs and process lists would show it; "
                "put it into a file that database_passfile names"
            )
        if not login:
            raise ValueError("the database's address names no user")
        return database

    @field_validator("names")
    @classmethod
    def _names_of_hosts(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        for name in names:
            if not HOST_NAME.fullmatch(name):
                raise ValueError(f"'{name}' is no host name in lower case, with or without a port")
        return names

    @model_validator(mode="after")
    def _not_open_to_all(self) -> SiteManifest:
        host, _, port = self.listen.rpartition(":")
        if not host or not port.isdigit() or not 0 < int(port) < 65536:
            raise ValueError(f"listen is HOST:PORT, not '{self.listen}'")
        try:
            is_local = ipaddress.ip_address(host.strip("[]")).is_loopback
        except ValueError:
            is_local = host == "localhost"
        if not is_local and not self.plain_http:
            raise ValueError(
                f"listen is {self.listen}, which other hosts reach without TLS, so that passwords would "
                "cross the network in the clear; listen on 127.0.0.1 behind the proxy, or set plain_http "
                "where only the proxy reaches it"
            )
        return self


@dataclass(frozen=True)
class Site:
    """A site's file, with its paths resolved."""

    manifest: SiteManifest
    file: Path
    place: Place
    admin_password_file: Path | None

    @property
    def host(self) -> str:
        return self.manifest.listen.rpartition(":")[0].strip("[]")

    @property
    def port(self) -> int:
        return int(self.manifest.listen.rpartition(":")[2])

    @property
    def allowed_hosts(self) -> tuple[str, ...]:
        """Host headers that are served: the site's names, and this machine for its own checks."""
        named = [name if ":" in name else f"{name}:*" for name in self.manifest.names]
        bare = [name.partition(":")[0] for name in self.manifest.names]
        return tuple(dict.fromkeys([*bare, *named, "localhost", "localhost:*", "127.0.0.1", "127.0.0.1:*"]))

    @property
    def allowed_origins(self) -> tuple[str, ...]:
        """Where pages that may change something come from: the site's own, through the proxy."""
        return tuple(f"https://{name}" for name in self.manifest.names)


def load_site(file: Path) -> Site:
    """Read a site's file.

    Raises:
        BadRequest: it cannot be read, or says something that no server should do.
    """
    loaded = load_manifest(SiteManifest, file, allow_outside=True)
    manifest = loaded.manifest
    folder = loaded.path(manifest.folder)
    passfile = loaded.path(manifest.database_passfile) if manifest.database_passfile else None
    uri = f"sqlite:///{folder / DATABASE}"
    if manifest.database != "sqlite":
        uri = manifest.database
        if passfile is not None:
            require_private(passfile, "the database's password file")
            uri += f"{'&' if '?' in uri else '?'}passfile={passfile}"
    given = manifest.admin.password_file
    return Site(
        manifest,
        loaded.file,
        Place(folder, uri, f"--site {file}", passfile),
        loaded.path(given) if given else None,
    )
