"""All video files decoded once, over all cores; kept for the checks that look at pictures."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from stack.audit.checks.deep_scan import Scan, scan
from stack.audit.checks.deep_series import Clip, Job
from stack.audit.clips import ClipSpan
from stack.audit.kinds import Case
from stack.audit.shelter import DECODE_BYTES_A_SECOND, in_shelter, reading_together
from stack.dataset.pool import Pool, open_pool
from stack.errors import WorkFailed

TOLD_EVERY_S = 5.0


@dataclass(frozen=True)
class Decoded:
    """Scans and clips by name: a video's file, or a row file and its picture column.

    Attributes:
        files: name -> file.
        cameras: name -> camera.
        pictures, seconds: what was decoded, for the rate.
    """

    scans: dict[str, Scan]
    clips: dict[str, tuple[Clip, ...]]
    cameras: dict[str, str]
    files: dict[str, str]
    pictures: int
    seconds: float


def decoded(case: Case) -> Decoded:
    """Decode on first use; progress and rate go to the case's log."""
    evidence = case.evidence
    if evidence.decoded is None:
        evidence.decoded = _decode(case)
    return evidence.decoded


def _decode(case: Case) -> Decoded:
    evidence = case.evidence
    clips, cameras = _clips(case)
    files = {name: name for name in clips}
    columns: dict[str, str] = {}
    for camera, file, own in _in_rows(case):
        name = f"{file}, {camera}"
        clips[name], cameras[name], files[name], columns[name] = own, camera, file, camera
    fps = evidence.fps or 30.0
    frames = {name: sum(count for _, _, count in own) for name, own in clips.items()}
    frames |= {name: evidence.videos[name].frames for name in clips if name in evidence.videos}
    total = sum(frames.values())
    scans: dict[str, Scan] = {}
    started = told = time.monotonic()
    pictures = 0
    # The folder outlives the pool, whose workers look into it.
    with TemporaryDirectory(prefix="stack-audit-") as folder, open_pool(None) as pool:
        stop = Path(folder, "stop")
        jobs = [
            Job(evidence.root / files[name], name, fps, own, stop, columns.get(name))
            for name, own in clips.items()
        ]
        # The longest first: the last process to finish is then not one that began with hours of video.
        jobs.sort(key=lambda job: -frames[job.name])
        try:
            for found in _scans(jobs, pool):
                scans[found.name] = found
                pictures += found.decoded
                now = time.monotonic()
                if now - told >= TOLD_EVERY_S or len(scans) == len(jobs):
                    told = now
                    rate = pictures / max(now - started, 1e-6)
                    left = (total - pictures) / rate if rate else 0.0
                    said = f"{rate:.0f} a second, about {left:.0f} s left"
                    case.log(f"audit: {pictures} of {total} pictures decoded, {said}")
        except BaseException:  # time is up, or Ctrl-C
            stop.touch()
            raise
    return Decoded(scans, clips, cameras, files, pictures, time.monotonic() - started)


def _in_rows(case: Case) -> Iterator[tuple[str, str, tuple[Clip, ...]]]:
    """(camera, row file, its episodes) of pictures that lie in the rows."""
    rows = case.evidence.rows
    for camera, feature in case.evidence.features.items():
        for file, start, _ in rows.files if feature.dtype == "image" and camera in rows.columns else ():
            own = [(s.episode, s.start - start, s.count) for s in rows.spans if s.file == file]
            if own:
                yield camera, file, tuple(own)


def _scans(jobs: list[Job], pool: Pool) -> Iterator[Scan]:
    """The scan of each file; where a worker dies and this process may too, the culprit is found here."""
    done = 0
    try:
        size = sum(job.file.stat().st_size for job in jobs)
        work = f"{jobs[0].file.parent}: pictures" if jobs else ""
        with reading_together(work, size, bytes_a_second=DECODE_BYTES_A_SECOND):
            for found in pool.map(scan, jobs):
                done += 1
                yield found
    except (WorkFailed, OSError):
        if not in_shelter():
            raise
        yield from map(scan, jobs[done:])


def _clips(case: Case) -> tuple[dict[str, tuple[Clip, ...]], dict[str, str]]:
    evidence = case.evidence
    by_file: dict[str, list[ClipSpan]] = {}
    cameras: dict[str, str] = {}
    for camera, spans in evidence.clips.items():
        for span in spans:
            if span.file in evidence.videos:
                by_file.setdefault(span.file, []).append(span)
                cameras.setdefault(span.file, camera)
    return {file: placed(spans, evidence.fps or 30.0) for file, spans in by_file.items()}, cameras


def placed(spans: list[ClipSpan], fps: float) -> tuple[Clip, ...]:
    """Clips where a reader looks for them: at from_timestamp, or one after another where there is none."""
    found, before = [], 0
    for span in sorted(spans, key=lambda s: (s.start_s or 0.0, s.episode)):
        start = before if span.start_s is None else max(0, round(span.start_s * fps))
        found.append((span.episode, start, span.length or 0))
        before = start + (span.length or 0)
    return tuple(found)
