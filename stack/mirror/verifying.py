"""Is a mirror what its manifest says? All that is wrong is found."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from stack.errors import StackError
from stack.faults import Fault, Place, has_errors
from stack.files import PARTIAL_MARK
from stack.manifests.models import Model, ModelsManifest
from stack.mirror.folder import left_over, mismatch, select
from stack.mirror.golden import check_without_torch
from stack.mirror.seen import Seen, seen_file
from stack.mirror.staging import lock_file, staging_folder
from stack.mirror.weights import WeightsFacts, inspect

SAFETENSORS = ".safetensors"


def verify(
    manifest: ModelsManifest, root: Path, *, names: Sequence[str] | None = None, fast: bool = False
) -> list[Fault]:
    """Compare a mirror with its manifest: files, left-overs, tensors of weights, ids of tokenizers.

    Args:
        root: the folder that was given to `get` as `to`; only read.
        names: models to verify; None: all, and then folders of no model are left-overs as well.
        fast: take big files that `get` hashed, and that look unchanged since, for the same; each is named in
            a note. See `stack.mirror.seen`.

    Returns:
        the faults, in the manifest's order; places are relative to `root`.

    Raises:
        BadRequest: a name that the manifest does not have.
    """
    selected = select(manifest, names)
    faults: list[Fault] = []
    for name, model in selected.items():
        folder = root / name
        if folder.is_dir():
            seen = Seen(root, name) if fast else None
            wrong = list(_files(name, folder, model, seen))
            faults += _not_hashed(name, seen)
            faults += wrong
            if not has_errors(wrong):
                faults += _proofs(name, folder, model)
        else:
            faults.append(_model_missing(name, folder))
    faults += _left_over_folders(root, selected, whole_manifest=names is None)
    return faults


def _files(name: str, folder: Path, model: Model, seen: Seen | None) -> Iterator[Fault]:
    for file in model.files:
        place = Place(file=f"{name}/{file.path}")
        known = None if seen is None else seen.sha256(file.path)
        if wrong := mismatch(folder, file, sha256=known):
            yield Fault(
                code=f"mirror-file-{wrong.code}",
                severity="error",
                message=f"{file.path} of '{name}' {wrong.what}",
                consequence="the run would not start from the pinned model",
                mend=f"stack mirror get MANIFEST --to {folder.parent} --only {name}",
                where=place,
                data={"expected": wrong.expected, "got": wrong.got},
            )
        elif file.sha256 is None or file.size is None:
            yield Fault(
                code="unchecked-mirror-file",
                severity="error",
                message=f"{file.path} of '{name}' is there, but the manifest pins no size or no sha256",
                consequence="nobody can say whether it is the right file; a run refuses it",
                mend=f"stack mirror pin MANIFEST --to {folder.parent} --only {name}",
                where=place,
            )
    for path in left_over(folder, model):
        yield Fault(
            code="mirror-left-over",
            severity="warning",
            message=f"{path} of '{name}' is not in the manifest",
            consequence="a loader that takes whatever lies in the folder may take it",
            mend="move it away, or add it to the manifest with its size and sha256",
            where=Place(file=f"{name}/{path}"),
        )


def _not_hashed(name: str, seen: Seen | None) -> Iterator[Fault]:
    for path in () if seen is None else seen.trusted:
        yield Fault(
            code="mirror-not-hashed",
            severity="note",
            message=f"{path} of '{name}' was judged by size, time and samples of its content",
            consequence="damage between the samples that leaves the time alone would pass",
            mend="verify without --fast to hash every byte",
            where=Place(file=f"{name}/{path}"),
        )


def _proofs(name: str, folder: Path, model: Model) -> Iterator[Fault]:
    """What can be told of whole files beyond their bytes: is the manifest itself right about them?"""
    if model.tensors is not None:
        yield from _tensors(name, folder, model)
    if model.golden:
        yield from _golden(name, folder, model)


def _tensors(name: str, folder: Path, model: Model) -> Iterator[Fault]:
    expected = model.tensors
    assert expected is not None
    files = [file.path for file in model.files if file.path.endswith(SAFETENSORS)]
    facts: list[WeightsFacts] = []
    for path in files:
        try:
            facts.append(inspect(folder / path))
        except StackError as error:
            yield _unproven(name, "mirror-weights-broken", error.what, Place(file=f"{name}/{path}"))
            return
    got = (
        sum(f.count for f in facts),
        sum(f.parameters for f in facts),
        "+".join(sorted({dtype for f in facts for dtype in f.dtypes})),
    )
    if got != (expected.count, expected.parameters, expected.dtype):
        message = (
            f"'{name}' holds {got[0]} tensors, {got[1]:,} parameters, {got[2] or 'no dtype'}; expected "
            f"{expected.count} tensors, {expected.parameters:,} parameters, {expected.dtype}"
        )
        yield _unproven(name, "mirror-tensors-differ", message, Place(file=f"{name}/{', '.join(files)}"))


def _golden(name: str, folder: Path, model: Model) -> Iterator[Fault]:
    place = Place(file=f"{name}/tokenizer.json")
    try:
        result = check_without_torch(folder, model.golden)
    except StackError as error:
        unchecked = error.id == "tokenizers-missing"
        code = "unchecked-golden" if unchecked else "mirror-tokenizer-broken"
        yield _unproven(name, code, error.what, place)
        return
    if result.difference is not None:
        message = f"the tokenizer '{name}' encodes otherwise: {result.difference}"
        yield _unproven(name, "mirror-golden-differs", message, place)


def _unproven(name: str, code: str, message: str, place: Place) -> Fault:
    return Fault(
        code=code,
        severity="warning" if code.startswith("unchecked-") else "error",
        message=message,
        consequence="the policy would be fed other tokens or other weights than the run expects",
        mend=f"correct what the manifest says of '{name}', or pin another revision",
        where=place,
    )


def _model_missing(name: str, folder: Path) -> Fault:
    return Fault(
        code="mirror-model-missing",
        severity="error",
        message=f"'{name}' is not in the mirror",
        consequence="no run that needs it can start",
        mend=f"stack mirror get MANIFEST --to {folder.parent} --only {name}",
        where=Place(file=name),
    )


def _left_over_folders(root: Path, selected: dict[str, Model], *, whole_manifest: bool) -> Iterator[Fault]:
    """What lies beside the models: interrupted fetches, and with the whole manifest folders of no model."""
    unfinished = {staging_folder(root, name).name for name in selected}
    own = {path.name for name in selected for path in (lock_file(root, name), seen_file(root, name))}
    for path in sorted(root.iterdir()) if root.is_dir() else ():
        if path.name in unfinished or any(path.name.startswith(f".{n}{PARTIAL_MARK}") for n in selected):
            yield Fault(
                code="mirror-unfinished",
                severity="note",
                message=f"{path.name} is what an interrupted fetch left, or one that is under way",
                consequence="none; it takes room",
                mend="run 'stack mirror get' again: it goes on from there and clears it",
                where=Place(file=path.name),
            )
        elif whole_manifest and path.name not in selected and path.name not in own:
            yield Fault(
                code="mirror-left-over",
                severity="warning",
                message=f"{path.name} is no model of the manifest",
                consequence="it takes room, and a later manifest may mistake it for its own",
                mend="move it away, or add it to the manifest",
                where=Place(file=path.name),
            )
