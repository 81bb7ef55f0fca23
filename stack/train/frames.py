"""Frames of videos for random access: files stay open, up to a bound; only what is asked for is converted.

lerobot's own readers open the file anew for each frame, or keep each file that was ever opened; and they
convert every picture from the key frame on. Between two key frames far apart, that conversion is most of the
work; decoding is the rest.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import av
import numpy

from stack.errors import WorkFailed

OPEN_FILES = 16
# Where the frame asked for is so little ahead of the last one, decoding on is cheaper than a seek.
DECODE_ON_S = 0.3
BACK_S = 0.5  # to an earlier key frame; twice as far each time


@dataclass
class _Open:
    """An open video, and the time of the last picture that it gave."""

    container: Any
    stream: Any
    pictures: Any = None
    last: Any = None
    lock: threading.Lock = field(default_factory=threading.Lock)


class FrameReader:
    """Stands in for lerobot's `decode_video_frames`, with the same result, bit by bit.

    In open groups of pictures it gives those that lerobot's cannot fetch, too.

    Args:
        open_files: at most so many videos are kept open in a process.
    """

    def __init__(self, open_files: int = OPEN_FILES) -> None:
        self.open_files = open_files
        self._open: OrderedDict[str, _Open] = OrderedDict()
        self._lock = threading.Lock()
        self._process = os.getpid()
        self._parents: list[Any] = []

    def __len__(self) -> int:
        return len(self._open)

    def __call__(
        self,
        video_path: Path | str,
        timestamps: list[float],
        tolerance_s: float,
        backend: str | None = None,
        return_uint8: bool = False,
        is_depth: bool = False,
    ) -> Any:
        """Frames nearest to `timestamps` (seconds in the file): float32 in [0, 1], (len, 3, H, W).

        With `return_uint8`, uint8. `backend` is lerobot's; there is one here.

        Raises:
            WorkFailed: a frame is not in the video within `tolerance_s`, or the video cannot be decoded.
        """
        import torch

        if is_depth:
            raise WorkFailed("video-depth", "depth videos are not read by a pi0.5", where=str(video_path))
        path = str(video_path)
        with self._lock:
            video = self._get(path)
        with video.lock:
            try:
                frames = [self._at(video, float(seconds), tolerance_s, path) for seconds in timestamps]
            except (av.FFmpegError, WorkFailed) as error:
                with self._lock:
                    self._open.pop(path, None)
                if isinstance(error, WorkFailed):
                    raise
                what = f"the video cannot be decoded: {error}"
                raise WorkFailed("video-broken", what, where=path) from error
        tensor = torch.from_numpy(numpy.stack(frames)).permute(0, 3, 1, 2).contiguous()
        return tensor if return_uint8 else tensor.to(torch.float32) / 255

    def _get(self, path: str) -> _Open:
        if self._process != os.getpid():
            # A fork shares the file's position with its parent; and closing what it inherited could wait for
            # decoder threads that do not exist here. They are put aside.
            self._parents.append(self._open)
            self._open, self._process = OrderedDict(), os.getpid()
        video = self._open.get(path)
        if video is None:
            try:
                container = av.open(path)
            except (av.FFmpegError, OSError) as error:
                what = f"the video cannot be opened: {error}"
                raise WorkFailed("video-broken", what, where=path) from error
            stream = container.streams.video[0]
            # Loader workers share the cores already; decoder threads in each would stand in each other's way.
            stream.codec_context.thread_count = 1
            video = self._open[path] = _Open(container, stream)
            while len(self._open) > self.open_files:
                _, oldest = self._open.popitem(last=False)
                with oldest.lock:
                    oldest.container.close()
        self._open.move_to_end(path)
        return video

    def _at(self, video: _Open, seconds: float, tolerance_s: float, path: str) -> Any:
        """The picture (H, W, 3), uint8 RGB, nearest to a time."""
        base = video.stream.time_base
        at = None if video.last is None else float(video.last.pts * base)
        if at is None or not at <= seconds <= at + DECODE_ON_S:
            _seek(video, seconds, tolerance_s)
        before = video.last
        picture = before
        while picture is None or float(picture.pts * base) < seconds:
            before = picture
            picture = next((p for p in video.pictures if p.pts is not None), None)
            if picture is None:
                break
            video.last = picture
        near = [p for p in (before, picture) if p is not None]
        best = min(near, key=lambda p: abs(float(p.pts * base) - seconds), default=None)
        if picture is None:
            video.last = None
        if best is None or not abs(float(best.pts * base) - seconds) < tolerance_s:
            found = "none" if best is None else f"the nearest at {float(best.pts * base):.4f} s"
            raise WorkFailed(
                "video-frame-missing",
                f"the video has no frame at {seconds:.4f} s within {tolerance_s:g} s: {found}",
                where=path,
            )
        return best.to_ndarray(format="rgb24")


def _seek(video: _Open, seconds: float, tolerance_s: float) -> None:
    """Go to a key frame that decoding can begin at for the picture at a time.

    That is not always the nearest one: in an open group of pictures the first ones that are shown are built
    from what is before the key frame, and a decoder that begins at it leaves them out; where pictures are
    refreshed part by part it begins with one that is no key frame, and that may still be wrong.
    """
    base, back_s = video.stream.time_base, 0.0
    while True:
        begin = max(0, round((seconds - back_s) / base) - 1)
        video.container.seek(begin, backward=True, stream=video.stream)
        video.pictures = video.container.decode(video.stream)
        video.last = next((p for p in video.pictures if p.pts is not None), None)
        first = video.last
        is_sound = first is not None and first.key_frame and float(first.pts * base) < seconds + tolerance_s
        if is_sound or begin == 0:
            return
        back_s = max(2 * back_s, BACK_S)
