"""Which checkpoints are kept: the newest few, one every so many steps, and the best one."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from stack.files import read_json
from stack.manifests.run import Train
from stack.train.checkpoint import LAST, MODEL, folders
from stack.train.identity import IDENTITY

BEST = "best"


def point_last_at(target: Path) -> None:
    _point(target.parent / LAST, target)


def prune(checkpoints: Path, train: Train) -> None:
    """Remove what the manifest does not keep; `best` points at the checkpoint of the lowest hold-out loss."""
    there = folders(checkpoints)
    kept = set(there[-train.keep_checkpoints :])
    if train.keep_every is not None:
        kept |= {folder for folder in there if int(folder.name) % train.keep_every == 0}
    if train.keep_best and (best := best_of(there)) is not None:
        kept.add(best)
        _point(checkpoints / BEST, best)
    for folder in there:
        if folder not in kept:
            shutil.rmtree(folder)


def best_of(there: list[Path]) -> Path | None:
    """The checkpoint with the lowest hold-out loss, the newer of equal ones; None where none has one."""
    scores = {
        folder: read_json(folder / MODEL / IDENTITY, what="checkpoint's identity").get("holdout_loss")
        for folder in there
    }
    scored = [folder for folder in there if scores[folder] is not None]
    return min(reversed(scored), key=lambda folder: float(scores[folder]), default=None)


def _point(link: Path, target: Path) -> None:
    new = link.parent / f".{link.name}-{os.getpid()}"
    new.unlink(missing_ok=True)
    new.symlink_to(target.name)
    os.replace(new, link)
