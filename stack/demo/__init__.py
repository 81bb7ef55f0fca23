"""Small AgiBot-like deliveries with the classic faults, and toy models, for `make reproduce` and tests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class DemoReport:
    """What was written.

    Attributes:
        deliveries: the delivery folders.
        models: the model folders.
        size_bytes: of all files.
    """

    out: Path
    deliveries: tuple[Path, ...]
    models: tuple[Path, ...]
    files: int
    size_bytes: int


def is_replaceable(folder: Path) -> bool:
    """Whether nothing but a demo would be lost with `folder`: it is absent, empty, or a demo and no more."""
    from stack.demo.faults import TASK, TASK_1

    if not folder.exists():
        return True
    if not folder.is_dir() or not {entry.name for entry in folder.iterdir()} <= {"deliveries", "models"}:
        return False
    deliveries = folder / "deliveries"
    return not deliveries.is_dir() or {entry.name for entry in deliveries.iterdir()} <= {TASK, TASK_1}


def write_demo(out: Path, *, seed: int = 0, log: Callable[[str], None] = lambda _: None) -> DemoReport:
    """Write `out/deliveries/*` and `out/models/*`, whole or not at all; the same bytes for the same seed.

    Raises:
        BadRequest: `out` exists already.
        NotAble: `out` cannot be written.
    """
    from stack.demo.deliveries import write_deliveries
    from stack.demo.models import write_models
    from stack.files import tree_files, whole_folder

    with whole_folder(out) as folder:
        write_deliveries(folder / "deliveries", seed=seed, log=log)
        write_models(folder / "models", log=log)
    files = tree_files(out)
    return DemoReport(
        out=out,
        deliveries=tuple(sorted((out / "deliveries").iterdir())),
        models=tuple(sorted((out / "models").iterdir())),
        files=len(files),
        size_bytes=sum(file.stat().st_size for file in files),
    )
