"""What a video file is and which packets it holds, as plain data.

Frames are addressed by presentation number: frame n is the n-th picture that a player shows. Packets stand in
decode order, which differs where there are B-frames.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Stamp: TypeAlias = tuple[int, int, int, int]  # device, inode, size, time of the last change


@dataclass(frozen=True, slots=True)
class VideoInfo:
    """What a file is, counted from its packets.

    Attributes:
        codec: the canonical name, such as `h264`, `av1`, `hevc`, `mpeg4`.
        pix_fmt: such as `yuv420p`; None where the stream does not say.
        fps: the average rate over the shown frames.
        time_base: seconds a tick.
        frames: shown frames (packets that an edit list hides are not among them).
        key_frames: presentation numbers of the frames at which decoding can start with nothing before.
        has_b_frames: decode order and presentation order differ.
        duration_s: frames / fps.
        pts: presentation time of each frame, in ticks of `time_base`, ascending; a range where they are even.
        extradata: the codec's global header (parameter sets).
        tracks: how many video tracks the file holds; all else is said of the first.
        is_turned: whether it asks to be shown turned, mirrored or stretched. Pictures are as stored all the
            same, as lerobot's decoders gave them until torchcodec 0.11.
        leading: frames that cannot be shown by who seeks to the last picture before them that the file marks
            as a key frame, as loaders do, for they are built from what is before both. Ascending.
    """

    file: Path
    codec: str
    width: int
    height: int
    pix_fmt: str | None
    fps: Fraction
    time_base: Fraction
    frames: int
    key_frames: tuple[int, ...] = field(repr=False)
    has_b_frames: bool
    has_audio: bool
    duration_s: float
    pts: tuple[int, ...] | range = field(repr=False)
    extradata: bytes = field(repr=False)
    tracks: int = 1
    is_turned: bool = False
    leading: tuple[int, ...] = field(default=(), repr=False)

    def keys_within(self, start: int, end: int) -> tuple[int, ...]:
        """The key frames among frames `start` to `end` (half-open), in a file of any length."""
        keys = self.key_frames
        return keys[bisect_left(keys, start) : bisect_left(keys, end)]

    def ticks(self, start: int = 0, stop: int | None = None) -> NDArray[np.int64]:
        """`pts` of frames `start` to `stop` (half-open) as an array."""
        own = self.pts[start:stop]
        if isinstance(own, range):
            return np.arange(own.start, own.stop, own.step, dtype=np.int64)
        return np.array(own, dtype=np.int64)

    def times_s(self, start: int = 0, stop: int | None = None) -> NDArray[np.float64]:
        """When each of these frames is shown."""
        return self.ticks(start, stop).astype(np.float64) * float(self.time_base)

    def is_key(self, frame: int) -> bool:
        return bool(self.keys_within(frame, frame + 1))


@dataclass(frozen=True, slots=True)
class CodedFrame:
    """One packet: `frame` is its presentation number, `is_key` as in `VideoInfo.key_frames`.

    `is_sync` is the file's own flag, which open-GOP pictures bear too; `offset` is where the packet lies in
    the file, None where only FFmpeg knows.
    """

    frame: int
    pts: int
    dts: int
    size_bytes: int
    is_key: bool
    is_sync: bool
    offset: int | None = None


@dataclass(frozen=True, eq=False)
class PacketTable:
    """Packets in decode order, a column for each attribute of `CodedFrame`: int64 or bool, all of one length.

    `offsets` is None where only FFmpeg knows where packets lie.
    """

    frames: NDArray[np.int64]
    pts: NDArray[np.int64]
    dts: NDArray[np.int64]
    sizes: NDArray[np.int64]
    is_key: NDArray[np.bool_]
    is_sync: NDArray[np.bool_]
    offsets: NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self.frames)


_COLUMNS = ("frames", "pts", "dts", "sizes", "is_key", "is_sync", "offsets")


@dataclass(frozen=True, eq=False)
class VideoIndex:
    """A file's packets in decode order.

    `entry` and `size` are as in `Tables`, None where only FFmpeg knows. `stamp` tells a changed file.
    `header` is the AV1 sequence header with which each sync packet begins; empty where they differ or one has
    none.
    """

    info: VideoInfo
    packets: PacketTable
    entry: bytes | None = None
    size: bytes | None = None
    stamp: Stamp | None = None
    header: bytes = b""

    @cached_property
    def coded(self) -> tuple[CodedFrame, ...]:
        """The packets one by one; the table costs less where there are many."""
        table = self.packets
        columns = (getattr(table, name).tolist() for name in _COLUMNS[:-1])
        offsets = [None] * len(table) if table.offsets is None else table.offsets.tolist()
        return tuple(map(CodedFrame, *columns, offsets))

    def position(self, frame: int) -> int:
        """The place in decode order of a presentation number."""
        if not self.info.has_b_frames:
            return frame
        return int(np.flatnonzero(self.packets.frames == frame)[0])
