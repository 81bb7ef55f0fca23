"""Pictures that cannot be shown by who begins to decode at the key frame before them."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

from stack.dataset.video_h264 import recovery_frames


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
