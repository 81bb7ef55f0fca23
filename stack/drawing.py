"""Charts as SVG text that stands alone: in a page, or as a file that any browser or tracking page shows.

Plain shapes with their colours as attributes, no style sheet and no script; every text is escaped. Each mark
carries a `<title>`, which a browser shows under the pointer.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

COLOURS = ("#365f8c", "#b3261e", "#1d6b3f", "#9a6400", "#6b4c9a", "#0e7c86", "#8c564b", "#5b6875")
INK, DIM, GRID, SOFT, WRONG = "#1c2733", "#5b6875", "#e3e8ed", "#dcefe3", "#b3261e"
FONT = "font-family='system-ui, Noto Sans, Noto Sans CJK SC, sans-serif'"
WIDTH, LEFT, RIGHT, TOP, BOTTOM = 900.0, 76.0, 16.0, 34.0, 44.0
DRAWN = 1200
"""Points of a line; of more, the least and the largest of each stretch are drawn: no spike is lost."""


@dataclass(frozen=True)
class Line:
    """A curve: its name in the key, and its points (x, y), in order of x."""

    name: str
    points: Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Bar:
    """A bar, or, where there is no value, a word in its place."""

    name: str
    value: float | None
    word: str = ""


@dataclass(frozen=True)
class Span:
    """A range from `low` to `high`; `is_wrong` draws it in red."""

    name: str
    low: float
    high: float
    is_wrong: bool = False


def line_chart(
    lines: Sequence[Line],
    *,
    title: str,
    x: str,
    width: float = WIDTH,
    height: float = 300.0,
    log: bool = False,
) -> str:
    """Curves over a common x axis; `log` draws y by its logarithm where all values are positive."""
    lines = [Line(line.name, _thin([p for p in line.points if _finite(p)])) for line in lines]
    lines = [line for line in lines if line.points]
    if not lines:
        return _svg(60, [_text(LEFT, 40, "no points", DIM)], title, width)
    xs = [p[0] for line in lines for p in line.points]
    ys = [p[1] for line in lines for p in line.points]
    log = log and min(ys) > 0
    low, high = _bounds(min(ys), max(ys), log)
    first, last = min(xs), max(xs) if max(xs) > min(xs) else min(xs) + 1

    def at_x(value: float) -> float:
        return LEFT + (width - LEFT - RIGHT) * (value - first) / (last - first)

    def at_y(value: float) -> float:
        share = math.log(value / low) / math.log(high / low) if log else (value - low) / (high - low)
        return TOP + (height - TOP - BOTTOM) * (1 - share)

    parts = [_text(LEFT, 18, title, INK, size=14)]
    for tick in decades(low, high) if log else ticks(low, high):
        parts += [_rule(LEFT, at_y(tick), width - RIGHT, at_y(tick), GRID)]
        parts += [_text(LEFT - 8, at_y(tick) + 4, number(tick), DIM, "end")]
    for tick in ticks(first, last):
        parts.append(_text(at_x(tick), height - BOTTOM + 18, number(tick), DIM, "middle"))
    parts.append(_text(width - RIGHT, height - 6, x, DIM, "end"))
    for index, line in enumerate(lines):
        colour = COLOURS[index % len(COLOURS)]
        path = " ".join(f"{at_x(a):.1f},{at_y(b):.1f}" for a, b in line.points)
        ends = f"{line.name}: {number(line.points[0][1])} to {number(line.points[-1][1])}"
        if len(line.points) == 1:
            (a, b) = line.points[0]
            mark = f"<circle cx='{at_x(a):.1f}' cy='{at_y(b):.1f}' r='3.5' fill='{colour}'>"
            parts.append(f"{mark}<title>{escape(ends)}</title></circle>")
        else:
            shape = f"<polyline points='{path}' fill='none' stroke='{colour}' stroke-width='1.7'"
            parts.append(f"{shape} stroke-linejoin='round'><title>{escape(ends)}</title></polyline>")
    if len(lines) > 1:
        parts += _key([line.name for line in lines], width, height)
    return _svg(height + (_key_height(lines) if len(lines) > 1 else 0), parts, title, width)


def bar_chart(bars: Sequence[Bar], *, title: str, unit: str = "") -> str:
    """One horizontal bar a row, named at its left, with its value at its end."""
    row, wide = 26.0, WIDTH - 330
    most = max((bar.value for bar in bars if bar.value is not None), default=0.0) or 1.0
    parts = [_text(8, 18, title, INK, size=14)]
    for index, bar in enumerate(bars):
        y = TOP + row * index
        parts.append(_text(200, y + 16, bar.name, INK, "end"))
        if bar.value is None:
            parts.append(_text(212, y + 16, bar.word, WRONG))
            continue
        length = max(1.0, wide * bar.value / most)
        parts.append(_rect(208, y + 3, length, row - 8, COLOURS[0], f"{bar.name}: {bar.value:g} {unit}"))
        said = f"{number(bar.value)} {unit}{', ' + bar.word if bar.word else ''}".rstrip()
        parts.append(_text(216 + length, y + 16, said, DIM))
    return _svg(TOP + row * len(bars) + 10, parts, title)


def span_chart(spans: Sequence[Span], *, title: str, band: tuple[float, float]) -> str:
    """One vertical bar a range over a shaded band; heights by signed logarithm, so that outliers show."""
    height, bottom = 300.0, 70.0
    reach = max([2.0, *(abs(v) for s in spans for v in (s.low, s.high) if math.isfinite(v))])
    top = _signed_log(reach) * 1.05

    def at_y(value: float) -> float:
        clipped = max(-top, min(top, _signed_log(value)))
        return TOP + (height - TOP - bottom) * (top - clipped) / (2 * top)

    right = WIDTH - RIGHT
    low, high = band
    parts = [_text(LEFT, 18, title, INK, size=14)]
    parts.append(_rect(LEFT, at_y(high), right - LEFT, at_y(low) - at_y(high), SOFT, f"{low:g} to {high:g}"))
    powers = [10.0**k for k in range(math.ceil(math.log10(reach)) + 1) if 10.0**k <= reach * 1.1]
    for tick in [-p for p in reversed(powers)] + [0.0] + powers:
        parts.append(_rule(LEFT, at_y(tick), right, at_y(tick), GRID))
        parts.append(_text(LEFT - 8, at_y(tick) + 4, number(tick), DIM, "end"))
    step = (right - LEFT) / max(1, len(spans))
    for index, span in enumerate(spans):
        x, colour = LEFT + step * (index + 0.15), WRONG if span.is_wrong else COLOURS[0]
        said = f"{span.name}: {number(span.low)} to {number(span.high)}"
        tall = max(1.5, at_y(span.low) - at_y(span.high))
        parts.append(_rect(x, at_y(span.high), step * 0.7, tall, colour, said))
        if len(spans) <= 40:
            at = f"{x + step * 0.35:.1f} {height - bottom + 14:.1f}"
            label = _text(0, 0, span.name[-16:], DIM, "end", 10)
            parts.append(f"<g transform='translate({at}) rotate(-40)'>{label}</g>")
    return _svg(height, parts, title)


def ticks(low: float, high: float) -> list[float]:
    """About five round values within [low, high]."""
    if not high > low:
        return [low]
    rough = (high - low) / 5
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * m for m in (1, 2, 5, 10) if power * m >= rough * (1 - 1e-9))
    first = math.ceil(low / step - 1e-9)
    return [round(step * n, 12) for n in range(first, math.floor(high / step + 1e-9) + 1)]


def decades(low: float, high: float) -> list[float]:
    """Powers of ten within [low, high]; 2 and 5 times them where they are few."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    factors = (1, 2, 5) if last - first <= 3 else (1,)
    found = [f * 10.0**k for k in range(first, last + 1) for f in factors]
    return [v for v in found if low <= v <= high] or [low, high]


def number(value: float) -> str:
    """At most four digits, thousands as k and M."""
    for limit, letter in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= limit:
            by = 1e3 if letter == "k" else limit
            return f"{value / by:.4g}{letter}"
    return f"{value:.4g}"


def _finite(point: tuple[float, float]) -> bool:
    return math.isfinite(point[0]) and math.isfinite(point[1])


def _thin(points: Sequence[tuple[float, float]]) -> Sequence[tuple[float, float]]:
    if len(points) <= DRAWN:
        return points
    stretch = math.ceil(len(points) / (DRAWN // 2))
    kept = []
    for start in range(0, len(points), stretch):
        own = points[start : start + stretch]
        ends = sorted({own.index(min(own, key=lambda p: p[1])), own.index(max(own, key=lambda p: p[1]))})
        kept += [own[i] for i in ends]
    return [*kept, points[-1]] if kept[-1] != points[-1] else kept


def _bounds(low: float, high: float, log: bool) -> tuple[float, float]:
    if log:
        return (low / 1.1, high * 1.1)
    pad = (high - low) * 0.06 or abs(high) * 0.1 or 1.0
    return (0.0 if 0 <= low <= pad else low - pad, high + pad)


def _signed_log(value: float) -> float:
    """Linear near 0, logarithmic beyond: 1 -> 0.30, 10 -> 1.04, 1000 -> 3.0."""
    return math.copysign(math.log10(1 + abs(value)), value)


def _key(names: Sequence[str], width: float, height: float) -> Iterable[str]:
    column, room = (width - LEFT) / 2, int((width - LEFT) / 2 / 7.2)
    for index, name in enumerate(names):
        x, y = LEFT + column * (index % 2), height + 8 + 18 * (index // 2)
        yield _rect(x, y, 14, 4, COLOURS[index % len(COLOURS)], name)
        yield _text(x + 20, y + 7, name if len(name) <= room else f"{name[: room - 1]}…", INK)


def _key_height(lines: Sequence[Line]) -> float:
    return 12 + 18 * math.ceil(len(lines) / 2)


def _svg(height: float, parts: Iterable[str], said: str, width: float = WIDTH) -> str:
    size = f"viewBox='0 0 {width:.0f} {height:.0f}' width='{width:.0f}' height='{height:.0f}'"
    head = f"<svg xmlns='http://www.w3.org/2000/svg' role='img' aria-label='{escape(said)}' {size} {FONT}>"
    return f"{head}<rect width='100%' height='100%' fill='#fff'/>{''.join(parts)}</svg>"


def _text(x: float, y: float, text: str, colour: str, anchor: str = "start", size: int = 12) -> str:
    place = f"x='{x:.1f}' y='{y:.1f}' text-anchor='{anchor}' font-size='{size}' fill='{colour}'"
    return f"<text {place}>{escape(text)}</text>"


def _rect(x: float, y: float, width: float, height: float, colour: str, title: str) -> str:
    place = f"x='{x:.2f}' y='{y:.2f}' width='{max(width, 0.4):.2f}' height='{max(height, 0.8):.2f}'"
    return f"<rect {place} fill='{colour}'><title>{escape(title)}</title></rect>"


def _rule(x1: float, y1: float, x2: float, y2: float, colour: str) -> str:
    return f"<line x1='{x1:.1f}' y1='{y1:.1f}' x2='{x2:.1f}' y2='{y2:.1f}' stroke='{colour}'/>"
