"""Opening a video file, and refusing what no decoder can say anything sensible about."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import av
from av.container import InputContainer
from av.packet import Packet
from av.video.stream import VideoStream

from stack.errors import BadRequest

LFS_HEAD = b"version https://git-lfs"
MP4_FIRST_BOXES = (b"ftyp", b"moov", b"mdat", b"free", b"wide", b"skip")


def check_file(file: Path) -> None:
    """Refuse what no decoder can say anything sensible about.

    Raises:
        BadRequest: missing, empty, a Git-LFS pointer, or an MP4 that is cut off.
    """
    if not file.is_file():
        raise BadRequest("video-missing", "the video file is not there", where=str(file), do="fetch it")
    size = file.stat().st_size
    if size == 0:
        raise BadRequest(
            "video-empty", "the video file has 0 bytes", where=str(file), do="fetch or record it again"
        )
    with file.open("rb") as raw:
        if raw.read(len(LFS_HEAD)) == LFS_HEAD:
            raise BadRequest(
                "video-is-lfs-pointer",
                f"a Git-LFS pointer of {size} bytes stands where the video should be",
                where=str(file),
                do="git lfs pull in the dataset's repository",
            )
        _check_boxes(raw, file, size)


def _check_boxes(raw: BinaryIO, file: Path, size: int) -> None:
    """Walk the top-level boxes of an MP4 (ISO/IEC 14496-12, 4.2): each must end inside the file."""
    raw.seek(0)
    start, kinds = 0, []
    while start + 8 <= size:
        raw.seek(start)
        head = raw.read(16)
        length, kind = int.from_bytes(head[:4], "big"), head[4:8]
        if start == 0 and kind not in MP4_FIRST_BOXES:
            return
        if length == 1:
            length = int.from_bytes(head[8:16], "big")
        elif length == 0:
            length = size - start
        if length < 8 or start + length > size:
            name, end = kind.decode("latin-1"), start + length
            raise truncated(file, f"its '{name}' box should end at byte {end}, the file ends at {size}")
        kinds.append(kind)
        start += length
    if b"moov" not in kinds:
        raise truncated(file, "it has no index ('moov' box): the recording was never finished")


def truncated(file: Path, detail: str) -> BadRequest:
    """The error for a file that ends too early."""
    return BadRequest(
        "video-truncated", f"the video is cut off: {detail}", where=str(file), do="fetch or record it again"
    )


@contextmanager
def open_video(file: Path) -> Iterator[tuple[InputContainer, VideoStream]]:
    """Open a file's first video stream; PyAV's errors become one `BadRequest`."""
    check_file(file)
    try:
        container = av.open(str(file), mode="r")
    except (av.FFmpegError, OSError, ValueError) as error:
        raise BadRequest(
            "video-not-readable", f"this is no readable video: {error}", where=str(file), do="fetch it again"
        ) from error
    with container:
        if not container.streams.video:
            what = "the file has no video stream"
            raise BadRequest("video-no-stream", what, where=str(file), do="fetch it again")
        stream = container.streams.video[0]
        # Work is spread over processes by the callers, not over a decoder's own threads.
        stream.codec_context.thread_count = 1
        yield container, stream


def demux(container: InputContainer, stream: VideoStream, file: Path) -> Iterator[Packet]:
    """The stream's packets from the current place on, without the empty one at the end."""
    try:
        for packet in container.demux(stream):
            if packet.size:
                yield packet
    except av.FFmpegError as error:
        raise truncated(file, str(error)) from error
