"""Run the checks on a dataset's folder."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path

from stack.audit.evidence import Evidence
from stack.audit.exact import Channel, channels
from stack.audit.kinds import Case, Check, PolicyNeeds, kind
from stack.audit.report import AuditReport, CameraFacts, DatasetFacts, NotRun, Ran
from stack.errors import BadRequest
from stack.faults import Fault, Place, fold

UNCHECKED_CHECK = kind(
    "unchecked-check",
    "error",
    "unchecked",
    title="a check broke off",
    consequence="what it looks for stays unknown; this is our fault, not the dataset's",
    mend="report the message together with the file that it names",
)


def _silent(_: str) -> None:
    return None


def audit(
    root: Path,
    *,
    policy: PolicyNeeds | None = None,
    deep: bool = False,
    log: Callable[[str], None] = _silent,
) -> AuditReport:
    """Check a delivery or a prepared dataset of any version, without torch, lerobot or a network.

    Args:
        root: the folder that holds meta/, data/ and videos/.
        policy: also judge it for this policy.
        deep: also decode every picture.
        log: takes one line of progress now and then.

    Raises:
        BadRequest: there is no such folder. Anything wrong inside it is a fault in the report.
    """
    if not root.is_dir():
        raise BadRequest(
            "audit-no-folder",
            "there is no such folder",
            where=str(root),
            do="name the folder that holds meta/",
        )
    started = time.perf_counter()
    evidence = Evidence(root)
    faults, ran, not_run = _run_all(Case(evidence, policy, deep), log)
    facts, broke = _facts_or_less(evidence)
    if broke:
        faults.append(UNCHECKED_CHECK.fault(f"counting broke off: {broke}"))
    return AuditReport(
        facts=facts,
        faults=tuple(fold(faults)),
        ran=tuple(ran),
        not_run=tuple(not_run),
        policy=policy,
        channels=_channels(evidence, policy),
        seconds=time.perf_counter() - started,
    )


def _run_all(case: Case, log: Callable[[str], None]) -> tuple[list[Fault], list[Ran], list[NotRun]]:
    # Imported late: the catalogue is also run as a script, and it imports this module.
    from stack.audit.catalogue import load_checks

    faults: list[Fault] = []
    ran: list[Ran] = []
    not_run: list[NotRun] = []
    for check in load_checks():
        if why := _why_not(check, case):
            not_run.append(NotRun(check.name, check.title, why))
            continue
        log(f"audit: {check.title}")
        before = time.perf_counter()
        found, broke = _run(check, case)
        faults += found
        if broke:
            not_run.append(NotRun(check.name, check.title, broke))
        else:
            codes = tuple(kind.code for kind in check.kinds)
            ran.append(Ran(check.name, check.title, codes, len(found), time.perf_counter() - before))
    return faults, ran, not_run


def _why_not(check: Check, case: Case) -> str:
    if "policy" in check.needs and case.policy is None:
        return "no policy was named (--for pi05)"
    if "deep" in check.needs and not case.deep:
        return "not asked for (--deep)"
    return ""


def _run(check: Check, case: Case) -> tuple[list[Fault], str]:
    """The check's faults, and why it broke off if it did; what it had found until then is kept."""
    found: list[Fault] = []
    try:
        for fault in check.function(case):
            found.append(fault)
    except Exception as error:  # a check that dies on some dataset must not hide what the others find
        why = _why(error)
        found.append(
            UNCHECKED_CHECK.fault(f"'{check.title}' broke off: {why}", where=Place(feature=check.name))
        )
        return found, why
    return found, ""


def _channels(evidence: Evidence, policy: PolicyNeeds | None) -> tuple[Channel, ...]:
    if policy is None:
        return ()
    try:
        return tuple(channels(evidence, policy))
    except Exception:  # told by the checks that need them
        return ()


def _facts_or_less(evidence: Evidence) -> tuple[DatasetFacts, str]:
    """The facts, or their empty form and why."""
    try:
        return _facts(evidence), ""
    except Exception as error:  # what breaks the counting has broken checks too, which say more
        name = evidence.root.resolve().name
        empty = DatasetFacts(name, None, None, None, 0, 0, None, None, (), {}, (), 0, 0)
        return empty, _why(error)


def _why(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


def _facts(evidence: Evidence) -> DatasetFacts:
    rows = evidence.rows
    lengths = rows.lengths.values()
    robot = evidence.info.get("robot_type")
    return DatasetFacts(
        name=evidence.root.resolve().name,
        version=evidence.version,
        robot_type=robot if isinstance(robot, str) else None,
        fps=evidence.fps,
        episodes=len(rows.lengths) or len(evidence.episodes),
        frames=rows.count,
        shortest=min(lengths, default=None),
        longest=max(lengths, default=None),
        tasks=tuple(entry.text for entry in evidence.tasks.entries if isinstance(entry.text, str)),
        widths={
            name: column.width
            for name, column in rows.columns.items()
            if name in evidence.features and column.values is not None
        },
        cameras=tuple(_camera_facts(evidence)),
        files=len(evidence.files),
        bytes=sum(evidence.files.values()),
    )


def _camera_facts(evidence: Evidence) -> Iterable[CameraFacts]:
    for name, feature in evidence.features.items():
        if not feature.is_camera:
            continue
        files = {span.file for span in evidence.clips.get(name, [])}
        videos = [evidence.videos[file] for file in sorted(files) if file in evidence.videos]
        first = videos[0] if videos else None
        yield CameraFacts(
            name=name,
            files=len(files),
            frames=sum(video.frames for video in videos),
            codec=first.codec if first else ("picture column" if feature.dtype == "image" else None),
            width=first.width if first else None,
            height=first.height if first else None,
        )
