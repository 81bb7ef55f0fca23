"""Packets on their way from source files into a written one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from av.packet import Packet
from av.video.stream import VideoStream

from stack.dataset.video_index import CodedFrame, demux, open_video
from stack.dataset.video_segments import Segment
from stack.errors import WorkFailed


class PacketReader:
    """Reads segments from files, keeping the last file open: segments in file order are one forward pass."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._file: Path | None = None

    def __enter__(self) -> PacketReader:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def stream(self, file: Path) -> VideoStream:
        if file != self._file:
            self._stack.close()
            self._container, self._stream = self._stack.enter_context(open_video(file))
            self._demux = demux(self._container, self._stream, file)
            self._file, self._at = file, 0
        return self._stream

    def read(self, segment: Segment) -> Iterator[tuple[CodedFrame, Packet]]:
        file, coded_frames = segment.index.info.file, segment.index.coded
        self.stream(file)
        if segment.first != self._at:
            self._seek(coded_frames[segment.first])
            self._at = segment.first
        wanted = range(segment.start, segment.stop)
        while self._at <= segment.last:
            coded = coded_frames[self._at]
            packet = next((p for p in self._demux if p.pts == coded.pts), None)
            if packet is None or packet.size != coded.size_bytes:
                raise WorkFailed("video-changed", f"frame {coded.frame} is not where it was", where=str(file))
            self._at += 1
            if coded.frame in wanted:
                yield coded, packet

    def _seek(self, key: CodedFrame) -> None:
        assert self._file is not None
        self._container.seek(key.dts, backward=True, stream=self._stream)
        self._demux = demux(self._container, self._stream, self._file)


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

    def packets(self, source: PacketReader) -> Iterator[Packet]:
        if not self.segment.encode:
            yield from (packet for _, packet in source.read(self.segment))
            return
        for payload, is_key in self.samples:
            packet = Packet(payload)
            packet.is_keyframe = is_key
            yield packet
