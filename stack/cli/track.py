"""The tracking server and the shipper."""

from __future__ import annotations

from pathlib import Path

import click

from stack.cli.options import FILE, FOLDER, Commands, log
from stack.cli.track_site import (
    track_backup,
    track_check,
    track_prune,
    track_restore,
    track_upgrade,
    track_users,
)
from stack.errors import BadRequest


@click.group(cls=Commands)
def track() -> None:
    """MLflow's server for one host or a site, its care, and the way of a run's journal to one."""


@track.command("server")
@click.option("--work", type=FOLDER, default=Path("work"), show_default=True, help="Working folder.")
@click.option("--port", type=click.IntRange(1, 65535), help="Default: a free one.")
@click.option("--site", type=FILE, help="Serve a site as its file says, instead of one host.")
def track_server(work: Path, port: int | None, site: Path | None) -> None:
    """Serve the runs of a working folder on loopback, or a site with logins, until Ctrl-C.

    Example: stack track server --port 5000
    """
    if site is not None:
        if port is not None:
            raise BadRequest("track-port-twice", "a site's port is in its file: leave --port out")
        from stack.tracking.site.serve import serve_site

        serve_site(site, log=log)
        return
    from stack.tracking.server import serve

    serve(work.absolute() / "tracking", port=port, log=click.echo)


@track.command("ship")
@click.argument("folder", type=FOLDER)
@click.option("--server", help="Address; default: a server over the store of --work, started for this.")
@click.option("--work", type=FOLDER, default=Path("work"), show_default=True, help="Working folder.")
@click.option("--follow", is_flag=True, help="Keep shipping beside a run, until no run below FOLDER runs.")
def track_ship(folder: Path, server: str | None, work: Path, follow: bool) -> None:
    """Bring the journals below a run FOLDER to MLflow; what is there already stays as it is.

    Example: stack track ship work/runs/demo-cpu --server http://tracking.example:5000
    """
    from stack.tracking.priority import step_back
    from stack.tracking.shipping import follow as ship_following
    from stack.tracking.shipping import ship

    if not folder.is_dir():
        raise BadRequest("track-no-folder", "the run folder is not there", where=str(folder))

    def bring(address: str) -> None:
        if not follow:
            ship(folder, address, log=log)
            return
        step_back()
        ship_following(folder, address, log=log)

    if server is not None:
        bring(server)
        return
    from stack.tracking.server import Server

    with Server.start(work.absolute() / "tracking", is_beside=follow, log=log) as local:
        bring(local.uri)


for command in (track_check, track_users, track_backup, track_restore, track_upgrade, track_prune):
    track.add_command(command)
