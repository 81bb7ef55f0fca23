"""PostgreSQL's own tools over a place's database: dump and restore, with the password left in its file."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from stack.errors import NotAble, WorkFailed
from stack.tracking.site.place import Place, shown_uri

TOOLS_OF_DEBIAN = Path("/usr/lib/postgresql")
LIMIT_S = 6 * 3600.0
LINES_SHOWN = 6


def dump(place: Place, to: Path, *, snapshot: str) -> None:
    """All tables as of a snapshot that another connection has exported, in pg_dump's custom format."""
    arguments = ["--format=custom", "--no-owner", "--no-privileges", f"--snapshot={snapshot}"]
    _run("pg_dump", place, [*arguments, f"--file={to}"], "dump")


def load(place: Place, dump_file: Path) -> None:
    """A dump into an empty database, whole or not at all."""
    arguments = ["--single-transaction", "--exit-on-error", "--no-owner", "--no-privileges"]
    _run("pg_restore", place, [*arguments, str(dump_file)], "restore")


def tool(name: str) -> Path:
    """The newest of the installed versions: an older pg_dump refuses a newer server.

    Raises:
        NotAble: there is none.
    """
    found = [(_version(path), path) for path in TOOLS_OF_DEBIAN.glob(f"*/bin/{name}")]
    if found:
        return max(found)[1]
    path = shutil.which(name)
    if path is None:
        raise NotAble(
            "track-no-postgres-tools",
            f"{name} is not installed here, so a PostgreSQL database can be neither dumped nor restored",
            do="install PostgreSQL's client programs (Debian: postgresql-client)",
        )
    return Path(path)


def _version(path: Path) -> int:
    number = re.match(r"\d+", path.parent.parent.name)
    return int(number[0]) if number else 0


def _run(name: str, place: Place, arguments: Sequence[str], verb: str) -> None:
    from sqlalchemy.engine import make_url

    url = make_url(place.uri)
    hosts = url.query.get("host", url.host)
    target = {
        "--host": hosts if isinstance(hosts, str) else None,
        "--port": str(url.port) if url.port else url.query.get("port"),
        "--username": url.username,
        "--dbname": url.database,
    }
    given = [f"{option}={value}" for option, value in target.items() if value]
    environment = {**os.environ, "LC_ALL": "C"}
    if place.passfile is not None:
        environment["PGPASSFILE"] = str(place.passfile)
    try:
        done = subprocess.run(
            [str(tool(name)), "--no-password", *given, *arguments],
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=LIMIT_S,
        )
    except subprocess.TimeoutExpired as error:
        raise WorkFailed(
            f"track-{verb}-failed", f"{name} did not end within {LIMIT_S:.0f} s", where=shown_uri(place)
        ) from error
    if done.returncode:
        said = done.stderr.strip().splitlines()[-LINES_SHOWN:]
        raise WorkFailed(
            f"track-{verb}-failed",
            f"{name} ended with code {done.returncode}: {' | '.join(said) or 'it said nothing'}",
            where=shown_uri(place),
        )
