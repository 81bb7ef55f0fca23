"""Files that should not be there, paths that lead elsewhere, files that are not those that were written."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from stack.audit.kinds import Case, check, kind
from stack.audit.layout import absurd_width
from stack.faults import Fault, Place
from stack.files import sha256_file

INFO, PROVENANCE = "meta/info.json", "meta/provenance.json"
PICKLE = kind(
    "pickle-file",
    "warning",
    "files",
    title="a Python pickle lies in the dataset",
    consequence="opening it runs whatever code it holds; no loader of the format reads one",
    mend="delete it; if what it holds is needed, let it be delivered as JSON or parquet",
)
LEAVES = kind(
    "path-leaves-folder",
    "error",
    "files",
    title="a path that the metadata give leads out of the dataset's folder",
    consequence="loaders read, and writers overwrite, files that are no part of the dataset",
    mend="write paths below data/ and videos/ into info.json; put linked files themselves into the folder",
    also={"note": "for files that are links to outside: they are lost when the folder alone is copied"},
)
HASH = kind(
    "file-hash-differs",
    "error",
    "files",
    title="a file is not the one that meta/provenance.json records",
    consequence="the dataset is not the one that was prepared and judged; results cannot be traced to it",
    mend="copy the file again from where it was prepared, or run `stack prepare` again",
)
_PICKLE_ENDS = (".pkl", ".pickle", ".joblib", ".pt", ".pth")
_PICKLE_HEAD = re.compile(rb"\x80[\x02-\x05]")


@check("pickles and paths", PICKLE, LEAVES)
def files_safe(case: Case) -> Iterator[Fault]:
    evidence = case.evidence
    for name in evidence.files:
        if name.endswith(_PICKLE_ENDS) or _is_pickle(evidence.root / name, name):
            yield PICKLE.fault(f"{name} is a pickle", where=Place(name))
    for key in ("data_path", "video_path"):
        given = evidence.info.get(key)
        if isinstance(given, str) and _leaves(given):
            yield LEAVES.fault(f"{key} is '{given}'", where=Place(INFO, feature=key))
        elif isinstance(given, str) and absurd_width(given):
            yield LEAVES.fault(
                f"{key} is '{given[:80]}', which makes names that no folder can hold",
                where=Place(INFO, feature=key),
            )
    for camera in evidence.cameras:
        if "/" in camera or _leaves(camera):
            message = f"the camera's name '{camera[:80]}' is part of its files' paths"
            yield LEAVES.fault(message, where=Place(INFO, feature=camera))
    yield from _links(evidence.root, evidence.files)


def _is_pickle(path: Path, name: str) -> bool:
    """Whether a file of meta/ begins as pickle protocols 2 to 5 do."""
    if not name.startswith("meta/"):
        return False
    try:
        with path.open("rb") as file:
            return bool(_PICKLE_HEAD.match(file.read(2)))
    except OSError:
        return False


def _leaves(given: str) -> bool:
    path = PurePosixPath(given.replace("\\", "/"))
    return path.is_absolute() or ".." in path.parts or "\0" in given or given[1:2] == ":"


def _links(root: Path, files: dict[str, int]) -> Iterator[Fault]:
    home = root.resolve()
    for name in files:
        real = (root / name).resolve()
        if not real.is_relative_to(home):
            yield LEAVES.fault(f"{name} is a link to {real}", where=Place(name), severity="note")


@check("files against meta/provenance.json", HASH)
def files_as_written(case: Case) -> Iterator[Fault]:
    """A prepared dataset records the sha256 of each of its files."""
    evidence = case.evidence
    for name, recorded in _recorded(case).items():
        if name not in evidence.files:
            yield HASH.fault(f"{name} is recorded and not there", where=Place(name))
            continue
        size = evidence.files[name]
        if isinstance(recorded.get("size"), int) and recorded["size"] != size:
            message = f"{name} has {size} bytes; {recorded['size']} were recorded"
        elif (got := _sha256(evidence.root / name)) != recorded.get("sha256"):
            message = f"{name} has sha256 {got[:16]}; {str(recorded.get('sha256'))[:16]} was recorded"
        else:
            continue
        yield HASH.fault(message, where=Place(name))


def _sha256(path: Path) -> str:
    try:
        return sha256_file(path)
    except OSError as error:
        return f"unknown ({error})"


def _recorded(case: Case) -> dict[str, dict[str, Any]]:
    provenance = case.evidence.provenance
    files = provenance.get("files") if provenance else None
    if not isinstance(files, dict):
        return {}
    return {name: entry if isinstance(entry, dict) else {} for name, entry in files.items()}
