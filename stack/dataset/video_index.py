"""What a video file holds, from its packets alone: nothing is decoded.

Frames are addressed by presentation number: frame n is the n-th picture that a player shows. Packets stand in
decode order, which differs where there are B-frames.
"""

from __future__ import annotations

import hashlib
import mmap
from collections import OrderedDict
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from av.container import InputContainer
from av.video.stream import VideoStream
from numpy.typing import NDArray

from stack.dataset.video_av1 import HEADER_BYTES_MAX, own_header
from stack.dataset.video_keys import begins_refresh, leading_frames, starts_clean, starts_clean_at
from stack.dataset.video_model import PacketTable, Stamp, VideoIndex, VideoInfo
from stack.dataset.video_open import check_file, demux, open_video, truncated
from stack.dataset.video_tables import Tables, asks_to_be_turned, read_tables
from stack.errors import BadRequest

KNOWN_LOOKS_MAX = 64
HELD_PACKETS = 250_000  # about 15 MB
KEYS_AT_ONCE = 256  # the system maps 64 kB around each place that is looked at
HELD_FILES_MIN = 8  # the files of all cameras of an episode, however long they are


def probe(file: Path) -> VideoInfo:
    """Describe a video file without decoding it.

    Raises:
        BadRequest: the file is missing, empty, a Git-LFS pointer, truncated, or not a video.
    """
    return index_video(file).info


def index_video(file: Path) -> VideoIndex:
    """Like `probe`, with every packet. Answers are kept for the last few files while these do not change."""
    stamp = _stamp(file)
    held = _HELD.take(stamp)
    if held is None:
        check_file(file)
        held = replace(_index_from_tables(file) or index_by_demuxing(file), stamp=stamp)
    if held.info.file != file:  # another name of the same file
        held = replace(held, info=replace(held.info, file=file))
    _HELD.put(stamp, held)
    return held


def is_unchanged(index: VideoIndex) -> bool:
    """Whether the file is still the one that was looked at, as far as its size and times tell."""
    return _stamp(index.info.file) == index.stamp


def _stamp(file: Path) -> Stamp | None:
    try:
        stat = file.stat()
    except OSError:
        return None
    return stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns


class _Held:
    """The indexes used last, by file, whatever its names; a few are held however long they are."""

    def __init__(self) -> None:
        self._by_stamp: OrderedDict[Stamp, VideoIndex] = OrderedDict()
        self._packets = 0

    def take(self, stamp: Stamp | None) -> VideoIndex | None:
        index = self._by_stamp.pop(stamp, None) if stamp is not None else None
        self._packets -= len(index.packets) if index is not None else 0
        return index

    def put(self, stamp: Stamp | None, index: VideoIndex) -> None:
        if stamp is None:
            return
        self.take(stamp)
        self._by_stamp[stamp] = index
        self._packets += len(index.packets)
        while self._packets > HELD_PACKETS and len(self._by_stamp) > HELD_FILES_MIN:
            self._packets -= len(self._by_stamp.popitem(last=False)[1].packets)


_HELD = _Held()


def _index_from_tables(file: Path) -> VideoIndex | None:
    """As `index_by_demuxing`, many times quicker; None where the file is not plain."""
    try:
        with file.open("rb") as raw, mmap.mmap(raw.fileno(), 0, access=mmap.ACCESS_READ) as data:
            tables = read_tables(data)
            if tables is None or len(np.unique(tables.pts)) != len(tables.pts):
                return None
            keys = tables.is_sync.copy()
            synced = np.flatnonzero(keys)
            header, refreshed = _first_header(tables, data, synced), set[int]()
            for first in range(0, len(synced), KEYS_AT_ONCE):
                some = synced[first : first + KEYS_AT_ONCE]
                places = list(zip(tables.offsets[some].tolist(), tables.sizes[some].tolist(), strict=True))
                keys[some] = [
                    starts_clean_at(tables.codec, tables.extradata, data, offset, offset + size)
                    for offset, size in places
                ]
                if header and any(data[at : at + len(header)] != header for at, _ in places):
                    header = b""
                for number in some[~keys[some]].tolist():
                    payload = data[tables.offsets[number] : tables.offsets[number] + tables.sizes[number]]
                    if begins_refresh(tables.codec, tables.extradata, payload):
                        refreshed.add(number)
                if hasattr(data, "madvise"):  # else all of a long file would come to lie in memory
                    data.madvise(mmap.MADV_DONTNEED)
    except (OSError, ValueError):  # a file system that maps nothing into memory, or a file that just went
        return None
    looks = _KNOWN_LOOKS.get(tables.entry) or _open_for_looks(file, tables.entry)
    return replace(_index_of(file, tables, looks, keys, refreshed), header=header)


def _first_header(tables: Tables, data: Any, synced: NDArray[np.int64]) -> bytes:
    if tables.codec != "av1" or not len(synced):
        return b""
    at, size = int(tables.offsets[synced[0]]), int(tables.sizes[synced[0]])
    return own_header(data[at : at + min(size, HEADER_BYTES_MAX)])


def _index_of(
    file: Path, tables: Tables, looks: _Looks, keys: NDArray[np.bool_], refreshed: set[int]
) -> VideoIndex:
    order = np.argsort(tables.pts, kind="stable")  # nearly in order
    frames = np.empty(len(order), dtype=np.int64)
    frames[order] = np.arange(len(order))
    pts = tables.pts[order]
    count, ends = len(pts), (int(pts[0]), int(pts[-1]))
    fps = _rate(tables.rate, tables.time_base, count, ends)
    info = VideoInfo(
        file=file,
        codec=tables.codec,
        width=looks.width,
        height=looks.height,
        pix_fmt=looks.pix_fmt,
        fps=fps,
        time_base=tables.time_base,
        frames=count,
        key_frames=tuple(np.sort(frames[keys]).tolist()),
        has_b_frames=bool((frames != np.arange(count)).any()),
        has_audio=tables.has_audio,
        duration_s=float(count / fps) if fps else 0.0,
        pts=_evenly(pts),
        extradata=tables.extradata,
        is_turned=tables.is_turned,
        leading=leading_frames(tables.codec, frames, keys, tables.is_sync, refreshed),
    )
    packets = PacketTable(frames, tables.pts, tables.dts, tables.sizes, keys, tables.is_sync, tables.offsets)
    return VideoIndex(info, packets, tables.entry, tables.size)


@dataclass(frozen=True)
class _Looks:
    """What the decoder says of a sample description."""

    width: int
    height: int
    pix_fmt: str | None


_KNOWN_LOOKS: dict[bytes, _Looks] = {}


def _open_for_looks(file: Path, entry: bytes) -> _Looks:
    with open_video(file) as (_, stream):
        context = stream.codec_context
        looks = _Looks(context.width, context.height, context.pix_fmt)
    if len(_KNOWN_LOOKS) >= KNOWN_LOOKS_MAX:
        _KNOWN_LOOKS.clear()
    _KNOWN_LOOKS[entry] = looks
    return looks


def index_by_demuxing(file: Path) -> VideoIndex:
    """Every packet, as FFmpeg's demuxer gives them; see `index_video`."""
    with open_video(file) as (container, stream):
        extradata = bytes(stream.codec_context.extradata or b"")
        codec = stream.codec_context.codec.canonical_name
        packets: list[tuple[int, int, int, bool, bool]] = []
        refreshed: set[int] = set()
        for packet in demux(container, stream, file):
            if packet.is_corrupt:
                raise truncated(file, f"packet {len(packets)} is cut off")
            if packet.is_discard:
                continue
            if packet.pts is None or packet.dts is None:
                raise BadRequest(
                    "video-no-times", f"packet {len(packets)} has no time stamp", where=str(file), do=_REWRAP
                )
            is_key = packet.is_keyframe and starts_clean(codec, extradata, packet)
            if packet.is_keyframe and not is_key and begins_refresh(codec, extradata, bytes(packet)):
                refreshed.add(len(packets))
            packets.append((packet.pts, packet.dts, packet.size, is_key, packet.is_keyframe))
        return _assemble(file, container, stream, codec, extradata, packets, refreshed)


_REWRAP = "re-wrap or record the file again; it cannot be addressed by frame"


def _assemble(
    file: Path,
    container: InputContainer,
    stream: VideoStream,
    codec: str,
    extradata: bytes,
    packets: list[tuple[int, int, int, bool, bool]],
    refreshed: set[int],
) -> VideoIndex:
    if not packets:
        raise BadRequest("video-no-frames", "the video holds no frame", where=str(file), do="record it again")
    pts = sorted(p[0] for p in packets)
    rank = {ticks: n for n, ticks in enumerate(pts)}
    if len(rank) != len(pts):
        what = f"{len(pts)} frames share {len(rank)} presentation times"
        raise BadRequest("video-times-repeat", what, where=str(file), do=_REWRAP)
    assert stream.time_base is not None  # a demuxed stream always has one
    fps = _rate(stream.average_rate, stream.time_base, len(pts), (pts[0], pts[-1]))
    order, dts, sizes, keys, syncs = (list(column) for column in zip(*packets, strict=True))
    table = PacketTable(
        np.array([rank[p] for p in order], dtype=np.int64),
        np.array(order, dtype=np.int64),
        np.array(dts, dtype=np.int64),
        np.array(sizes, dtype=np.int64),
        np.array(keys, dtype=bool),
        np.array(syncs, dtype=bool),
    )
    info = VideoInfo(
        file=file,
        codec=codec,
        width=stream.codec_context.width,
        height=stream.codec_context.height,
        pix_fmt=stream.codec_context.pix_fmt,
        fps=fps,
        time_base=stream.time_base,
        frames=len(pts),
        key_frames=tuple(np.sort(table.frames[table.is_key]).tolist()),
        has_b_frames=bool((table.frames != np.arange(len(table))).any()),
        has_audio=bool(container.streams.audio),
        duration_s=float(len(pts) / fps) if fps else 0.0,
        pts=_evenly(np.array(pts, dtype=np.int64)),
        extradata=extradata,
        tracks=len(container.streams.video),
        is_turned=_is_turned(file),
        leading=leading_frames(codec, table.frames, table.is_key, table.is_sync, refreshed),
    )
    return VideoIndex(info, table)


def _is_turned(file: Path) -> bool:
    try:
        with file.open("rb") as raw, mmap.mmap(raw.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return asks_to_be_turned(data)
    except (OSError, ValueError):
        return False


def _evenly(pts: NDArray[np.int64]) -> tuple[int, ...] | range:
    """A range says the same in no space: there may be thousands of files."""
    first, step = int(pts[0]), int(pts[1] - pts[0]) if len(pts) > 1 else 1
    if (np.diff(pts) == step).all():
        return range(first, first + step * len(pts), step)
    return tuple(pts.tolist())


def _rate(claimed: Fraction | None, time_base: Fraction, count: int, ends: tuple[int, int]) -> Fraction:
    # Frames over time, not the container's rate: a header may claim another one.
    if count > 1:
        exact = Fraction(count - 1) / ((ends[1] - ends[0]) * time_base)
        # Tick rounding (a ms time base at 30 fps) is not another rate.
        if claimed and abs(exact / claimed - 1) * (count - 1) < 1:
            return Fraction(claimed)
        return exact
    return Fraction(claimed or 0)


def describe_extradata(extradata: bytes) -> str:
    """A short form for messages."""
    return f"{len(extradata)} bytes, sha256 {hashlib.sha256(extradata).hexdigest()[:12]}"
