"""Writing MP4s in which frame n is shown at exactly n / fps."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from pathlib import Path

import av
import numpy as np

from stack.dataset.video_model import VideoIndex
from stack.errors import BadRequest

TICKS_PER_S_MIN = 10_000  # below this the MP4 muxer would choose a time base of its own
RATE_DENOMINATOR_MAX = 1_000_000


@cache
def mp4_holds(codec: str) -> bool:
    """Whether packets of a codec (FFmpeg's name) can be copied into an MP4, as far as FFmpeg writes one."""
    with av.open(io.BytesIO(), mode="w", format="mp4") as container:
        return codec in container.supported_codecs


def exact_rate(fps: float) -> Fraction:
    """The rational rate a float stands for: 30.0 -> 30, 29.97 -> 2997/100, 29.97002997... -> 30000/1001."""
    if not 0 < fps < 1_000_000:
        raise BadRequest("video-fps-impossible", f"fps must be positive and finite, not {fps}")
    return Fraction(fps).limit_denominator(RATE_DENOMINATOR_MAX)


@dataclass(frozen=True)
class Ticks:
    """A time base that divides the frame period: `per_s` ticks a second, `per_frame` a frame."""

    per_s: int
    per_frame: int

    @property
    def time_base(self) -> Fraction:
        return Fraction(1, self.per_s)

    @property
    def options(self) -> dict[str, str]:
        """The MP4 muxer's options."""
        return {
            "video_track_timescale": str(self.per_s),
            # The edit list's length is kept in this unit; a coarser one could hide the last frame.
            "movie_timescale": str(self.per_s),
            "fflags": "+bitexact",
        }


def ticks_of(rate: Fraction) -> Ticks:
    scale = 1
    while rate.numerator * scale < TICKS_PER_S_MIN:
        scale *= 2
    return Ticks(rate.numerator * scale, rate.denominator * scale)


@contextmanager
def whole_file(out: Path) -> Iterator[Path]:
    """A file beside `out` that becomes `out` when the body succeeds, and is gone when it does not.

    The folder is made; what it lies in must be there.
    """
    out.parent.mkdir(exist_ok=True)
    partial = out.with_name(f".{out.stem}.partial-{os.getpid()}{out.suffix}")
    try:
        yield partial
        partial.replace(out)
    finally:
        partial.unlink(missing_ok=True)


def why_badly_timed(index: VideoIndex, rate: Fraction) -> str | None:
    """What is wrong with a file's times; None where frame n is shown at n / fps and decode times rise."""
    # ticks * time_base == n / rate, in whole numbers, so that nothing is rounded.
    per_frame = index.info.time_base.denominator * rate.denominator
    per_tick = index.info.time_base.numerator * rate.numerator
    ticks = index.info.ticks()
    highest = max(abs(int(ticks[0])), abs(int(ticks[-1]))) * per_tick, len(ticks) * per_frame
    if max(highest) >= 1 << 62:
        is_right = all(t * per_tick == n * per_frame for n, t in enumerate(index.info.pts))
    else:
        is_right = np.array_equal(ticks * per_tick, np.arange(len(ticks)) * per_frame)
    if not is_right:
        return "frame times are not n / fps"
    return "decode times do not rise" if (np.diff(index.packets.dts) <= 0).any() else None
