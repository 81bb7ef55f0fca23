"""Pictures made anew at the size a policy takes, a key frame every few frames: small, quick in any order."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from av.video.frame import VideoFrame
from numpy.typing import NDArray

from stack.dataset.model import ClipRef
from stack.dataset.progress import Log, Progress
from stack.dataset.video import VideoInfo, join
from stack.dataset.video_decode import decode
from stack.dataset.video_encode import Colours, Encoding, encode_file
from stack.dataset.video_index import index_video
from stack.dataset.video_mux import exact_rate, whole_file, why_badly_timed
from stack.dataset.video_segments import check_clip
from stack.errors import BadRequest, WorkFailed

CRF = 18
# Written into the file, so that every decoder turns the numbers back the same way: BT.601, video range.
COLOURS = Colours(range=1, matrix=6)


@dataclass(frozen=True)
class TranscodeJob:
    """One clip on its way into a file of its own."""

    clip: ClipRef
    out: Path
    fps: float
    size: int
    gop: int
    codec: str = "h264"
    crf: int = CRF


def transcode(
    clips: Sequence[ClipRef],
    out: Path,
    fps: float,
    *,
    size: int,
    gop: int = 2,
    codec: str = "h264",
    crf: int = CRF,
    log: Log = lambda _: None,
) -> VideoInfo:
    """Encode clips anew, one after another, into one MP4 of `size` x `size` pictures.

    Every clip starts at a key frame, and none of its pictures is built from another clip's. Pictures keep
    their shape, as `resize_with_pad` says.

    Args:
        gop: frames from one key frame to the next.
        crf: the encoder's quality; lower is better.
        log: takes a line every few seconds: how much of how much, at what rate, and the time left.

    Raises:
        BadRequest: no clips, or one that cannot be read.
        NotAble: there is no encoder for `codec`.
        WorkFailed: encoding or writing failed.
    """
    if not clips:
        raise BadRequest("video-no-clips", "there is nothing to encode", where=str(out))
    folder = out.with_name(f".{out.stem}.clips")
    progress = Progress(log, "clips", items=len(clips), total=sum(c.count for c in clips), unit="frames")
    try:
        parts = []
        for number, clip in enumerate(clips):
            part = folder / f"{number:06d}.mp4"
            transcode_clip(TranscodeJob(clip, part, fps, size, gop, codec, crf))
            parts.append(ClipRef(part, 0, clip.count))
            progress.step(clip.count)
        progress.end()
        return join(parts, out, fps)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def transcode_clip(job: TranscodeJob) -> VideoInfo:
    """Encode one clip anew into a file of its own; see `transcode`."""
    check_clip(job.clip)
    rate = exact_rate(job.fps)
    encoding = Encoding(job.codec, job.size, job.size, "yuv420p", job.gop, job.crf, COLOURS)
    with whole_file(job.out) as partial:
        encode_file(pictures(job), partial, encoding, rate)
        got = index_video(partial)
        wrong = why_badly_timed(got, rate)
        if got.info.frames != job.clip.count:
            wrong = f"{job.clip.count} frames were meant and {got.info.frames} are there"
        if wrong is not None:
            what = f"not what was meant was written: {wrong}"
            raise WorkFailed("video-encode-check-failed", what, where=str(job.out))
    return index_video(job.out).info


def pictures(job: TranscodeJob) -> Iterator[VideoFrame]:
    """What goes into the encoder, as yuv420p."""
    numbers = range(job.clip.start, job.clip.start + job.clip.count)
    for picture in decode(job.clip.file, numbers):
        frame = VideoFrame.from_ndarray(resize_with_pad(picture, job.size), format="rgb24")
        yield frame.reformat(format="yuv420p", dst_colorspace="ITU601")


def resize_with_pad(picture: NDArray[np.uint8], size: int) -> NDArray[np.uint8]:
    """Fit a picture into a square without changing its shape, the rest black.

    The rule of pi0.5, `resize_with_pad_torch` in lerobot (modeling_pi05.py up to 0.5, vla_utils.py in 0.6)
    and openpi: sides shrunk or grown by one ratio and cut to whole pixels, bilinear between the four nearest
    pixels (corners not aligned, no smoothing first), the odd line of padding at the bottom and right.

    Black becomes the -1 that openpi's and lerobot 0.6's models see there. lerobot 0.4 pads with a value that
    no picture can hold (-1 before scaling, -3 after): with transcoded pictures its model sees -1 too.

    Args:
        picture: (H, W, 3) uint8.

    Returns:
        (size, size, 3) uint8, rounded to the nearest level.
    """
    height, width = picture.shape[:2]
    rows, columns = resized_shape(height, width, size)
    if (rows, columns) == (height, width):
        small = picture
    else:
        top, bottom, down = _neighbours(height, rows)
        left, right, across = _neighbours(width, columns)
        lines = _blend(picture[top], picture[bottom], down[:, None, None])
        small = np.rint(_blend(lines[:, left], lines[:, right], across[None, :, None])).astype(np.uint8)
    square = np.zeros((size, size, 3), dtype=np.uint8)
    first, start = (size - rows) // 2, (size - columns) // 2
    square[first : first + rows, start : start + columns] = small
    return square


def resized_shape(height: int, width: int, size: int) -> tuple[int, int]:
    """Rows and columns of a picture that is fitted into a square."""
    ratio = max(width / size, height / size)
    return int(height / ratio), int(width / ratio)


@lru_cache(maxsize=16)
def _neighbours(given: int, wanted: int) -> tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.float32]]:
    """For each pixel of a line: the two given ones that it lies between, and how far along."""
    place = np.maximum((np.arange(wanted) + 0.5) * (given / wanted) - 0.5, 0.0)
    before = place.astype(np.intp)
    return before, np.minimum(before + 1, given - 1), (place - before).astype(np.float32)


def _blend(a: NDArray[Any], b: NDArray[Any], part: NDArray[np.float32]) -> NDArray[np.float32]:
    first = a.astype(np.float32)
    first += (b - first) * part
    return first
