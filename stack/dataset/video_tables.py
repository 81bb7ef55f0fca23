"""A file's packets from the sample tables of its MP4 (ISO/IEC 14496-12), without opening a demuxer.

Only plain files are read: one H.264, HEVC or AV1 track, no fragments, an edit list that hides nothing. What
is not plain is left to FFmpeg, and so is everything that is wrong.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

CODECS = {b"avc1": "h264", b"hvc1": "hevc", b"hev1": "hevc", b"av01": "av1"}
CONFIGURATIONS = {"h264": b"avcC", "hevc": b"hvcC", "av1": b"av1C"}
AV1_CONFIGURATION_BYTES = 4  # what follows is the sequence header
VISUAL_ENTRY_BYTES = 86  # of a VisualSampleEntry, before the boxes in it (12.1.3)
BOX_HEAD_BYTES = 8
UPRIGHT = struct.pack(">9I", 1 << 16, 0, 0, 0, 1 << 16, 0, 0, 0, 1 << 30)  # 6.2.2
BIT_RATE = b"btrt"  # differs from file to file, and tells a decoder nothing
Bytes = Any  # bytes, a view of them, or mmap: what can be sliced
Children = dict[bytes, list[Bytes]]  # kind -> contents of the boxes of that kind


class NotPlain(Exception):
    """The file is one that FFmpeg should read."""


@dataclass(frozen=True)
class Tables:
    """A video track in decode order.

    Attributes:
        entry: the sample description, without the bit rate: what the decoder is told.
        size: the track header's width and height, two 16.16 numbers.
        is_turned: whether its matrix turns, mirrors or stretches the pictures.
        pts, dts: in ticks of `time_base`, as FFmpeg gives them.
        offsets, sizes: where each sample lies in the file, in bytes.
        is_sync: which samples the file calls sync samples.
        rate: samples over the track's duration.
    """

    codec: str
    entry: bytes
    extradata: bytes
    time_base: Fraction
    rate: Fraction
    has_audio: bool
    pts: NDArray[np.int64]
    dts: NDArray[np.int64]
    offsets: NDArray[np.int64]
    sizes: NDArray[np.int64]
    is_sync: NDArray[np.bool_]
    size: bytes
    is_turned: bool


def read_tables(data: Bytes) -> Tables | None:
    """The tables of a plain file; None where it is not plain.

    Args:
        data: the whole file, as bytes or mapped into memory.
    """
    try:
        return _read(data)
    except (NotPlain, struct.error, IndexError, KeyError, ValueError, OverflowError):
        return None


def _read(data: Bytes) -> Tables:
    moov = None
    for kind, start, end in _boxes(data, 0, len(data)):
        if kind in (b"moof", b"sidx"):
            raise NotPlain
        if kind == b"moov":
            moov = memoryview(bytes(data[start:end]))  # parts of a view are no copies
    if moov is None:
        raise NotPlain
    parts = _children(moov)
    if b"mvex" in parts:
        raise NotPlain
    movie = _only(parts, b"mvhd")
    movie_scale = _u32(movie, 20 if movie[0] == 1 else 12)
    tracks = [_children(track) for track in parts.get(b"trak", ())]
    media = [_children(_only(track, b"mdia")) for track in tracks]
    kinds = [_only(own, b"hdlr")[8:12] for own in media]
    if kinds.count(b"vide") != 1:
        raise NotPlain
    at = kinds.index(b"vide")
    return _track(tracks[at], media[at], movie_scale, len(data), b"soun" in kinds)


def _track(track: Children, media: Children, movie_scale: int, file_bytes: int, has_audio: bool) -> Tables:
    header = _only(media, b"mdhd")
    scale = _u32(header, 20 if header[0] == 1 else 12)
    table = _children(_only(_children(_only(media, b"minf")), b"stbl"))
    codec, entry, extradata = _description(_only(table, b"stsd"))
    sizes = _sizes(_only(table, b"stsz"), file_bytes)
    count = len(sizes)
    deltas = _runs(_only(table, b"stts"), count)
    dts = np.cumsum(deltas) - deltas
    shifts = _at_most_one(table, b"ctts")
    pts = dts if shifts is None else dts + _runs(shifts, count)
    offsets = _offsets(table, sizes)
    if count == 0 or (sizes <= 0).any() or (pts < dts).any() or int((offsets + sizes).max()) > file_bytes:
        raise NotPlain
    first = _first_shown(track, pts, scale, movie_scale)
    sync = np.ones(count, dtype=bool)
    listed = _at_most_one(table, b"stss")
    if listed is not None:
        sync[:] = False
        sync[np.frombuffer(listed, ">u4", _u32(listed, 4), 8).astype(np.int64) - 1] = True
    return Tables(
        codec,
        entry,
        extradata,
        Fraction(1, scale),
        Fraction(count * scale, int(deltas.sum())),
        has_audio,
        pts - first,
        dts - first,
        offsets,
        sizes,
        sync,
        bytes(_only(track, b"tkhd")[-8:]),
        _is_turned(_only(track, b"tkhd")),
    )


def asks_to_be_turned(data: Bytes) -> bool:
    """Whether the matrix of an MP4's first video track is another than upright; no for any other file."""
    try:
        moov = next((bytes(data[a:b]) for kind, a, b in _boxes(data, 0, len(data)) if kind == b"moov"), b"")
        tracks = [_children(track) for track in _children(memoryview(moov)).get(b"trak", ())]
        shown = [t for t in tracks if _only(_children(_only(t, b"mdia")), b"hdlr")[8:12] == b"vide"]
        return bool(shown) and _is_turned(_only(shown[0], b"tkhd"))
    except (NotPlain, IndexError):
        return False


def _is_turned(header: Bytes) -> bool:
    """The last fields of a track header are a matrix of nine numbers, width and height (8.3.2)."""
    return bool(header[-44:-8] != UPRIGHT)


def make_upright(file: Path) -> None:
    """Take a turn mark off a file of one track that FFmpeg wrote, which hands it on from the source's header.

    Raises:
        OSError: the file cannot be written.
    """
    with file.open("r+b") as raw:
        at, end = 0, raw.seek(0, os.SEEK_END)
        for wanted in (b"moov", b"trak", b"tkhd"):
            at, end = _find(raw, wanted, at, end)
        raw.seek(end - 44)
        raw.write(UPRIGHT)


def _find(raw: BinaryIO, wanted: bytes, at: int, end: int) -> tuple[int, int]:
    """Where the content of the first box of a kind begins and ends."""
    while at + BOX_HEAD_BYTES <= end:
        raw.seek(at)
        head = raw.read(16)
        length, size = int.from_bytes(head[:4], "big"), BOX_HEAD_BYTES
        if length == 1:
            length, size = int.from_bytes(head[8:16], "big"), 16
        if head[4:8] == wanted:
            return at + size, at + length
        at += max(length, BOX_HEAD_BYTES)
    raise OSError(f"there is no '{wanted.decode()}' box")


def _first_shown(track: Children, pts: NDArray[np.int64], scale: int, movie_scale: int) -> int:
    """The time that the edit list makes 0; refuses lists that hide, delay or repeat anything."""
    outer = _at_most_one(track, b"edts")
    edits = _at_most_one(_children(outer), b"elst") if outer is not None else None
    if edits is None:
        return 0
    wide = edits[0] == 1
    if _u32(edits, 4) != 1:
        raise NotPlain
    length, start, rate = struct.unpack_from(">QqI" if wide else ">IiI", edits, 8)
    end = start + length * scale // movie_scale
    if rate != 1 << 16 or start != int(pts.min()) or int(pts.max()) >= end:
        raise NotPlain
    return int(start)


def _description(stsd: Bytes) -> tuple[str, bytes, bytes]:
    if _u32(stsd, 4) != 1:
        raise NotPlain
    entry = bytes(stsd[8 : 8 + _u32(stsd, 8)])
    codec = CODECS[bytes(entry[4:8])]
    extradata, told = b"", entry[:VISUAL_ENTRY_BYTES]
    for kind, start, end in _boxes(entry, VISUAL_ENTRY_BYTES, len(entry)):
        if kind == CONFIGURATIONS[codec]:
            extradata = entry[start:end]
        if kind != BIT_RATE:
            told += entry[start - BOX_HEAD_BYTES : end]
    if not extradata or (codec == "av1" and len(extradata) <= AV1_CONFIGURATION_BYTES):
        raise NotPlain
    return codec, told, extradata


def _sizes(stsz: Bytes, file_bytes: int) -> NDArray[np.int64]:
    fixed, count = struct.unpack_from(">II", stsz, 4)
    if count > file_bytes:
        raise NotPlain
    if fixed:
        return np.full(count, fixed, dtype=np.int64)
    return np.frombuffer(stsz, ">u4", count, 12).astype(np.int64)


def _runs(box: Bytes, count: int) -> NDArray[np.int64]:
    """One value a sample from (how many, value) pairs; a negative value is not plain."""
    pairs = np.frombuffer(box, ">u4", 2 * _u32(box, 4), 8).reshape(-1, 2).astype(np.int64)
    if int(pairs[:, 0].sum()) != count or (pairs[:, 1] >= 1 << 31).any():
        raise NotPlain
    return np.repeat(pairs[:, 1], pairs[:, 0])


def _offsets(table: Children, sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Where each sample lies: samples follow one another inside a chunk (8.7.4, 8.7.5)."""
    narrow = _at_most_one(table, b"stco")
    box = narrow if narrow is not None else _only(table, b"co64")
    kind = ">u8" if narrow is None else ">u4"
    chunks = np.frombuffer(box, kind, _u32(box, 4), 8).astype(np.int64)
    stsc = _only(table, b"stsc")
    runs = np.frombuffer(stsc, ">u4", 3 * _u32(stsc, 4), 8).reshape(-1, 3).astype(np.int64)
    lengths = np.diff([*(runs[:, 0] - 1), len(chunks)])
    samples = np.repeat(runs[:, 1], lengths)
    if len(samples) != len(chunks) or int(samples.sum()) != len(sizes):
        raise NotPlain
    before = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    first = np.concatenate([[0], np.cumsum(samples)[:-1]])
    places: NDArray[np.int64] = np.repeat(chunks - before[first], samples) + before
    return places


def _boxes(data: Bytes, at: int, end: int) -> Iterator[tuple[bytes, int, int]]:
    """(kind, start of content, end) of each box."""
    while at + 8 <= end:
        length, head = _u32(data, at), 8
        if length == 1:
            length, head = int.from_bytes(data[at + 8 : at + 16], "big"), 16
        elif length == 0:
            length = end - at
        if length < head or at + length > end:
            raise NotPlain
        yield bytes(data[at + 4 : at + 8]), at + head, at + length
        at += length


def _children(data: Bytes) -> Children:
    found: Children = {}
    for kind, start, end in _boxes(data, 0, len(data)):
        found.setdefault(kind, []).append(data[start:end])
    return found


def _at_most_one(boxes: Children, kind: bytes) -> Bytes | None:
    found = boxes.get(kind, [])
    if len(found) > 1:
        raise NotPlain
    return found[0] if found else None


def _only(boxes: Children, kind: bytes) -> Bytes:
    found = _at_most_one(boxes, kind)
    if found is None:
        raise NotPlain
    return found


def _u32(data: Bytes, at: int) -> int:
    return int.from_bytes(data[at : at + 4], "big")
