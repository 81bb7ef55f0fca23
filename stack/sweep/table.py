"""A sweep's result for people and spreadsheets: text, CSV, charts."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence

from stack.drawing import Bar, Line, bar_chart, line_chart
from stack.sweep.advice import Advice
from stack.sweep.result import Found, Point, SweepResult, ordered

WORDS = {"ok": "ok", "oom": "out of memory", "timeout": "too slow", "error": "crash"}
HEAD = (
    "devices", "batch", "global", "s/step", "samples/s", "data", "peak memory", "reserved", "whole device",
    "power", "predicted", "off by", "result",
)  # fmt: skip
COLUMNS = (
    "devices", "batch", "global_batch", "status", "step_s", "samples_per_s", "data_wait_s", "data_frac",
    "peak_memory_bytes", "peak_reserved_bytes", "demand_bytes", "capacity_bytes", "predicted_bytes",
    "prediction_error_frac", "device_peak_bytes", "device_source", "power_w", "message",
)  # fmt: skip


def as_text(result: SweepResult) -> str:
    """The table, one line a point in the order measured; columns that nobody filled are left out."""
    rows = [_row(point) for point in result.points]
    kept = [i for i in range(len(HEAD)) if i in (0, 1, 2, 3, 4, 6, 12) or any(row[i] != "-" for row in rows)]
    lines = [[row[i] for i in kept] for row in (HEAD, *rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(kept))]
    table = ["  ".join(c.rjust(w) for c, w in zip(line, widths, strict=True)).rstrip() for line in lines]
    return "\n".join([*table, *_below(result)])


def _row(point: Point) -> Sequence[str]:
    wait, off = point.data_frac, point.prediction_error_frac
    return (
        str(point.devices),
        str(point.batch),
        str(point.global_batch),
        "-" if point.step_s is None else f"{point.step_s:.3f}",
        "-" if point.samples_per_s is None else f"{point.samples_per_s:.1f}",
        "-" if wait is None else f"{wait:.1%}",
        _gb(point.peak_memory_bytes),
        _gb(point.peak_reserved_bytes),
        _gb(point.device_peak_bytes),
        "-" if point.power_w is None else f"{point.power_w:.0f} W",
        _gb(point.predicted_bytes),
        "-" if off is None else f"{off:+.1%}",
        WORDS.get(point.status, point.status),
    )


def _below(result: SweepResult) -> Iterator[str]:
    for devices, batch in result.largest_ok.items():
        yield f"largest batch that fits on {devices} device(s): {'none' if batch is None else batch}"
    yield from (found_words(found) for found in result.found)
    yield from (advice_words(advice) for advice in result.advice)
    if result.pictures is not None:
        yield f"pictures: {result.pictures.words()}"


def found_words(found: Found) -> str:
    """What a search found, and how sure that is."""
    where, margin = f"{found.devices} device(s)", f"{found.margin_frac:.0%}"
    if found.largest is None:
        return f"search on {where}: no batch leaves {margin} of the memory free ({found.tried} points)"
    if found.next_up is None:
        end = "no larger one was tried"
    elif found.is_proven:
        end = f"{found.next_up} does not"
    else:
        end = f"not proven: nothing between it and {found.next_up}, which does not, was measured"
    model = ""
    if found.model is not None:
        model = (
            f"; memory is {found.model.fixed_bytes / 1e9:.2f} GB + {found.model.sample_bytes / 1e9:.3f} GB a "
            f"sample, to {found.model.error_bytes / 1e9:.3f} GB over {found.model.points} points"
        )
    return (
        f"search on {where}: batch {found.largest} leaves {margin} of the memory free, {end}; the fastest is "
        f"{found.fastest} ({found.tried} points){model}"
    )


def advice_words(advice: Advice) -> str:
    how = "measured" if advice.is_measured else "between two that were measured"
    return (
        f"for global batch {advice.global_batch} on {advice.devices} device(s): batch_per_device "
        f"{advice.batch}, accumulation {advice.accumulation}: at most {advice.step_s:.3f} s/step, "
        f"{advice.samples_per_s:.1f} samples/s ({how})"
    )


def as_csv(result: SweepResult) -> str:
    """All figures, one line a point, sizes in bytes and times in seconds; what is not known is empty."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    for point in result.points:
        values = (getattr(point, column) for column in COLUMNS)
        writer.writerow(["" if value is None else value for value in values])
    return out.getvalue()


def charts(result: SweepResult) -> dict[str, str]:
    """SVG by file name: speed and peak memory of each point; and memory against batch with the model."""
    words = {**WORDS, "ok": ""}
    points = ordered(result.points)
    speeds, sizes = [], []
    for point in points:
        name, word = f"{point.devices} device(s), batch {point.batch}", words.get(point.status, point.status)
        peak = point.peak_memory_bytes
        speeds.append(Bar(name, point.samples_per_s, word))
        if point.status == "ok":
            sizes.append(Bar(name, peak / 1e9 if peak else None))
        else:
            sizes.append(Bar(name, None, f"{word} at {peak / 1e9:.1f} GB" if peak else word))
    drawn = {
        "sweep-speed.svg": bar_chart(speeds, title="samples a second", unit="samples/s"),
        "sweep-memory.svg": bar_chart(sizes, title="peak memory of a device", unit="GB"),
    }
    for found in result.found:
        own = [p for p in points if p.devices == found.devices and p.status == "ok" and p.demand_bytes]
        if found.model is not None and len(own) > 1:
            drawn[f"sweep-model-d{found.devices}.svg"] = _model_chart(found, own)
    return drawn


def _model_chart(found: Found, points: Sequence[Point]) -> str:
    assert found.model is not None
    last = max(points[-1].batch, found.next_up or 0)
    room = min(p.capacity_bytes for p in points if p.capacity_bytes) / 1e9
    first = points[0].batch
    lines = [
        Line("memory model", [(b, found.model.predict(b) / 1e9) for b in (first, last)]),
        Line("measured", [(p.batch, (p.demand_bytes or 0) / 1e9) for p in points]),
        Line("there was", [(first, room), (last, room)]),
        Line(
            f"less the margin of {found.margin_frac:.0%}",
            [(b, room * (1 - found.margin_frac)) for b in (first, last)],
        ),
    ]
    title = f"memory that a device gives, GB, on {found.devices} device(s)"
    return line_chart(lines, title=title, x="samples a device")


def _gb(size_bytes: int | None) -> str:
    return "-" if size_bytes is None else f"{size_bytes / 1e9:.2f} GB"
