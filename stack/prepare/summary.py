"""What was prepared, as a table."""

from __future__ import annotations

from collections.abc import Sequence

from stack.prepare.blueprint import Plan, SourcePlan
from stack.prepare.run import Prepared

NOTES_SHOWN = 20


def summary(prepared: Prepared) -> str:
    """Sources, episodes, frames, what was dropped, fields kept and notes, as lines of text."""
    made = prepared.plan
    rows: list[tuple[str, ...]] = [("source", "version", "episodes", "of", "frames", "left out")]
    rows += [_row(source) for source in made.sources]
    taken, all_of = sum(int(row[2]) for row in rows[1:]), sum(int(row[3]) for row in rows[1:])
    rows.append(("together", made.version, str(taken), str(all_of), str(prepared.frames), ""))
    lines = _table(rows)
    lines.append("")
    lines += _table([("kept", "dtype", "size", "")] + [_kept(made, name) for name in made.selection.features])
    dropped = {(s.dataset.name, name): why for s in made.sources for name, why in s.dropped.items()}
    if dropped:
        lines.append("dropped")
        lines += [f"  {name} of {source}: {why}" for (source, name), why in dropped.items()]
    if prepared.notes:
        lines.append("notes")
        lines += [f"  {note}" for note in prepared.notes[:NOTES_SHOWN]]
        if len(prepared.notes) > NOTES_SHOWN:
            lines.append(f"  and {len(prepared.notes) - NOTES_SHOWN} more, in the log and in --dry-run")
    for part in prepared.parts:
        lines.append(f"part {part.out.name}: {part.episodes} episodes, {part.frames} frames in {part.out}")
    lines.append(f"{prepared.episodes} episodes, {prepared.frames} frames in {prepared.out}")
    lines.append(f"content {prepared.content_digest}")
    return "\n".join(lines)


def _row(source: SourcePlan) -> tuple[str, ...]:
    taken, given = len(source.episodes), source.dataset.given
    frames = sum(episode.length for episode in source.episodes)
    left = f"{given - taken} episodes" if given > taken else ""
    return source.dataset.name, source.dataset.version, str(taken), str(given), str(frames), left


def _kept(made: Plan, name: str) -> tuple[str, ...]:
    feature = made.selection.features[name]
    if feature.is_camera:
        height, width = feature.shape[:2]
        return name, feature.dtype, f"{width}x{height}", ""
    shape = "x".join(str(size) for size in feature.shape)
    names = ", ".join(feature.names or ())
    return name, feature.dtype, shape, names if len(names) <= 60 else f"{names[:57]}..."


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
