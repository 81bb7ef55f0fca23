"""The units that a coded picture is made of, walked through without decoding: do they fill it exactly?

In an MP4, H.264 and HEVC pictures are NAL units, each behind its length (ISO/IEC 14496-15, 5.3.3 and 8.3.3),
and AV1 pictures are OBUs that tell theirs (AV1 specification, 5.3). A hole in a file breaks the chain, and so
do bytes of another one; and three zero bytes never stand in a NAL unit (ISO/IEC 14496-10, 7.4.1). What keeps
the lengths and changes only what lies between them, as a flipped bit does, is seen by decoding alone.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from stack.dataset.video_model import VideoInfo

LENGTH_SIZE_AT = {"h264": 4, "hevc": 21}  # in avcC and hvcC: the low two bits, plus one
LEB128_BYTES_MAX = 8
HOLE_BYTES = 3
FORBIDDEN = 0x80  # a bit that is never set, in the first byte of either
HAS_EXTENSION, HAS_SIZE, RESERVED = 0x04, 0x02, 0x01
OBU_KINDS = (1, 2, 3, 4, 5, 6, 7, 8, 15)
FRAME_HEADER, FRAME = 3, 6  # one of them is in each picture


def first_broken(info: VideoInfo, block: bytes, ends: NDArray[np.int64]) -> int | None:
    """The number of the first picture whose units do not fill it; None where all do, or the codec has none.

    Args:
        block: coded pictures one behind another.
        ends: (n,) where each of them ends in `block`.
    """
    at = LENGTH_SIZE_AT.get(info.codec)
    if at is not None and len(info.extradata) > at and info.extradata[0] == 1:
        return _broken_nals(info.codec, block, ends, (info.extradata[at] & 3) + 1)
    return _broken_obus(block, ends) if info.codec == "av1" else None


def _broken_nals(codec: str, block: bytes, ends: NDArray[np.int64], length_size: int) -> int | None:
    data = np.frombuffer(block, np.uint8)
    at: NDArray[Any] = np.concatenate([[0], ends[:-1]])
    picture: NDArray[Any] = np.arange(len(ends))
    broken = at >= ends
    slices: list[NDArray[Any]] = []  # (2, n): from where to where
    while len(picture):
        stop = ends[picture]
        fits = at + length_size < stop
        broken[picture[~fits]] = True
        at, picture, stop = at[fits], picture[fits], stop[fits]
        length = np.zeros(len(at), np.int64)
        for n in range(length_size):
            length = length << 8 | data[at + n]
        first = at + length_size
        head = data[first]
        fits = (length > 0) & (first + length <= stop) & (head & FORBIDDEN == 0)
        broken[picture[~fits]] = True
        kinds = head & 0x1F if codec == "h264" else head >> 1 & 0x3F
        is_slice = fits & ((kinds >= 1) & (kinds <= 5) if codec == "h264" else kinds < 32)
        slices.append(np.stack([first, first + length])[:, is_slice])
        at, picture = (first + length)[fits], picture[fits]
        more = at < ends[picture]
        at, picture = at[more], picture[more]
    if slices:
        broken[_holes(data, np.concatenate(slices, axis=1), ends)] = True
    return _first(broken)


def _holes(data: NDArray[np.uint8], units: NDArray[Any], ends: NDArray[np.int64]) -> NDArray[Any]:
    """Pictures with three zero bytes in one of these units (2, n), from where to where."""
    # Three in a row hold a pair at an even place, which is quickly looked for.
    even = 2 * np.flatnonzero(data[: len(data) // 2 * 2].view(np.uint16) == 0)
    padded = np.concatenate([data, np.ones(2, np.uint8)])
    holes: NDArray[Any] = np.concatenate([even[padded[even + 2] == 0], even[padded[even - 1] == 0] - 1])
    if not len(holes) or not units.size:
        return holes[:0]
    units = units[:, np.argsort(units[0])]
    own = np.searchsorted(units[0], holes, side="right") - 1
    first, stop = units[:, own]
    # Zeros at the end are what some writers fill up with.
    is_inside = (own >= 0) & (first <= holes) & (holes + HOLE_BYTES < stop) & (data[stop - 1] != 0)
    found: NDArray[Any] = np.searchsorted(ends, holes[is_inside], side="right")
    return found


def _broken_obus(block: bytes, ends: NDArray[np.int64]) -> int | None:
    data = np.frombuffer(block + bytes(LEB128_BYTES_MAX + 2), np.uint8)
    at: NDArray[Any] = np.concatenate([[0], ends[:-1]])
    picture: NDArray[Any] = np.arange(len(ends))
    broken = at >= ends
    has_frame = np.zeros(len(ends), dtype=bool)
    at, picture = at[~broken], picture[~broken]
    while len(picture):
        stop = ends[picture]
        head = data[at]
        kind = head >> 3 & 0xF
        has_frame[picture[(kind == FRAME_HEADER) | (kind == FRAME)]] = True
        at = at + 1 + ((head & HAS_EXTENSION) > 0)
        is_told = (head & HAS_SIZE) > 0
        size: NDArray[Any] = np.zeros(len(at), np.int64)
        going = is_told.copy()
        for n in range(LEB128_BYTES_MAX):
            byte = data[np.minimum(at, len(data) - 1)].astype(np.int64)
            size = np.where(going, size | (byte & 0x7F) << 7 * n, size)
            at = at + going
            going &= byte & 0x80 > 0
        at = np.where(is_told, at + size, stop)  # without a size, it is the last one
        fits = (head & (FORBIDDEN | RESERVED) == 0) & np.isin(kind, OBU_KINDS) & ~going & (at <= stop)
        broken[picture[~fits]] = True
        more = fits & (at < stop)
        at, picture = at[more], picture[more]
    return _first(broken | ~has_frame)


def _first(broken: NDArray[np.bool_]) -> int | None:
    return int(np.argmax(broken)) if broken.any() else None
