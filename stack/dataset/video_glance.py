"""A few pictures of a clip, for next to nothing: key frames, decoded one by one without opening the file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

import av
import numpy as np
from av.video.codeccontext import VideoCodecContext
from numpy.typing import NDArray

from stack.dataset.model import ClipRef
from stack.dataset.stats import thinning
from stack.dataset.video_decode import decode
from stack.dataset.video_index import index_video
from stack.dataset.video_model import VideoIndex

MORE_PICTURES = 3
DECODERS = {"h264": "h264", "hevc": "hevc"}  # AV1's decoder keeps pictures back; it goes the common way


def glance_frames(clip: ClipRef) -> tuple[list[int], list[int]]:
    """The picture to look at first, and more where it leaves a doubt, as numbers of the clip's file.

    The first is the middle one of the clip's key frames, or its first frame where it has none. The others are
    evenly spread key frames, both ends among them.
    """
    keys = index_video(clip.file).info.keys_within(clip.start, clip.start + clip.count)
    if not keys:
        return [clip.start], []
    first = keys[len(keys) // 2]
    places = np.linspace(0, len(keys) - 1, min(MORE_PICTURES, len(keys)))
    return [first], sorted({keys[round(float(place))] for place in places} - {first})


def glance(clip: ClipRef, numbers: Sequence[int]) -> Iterator[NDArray[np.uint8]]:
    """Pictures (h, w, 3) uint8 RGB, thinned as those that statistics are taken of.

    Raises:
        BadRequest: one cannot be decoded.
    """
    index = index_video(clip.file)
    direct = _decode_keys(index, numbers)
    for picture in direct if direct is not None else decode(clip.file, numbers):
        step = thinning(*picture.shape[:2])
        yield picture[::step, ::step]


def _decode_keys(index: VideoIndex, numbers: Sequence[int]) -> list[NDArray[np.uint8]] | None:
    """None where the file, its codec or a picture asks for the common way."""
    info, packets = index.info, index.packets
    if packets.offsets is None or info.codec not in DECODERS or not all(map(info.is_key, numbers)):
        return None
    decoder = _decoder(info.codec, info.extradata)
    found = []
    try:
        with info.file.open("rb") as raw:
            for number in numbers:
                place = index.position(number)
                raw.seek(int(packets.offsets[place]))
                shown = [
                    *decoder.decode(av.Packet(raw.read(int(packets.sizes[place])))),
                    *decoder.decode(None),
                ]
                decoder.flush_buffers()
                if len(shown) != 1 or shown[0].is_corrupt:
                    return None
                found.append(np.asarray(shown[0].to_ndarray(format="rgb24"), dtype=np.uint8))
    except (av.FFmpegError, OSError):
        return None
    return found


@lru_cache(maxsize=8)
def _decoder(codec: str, extradata: bytes) -> VideoCodecContext:
    context: Any = av.CodecContext.create(DECODERS[codec], "r")
    context.extradata = extradata
    context.thread_count = 1
    decoder: VideoCodecContext = context
    return decoder
