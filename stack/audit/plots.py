"""Plots as inline SVG, drawn by a few small functions; every text in them is escaped.

Colours are the page's CSS classes, so that a plot prints as it shows. Each mark carries a `<title>`, which a
browser shows under the pointer.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby, pairwise
from typing import TypeVar

import numpy as np

from stack.audit.decisions import CHOICES, Choice
from stack.audit.exact import Channel
from stack.audit.html_text import esc
from stack.audit.kinds import PolicyNeeds
from stack.audit.measures import ClockCurve

WIDTH, LEFT, RIGHT, TOP = 1080, 64, 12, 14
NAMED_CHANNELS = 24
BARS_MOST = 1000  # about a pixel each; where there are more episodes, a bar stands for several
KEY_EDGES = (1, 2, 6, 13, 31, 61, 121, 241)
Scale = Callable[[float], float]
Value = TypeVar("Value", int, float)


def _svg(height: float, parts: Iterable[str], said: str) -> str:
    return (
        f'<svg class="plot" role="img" aria-label="{esc(said)}" viewBox="0 0 {WIDTH} {height:.0f}"'
        f' width="{WIDTH}" height="{height:.0f}">' + "".join(parts) + "</svg>"
    )


def _text(x: float, y: float, text: str, anchor: str = "start", kind: str = "axis") -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{esc(text)}</text>'


def _bar(x: float, y: float, width: float, height: float, kind: str, title: str) -> str:
    return (
        f'<rect class="{kind}" x="{x:.2f}" y="{y:.2f}" width="{max(width, 0.4):.2f}"'
        f' height="{max(height, 0.8):.2f}"><title>{esc(title)}</title></rect>'
    )


def _line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    return f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def _ticks(scale: Scale, values: Iterable[float], right: float, form: str = "{:g}") -> Iterable[str]:
    for value in values:
        yield _line(LEFT, scale(value), right, scale(value), "grid")
        yield _text(LEFT - 6, scale(value) + 4, form.format(value), "end")


def nice_ticks(top: float) -> list[float]:
    """0 and about four round steps up to `top`."""
    if not top > 0 or not math.isfinite(top):
        return [0.0]
    rough = top / 4
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * m for m in (1, 2, 5, 10) if power * m >= rough * (1 - 1e-9))
    return [step * i for i in range(int(top / step + 1e-9) + 1)]


def signed_log(y: float) -> float:
    """Linear near 0, logarithmic beyond: 1 -> 0.30, 10 -> 1.04, 1000 -> 3.0."""
    return math.copysign(math.log10(1 + abs(y)), y)


def normalised(channel: Channel) -> tuple[float, float]:
    """The channel's least and largest value once normalised, as `Channel.largest` is."""
    span = channel.q99 - channel.q01
    span = span if np.float32(channel.q99) != np.float32(channel.q01) else 1e-8
    low, high = (2 * (v - channel.q01) / span - 1 for v in (channel.low, channel.high))
    return low, high


def channel_ranges(channels: Sequence[Channel], needs: PolicyNeeds) -> str:
    """A bar for each channel from its least to its largest normalised value, over the band [-1, 1]."""
    ends = [normalised(c) for c in channels]
    shown = [(-1.0, -1.0) if c.is_constant else end for c, end in zip(channels, ends, strict=True)]
    reach = max(2.0, *(abs(v) for end in shown for v in end if math.isfinite(v)))
    height, bottom = 300.0, 46.0
    top = signed_log(reach) * 1.05

    def scale(y: float) -> float:
        clipped = max(-top, min(top, signed_log(y)))
        return TOP + (height - TOP - bottom) * (top - clipped) / (2 * top)

    decades = [10.0**k for k in range(math.ceil(math.log10(reach)) + 1) if 10.0**k <= reach * 1.1]
    ticks = [-d for d in reversed(decades)] + [0.0] + decades
    right = WIDTH - RIGHT
    step = (right - LEFT) / max(1, len(channels))
    parts = [_bar(LEFT, scale(1), right - LEFT, scale(-1) - scale(1), "band", "q01 to q99: [-1, 1]")]
    parts += _ticks(scale, ticks, right)
    for number, (channel, (low, high)) in enumerate(zip(channels, shown, strict=True)):
        kind = "bar"
        if channel.is_constant:
            kind = "faint"
        elif channel.largest > needs.warn_magnitude:
            is_error = channel.feature == "action" and channel.largest > needs.max_magnitude
            kind = "bar-error" if is_error else "bar-warning"
        said = "constant" if channel.is_constant else f"{low:.4g} to {high:.4g}"
        title = f"{channel.feature} {channel.name}: {said}"
        x = LEFT + step * number + step * 0.12
        parts.append(_bar(x, scale(high), step * 0.76, scale(low) - scale(high), kind, title))
    parts += _fields(channels, step, height - bottom)
    return _svg(height, parts, f"normalised range of {len(channels)} channels, at most {reach:.3g}")


def _fields(channels: Sequence[Channel], step: float, base: float) -> Iterable[str]:
    """Under the bars: where each field begins, named where there is room."""
    at = 0
    until = {0: -1.0, 1: -1.0}
    for number, (field, run) in enumerate(groupby(channels, key=lambda c: c.field or "")):
        count = len(list(run))
        x = LEFT + step * at
        yield _line(x, base, x, base + 5, "grid")
        short = field.split("/", 1)[-1] if field.count("/") > 1 else field
        row = number % 2
        if short and x > until[row]:
            wide = 6.2 * len(short)
            yield _text(min(x + 2, WIDTH - wide), base + 15 + 14 * row, short, kind="small")
            until[row] = x + 6.2 * len(short)
        at += count
    if not any(c.field for c in channels):
        last = len(channels) - 1
        if len(channels) <= NAMED_CHANNELS:
            for number, channel in enumerate(channels):
                name = channel.name.rpartition(" [")[0] or str(number)
                room = int(step / 6.4)
                short = name if len(name) <= room else name[: max(1, room - 1)] + "…"
                yield _text(LEFT + step * (number + 0.5), base + 16, short, "middle", "small")
            return
        for number in sorted({0, last // 4, last // 2, 3 * last // 4, last}):
            yield _text(LEFT + step * (number + 0.5), base + 16, str(number), "middle")


def episode_lengths(
    lengths: Sequence[tuple[int, int]], choices: Mapping[int, Choice], horizon: int | None
) -> str:
    """A bar for each episode, coloured by its decision; a line at the action horizon.

    A bar that stands for several is as high as the shortest, coloured by the worst decision among them, with
    what is between the shortest and the longest faint above it.
    """
    height, bottom = 190.0, 26.0
    most = max((count for _, count in lengths), default=1)

    def scale(y: float) -> float:
        return TOP + (height - TOP - bottom) * (1 - y / (most * 1.05))

    right = WIDTH - RIGHT
    parts = [*_ticks(scale, nice_ticks(most), right)]
    groups = _together(lengths)
    step = (right - LEFT) / max(1, len(groups))
    gap = 0.8 if step > 3 else 1.0
    for number, group in enumerate(groups):
        x, low, high = LEFT + step * number, min(n for _, n in group), max(n for _, n in group)
        choice = min((choices.get(episode, "use") for episode, _ in group), key=CHOICES.index)
        if len(group) == 1:
            title = f"episode {group[0][0]}: {low} frames, {choice}"
        else:
            given = Counter(choices.get(episode, "use") for episode, _ in group)
            said = ", ".join(f"{word} {given[word]}" for word in CHOICES if given[word])
            title = f"episodes {group[0][0]} to {group[-1][0]}: {low} to {high} frames, {said}"
        if high > low:
            parts.append(_bar(x, scale(high), step * gap, scale(low) - scale(high), "faint", title))
        parts.append(_bar(x, scale(low), step * gap, scale(0) - scale(low), f"ep-{choice}", title))
    if horizon and horizon <= most:
        parts.append(_line(LEFT, scale(horizon), right, scale(horizon), "limit"))
        parts.append(_text(right, scale(horizon) - 4, f"action horizon {horizon}", "end", "limit-text"))
    parts += _episode_axis([group[0][0] for group in groups], step, height - bottom)
    return _svg(height, parts, f"frames of {len(lengths)} episodes")


def _together(values: Sequence[tuple[int, Value]]) -> list[Sequence[tuple[int, Value]]]:
    """Neighbouring episodes in at most `BARS_MOST` groups of one size."""
    size = math.ceil(len(values) / BARS_MOST)
    return [values[start : start + size] for start in range(0, len(values), max(1, size))]


def _episode_axis(episodes: Sequence[int], step: float, base: float) -> Iterable[str]:
    every = max(1, math.ceil(len(episodes) / 20))
    for number in range(0, len(episodes), every):
        yield _text(LEFT + step * (number + 0.5), base + 16, str(episodes[number]), "middle")
    yield _text(LEFT - 6, base + 16, "episode", "end")


def clock_by_episode(worst: Sequence[tuple[int, float]], tolerance_frames: float) -> str:
    """How far timestamps are from frame_index / fps at worst, in frames, a bar for each episode.

    A bar that stands for several shows the worst of them.
    """
    height, bottom = 170.0, 26.0
    most = max((value for _, value in worst), default=0.0)

    def scale(y: float) -> float:
        return TOP + (height - TOP - bottom) * (1 - y / (most * 1.05 or 1.0))

    right = WIDTH - RIGHT
    groups = _together(worst)
    step = (right - LEFT) / max(1, len(groups))
    parts = [*_ticks(scale, nice_ticks(most), right)]
    for number, group in enumerate(groups):
        episode, value = max(group, key=lambda pair: pair[1])
        kind = "bar-error" if value > tolerance_frames else "bar"
        among = "" if len(group) == 1 else f", the worst of episodes {group[0][0]} to {group[-1][0]}"
        title = f"episode {episode}: {value:.3g} frames{among}"
        x = LEFT + step * number
        parts.append(_bar(x, scale(value), step * 0.8, scale(0) - scale(value), kind, title))
    parts += _episode_axis([group[0][0] for group in groups], step, height - bottom)
    return _svg(height, parts, f"largest clock error by episode, at most {most:.3g} frames")


def clock_curves(curves: Sequence[ClockCurve]) -> str:
    """timestamp - frame_index / fps over the frames of the episodes that are off most, in frames."""
    height, bottom = 200.0, 26.0
    values = [v for curve in curves for v in curve.off_frames]
    low, high = min(0.0, *values), max(0.0, *values)
    pad = (high - low or 1.0) * 0.06
    last = max(max(curve.frames) for curve in curves) or 1
    right = WIDTH - RIGHT

    def scale(y: float) -> float:
        return TOP + (height - TOP - bottom) * (high + pad - y) / (high - low + 2 * pad)

    ticks = sorted({*nice_ticks(high), *(-t for t in nice_ticks(-low))})
    parts = [*_ticks(scale, ticks, right)]
    for number, curve in enumerate(curves):
        pairs = zip(curve.frames, curve.off_frames, strict=True)
        points = " ".join(f"{LEFT + (right - LEFT) * f / last:.1f},{scale(v):.1f}" for f, v in pairs)
        title = f"episode {curve.episode}: at worst {curve.worst_frames:.3g} frames"
        parts.append(
            f'<polyline class="curve{number}" points="{points}"><title>{esc(title)}</title></polyline>'
        )
        parts.append(_text(LEFT + 8 + 150 * number, TOP + 8, f"episode {curve.episode}", kind=f"key{number}"))
    for frame in nice_ticks(last):
        parts.append(
            _text(LEFT + (right - LEFT) * frame / last, height - bottom + 16, f"{frame:g}", "middle")
        )
    parts.append(_text(LEFT - 6, height - bottom + 16, "frame", "end"))
    return _svg(height, parts, "clock error over the frames of the worst episodes")


def key_frame_distances(distances: Mapping[str, Sequence[int]]) -> str:
    """For each camera, how many pictures of all lie in groups of which length."""
    names = [name for name, own in distances.items() if own]
    labels = [str(a) if b == a + 1 else f"{a} to {b - 1}" for a, b in pairwise(KEY_EDGES)] + [
        f"{KEY_EDGES[-1]} or more"
    ]
    wide, row = 470.0, 18.0
    parts, y = [], 4.0
    for name in names:
        own = np.asarray(distances[name], np.float64)
        buckets = np.digitize(own, KEY_EDGES) - 1
        shares = [float(own[buckets == i].sum() / own.sum()) for i in range(len(labels))]
        mean = float((own * (own + 1) / 2).sum() / own.sum())
        said = f"{name}: a random picture costs {mean:.1f} decoded pictures on average; longest {own.max():g}"
        parts.append(_text(0, y + 14, said, kind="head"))
        y += 22
        for label, share in zip(labels, shares, strict=True):
            if share:
                title = f"{share:.1%} of the pictures lie in groups of {label}"
                parts.append(_text(150, y + 12, label, "end"))
                parts.append(_bar(158, y + 2, wide * share, row - 6, "bar", title))
                parts.append(
                    _text(164 + wide * share, y + 12, f"{share:.0%}" if share >= 0.005 else "under 1%")
                )
                y += row
        y += 8
    return _svg(y, parts, f"key-frame distances of {len(names)} cameras")
