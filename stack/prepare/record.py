"""A preparation's journal: sources, counts, what was done, the digest; beside the dataset, never in it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from stack.errors import StackError
from stack.files import read_json, write_json, write_text
from stack.manifests import DatasetManifest, Loaded
from stack.prepare.ancestry import PATH
from stack.prepare.blueprint import Plan
from stack.prepare.run import Prepared, prepare
from stack.prepare.summary import summary
from stack.tracking import names
from stack.tracking.journal import Journal
from stack.tracking.secrets import redacted, redacted_text

NOTES_IN_TAG = 20


def record_folder(out: Path) -> Path:
    """Where the record of the dataset at `out` stands: `<out>.record`."""
    return out.with_name(f"{out.name}.record")


def prepare_recorded(
    loaded: Loaded[DatasetManifest],
    *,
    out: Path,
    parent: str | None = None,
    announce: Callable[[Plan], None] = lambda _: None,
    log: Callable[[str], None] = lambda _: None,
    **options: Any,
) -> Prepared:
    """`prepare`, with a journal in `record_folder(out)`; arguments and errors are those of `prepare`.

    A request that is refused before anything is written leaves no record, and no mark on an earlier one. A
    record that cannot be written is told to `log`, and is no reason not to prepare.

    Args:
        parent: run_id of the journal that this one is nested under.
    """
    started_unix_s = time.time()
    opened: list[Journal] = []

    def begin(made: Plan) -> None:
        with _no_hindrance(log):
            opened.append(_open(loaded, out, parent, started_unix_s))
        announce(made)

    try:
        prepared = prepare(loaded, out=out, announce=begin, log=log, **options)
        for journal in opened:
            with _no_hindrance(log):
                _close(journal, prepared)
            journal.end("FINISHED")
        return prepared
    except BaseException as error:
        for journal in opened:
            _close_failed(journal, error)
        raise
    finally:
        for journal in opened:
            journal.close()


@contextmanager
def _no_hindrance(log: Callable[[str], None]) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        log(f"warning: the record of this preparation is not whole: {error}")


def _open(loaded: Loaded[DatasetManifest], out: Path, parent: str | None, started_unix_s: float) -> Journal:
    manifest, folder = loaded.manifest, record_folder(out)
    journal = Journal(
        folder,
        name=f"{manifest.name} prepare",
        experiment=names.DATA,
        parent=parent,
        tags={names.DATASET: manifest.name, names.DEVICE: "cpu"},
        description=f"Deliveries made into one dataset by `{loaded.file.name}`",
        started_unix_s=started_unix_s,
    )
    write_json(folder / "dataset.json", redacted(manifest.model_dump(mode="json", by_alias=True)))
    journal.artifact(folder / "dataset.json")
    return journal


def _close_failed(journal: Journal, error: BaseException) -> None:
    if isinstance(error, StackError):
        journal.event("error", id=error.id, what=error.what, where=error.where)
        journal.tags({names.OUTCOME: "refused", names.MESSAGE: error.what})
    journal.end("FAILED" if isinstance(error, Exception) else "KILLED")


def _close(journal: Journal, prepared: Prepared) -> None:
    made, folder = prepared.plan, journal.folder
    journal.params(
        {
            "dataset": made.name,
            "format": made.version,
            "videos": made.videos,
            "cameras": len(prepared.cameras),
            "sources": len(made.sources),
            **{f"width.{name}": width for name, width in prepared.widths.items()},
        }
    )
    taken = [len(source.episodes) for source in made.sources]
    given = [source.dataset.given for source in made.sources]
    counts = {
        "episodes": prepared.episodes,
        "frames": prepared.frames,
        "episodes_left_out": sum(given) - sum(taken),
        "notes": len(prepared.notes),
    }
    journal.metrics({f"{names.FINAL}{key}": float(value) for key, value in counts.items()}, step=0)
    journal.tags({names.DATASET_DIGEST: prepared.content_digest, names.OUTCOME: "ok"})
    if prepared.notes:
        journal.tags({"stack.notes": "\n".join(prepared.notes[:NOTES_IN_TAG])})
    _record_sources(journal, prepared)
    write_text(folder / "summary.txt", redacted_text(summary(prepared)) + "\n")
    journal.artifact(folder / "summary.txt")


def _record_sources(journal: Journal, prepared: Prepared) -> None:
    """Each delivery as an input, by the digest of its rows; the provenance of each dataset written."""
    for part in prepared.parts or (prepared,):
        file = part.out / PATH
        if not file.is_file():
            continue
        provenance = redacted(read_json(file, what="provenance"))
        kept = journal.folder / "provenance" / (f"{part.out.name}.json" if prepared.parts else "dataset.json")
        write_json(kept, provenance)
        journal.artifact(kept, to="provenance")
        for source in provenance["sources"]:
            journal.dataset(
                name=source["name"],
                digest=source["rows_digest"],
                source=source["path"],
                context="source",
                profile={key: source[key] for key in ("episodes", "frames", "version")},
            )
