"""Pictures by presentation number."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import av
import numpy as np
from av.container import InputContainer
from av.video.frame import VideoFrame
from av.video.stream import VideoStream
from numpy.typing import NDArray

from stack.dataset.video_index import index_video
from stack.dataset.video_model import VideoIndex
from stack.dataset.video_open import demux, open_video
from stack.errors import BadRequest

DECODE_RATHER_THAN_SEEK_FRAMES = 16
_PLANAR_8_BIT = ("yuv420p", "yuv422p", "yuv444p", "yuvj420p", "yuvj422p", "yuvj444p")
_FULL_RANGE = 2  # AVCOL_RANGE_JPEG
# ITU-T H.273: brightness of limited range lies in 16 to 235.
_TO_FULL_RANGE = np.clip(np.rint((np.arange(256) - 16) * 255 / 219), 0, 255).astype(np.uint8)


def decode(file: Path, frames: Sequence[int]) -> Iterator[NDArray[np.uint8]]:
    """Pictures (H, W, 3), uint8 RGB, by presentation number, in the order asked.

    Numbers that ascend are one forward pass; a gap that holds a key frame is jumped over.

    Raises:
        BadRequest: a number is out of range, or the picture cannot be decoded.
    """
    for picture in decode_frames(file, frames):
        yield np.asarray(picture.to_ndarray(format="rgb24"), dtype=np.uint8)


def decode_frames(file: Path, frames: Sequence[int]) -> Iterator[VideoFrame]:
    """As `decode`, in the pixel format of the file."""
    index = index_video(file)
    for frame in frames:
        if not 0 <= frame < index.info.frames:
            what = f"frame {frame} is asked of a video of {index.info.frames} frames"
            raise BadRequest("video-frame-out-of-range", what, where=str(file))
    return _decode(index, frames)


def _decode(index: VideoIndex, frames: Sequence[int]) -> Iterator[VideoFrame]:
    info = index.info
    key_frames = info.key_frames
    number = _numbers(info.pts)
    with open_video(info.file) as (container, stream):
        pictures = _pictures(container, stream, info.file)
        held: tuple[int, VideoFrame] | None = None
        at = 0  # the next frame that `pictures` will give
        for frame in frames:
            if held is None or held[0] != frame:
                before = bisect_right(key_frames, frame) - 1
                key = key_frames[before] if before >= 0 else 0
                if frame < at or key > at + DECODE_RATHER_THAN_SEEK_FRAMES:
                    _seek(container, stream, int(index.packets.dts[index.position(key)]), info.file)
                    pictures = _pictures(container, stream, info.file)
                held = _forward(pictures, frame, number, info.file)
                at = frame + 1
            yield held[1]


def decode_planes(file: Path) -> Iterator[tuple[int, tuple[NDArray[np.uint8], ...] | str]]:
    """Brightness and colour of every picture that can be decoded, in the order the decoder gives them.

    Yields presentation number and planes: (H, W) uint8 brightness, 0 black to 255 white, then the two colour
    planes as coded, often of half the size. Without a conversion to RGB this costs little more than the
    decoder itself. A damaged packet does not end it: its number and the decoder's words come in place of
    the planes, and the next ones are tried.

    Raises:
        BadRequest: the file cannot be opened or indexed.
    """
    index = index_video(file)
    number = _numbers(index.info.pts)
    with open_video(file) as (container, stream):
        packets = container.demux(stream)
        while True:
            try:
                packet = next(packets, None)
                if packet is None:
                    return
                shown = stream.decode(packet)
            except av.FFmpegError as error:
                yield -1, str(error)
                continue
            for picture in shown:
                frame = number(picture.pts) if picture.pts is not None else -1
                if picture.is_corrupt:
                    yield frame, "the decoder calls the picture corrupt"
                elif frame >= 0:
                    yield frame, _planes(picture)


def _numbers(pts: tuple[int, ...] | range) -> Callable[[int], int]:
    """Presentation time -> number of the frame, -1 where none is shown then; even times take no table."""
    if isinstance(pts, range):
        return lambda ticks: pts.index(ticks) if ticks in pts else -1
    known = {ticks: n for n, ticks in enumerate(pts)}
    return lambda ticks: known.get(ticks, -1)


def _planes(picture: VideoFrame) -> tuple[NDArray[np.uint8], ...]:
    if picture.format.name not in _PLANAR_8_BIT:
        picture = picture.reformat(format="yuvj444p")
    shapes = [(picture.height, picture.width)] + [(p.height, p.width) for p in list(picture.planes)[1:3]]
    planes = [
        np.frombuffer(memoryview(plane), np.uint8).reshape(-1, plane.line_size)[:height, :width]
        for plane, (height, width) in zip(picture.planes, shapes, strict=False)
    ]
    if not picture.format.name.startswith("yuvj") and int(picture.color_range) != _FULL_RANGE:
        planes[0] = _TO_FULL_RANGE[planes[0]]
    return tuple(planes)


def _pictures(container: InputContainer, stream: VideoStream, file: Path) -> Iterator[VideoFrame]:
    try:
        for packet in demux(container, stream, file):
            yield from stream.decode(packet)
        yield from stream.decode(None)
    except av.FFmpegError as error:
        raise BadRequest(
            "video-not-decodable", f"decoding failed: {error}", where=str(file), do="fetch or record it again"
        ) from error


def _seek(container: InputContainer, stream: VideoStream, ticks: int, file: Path) -> None:
    try:
        container.seek(ticks, backward=True, stream=stream)
    except av.FFmpegError as error:  # a text that names other files can be read, but only forward
        raise BadRequest(
            "video-not-decodable",
            f"it cannot be entered at a key frame: {error}",
            where=str(file),
            do=f"write it as an MP4: ffmpeg -i {file.name} -c copy OUT.mp4",
        ) from error


def _forward(
    pictures: Iterator[VideoFrame], frame: int, number: Callable[[int], int], file: Path
) -> tuple[int, VideoFrame]:
    for picture in pictures:
        if picture.pts is None or number(picture.pts) < frame:
            continue
        if number(picture.pts) == frame and not picture.is_corrupt:
            return frame, picture
        break
    what = f"frame {frame} cannot be decoded"
    raise BadRequest("video-not-decodable", what, where=str(file), do="fetch or record it again")
