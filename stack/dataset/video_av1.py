"""AV1 sequence headers (AV1 Bitstream & Decoding Process Specification, 5.5).

A key frame whose packet begins with its own sequence header starts a new coded video sequence, so that
pictures of another encoder can stand before it without a bit of the copied packets changing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

HEADER_OBU = 0x0A  # type 1, with a size field, without an extension (5.3.2)
DELIMITER = b"\x12\x00"  # a temporal delimiter, which MP4 leaves out
ONE_BYTE = 0x80  # a size below it takes one byte (4.10.5)
HEADER_BYTES_MAX = 2 + ONE_BYTE
SELECT = 2
IDENTITY = (1, 13, 0)  # RGB stored as it is, which has no chroma planes at half size (6.4.2)


@dataclass(frozen=True)
class Sequence:
    """What all pictures of a sequence share; two whose values differ are of different videos.

    `colours` are primaries, transfer and matrix (ISO/IEC 23091-2).
    """

    width: int
    height: int
    bit_depth: int
    colours: tuple[int, int, int]
    is_full_range: bool


def own_header(packet: bytes) -> bytes:
    """The sequence header that a packet begins with, as it stands there; empty where there is none."""
    if len(packet) < 2 or packet[0] != HEADER_OBU or packet[1] >= ONE_BYTE:
        return b""
    end = 2 + packet[1]
    return packet[:end] if len(packet) >= end else b""


def parse_header(header: bytes) -> Sequence | None:
    """What a sequence header says; None for one that encoders here do not make.

    They make the main profile with chroma at half size, one operating point and no timing.
    """
    try:
        return _parse(_bits(header[2:]))
    except StopIteration:
        return None


def _bits(payload: bytes) -> Iterator[int]:
    return (byte >> shift & 1 for byte in payload for shift in range(7, -1, -1))


def _take(bits: Iterator[int], count: int) -> int:
    number = 0
    for _ in range(count):
        number = number << 1 | next(bits)
    return number


def _parse(bits: Iterator[int]) -> Sequence | None:
    if _take(bits, 6):  # profile, still picture, reduced header, timing
        return None
    has_delay = _take(bits, 1)
    if _take(bits, 5 + 12):  # further operating points, or layers
        return None
    if _take(bits, 5) > 7:  # levels from 4.0 on have a tier
        _take(bits, 1)
    if has_delay and _take(bits, 1):
        _take(bits, 4)
    widths = _take(bits, 4) + 1, _take(bits, 4) + 1
    width, height = (_take(bits, n) + 1 for n in widths)
    if _take(bits, 1):  # frame numbers
        _take(bits, 7)
    _take(bits, 3 + 4)
    has_order = _take(bits, 1)
    if has_order:
        _take(bits, 2)
    screen = SELECT if _take(bits, 1) else _take(bits, 1)
    if screen and not _take(bits, 1):
        _take(bits, 1)
    if has_order:
        _take(bits, 3)
    _take(bits, 3)
    bit_depth = 10 if _take(bits, 1) else 8
    if _take(bits, 1):  # no chroma
        return None
    told = _take(bits, 1)
    colours = (_take(bits, 8), _take(bits, 8), _take(bits, 8)) if told else (2, 2, 2)
    if colours == IDENTITY:
        return None
    is_full_range = bool(_take(bits, 1))
    if _take(bits, 2):  # a chroma position that our encoder does not write
        return None
    return Sequence(width, height, bit_depth, colours, is_full_range)
