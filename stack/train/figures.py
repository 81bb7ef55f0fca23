"""Figures of a run, as SVG files in its folder that are shown with it."""

from __future__ import annotations

from pathlib import Path

from stack.drawing import Span, span_chart
from stack.files import read_json, write_text
from stack.tracking.journal import Journal

FIGURES = "figures"
NORMAL = (-1.0, 1.0)
FAR = 10.0
"""A normalised value beyond this is drawn in red."""


def record_figure(journal: Journal, name: str, svg: str) -> None:
    """Write a figure into the run's folder and show it; a full disk costs the figure, not the run."""
    path = journal.folder / FIGURES / name
    try:
        write_text(path, svg)
    except OSError as error:
        journal.event("figure-not-written", name=name, message=str(error))
        return
    journal.artifact(path, to=FIGURES)


def ranges_figure(dataset: Path) -> str:
    """Each channel of state and action from its least to its largest value, once normalised, as SVG.

    lerobot normalises to 2 (v - q01) / (q99 - q01) - 1; what lies far outside [-1, 1] is what a policy of
    this kind explodes on.
    """
    stats = read_json(dataset / "meta" / "stats.json", what="dataset's statistics")
    spans = []
    for feature in ("observation.state", "action"):
        own = stats.get(feature, {})
        if not {"min", "max", "q01", "q99"} <= own.keys():
            continue
        for index, values in enumerate(zip(*(own[key] for key in ("min", "max", "q01", "q99")), strict=True)):
            if not all(isinstance(value, (int, float)) for value in values):
                continue  # the audit names statistics that are no numbers; a figure stops nothing
            low, high, q01, q99 = (float(value) for value in values)
            if q99 > q01:
                least, most = (2 * (value - q01) / (q99 - q01) - 1 for value in (low, high))
                is_wrong = max(abs(least), abs(most)) > FAR
                spans.append(Span(f"{feature.rpartition('.')[2]} {index}", least, most, is_wrong))
    return span_chart(spans, title="normalised range of each channel; shaded: q01 to q99", band=NORMAL)
