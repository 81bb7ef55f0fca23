"""What was counted, for the head of a report."""

from __future__ import annotations

from collections.abc import Iterable

from stack.audit.evidence import Evidence
from stack.audit.report import CameraFacts, DatasetFacts
from stack.audit.rows import NotRead


def facts_or_less(evidence: Evidence) -> tuple[DatasetFacts, str]:
    """The facts, or their empty form and why."""
    try:
        return _facts(evidence), ""
    except NotRead:
        return no_facts(evidence), ""
    except Exception as error:  # what breaks the counting has broken checks too, which say more
        return no_facts(evidence), in_one_line(error)


def no_facts(evidence: Evidence) -> DatasetFacts:
    name = evidence.root.resolve().name
    return DatasetFacts(name, None, None, None, 0, 0, None, None, (), {}, (), 0, 0)


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


def in_one_line(error: Exception) -> str:
    """An error that nobody expected, in one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
