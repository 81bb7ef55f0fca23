"""Writing an MP4 (ISO/IEC 14496-12) of copied packets: whole runs of bytes, and sample tables from arrays.

FFmpeg's muxer takes packets one by one, which costs many times what copying their bytes does. Only what its
demuxer and `stack.dataset.video_tables` read alike is written: one track, one sample description, one chunk a
clip.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from stack.dataset.video_mux import Ticks
from stack.dataset.video_tables import UPRIGHT
from stack.errors import WorkFailed

COPY_BYTES = 1 << 20
BRANDS = {"h264": b"isomiso2avc1mp41", "hevc": b"isomiso2mp41", "av1": b"isomav01iso2mp41"}
MINOR_VERSION = 0x200
UNDETERMINED = 0x55C4  # ISO 639-2 `und`, packed (8.4.2.3)
WIDE = 1 << 32


@dataclass(frozen=True)
class Run:
    """Packets of one clip in decode order.

    Attributes:
        frames: their frame numbers in the written file.
        offsets, sizes: where they lie in `file`, in bytes.
        is_sync: which are sync samples.
    """

    file: Path
    frames: NDArray[np.int64]
    offsets: NDArray[np.int64]
    sizes: NDArray[np.int64]
    is_sync: NDArray[np.bool_]


def write_runs(runs: Sequence[Run], out: Path, codec: str, entry: bytes, size: bytes, ticks: Ticks) -> None:
    """Write packets one after another, frame n shown at n periods.

    Args:
        entry: the sample description that all packets share.
        size: the track header's width and height, as a source has them (two 16.16 numbers).

    Raises:
        WorkFailed: the disk is full, or a source ends before its packets do.
    """
    try:
        with out.open("wb") as target:
            target.write(_box(b"ftyp", b"isom", struct.pack(">I", MINOR_VERSION), BRANDS[codec]))
            head = target.tell()
            target.write(struct.pack(">I4sQ", 1, b"mdat", 0))
            starts = []
            for run in runs:
                starts.append(target.tell())
                _copy(run, target)
            end = target.tell()
            target.write(_movie(runs, starts, entry, size, ticks))
            target.seek(head)
            target.write(struct.pack(">I4sQ", 1, b"mdat", end - head))
    except OSError as error:
        raise WorkFailed("video-join-failed", f"writing failed: {error}", where=str(out)) from error


def _copy(run: Run, target: BinaryIO) -> None:
    """Neighbours in the source are copied at once."""
    ends = run.offsets + run.sizes
    cuts = np.flatnonzero(run.offsets[1:] != ends[:-1]) + 1
    firsts, lasts = [0, *cuts.tolist()], [*(cuts - 1).tolist(), len(ends) - 1]
    with run.file.open("rb") as source:
        for first, last in zip(firsts, lasts, strict=True):
            source.seek(int(run.offsets[first]))
            left = int(ends[last] - run.offsets[first])
            while left:
                block = source.read(min(left, COPY_BYTES))
                if not block:
                    raise WorkFailed("video-changed", "the file is shorter than it was", where=str(run.file))
                target.write(block)
                left -= len(block)


def _movie(runs: Sequence[Run], starts: Sequence[int], entry: bytes, size: bytes, ticks: Ticks) -> bytes:
    frames = np.concatenate([run.frames for run in runs])
    count = len(frames)
    length = count * ticks.per_frame
    # Decode times count up from 0; the edit list begins at the first shown frame.
    shifts = frames - np.arange(count)
    delay = int(-shifts.min())
    shown = (shifts + delay) * ticks.per_frame
    return _box(
        b"moov",
        _movie_header(length, ticks.per_s),
        _box(
            b"trak",
            _track_header(length, size),
            _box(b"edts", _edit_list(length, delay * ticks.per_frame)),
            _box(
                b"mdia",
                _media_header(length, ticks.per_s),
                _full(b"hdlr", 0, 0, struct.pack(">I4s12x", 0, b"vide"), b"VideoHandler\0"),
                _box(
                    b"minf",
                    _full(b"vmhd", 0, 1, bytes(8)),
                    _box(b"dinf", _full(b"dref", 0, 0, struct.pack(">I", 1), _full(b"url ", 0, 1))),
                    _samples(runs, starts, entry, shown, ticks.per_frame),
                ),
            ),
        ),
    )


def _samples(
    runs: Sequence[Run], starts: Sequence[int], entry: bytes, shown: NDArray[np.int64], per_frame: int
) -> bytes:
    sizes = np.concatenate([run.sizes for run in runs])
    is_sync = np.concatenate([run.is_sync for run in runs])
    described = struct.pack(">I", len(entry)) + entry[4:]
    boxes = [
        _full(b"stsd", 0, 0, struct.pack(">I", 1), described),
        _full(b"stts", 0, 0, struct.pack(">3I", 1, len(sizes), per_frame)),
    ]
    if not is_sync.all():
        boxes.append(_table(b"stss", np.flatnonzero(is_sync) + 1))
    if shown.any():
        boxes.append(_table(b"ctts", np.stack(_lengths(shown), axis=1)))
    each = np.array([len(run.frames) for run in runs])
    counts, values = _lengths(each)
    first = np.concatenate([[0], np.cumsum(counts)[:-1]]) + 1
    boxes.append(_table(b"stsc", np.stack([first, values, np.ones_like(first)], axis=1)))
    boxes.append(_full(b"stsz", 0, 0, struct.pack(">2I", 0, len(sizes)), sizes.astype(">u4").tobytes()))
    if starts[-1] < WIDE:
        boxes.append(_table(b"stco", np.array(starts)))
    else:
        boxes.append(_full(b"co64", 0, 0, struct.pack(">I", len(starts)), np.array(starts, ">u8").tobytes()))
    return _box(b"stbl", *boxes)


def _lengths(values: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Run lengths, and the value of each run."""
    firsts = np.concatenate([[0], np.flatnonzero(np.diff(values)) + 1])
    return np.diff(np.concatenate([firsts, [len(values)]])), values[firsts]


def _table(kind: bytes, rows: NDArray[np.int64]) -> bytes:
    return _full(kind, 0, 0, struct.pack(">I", len(rows)), rows.astype(">u4").tobytes())


def _movie_header(length: int, per_s: int) -> bytes:
    rest = struct.pack(">IH10x", 1 << 16, 1 << 8) + UPRIGHT + bytes(24) + struct.pack(">I", 2)
    return _timed(b"mvhd", 0, ">I", (per_s,), length, rest)


def _track_header(length: int, size: bytes) -> bytes:
    return _timed(b"tkhd", 3, ">II", (1, 0), length, bytes(16) + UPRIGHT + size)


def _media_header(length: int, per_s: int) -> bytes:
    return _timed(b"mdhd", 0, ">I", (per_s,), length, struct.pack(">HH", UNDETERMINED, 0))


def _timed(kind: bytes, flags: int, layout: str, values: tuple[int, ...], length: int, rest: bytes) -> bytes:
    """A header with times of creation and change (left 0), fields, a duration, and what follows."""
    wide = length >= WIDE
    times, duration = (bytes(16), struct.pack(">Q", length)) if wide else (bytes(8), None)
    duration = duration or struct.pack(">I", length)
    return _full(kind, int(wide), flags, times, struct.pack(layout, *values), duration, rest)


def _edit_list(length: int, start: int) -> bytes:
    wide = length >= WIDE or start >= 1 << 31
    edit = struct.pack(">QqI" if wide else ">IiI", length, start, 1 << 16)
    return _full(b"elst", int(wide), 0, struct.pack(">I", 1), edit)


def _full(kind: bytes, version: int, flags: int, *content: bytes) -> bytes:
    return _box(kind, struct.pack(">I", version << 24 | flags), *content)


def _box(kind: bytes, *content: bytes) -> bytes:
    return struct.pack(">I4s", 8 + sum(map(len, content)), kind) + b"".join(content)
