"""Where decoding can begin, and which pictures cannot be shown by who begins at the key frame before them."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

import numpy as np
from av.packet import Packet
from numpy.typing import NDArray

from stack.dataset.video_h264 import recovery_frames


def starts_clean(codec: str, extradata: bytes, packet: Packet) -> bool:
    """Whether decoding can start at this key packet whatever came before it.

    H.264 and HEVC also mark open-GOP pictures as key frames; only IDR (H.264 NAL type 5) and IDR or BLA
    pictures (HEVC NAL types 16 to 20) reset the decoder (ITU-T H.264 7.4.1.2.4, H.265 7.4.2.2).
    """
    payload = bytes(packet)
    return starts_clean_at(codec, extradata, payload, 0, len(payload))


def starts_clean_at(codec: str, extradata: bytes, payload: Any, at: int, end: int) -> bool:
    """As `starts_clean`, of a packet that lies at bytes `at` to `end`."""
    if codec == "h264" and len(extradata) > 6 and extradata[0] == 1:
        length_size = (extradata[4] & 3) + 1
        while at + length_size < end:  # as `_unit_heads`, for the most frequent codec
            head = at + length_size
            if payload[head] & 0x1F == 5:
                return True
            at = head + int.from_bytes(payload[at:head], "big")
        return False
    if codec == "hevc" and len(extradata) > 22 and extradata[0] == 1:
        heads = _unit_heads(payload, at, end, (extradata[21] & 3) + 1)
        return any((unit >> 1) & 0x3F in range(16, 21) for unit in heads)
    return True


def _unit_heads(payload: Any, at: int, end: int, length_size: int) -> Iterator[int]:
    """First byte of each NAL unit of a length-prefixed packet (ISO/IEC 14496-15)."""
    while at + length_size < end:
        length = int.from_bytes(payload[at : at + length_size], "big")
        at += length_size
        yield payload[at]
        at += length


def leading_frames(
    codec: str,
    frames: NDArray[np.int64],
    is_key: NDArray[np.bool_],
    is_sync: NDArray[np.bool_],
    refreshed: Collection[int],
) -> tuple[int, ...]:
    """`VideoInfo.leading` from columns of a `PacketTable`: what leads, and what is refreshed part by part.

    In an open group of pictures some come behind the key frame in the file and are shown before it. H.264 has
    none behind an IDR picture. In HEVC what leads an IDR or BLA picture may need only that (RADL, ITU-T H.265
    3.111). Other codecs tell no such kinds apart: what leads is taken to need more.

    Args:
        refreshed: packets marked as key frames at which a refresh begins (`begins_refresh`). Decoders leave
            out as many pictures as the file says, and some after these came out wrong: none is counted on.
    """
    synced = np.flatnonzero(is_sync)
    if not len(synced):
        return ()
    last = np.searchsorted(synced, np.arange(len(frames)), side="right") - 1
    behind = synced[np.maximum(last, 0)]
    lost = frames < frames[behind]
    if codec == "hevc":
        lost &= ~is_key[behind]
    lost |= np.isin(behind, list(refreshed))
    return tuple(np.sort(frames[lost & (last >= 0)]).tolist())


def begins_refresh(codec: str, extradata: bytes, payload: bytes) -> bool:
    """Whether pictures are not right yet when decoding begins at a packet, but are refreshed part by part.

    Args:
        payload: a packet that the file marks as a key frame, and that resets no decoder.
    """
    if codec != "h264" or len(extradata) < 5 or extradata[0] != 1:
        return False
    return recovery_frames(payload, (extradata[4] & 3) + 1) > 0
