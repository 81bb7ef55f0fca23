"""From a models manifest to a folder in which every file is what the manifest pins."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stack.errors import BadRequest, NotAble, StackError
from stack.files import read_json, whole_folder, write_json
from stack.manifests import Loaded, ModelsManifest
from stack.manifests.models import Model, ModelFile
from stack.mirror.folder import RECORD, MirroredModel, left_over, mismatch, origin_text, record, select
from stack.mirror.seen import Seen, note
from stack.mirror.staging import Log, Source, adopt, locked, stage, staging_folder


def get(
    loaded: Loaded[ModelsManifest],
    to: Path,
    *,
    names: Sequence[str] | None = None,
    demo: Path | None = None,
    endpoint: str | None = None,
    hosts: Sequence[str] = (),
    log: Log = lambda _: None,
) -> list[MirroredModel]:
    """Mirror models into `to/NAME/`; files that are right already are not fetched again.

    Each model appears under its name only when it is whole, and is then what the manifest pins by size and
    sha256, whatever the hub says of it. A call that fails or is killed leaves what it has in
    `to/.NAME.fetch/`, and the next one goes on from there. A mirror that is whole is only read.

    Args:
        names: models to mirror; None: all of the manifest.
        demo: the folder that `stack demo` wrote.
        endpoint: ModelScope's address; None: MODELSCOPE_ENDPOINT, or the public site.
        hosts: hosts that the hub may redirect to, besides its own (`stack.mirror.hosts`).

    Raises:
        BadRequest: unknown name, files that are not pinned, no demo folder, foreign files in the place.
        NotAble: hub not reachable, disk full or not writable.
        WorkFailed: a file is missing on the hub, or is not what is pinned; all such files are named.
    """
    selected = select(loaded.manifest, names)
    refuse_unpinned(loaded, selected, to)
    done: list[MirroredModel] = []
    failed: list[StackError] = []
    for name, model in selected.items():
        try:
            done.append(_get_model(name, model, to, demo, endpoint, hosts, log))
        except StackError as error:
            # One repository that is away is no reason to leave the others for tomorrow.
            log(f"{name}: failed, {error.what}")
            failed.append(error)
    if failed:
        raise _joined(failed)
    return done


def refuse_unpinned(loaded: Loaded[ModelsManifest], selected: dict[str, Model], to: Path) -> None:
    """Refuse models of which some file has no size or hash, with the command that pins them.

    Raises:
        BadRequest: such models, all named.
    """
    unpinned = {name: model.unpinned for name, model in selected.items() if model.unpinned}
    if not unpinned:
        return
    shown = "; ".join(f"'{name}': {', '.join(paths)}" for name, paths in unpinned.items())
    only = " ".join(f"--only {name}" for name in unpinned)
    raise BadRequest(
        "mirror-unpinned",
        f"files without a pinned size or sha256 cannot be verified ({shown})",
        where=str(loaded.file),
        do=f"run 'stack mirror pin {loaded.file} --to {to} {only}' and put its lines into the manifest",
    )


def _get_model(
    name: str, model: Model, to: Path, demo: Path | None, endpoint: str | None, hosts: Sequence[str], log: Log
) -> MirroredModel:
    target = to / name
    # Where nothing can be written, right files are enough: a mirror is often mounted read-only.
    seen = Seen(to, name)
    if not _wrong_files(target, model, seen) and (
        _record_is_right(target, name, model) or not os.access(target, os.W_OK)
    ):
        log(f"{name}: nothing to do, {len(model.files)} files are right already{_how(seen)}")
        return MirroredModel(name, model, target, origin_text(model.origin), ())
    with locked(to, name, log):
        # Looked at again: the process that held the lock may have brought it.
        fetched: list[str] = []
        if wrong := _wrong_files(target, model, Seen(to, name)):
            _refuse_foreign_files(name, model, target)
            source = Source(name, model, staging_folder(to, name), demo=demo, endpoint=endpoint, hosts=hosts)
            fetched = stage(source, wrong, log)
            _put_in_place(name, model, target, source.staging, {file.path for file in wrong})
            note(to, name, model)
            log(f"{name}: {len(model.files)} files verified, {len(fetched)} of them fetched, in {target}")
        elif not _record_is_right(target, name, model):
            write_json(target / RECORD, record(name, model))
            note(to, name, model)
            log(f"{name}: {len(model.files)} files, all right already; {RECORD} written")
    return MirroredModel(name, model, target, origin_text(model.origin), tuple(fetched))


def _wrong_files(target: Path, model: Model, seen: Seen) -> list[ModelFile]:
    return [f for f in model.files if mismatch(target, f, sha256=seen.sha256(f.path)) is not None]


def _how(seen: Seen) -> str:
    return f" ({', '.join(seen.trusted)} by size, time and samples)" if seen.trusted else ""


def _record_is_right(target: Path, name: str, model: Model) -> bool:
    try:
        written: Any = read_json(target / RECORD, what="mirror's record")
    except BadRequest:
        return False
    return bool(written == record(name, model))


def _refuse_foreign_files(name: str, model: Model, target: Path) -> None:
    """The folder is about to be replaced; files that we do not know would be lost with it."""
    if target.is_symlink() or (target.exists() and not target.is_dir()):
        kind = "a link" if target.is_symlink() else "no folder"
        raise BadRequest(
            "mirror-place-taken",
            f"the place of '{name}' is {kind}, and what is there is not what the manifest pins",
            where=str(target),
            do="remove it; a folder is put in its place",
        )
    if foreign := (left_over(target, model) if target.is_dir() else []):
        raise BadRequest(
            "mirror-foreign-files",
            f"the folder of '{name}' holds files that the manifest does not list: {', '.join(foreign)}",
            where=str(target),
            do="move them away; the folder is replaced as a whole",
        )


def _put_in_place(name: str, model: Model, target: Path, staging: Path, staged: set[str]) -> None:
    """Gather the staged files and those that were right in a folder that is then renamed.

    They are linked, not moved: a kill before the rename must not lose what took hours to fetch.
    """
    with whole_folder(target, replace=True) as partial:
        for file in model.files:
            adopt((staging if file.path in staged else target) / file.path, partial / file.path)
        write_json(partial / RECORD, record(name, model))
    shutil.rmtree(staging, ignore_errors=True)


def _joined(failed: list[StackError]) -> StackError:
    if len(failed) == 1:
        return failed[0]
    first = failed[0]
    what = f"{len(failed)} models could not be mirrored:" + "".join(f"\n  - {e.what}" for e in failed)
    worst = next((e for e in failed if not isinstance(e, NotAble)), first)
    return type(worst)(worst.id, what, where=worst.where, do=worst.do)
