"""The care of a tracking store and of a site's server."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from stack.cli.options import FILE, FOLDER, log, show_json
from stack.errors import BadRequest, Exit

if TYPE_CHECKING:
    from stack.tracking.site.place import Place

NEW_PASSWORD = "--new-password-file"


def place_options(command: Callable[..., Any]) -> Callable[..., Any]:
    command = click.option("--site", type=FILE, help="A site's file, instead of --work.")(command)
    return click.option(
        "--work", type=FOLDER, default=Path("work"), show_default=True, help="Working folder of one host."
    )(command)


def server_options(command: Callable[..., Any]) -> Callable[..., Any]:
    command = click.option(
        "--connect", metavar="HOST:PORT", help="Connect there; the name of --server is still asked for."
    )(command)
    return click.option("--server", required=True, help="The address that people use.")(command)


def _place(work: Path, site: Path | None) -> Place:
    from stack.tracking.site.config import load_site
    from stack.tracking.site.place import of_work

    return load_site(site).place if site is not None else of_work(work)


@click.command("check")
@server_options
@click.option("--json", "json_to", metavar="FILE", help="Write what was found as JSON; '-' for stdout.")
def track_check(server: str, connect: str | None, json_to: str | None) -> None:
    """Look at a server from outside, under its real name; nothing is written.

    The login comes from STACK_TRACKING_LOGIN_FILE, a file with user:password; the certificates of a site's
    own authority from MLFLOW_TRACKING_SERVER_CERT_PATH.

    Example: stack track check --server https://tracking.example
    """
    from stack.tracking.login import login
    from stack.tracking.site.asking import Target
    from stack.tracking.site.check import check_server

    found = check_server(Target.parse(server, connect), login())
    show_json([vars(checked) for checked in found], json_to)
    if json_to != "-":
        marks = {True: "good", False: "NOT GOOD", None: "-"}
        for checked in found:
            click.echo(f"{checked.name:<18}{marks[checked.is_good]:<10}{checked.said}")
    if any(checked.is_good is False for checked in found):
        raise click.exceptions.Exit(Exit.NOT_GOOD)


@click.command("users")
@server_options
@click.option("--add", metavar="NAME", help="Make a user.")
@click.option("--set-password", metavar="NAME", help="Give a user another password.")
@click.option("--remove", metavar="NAME", help="Take a user's login away; what was logged stays.")
@click.option(NEW_PASSWORD, type=FILE, help="The password, in a file of mode 0600.")
@click.option("--admin", is_flag=True, help="With --add: the user may manage users and everything else.")
def track_users(
    server: str,
    connect: str | None,
    add: str | None,
    set_password: str | None,
    remove: str | None,
    new_password_file: Path | None,
    admin: bool,
) -> None:
    """List, add and remove the users of a site's server, as its administrator.

    The login comes from STACK_TRACKING_LOGIN_FILE, a file with user:password.

    Example: stack track users --server https://tracking.example --add anna --new-password-file anna.password
    """
    from stack.tracking.login import login
    from stack.tracking.site import users
    from stack.tracking.site.asking import Target

    target, who = Target.parse(server, connect), login()
    if sum(name is not None for name in (add, set_password, remove)) > 1:
        raise BadRequest("track-users-several", "one of --add, --set-password and --remove at a time")
    if (add or set_password) and new_password_file is None:
        raise BadRequest("track-password-missing", f"a password is needed: {NEW_PASSWORD}")
    if add and new_password_file is not None:
        users.add_user(target, who, add, new_password_file, is_admin=admin)
        log(f"user '{add}' made")
    elif set_password and new_password_file is not None:
        users.set_password(target, who, set_password, new_password_file)
        log(f"user '{set_password}' has another password")
    elif remove:
        users.remove_user(target, who, remove)
        log(f"user '{remove}' removed")
    else:
        for user in users.list_users(target, who):
            click.echo(f"{user.name}{' (administrator)' if user.is_admin else ''}")


@click.command("backup")
@click.option("--to", type=FOLDER, help="A new folder, outside the store.")
@click.option("--below", type=FOLDER, help="Instead: a folder in which the backup is named by its time.")
@click.option("--keep", type=click.IntRange(min=1), help="With --below: how many such backups stay.")
@click.option("--database-only", is_flag=True, help="Leave the artifacts out.")
@place_options
def track_backup(
    to: Path | None, below: Path | None, keep: int | None, database_only: bool, work: Path, site: Path | None
) -> None:
    """Copy a tracking store while it is used: the database first, then the artifacts, every file hashed.

    Example: stack track backup --to backups/monday
    """
    from stack.tracking.site.backup import backup, backup_dated

    if (to is None) == (below is None) or (keep is not None and below is None):
        raise BadRequest("track-backup-where", "name --to, or --below with or without --keep")
    place, whole = _place(work, site), not database_only
    if below is not None:
        backup_dated(place, below, keep=keep, with_artifacts=whole, log=log)
    elif to is not None:
        backup(place, to, with_artifacts=whole, log=log)


@click.command("restore")
@click.argument("backup", type=FOLDER)
@click.option("--dry-run", is_flag=True, help="Only compare the backup's files with its record.")
@place_options
def track_restore(backup: Path, dry_run: bool, work: Path, site: Path | None) -> None:
    """Bring a BACKUP to an empty place; nothing that is there is ever replaced.

    Example: stack track restore backups/monday --work restored
    """
    from stack.tracking.site.backup_record import verify_backup
    from stack.tracking.site.restore import restore

    if dry_run:
        made = verify_backup(backup)
        log(f"backup of {made.made_at}, {made.counts['runs']} runs: all {len(made.files)} files are whole")
        return
    restore(backup, _place(work, site), log=log)


@click.command("upgrade")
@click.option("--backup-to", required=True, type=FOLDER, help="A new folder for the backup that comes first.")
@place_options
def track_upgrade(backup_to: Path, work: Path, site: Path | None) -> None:
    """Bring a stopped store's tables to the installed MLflow's version, after a backup, or not at all.

    Example: stack track upgrade --backup-to backups/before-upgrade
    """
    from stack.tracking.site.upgrade import upgrade

    upgrade(_place(work, site), backup_to, log=log)


@click.command("prune")
@click.option("--keep-days", required=True, type=click.FloatRange(min=0), help="Runs younger than that stay.")
@click.option(
    "--trash-days",
    type=click.FloatRange(min=0),
    default=30,
    show_default=True,
    help="How long deleted runs can be brought back.",
)
@click.option("--apply", is_flag=True, help="Do it; without this nothing is changed.")
@place_options
def track_prune(keep_days: float, trash_days: float, apply: bool, work: Path, site: Path | None) -> None:
    """Say which old runs a rule deletes, and with --apply delete them.

    Runs that are tagged stack.keep, running, or the source of a model version stay, with all that is nested
    with them.

    Example: stack track prune --keep-days 180
    """
    from stack.tracking.site.prune import apply_prune, plan_prune, shown

    place = _place(work, site)
    plan = plan_prune(place, keep_days=keep_days, trash_days=trash_days)
    for reason, count in sorted(plan.kept.items()):
        log(f"kept: {count} runs, {reason}")
    if apply:
        apply_prune(place, plan, log=click.echo)
    else:
        for run in plan.to_trash:
            click.echo(f"would go to the trash: {shown(run)}")
        for run in plan.to_remove:
            click.echo(f"would be removed for good: {shown(run)}, {plan.bytes_of.get(run.run_id, 0)} bytes")
    for uri in plan.elsewhere:
        log(f"outside this store, so left there: {uri}")
    log(
        f"{len(plan.to_trash)} runs to the trash, {len(plan.to_remove)} for good with "
        f"{plan.removed_bytes / 1e6:.1f} MB{'' if apply else '; nothing was changed (--apply does it)'}"
    )
