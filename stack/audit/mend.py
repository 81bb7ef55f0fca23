"""Mend on a copy what can be mended without guessing, and judge the copy."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from stack.audit.apart import sheltered
from stack.audit.evidence import Evidence
from stack.audit.mend_meta import info_steps
from stack.audit.mend_rows import NUMBERED, row_steps
from stack.audit.mend_stats import stats_steps
from stack.audit.mend_step import Left, Repair, Step
from stack.audit.mend_tables import table_steps
from stack.audit.report import AuditReport
from stack.audit.run import judge
from stack.errors import BadRequest, StackError, WorkFailed
from stack.files import whole_folder

PROVENANCE = "meta/provenance.json"


@dataclass(frozen=True)
class Mended:
    """What was done, or would be, and what the audit says before and after.

    Attributes:
        after: None in a dry run.
    """

    source: Path
    target: Path
    steps: tuple[Repair, ...]
    left: tuple[Left, ...]
    before: AuditReport
    after: AuditReport | None

    @property
    def ok(self) -> bool:
        """The copy has no errors; in a dry run, the source has none."""
        return (self.after or self.before).ok

    @property
    def gone(self) -> tuple[str, ...]:
        """Codes that the source's audit found and the copy's does not."""
        if self.after is None:
            return ()
        still = {fault.code for fault in self.after.faults}
        return tuple(dict.fromkeys(f.code for f in self.before.faults if f.code not in still))

    @property
    def tried(self) -> tuple[str, ...]:
        """Codes that a step was to mend and that are still there."""
        if self.after is None:
            return ()
        meant = {code for step in self.steps for code in step.codes}
        return tuple(dict.fromkeys(f.code for f in self.after.faults if f.code in meant))

    def to_json(self) -> dict[str, Any]:
        return {
            "schema": "stack/mend/1",
            "ok": self.ok,
            "dry_run": self.after is None,
            "steps": [step.to_json() for step in self.steps],
            "left": [item.to_json() for item in self.left],
            "mended": list(self.gone),
            "tried_and_still_there": list(self.tried),
            "after": None if self.after is None else self.after.to_json(),
        }

    def text(self) -> str:
        dry = self.after is None
        lines = [f"{'would mend' if dry else 'did'} ({len(self.steps)}):"]
        lines += [f"  {step.file}: {step.text}  [{', '.join(step.codes)}]" for step in self.steps]
        lines += [f"left ({len(self.left)}):"] if self.left else []
        lines += [f"  {item.code}: {item.why}" for item in self.left]
        if self.after is None:
            known = {code for step in self.steps for code in step.codes} | {item.code for item in self.left}
            stay = [f.code for f in self.before.faults if f.severity == "error" and f.code not in known]
            lines += [f"no repair without guessing: {code}" for code in dict.fromkeys(stay)]
            lines.append(f"nothing was written; the source: {self.before.verdict()}")
            return "\n".join(lines)
        errors = [fault for fault in self.after.faults if fault.severity == "error"]
        lines.append(f"gone: {', '.join(self.gone) or 'nothing'}")
        lines += [f"NOT mended: {fault.code}: {fault.message}" for fault in errors]
        lines += [f"tried and still there: {code}" for code in self.tried]
        said = "mended" if not errors else "NOT mended wholly"
        lines.append(f"{said}; {self.target}: {self.after.verdict()}")
        return "\n".join(lines)


@sheltered
def mend(
    source: Path,
    target: Path,
    *,
    restamp: bool = False,
    dry_run: bool = False,
    log: Callable[[str], None] = lambda _: None,
) -> Mended:
    """Copy `source` to `target`, repair the copy, and audit it.

    Repaired are totals, splits, version, path templates, entries of info.json that the files contradict
    (codecs, sizes, types, widths, cameras that never were), index columns, one-element lists, the episode
    table as the rows have it, the order and form of the task table, and all statistics. Values of state,
    action and any other feature are never touched; that is checked after.

    Args:
        restamp: also write timestamp = frame_index / fps, which is right only where each video has one frame
            a row.
        dry_run: plan only; nothing is written.

    Raises:
        BadRequest: no such source, or the target is not empty or lies in the source.
        WorkFailed: a value changed that must not; nothing is left at the target.
    """
    if target.resolve().is_relative_to(source.resolve()):
        raise BadRequest(
            "mend-target-inside",
            "the target lies inside the source, which is never modified",
            where=str(target),
            do="name a folder beside the source",
        )
    evidence = Evidence(source)
    before = judge(evidence, log=log)
    planned = list(row_steps(evidence, restamp))
    rows_change = any(isinstance(item, Step) for item in planned)
    planned += [*info_steps(evidence), *table_steps(evidence), *stats_steps(evidence, before, rows_change)]
    steps = [item for item in planned if isinstance(item, Step)]
    left = tuple(item for item in planned if isinstance(item, Left) and before.of(item.code))
    if PROVENANCE in evidence.files and steps:
        text = "taken out: it records the files as they were before"
        steps.append(
            Step(("file-hash-differs",), PROVENANCE, text, lambda root: (root / PROVENANCE).unlink())
        )
    repairs = tuple(Repair(step.codes, step.file, step.text) for step in steps)
    if dry_run:
        return Mended(source, target, repairs, left, before, None)
    with whole_folder(target) as partial:
        log(f"mend: copying {len(evidence.files)} files")
        _copy(evidence, partial)
        for step in steps:
            log(f"mend: {step.file}: {step.text}")
            _apply(step, partial)
        copy = Evidence(partial)
        after = judge(copy, log=log)
        _same_values(evidence, copy)
    after = replace(after, facts=replace(after.facts, name=target.name))
    return Mended(source, target, repairs, left, before, after)


def _copy(evidence: Evidence, target: Path) -> None:
    """All files that the audit saw, links as what they lead to; what is no file stays behind."""
    for name in evidence.files:
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        try:
            shutil.copy2(evidence.root / name, target / name)
        except PermissionError as error:
            raise BadRequest(
                "mend-cannot-read",
                f"the file cannot be copied: {error.strerror}",
                where=str(evidence.root / name),
                do="give yourself the right to read it, or take it out of the source",
            ) from error


def _apply(step: Step, root: Path) -> None:
    try:
        step.apply(root)
    except StackError:
        raise
    except Exception as error:  # files damaged in ways that planning did not see
        raise WorkFailed(
            "mend-step-failed",
            f"'{step.text[:200]}' broke off ({type(error).__name__}: {str(error)[:200]}); nothing was kept",
            where=step.file,
            do="mend or replace this file by hand, then try again",
        ) from error


def _same_values(source: Evidence, copy: Evidence) -> None:
    """Every column but the index columns must hold what it held, row for row."""
    if source.rows.count != copy.rows.count:
        raise _changed(f"{source.rows.count} rows became {copy.rows.count}")
    for name, column in source.rows.columns.items():
        other = copy.rows.columns.get(name)
        if other is None:
            raise _changed(f"the column {name} is gone")
        if name in NUMBERED or name == "timestamp" or column.values is None:
            continue
        if other.values is None or not np.array_equal(
            column.values, other.values, equal_nan=column.values.dtype.kind == "f"
        ):
            raise _changed(f"values of {name} are others")
    if {name: v.frames for name, v in source.videos.items()} != {n: v.frames for n, v in copy.videos.items()}:
        raise _changed("a video has another number of frames")


def _changed(what: str) -> WorkFailed:
    return WorkFailed(
        "mend-changed-values",
        f"mending changed what it must not: {what}; nothing was kept",
        do="report this together with the dry run's plan",
    )
