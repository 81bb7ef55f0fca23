"""What the track headers of an MP4 say of how it is shown (ISO/IEC 14496-12, 8.3.2 and 8.4.3)."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from stack.dataset.video_open import MP4_FIRST_BOXES

ONE = 1 << 16  # 1.0 in 16.16 fixed point
MATRIX_BYTES = 36
WALKED_MOST = 10_000  # boxes; a damaged file may hold any number


def is_mp4(file: Path) -> bool:
    """Whether a file begins as an MP4 does, or cannot be opened."""
    try:
        with file.open("rb") as raw:
            return raw.read(8)[4:] in MP4_FIRST_BOXES
    except OSError:
        return True


@dataclass(frozen=True)
class VideoTracks:
    """How many video tracks a file has, and how a player shows the first: None for upright, as stored."""

    count: int
    turn: str | None


def video_tracks(file: Path) -> VideoTracks | None:
    """What the headers of an MP4 say; None for any other file and for a damaged one."""
    try:
        with file.open("rb") as raw:
            found = [
                track
                for track in _tracks(raw, file.stat().st_size)
                if _content(raw, track, b"mdia", b"hdlr")[8:12] == b"vide"
            ]
            return VideoTracks(len(found), _turn(_content(raw, found[0], b"tkhd"))) if found else None
    except (OSError, struct.error, ValueError):
        return None


def _turn(header: bytes) -> str | None:
    """What the matrix does, in words: (a b; c d) maps (x, y) to (ax + cy, bx + dy), y pointing down."""
    at = 52 if header[:1] == b"\1" else 40  # version 1 has wider times
    a, b, _, c, d = struct.unpack_from(">5i", header[at : at + MATRIX_BYTES])
    if (a, b, c, d) == (ONE, 0, 0, ONE) or (a, b, c, d) == (0, 0, 0, 0):
        return None
    if a * d - b * c < 0:
        return "mirrored"
    degrees = round(math.degrees(math.atan2(b, a))) % 360
    return f"turned clockwise by {degrees} degrees" if degrees else "stretched"


def _tracks(raw: BinaryIO, size: int) -> Iterator[tuple[int, int]]:
    for kind, start, end in _boxes(raw, 0, size):
        if kind == b"moov":
            yield from ((s, e) for inner, s, e in _boxes(raw, start, end) if inner == b"trak")


def _content(raw: BinaryIO, inside: tuple[int, int], *way: bytes) -> bytes:
    """The content of a small box, found by its kind in the boxes of these kinds."""
    for wanted in way:
        inside = next(((s, e) for kind, s, e in _boxes(raw, *inside) if kind == wanted), (0, 0))
    raw.seek(inside[0])
    return raw.read(min(inside[1] - inside[0], 1024))


def _boxes(raw: BinaryIO, at: int, end: int) -> Iterator[tuple[bytes, int, int]]:
    """(kind, start of content, end) of each box, until one does not fit."""
    for _ in range(WALKED_MOST):
        raw.seek(at)
        head = raw.read(16)
        if at + 8 > end or len(head) < 8:
            return
        length, before = int.from_bytes(head[:4], "big"), 8
        if length == 1:
            length, before = int.from_bytes(head[8:16], "big"), 16
        elif length == 0:
            length = end - at
        if length < before or at + length > end:
            return
        yield head[4:8], at + before, at + length
        at += length
