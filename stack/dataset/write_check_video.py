"""A written video file against the clips it was made of: counts, times, and the pictures of every clip.

What was copied must be the source's packets, byte by byte and in their order; under the same codec
parameters, that proves each picture from the first to the last. Where the parameters are not the same, and
where pictures were encoded anew, the first and last ones are decoded on both sides and compared. The first
file of each camera is also shown to a decoder, which shares no code with what read and wrote the packets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from stack.dataset.model import ClipRef
from stack.dataset.video import why_not_joinable
from stack.dataset.video_decode import decode
from stack.dataset.video_encode import PSNR_MIN_DB
from stack.dataset.video_index import describe_extradata, index_video
from stack.dataset.video_model import VideoIndex
from stack.dataset.video_packets import PacketReader
from stack.dataset.video_segments import Segment, split
from stack.dataset.write_plan import PTS_TOLERANCE_S, VideoFile
from stack.errors import WorkFailed

# How many times nearer a picture may be to its neighbour than to its own source (in mean square error).
# An encoder may repeat the last picture where the next one hardly differs; it never shows a later one, and
# the first one of a stream repeats nothing.
NEARER = 2.0
NEARER_TO_THE_LAST = 8.0
QUANTISED = 0.01  # an error below what rounding to whole levels makes
ENDS = 2  # pictures looked at from each end: one that is late shows itself beside its neighbour
READ_BYTES = 4 << 20
Picture = NDArray[np.uint8]


@dataclass(frozen=True)
class VideoCheck:
    """A written file, `root / entry.path`, and what it was made of."""

    root: Path
    entry: VideoFile
    fps: float


def check_video_file(check: VideoCheck) -> None:
    """Count frames, look at their times, and compare each clip with its source.

    Raises:
        WorkFailed: something is not what was meant; file, clip, frame and both values are named.
    """
    entry = check.entry
    file = check.root / entry.path
    written = index_video(file)
    meant = sum(clip.count for clip in entry.clips)
    if written.info.frames != meant:
        raise _wrong(entry.path, f"frames: {meant} was meant, {written.info.frames} is there")
    times = written.info.times_s()
    worst = float(np.abs(times - np.arange(meant) / check.fps).max())
    if worst >= PTS_TOLERANCE_S:
        raise _wrong(
            entry.path,
            f"a frame is shown {worst:.6f} s away from its number over fps; the tolerance is "
            f"{PTS_TOLERANCE_S} s",
        )
    if len(entry.clips) == 1 and _is_same_file(entry.clips[0], written):
        return  # a hard link: its pictures are the source's own
    if (entry.chunk, entry.file) == (0, 0):
        _check_shown(entry, written)
    with _Bytes() as files:
        place = 0
        for episode, clip in zip(entry.episodes, entry.clips, strict=True):
            where = f"{entry.path}, frame {place}, episode {episode}, from {clip.file}, frame {clip.start}"
            segments = split(clip)
            for segment in segments:
                _check_segment(segment, written, place, files, where, is_cut=len(segments) > 1)
                place += segment.count


def _check_shown(entry: VideoFile, written: VideoIndex) -> None:
    """A decoder shows the sources' pictures at both ends of a camera's first file.

    Pictures that were encoded anew are compared elsewhere, with their tolerance.
    """
    last = written.info.frames - 1
    shown = [
        (number, at, clip.file, clip.start if at == 0 else clip.start + clip.count - 1)
        for number, at, clip in ((0, 0, entry.clips[0]), (last, -1, entry.clips[-1]))
        if split(clip)[at].encode is None
    ]
    pictures = decode(written.info.file, [number for number, *_ in shown])
    for (number, at, file, frame), got in zip(shown, pictures, strict=True):
        (meant,) = decode(file, [frame])
        if not np.array_equal(meant, got):
            where = f"{entry.path}, frame {number}, episode {entry.episodes[at]}, from {file}"
            raise _wrong(where, "a decoder shows another picture than of the source")


def _is_same_file(clip: ClipRef, written: VideoIndex) -> bool:
    return clip.start == 0 and clip.count == written.info.frames and clip.file.samefile(written.info.file)


def _check_segment(
    segment: Segment, written: VideoIndex, place: int, files: _Bytes, where: str, *, is_cut: bool
) -> None:
    source = segment.index.info
    if segment.encode is not None:
        for what in ("codec", "width", "height", "pix_fmt"):
            if getattr(source, what) != getattr(written.info, what):
                raise _wrong(
                    where,
                    f"{what}: {getattr(source, what)} was meant, {getattr(written.info, what)} is there",
                )
        _check_pictures(segment, written, place, where)
        return
    reason = why_not_joinable(source, written.info)
    if reason is not None and source.extradata == written.info.extradata:
        raise _wrong(where, reason)
    _check_packets(segment, written, place, files, where)
    if reason is not None or is_cut:
        _check_copied_pictures(segment, written, place, where)


def _check_packets(segment: Segment, written: VideoIndex, place: int, files: _Bytes, where: str) -> None:
    """The written packets are the source's: number, order and bytes."""
    source, target = segment.index.packets, written.packets
    meant, got = segment.places(), slice(place, place + segment.count)
    numbers = source.frames[meant] - segment.start, target.frames[got] - place
    sizes = source.sizes[meant], target.sizes[got]
    if wrong := np.flatnonzero((numbers[0] != numbers[1]) | (sizes[0] != sizes[1])).tolist():
        n = wrong[0]
        raise _wrong(
            where,
            f"a packet is not the source's: frame {numbers[0][n]} of the clip in {sizes[0][n]} bytes was "
            f"meant, frame {numbers[1][n]} in {sizes[1][n]} is there",
        )
    if source.offsets is None or target.offsets is None:
        _compare_demuxed(segment, written, place, where)
        return
    left, right = source.offsets[meant], target.offsets[got]
    for first, stop in _runs(left, right, sizes[0]):
        size_bytes = int(sizes[0][first:stop].sum())
        at, there = (segment.index.info.file, int(left[first])), (written.info.file, int(right[first]))
        if not files.are_equal(at, there, size_bytes):
            raise _wrong(where, f"the bytes from frame {numbers[0][first]} of the clip on differ")


def _runs(
    left: NDArray[np.int64], right: NDArray[np.int64], sizes: NDArray[np.int64]
) -> Iterator[tuple[int, int]]:
    """Half-open ranges of packets that lie one behind the other in both files."""
    breaks = (np.diff(left) != sizes[:-1]) | (np.diff(right) != sizes[:-1])
    edges = [0, *(np.flatnonzero(breaks) + 1).tolist(), len(sizes)]
    return pairwise(edges)


def _compare_demuxed(segment: Segment, written: VideoIndex, place: int, where: str) -> None:
    last = place + segment.count
    there = Segment(written, place, last, first=place, last=last - 1)
    with PacketReader() as left, PacketReader() as right:
        for n, (meant, got) in enumerate(zip(left.read(segment), right.read(there), strict=True)):
            if meant[-1] != got[-1]:
                raise _wrong(where, f"the bytes of packet {n} of the clip differ")


def _check_copied_pictures(segment: Segment, written: VideoIndex, place: int, where: str) -> None:
    """First and last picture, where other parameters stand in the file, and bytes alone prove nothing."""
    for n in sorted({0, segment.count - 1}):
        (meant,) = decode(segment.index.info.file, [segment.start + n])
        # The first one also as a player comes to it: from what stands before.
        *_, got = decode(written.info.file, range(place + n - (n == 0 < place), place + n + 1))
        if not np.array_equal(meant, got):
            sets = f"{describe_extradata(segment.index.info.extradata)}; "
            sets += describe_extradata(written.info.extradata)
            raise _wrong(where, f"frame {n} of the clip is another picture under other parameters ({sets})")


def _check_pictures(segment: Segment, written: VideoIndex, place: int, where: str) -> None:
    source = segment.index.info
    check_ends(
        segment.count,
        lambda numbers: list(decode(source.file, [segment.start + n for n in numbers])),
        lambda numbers: list(decode(written.info.file, [place + n for n in numbers])),
        PSNR_MIN_DB,
        where,
        around=range(-segment.start, source.frames - segment.start),
    )


Pictures = Callable[[Sequence[int]], Sequence[Picture]]


def check_ends(
    count: int, meant: Pictures, got: Pictures, least_db: float, where: str, *, around: range | None = None
) -> None:
    """Compare the pictures at both ends of `count` frames that were encoded anew.

    Args:
        meant, got: give the pictures of these frames, uint8 and of one shape.
        least_db: peak signal to noise that each must reach.
        around: the numbers for which there is a source picture; `range(count)` if not given.

    Raises:
        WorkFailed: a picture is farther from its source than `least_db` allows, or shows its neighbour.
    """
    numbers = sorted({n for n in (*range(ENDS), *range(count - ENDS, count)) if 0 <= n < count})
    there = around if around is not None else range(count)
    near = sorted({n + step for n in numbers for step in (-1, 0, 1) if n + step in there})
    sources = dict(zip(near, meant(near), strict=True))
    for n, picture in zip(numbers, got(numbers), strict=True):
        own = _error(picture, sources[n])
        db = 10 * np.log10(255**2 / max(own, QUANTISED))
        if db < least_db:
            raise _wrong(
                where, f"frame {n} of the clip is {db:.1f} dB from its source, {least_db:g} are asked"
            )
        for other in (n - 1, n + 1):
            times = NEARER_TO_THE_LAST if other < n and n > 0 else NEARER
            if other in sources and own > times * max(_error(picture, sources[other]), QUANTISED):
                raise _wrong(where, f"frame {n} of the clip shows the source's frame {other}")


def _error(a: Picture, b: Picture) -> float:
    if a.shape != b.shape:
        return float(255**2)
    return float(np.square(a.astype(np.int32) - b).mean())


class _Bytes:
    """Bytes of the written file and of one source at a time; both are kept open."""

    def __init__(self) -> None:
        self._open: dict[Path, BinaryIO] = {}

    def __enter__(self) -> _Bytes:
        return self

    def __exit__(self, *_: object) -> None:
        for file in self._open.values():
            file.close()

    def are_equal(self, meant: tuple[Path, int], got: tuple[Path, int], size_bytes: int) -> bool:
        """Whether so many bytes are the same from (file, offset) on."""
        for file in [file for file in self._open if file not in (meant[0], got[0])]:
            self._open.pop(file).close()
        left, right = self._at(*meant), self._at(*got)
        while size_bytes > 0:
            part_bytes = min(size_bytes, READ_BYTES)
            part = left.read(part_bytes)
            if len(part) != part_bytes or part != right.read(part_bytes):
                return False
            size_bytes -= part_bytes
        return True

    def _at(self, file: Path, offset: int) -> BinaryIO:
        if file not in self._open:
            self._open[file] = file.open("rb", buffering=0)
        self._open[file].seek(offset)
        return self._open[file]


def _wrong(where: str, what: str) -> WorkFailed:
    return WorkFailed("write-check-failed", what, where=where)
