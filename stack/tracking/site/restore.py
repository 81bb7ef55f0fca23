"""Restore of a backup into an empty place, and only there."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from stack.errors import BadRequest, NotAble, WorkFailed
from stack.files import disk_error, hold_target, whole_folder
from stack.tracking.server import LOCK, MADE, REFUSED, SERVER_LOG
from stack.tracking.site import place as places
from stack.tracking.site import postgres
from stack.tracking.site.backup_record import Backup, verify_backup
from stack.tracking.site.place import ARTIFACTS, DATABASE, IN_USE, Place, connected, hold, shown_uri
from stack.tracking.site.schema import count_rows, read_schema, translated

Log = Callable[[str], None]


def restore(source: Path, place: Place, *, log: Log) -> Backup:
    """Bring a backup's database and artifacts to a place that has none, and count what arrived.

    Every file of the backup is verified first. A database alone is brought beside artifacts that are there.

    Raises:
        StackError: the backup is damaged, with the files (exit code 1).
        BadRequest: there is something at the place; the backup is of another kind of database.
        NotAble: the database or the disk is not able.
        WorkFailed: what arrived is not what the backup holds.
    """
    made = verify_backup(source)
    log(f"backup of {made.made_at}: {len(made.files)} files are as they were made")
    if made.kind != place.kind:
        raise BadRequest(
            "track-restore-kind",
            f"the backup is of a {made.kind} database, and the place has {place.kind}",
            where=str(source),
            do="restore it to a place of its own kind",
        )
    try:
        if place.is_sqlite:
            _restore_sqlite(made, place)
        else:
            _restore_postgres(made, place)
    except OSError as error:
        raise disk_error(error, place.folder) or NotAble(
            "track-restore-failed", str(error), where=str(place.folder)
        ) from error
    log(f"{made.counts['runs']} runs and {made.counts.get('metrics', 0)} points are there")
    return made


def _restore_sqlite(made: Backup, place: Place) -> None:
    _refuse_what_is_there(place, with_artifacts=made.with_artifacts)
    if not made.with_artifacts:
        with hold(place):
            _put_database(made, place.database_file)
            (place.folder / MADE).touch()
        return
    # The folder is new, or holds a server's own small files at most: those go, the rest arrives whole.
    with hold_target(place.folder):
        _clear_own_files(place.folder)
        with whole_folder(place.folder) as partial:
            _put_database(made, partial / DATABASE)
            _copy_artifacts(made, partial / ARTIFACTS)
            (partial / MADE).touch()


def _put_database(made: Backup, target: Path) -> None:
    draft = target.with_name(f".{target.name}.restored")
    shutil.copyfile(made.database, draft)
    copied = Place(draft.parent, f"sqlite:///{draft}", "")
    try:
        _require_counts(made, copied)
    except BaseException:
        draft.unlink()
        raise
    draft.rename(target)


def _restore_postgres(made: Backup, place: Place) -> None:
    with hold(place):
        _refuse_what_is_there(place, with_artifacts=made.with_artifacts)
        if not made.with_artifacts:
            postgres.load(place, made.database)
            _require_counts(made, place)
            return
        # The database is the last step but one: should it fail, it is empty as before, and so is the folder.
        with whole_folder(place.artifacts) as partial:
            _copy_artifacts(made, partial)
            postgres.load(place, made.database)
        _require_counts(made, place)


def _refuse_what_is_there(place: Place, *, with_artifacts: bool) -> None:
    if with_artifacts and place.artifacts.is_dir() and any(place.artifacts.iterdir()):
        raise _not_empty("there are artifacts already", str(place.artifacts))
    if place.is_sqlite:
        others = [path.name for path in place.folder.glob("*") if path.name not in _own_files()]
        if with_artifacts and others:
            raise _not_empty(f"there is {others[0]} already", str(place.folder))
        if place.database_file.exists():
            raise _not_empty("there is a database already", str(place.database_file))
        return
    with connected(place) as connection, translated(place):
        schema = read_schema(connection)
    if not schema.is_empty:
        raise _not_empty(f"the database has tables already, with {schema.runs} runs", shown_uri(place))


def _clear_own_files(folder: Path) -> None:
    for path in folder.glob("*"):
        path.rmdir() if path.is_dir() else path.unlink()  # a folder that is not empty stops it here


def _own_files() -> tuple[str, ...]:
    """What may stand in a folder that holds no store yet."""
    return (ARTIFACTS, IN_USE, LOCK, SERVER_LOG, MADE, REFUSED)


def _not_empty(what: str, where: str) -> BadRequest:
    return BadRequest(
        "track-restore-not-empty",
        f"{what}; a restore never replaces anything, and nothing was changed",
        where=where,
        do="restore to a new place (another folder, a new database), look at it, then serve that",
    )


def _copy_artifacts(made: Backup, to: Path) -> None:
    to.mkdir(exist_ok=True)
    for name in made.files:
        if name.startswith(f"{ARTIFACTS}/"):
            target = to / Path(name).relative_to(ARTIFACTS)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(made.folder / name, target)


def _require_counts(made: Backup, place: Place) -> None:
    with connected(place) as connection, translated(place):
        got = count_rows(connection)
    if got != made.counts:
        differing = {key: (made.counts.get(key), got.get(key)) for key in made.counts.keys() | got.keys()}
        said = ", ".join(f"{key}: {a} and {b}" for key, (a, b) in sorted(differing.items()) if a != b)
        raise WorkFailed(
            "track-restore-differs",
            f"rows in the backup and rows that arrived differ: {said}",
            where=places.shown_uri(place),
        )
