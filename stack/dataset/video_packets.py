"""Packets on their way from source files into a written one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from av.packet import Packet
from numpy.typing import NDArray

from stack.dataset.video_index import is_unchanged
from stack.dataset.video_model import VideoIndex
from stack.dataset.video_open import demux, open_video
from stack.dataset.video_segments import Segment
from stack.dataset.video_units import first_broken
from stack.errors import BadRequest, WorkFailed

READ_BYTES = 1 << 20


class PacketReader:
    """Reads segments from files, keeping the last file open: segments in file order are one forward pass."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._index: VideoIndex | None = None

    def __enter__(self) -> PacketReader:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def read(self, segment: Segment) -> Iterator[tuple[int, bool, bytes]]:
        """The copied packets of a segment in decode order: frame number in the file, sync flag, payload.

        Raises:
            WorkFailed: the file is not the one that was looked at.
        """
        index = segment.index
        if index is not self._index:
            self._open(index)
        if index.packets.offsets is None:
            yield from self._demuxed(segment)
            return
        packets, places = index.packets, segment.places()
        frames, syncs = packets.frames[places].tolist(), packets.is_sync[places].tolist()
        for first, ends, block in self._runs(segment, places):
            at = 0
            for n, end in enumerate(ends.tolist(), first):
                yield frames[n], syncs[n], block[at:end]
                at = end

    def blocks(self, segment: Segment) -> Iterator[bytes]:
        """The bytes of the same packets, one after another, in parts of any length.

        Raises:
            BadRequest: the coded units do not fill a picture: the file is damaged there.
            WorkFailed: as `read`.
        """
        index = segment.index
        if index is not self._index:
            self._open(index)
        if index.packets.offsets is None:
            yield from (payload for _, _, payload in self._demuxed(segment))
        else:
            places = segment.places()
            for first, ends, block in self._runs(segment, places):
                at = first_broken(index.info, block, ends)
                if at is not None:
                    raise _damaged(index, int(index.packets.frames[places[first + at]]))
                yield block

    def _runs(
        self, segment: Segment, places: NDArray[np.int64]
    ) -> Iterator[tuple[int, NDArray[np.int64], bytes]]:
        """Packets that lie one behind another: the first one's number, where each ends, and their bytes."""
        index = segment.index
        assert index.packets.offsets is not None
        offsets, sizes = index.packets.offsets[places], index.packets.sizes[places]
        for first, last in neighbours(offsets, sizes):
            start = int(offsets[first])
            ends = offsets[first:last] + sizes[first:last] - start
            self._raw.seek(start)
            block = self._raw.read(int(ends[-1]))
            if len(block) != ends[-1]:
                at = first + int(np.flatnonzero(ends > len(block))[0])
                raise changed(index, int(index.packets.frames[places[at]]))
            yield first, ends, block

    def _open(self, index: VideoIndex) -> None:
        file = index.info.file
        self._stack.close()
        self._index = None
        if not is_unchanged(index):
            raise changed(index, 0)
        if index.packets.offsets is not None:
            self._raw = self._stack.enter_context(file.open("rb"))
        else:
            self._container, self._stream = self._stack.enter_context(open_video(file))
            self._demux, self._at = demux(self._container, self._stream, file), 0
        self._index = index

    def _demuxed(self, segment: Segment) -> Iterator[tuple[int, bool, bytes]]:
        index = segment.index
        if segment.first != self._at:
            self._container.seek(int(index.packets.dts[segment.first]), backward=True, stream=self._stream)
            self._demux = demux(self._container, self._stream, index.info.file)
            self._at = segment.first
        wanted = range(segment.start, segment.stop)
        while self._at <= segment.last:
            coded = index.coded[self._at]
            packet = next((p for p in self._demux if p.pts == coded.pts), None)
            if packet is None or packet.size != coded.size_bytes:
                raise changed(index, coded.frame)
            self._at += 1
            if coded.frame in wanted:
                yield coded.frame, coded.is_sync, bytes(packet)


def neighbours(offsets: NDArray[np.int64], sizes: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Half-open runs of packets that follow one another in a file, each of about `READ_BYTES` at most."""
    ends = offsets + sizes
    parted = offsets[1:] != ends[:-1]
    parted |= np.diff((ends - offsets[0]) // READ_BYTES) != 0
    cuts = (np.flatnonzero(parted) + 1).tolist()
    yield from pairwise([0, *cuts, len(offsets)])


def changed(index: VideoIndex, frame: int) -> WorkFailed:
    """The error for a file that is not the one that was looked at."""
    what = f"frame {frame} is not where it was"
    return WorkFailed("video-changed", what, where=str(index.info.file))


def _damaged(index: VideoIndex, frame: int) -> BadRequest:
    return BadRequest(
        "video-frame-damaged",
        f"frame {frame} is damaged: its coded units do not fill it, so a decoder drops or mixes up pictures "
        "from here to the next key frame",
        where=str(index.info.file),
        do="fetch the file again, or exclude the episode",
    )


@dataclass(frozen=True)
class Part:
    """A segment at its place in the output; `samples` where it was encoded: (payload, is key) a picture."""

    segment: Segment
    place: int
    samples: tuple[tuple[bytes, bool], ...] = ()

    def coded(self) -> Iterator[tuple[int, int, bool]]:
        """(frame number in the output, bytes, is key) in decode order."""
        if self.segment.encode:
            for n, (payload, is_key) in enumerate(self.samples):
                yield self.place + n, len(payload), is_key
            return
        for coded in self.segment.coded():
            yield self.place + coded.frame - self.segment.start, coded.size_bytes, coded.is_key

    def table(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]:
        """As `coded`, column by column."""
        if self.segment.encode:
            frames, sizes, keys = zip(*self.coded(), strict=True)
            return np.array(frames), np.array(sizes), np.array(keys, dtype=bool)
        packets, places = self.segment.index.packets, self.segment.places()
        frames_copied = packets.frames[places] - self.segment.start + self.place
        return frames_copied, packets.sizes[places], packets.is_key[places]

    def packets(self, source: PacketReader) -> Iterator[Packet]:
        if self.segment.encode:
            yield from (_packet(payload, is_key) for payload, is_key in self.samples)
        else:
            yield from (_packet(payload, is_sync) for _, is_sync, payload in source.read(self.segment))


def _packet(payload: bytes, is_key: bool) -> Packet:
    packet = Packet(payload)
    packet.is_keyframe = is_key
    return packet
