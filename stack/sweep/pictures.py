"""Which part of a sample's cost is the size of its pictures, and what smaller ones would save; measured.

A few pieces of the dataset's own videos are read at random, as a training reads them, then brought to the
policy's size; the same pieces are transcoded as `stack prepare --videos transcode` would, and read again.
Figures are processor seconds: they hold on a busy machine too.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PICTURES = "pictures.json"
EPISODES = 3
FRAMES = 40
"""Frames of a piece; read one by one, in random order."""
READS = 24
GOP = 2
SAMPLES = 16


@dataclass(frozen=True)
class PictureCost:
    """Processor seconds that one sample's input costs a loader's worker.

    Attributes:
        sample_s: reading, decoding, resizing, normalising, prompt and tokens, all of it.
        decode_s, resize_s: of all cameras together.
        small_decode_s: decoding the same frames once transcoded; nothing is left to resize.
        size: pixels that they are transcoded to, and that the policy takes.
        piece_bytes, small_bytes: of the pieces that were transcoded, before and after.
        cameras: how the pictures are stored now.
    """

    sample_s: float
    decode_s: float
    resize_s: float
    small_decode_s: float
    size: int
    gop: int
    piece_bytes: int
    small_bytes: int
    cameras: Mapping[str, str]

    @property
    def picture_frac(self) -> float:
        """The pictures' share of the whole."""
        return min(1.0, (self.decode_s + self.resize_s) / self.sample_s)

    @property
    def saved_s(self) -> float:
        """What transcoding would save; negative where it would cost."""
        return self.decode_s + self.resize_s - self.small_decode_s

    def to_json(self) -> dict[str, Any]:
        return {
            **vars(self),
            "cameras": dict(self.cameras),
            "picture_frac": self.picture_frac,
            "saved_s": self.saved_s,
        }

    @staticmethod
    def from_json(raw: Mapping[str, Any]) -> PictureCost:
        return PictureCost(**{key: raw[key] for key in PictureCost.__dataclass_fields__})

    def words(self) -> str:
        """The finding in two sentences."""
        verb = "save" if self.saved_s >= 0 else "cost"
        return (
            f"a sample's input costs a loader {self.sample_s * 1e3:.1f} ms of processor time: decoding "
            f"{self.decode_s * 1e3:.1f}, resizing {self.resize_s * 1e3:.1f} ({self.picture_frac:.0%} is the "
            f"pictures' size); '--videos transcode --size {self.size}' would {verb} "
            f"{abs(self.saved_s) * 1e3:.1f} ms of it ({abs(self.saved_s) / self.sample_s:.0%}), and make "
            f"{self.piece_bytes / 1e6:.2f} MB of video {self.small_bytes / 1e6:.2f} MB. Memory on the device "
            f"does not depend on it: pictures have the policy's size before they get there"
        )


def measure_pictures(dataset: Any, collate: Callable[[list[Any]], Any], size: tuple[int, int]) -> PictureCost:
    """Measure on lerobot's reader `dataset`; `collate` and `size` are those of the training.

    Raises:
        StackError: the dataset has no videos, or one that cannot be read or encoded.
    """
    from stack.dataset.read import read_dataset
    from stack.errors import BadRequest

    described = read_dataset(Path(dataset.root))
    cameras = [name for name in described.cameras if not described.features[name].is_image]
    if not cameras:
        raise BadRequest("sweep-no-videos", "the dataset's pictures are not stored as videos")
    draw = random.Random(0)
    with_clips = [episode for episode in described.episodes if {*cameras} <= episode.clips.keys()]
    chosen = draw.sample(with_clips, min(EPISODES, len(with_clips)))
    sums = {"decode": 0.0, "resize": 0.0, "small": 0.0}
    stored, before, after = {}, 0, 0
    with tempfile.TemporaryDirectory(prefix="stack-pictures-") as folder:
        for camera in cameras:
            for episode in chosen:
                clip = episode.clips[camera]
                figures = _piece(clip, described.fps, size, Path(folder) / "piece.mp4", draw)
                for name in sums:
                    sums[name] += figures[name] / len(chosen)
                before, after = before + round(figures["before"]), after + round(figures["after"])
            stored[camera] = _stored(clip.file)
    return PictureCost(
        sample_s=_sample_s(dataset, collate, draw),
        decode_s=sums["decode"],
        resize_s=sums["resize"],
        small_decode_s=sums["small"],
        size=size[0],
        gop=GOP,
        piece_bytes=before,
        small_bytes=after,
        cameras=stored,
    )


def _piece(clip: Any, fps: float, size: tuple[int, int], out: Path, draw: random.Random) -> dict[str, float]:
    """One piece of a clip: seconds a frame as it is, resized, and transcoded; its bytes before and after."""
    from dataclasses import replace

    from stack.dataset.video_index import index_video
    from stack.dataset.video_transcode import transcode
    from stack.train import lines

    count = min(FRAMES, clip.count)
    start = clip.start + draw.randrange(clip.count - count + 1)
    numbers = [draw.randrange(count) for _ in range(READS)]
    piece = replace(clip, start=start, count=count)
    index = index_video(clip.file)
    decode_s, pictures = _read(clip.file, [start + number for number in numbers], fps)
    lines.resize(lines.as_unit_floats(pictures[0]), size)  # the first call imports what it needs
    began = time.process_time()
    for picture in pictures:
        lines.resize(lines.as_unit_floats(picture), size)
    resize_s = (time.process_time() - began) / len(pictures)
    transcode([piece], out, fps, size=size[0], gop=GOP)
    small_s, _ = _read(out, numbers, fps)
    return {
        "decode": decode_s,
        "resize": resize_s,
        "small": small_s,
        "before": clip.file.stat().st_size * count / index.info.frames,
        "after": out.stat().st_size,
    }


def _read(file: Path, frames: list[int], fps: float) -> tuple[float, list[Any]]:
    """Seconds a frame, read one by one, and the frames."""
    from stack.train.frames import FrameReader

    reader = FrameReader()
    reader(file, [frames[0] / fps], 0.5 / fps)  # a training opens a file once for many frames
    began = time.process_time()
    pictures = [reader(file, [frame / fps], 0.5 / fps) for frame in frames]
    return (time.process_time() - began) / len(frames), pictures


def _sample_s(dataset: Any, collate: Callable[[list[Any]], Any], draw: random.Random) -> float:
    indices = [draw.randrange(len(dataset)) for _ in range(SAMPLES)]
    collate([dataset[indices[0]]])
    began = time.process_time()
    for index in indices:
        collate([dataset[index]])
    return (time.process_time() - began) / len(indices)


def _stored(file: Path) -> str:
    from stack.dataset.video_index import index_video

    info = index_video(file).info
    return f"{info.width}x{info.height} {info.codec}"
