"""How a clip is taken from its file: which pictures are copied, and which must be encoded anew."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stack.dataset.model import ClipRef
from stack.dataset.video_av1 import parse_header
from stack.dataset.video_h264 import parse_sets
from stack.dataset.video_index import index_video
from stack.dataset.video_model import CodedFrame, VideoIndex, VideoInfo
from stack.errors import BadRequest

AV1_DEPTHS = {"yuv420p": 8, "yuv420p10le": 10}


@dataclass(frozen=True)
class Segment:
    """Frames `start` to `stop` (half-open) of a file.

    Attributes:
        encode: why they are encoded anew; None where their packets are copied.
        first, last: decode positions of the packets between which the copied ones lie.
    """

    index: VideoIndex
    start: int
    stop: int
    encode: str | None = None
    first: int = 0
    last: int = -1

    @property
    def count(self) -> int:
        return self.stop - self.start

    @property
    def is_whole(self) -> bool:
        """Whether all packets of the file are copied."""
        index = self.index
        packets = (self.first, self.last) == (0, len(index.packets) - 1)
        return packets and (self.start, self.stop) == (0, index.info.frames)

    def coded(self) -> Iterator[CodedFrame]:
        """The copied packets in decode order."""
        coded = self.index.coded
        return (coded[place] for place in self.places().tolist())

    def places(self) -> NDArray[np.int64]:
        """Decode positions of the copied packets."""
        if self.is_whole:
            return np.arange(len(self.index.packets))
        frames = self.index.packets.frames[self.first : self.last + 1]
        return np.flatnonzero((frames >= self.start) & (frames < self.stop)) + self.first


@dataclass(frozen=True, slots=True)
class Anew:
    """So many pictures of a clip, `of` all that it has, are encoded anew.

    Attributes:
        why: of the first ones.
        can_splice: whether the file lets such pictures stand beside copied ones.
        copied: the file's frames, from and to (half-open), that are copied.
    """

    pictures: int
    of: int
    why: str
    can_splice: bool
    copied: tuple[int, int]


def check_clip(clip: ClipRef) -> VideoIndex:
    """The index of a clip's file.

    Raises:
        BadRequest: the file cannot be read, or the clip is empty or past its end.
    """
    index = index_video(clip.file)
    end = clip.start + clip.count
    if clip.start < 0 or clip.count < 1 or end > index.info.frames:
        what = f"frames {clip.start} to {end} are asked of a video of {index.info.frames} frames"
        raise BadRequest(
            "video-clip-out-of-range", what, where=str(clip.file), do="correct the episode's length"
        )
    return index


def whole_copy(clip: ClipRef) -> Segment:
    """The clip as one copied segment.

    Raises:
        BadRequest: it does not start at a key frame, or ends where shown pictures need a later picture.
    """
    index = check_clip(clip)
    end = clip.start + clip.count
    if reason := _start_reason(index.info, clip.start):
        raise BadRequest("video-clip-not-at-key-frame", reason, where=str(clip.file), do=_DO)
    copied = _copy(index, clip.start, end)
    if copied is None or copied.stop < end:
        raise BadRequest("video-clip-ends-inside-b-frames", _end_reason(end), where=str(clip.file), do=_DO)
    return copied


_DO = "copy the whole file, or cut it first, which encodes the pictures at the cut anew"


def split(clip: ClipRef) -> tuple[Segment, ...]:
    """Copy all that can be copied.

    Copying begins at the first key frame in the clip and ends where no shown picture needs a later one. What
    is left at both ends is encoded anew where the file lets new pictures stand beside copied ones: H.264 at
    both ends, AV1 before them. Any other file's clip is encoded anew as a whole, or not at all.

    Raises:
        BadRequest: as `check_clip`.
    """
    index = check_clip(clip)
    start, end = clip.start, clip.start + clip.count
    head = _start_reason(index.info, start)
    key = next(iter(index.info.keys_within(start, end)), None)
    copied = _copy(index, key, end) if key is not None else None
    if copied is not None and head is None and copied.stop == end:
        return (copied,)
    reason = head or _end_reason(end)
    if copied is None or not (can_splice(index.info) or (can_lead(index) and copied.stop == end)):
        return (Segment(index, start, end, reason),)
    segments = [Segment(index, start, copied.start, head)] if head else []
    segments.append(copied)
    if copied.stop < end:
        segments.append(Segment(index, copied.stop, end, _end_reason(end)))
    return tuple(segments)


def can_lead(index: VideoIndex) -> bool:
    """Whether pictures that are encoded anew can stand before copied ones, in a file of that clip alone.

    So it is in AV1 where each key frame brings its sequence header, which our encoder can match in all that
    concerns the shown pictures.
    """
    info, sequence = index.info, parse_header(index.header)
    if info.codec != "av1" or info.has_b_frames or sequence is None:
        return False
    depth = AV1_DEPTHS.get(info.pix_fmt or "")
    return (sequence.width, sequence.height, sequence.bit_depth) == (info.width, info.height, depth)


def encoded_anew(clip: ClipRef) -> Anew | None:
    """What `split` leaves to encode; None where the whole clip is copied.

    Raises:
        BadRequest: as `check_clip`.
    """
    segments = split(clip)
    anew = [segment for segment in segments if segment.encode is not None]
    if not anew:
        return None
    pictures = sum(segment.count for segment in anew)
    copied = next(((s.start, s.stop) for s in segments if s.encode is None), (clip.start, clip.start))
    index = segments[0].index
    is_spliced = can_splice(index.info) or can_lead(index)
    return Anew(pictures, clip.count, anew[0].encode or "", is_spliced, copied)


def can_splice(info: VideoInfo) -> bool:
    """Whether pictures that are encoded anew can stand in one stream with copied ones."""
    return info.codec == "h264" and parse_sets(info.extradata) is not None


def _start_reason(info: VideoInfo, start: int) -> str | None:
    if info.is_key(start):
        return None
    before = max(info.keys_within(0, start), default="none")
    return f"the clip starts at frame {start}, which is no key frame; the last one before is {before}"


def _end_reason(end: int) -> str:
    return f"the clip ends before frame {end}, but a picture before it is built from a later one"


def _copy(index: VideoIndex, key: int, end: int) -> Segment | None:
    """From a key frame to the last place before `end` up to which no picture needs a later one."""
    first = index.position(key)
    if (key, end, first) == (0, index.info.frames, 0):
        return Segment(index, 0, end, last=len(index.packets) - 1)
    frames, width = index.packets.frames[first:], end - key
    past = np.flatnonzero(frames[:width] >= end)
    while not len(past) and width < len(frames):  # not the whole file: it may hold thousands of clips
        width *= 2
        past = np.flatnonzero(frames[:width] >= end)
    frames = frames[: int(past[0]) if len(past) else len(frames)]
    # Pictures that follow the key frame in the file and precede it on the screen are the last clip's.
    taken = np.cumsum(frames >= key)
    newest = np.maximum.accumulate(np.maximum(frames, key))
    closed = np.flatnonzero(newest - key + 1 == taken)
    if not len(closed):
        return None
    at = int(closed[-1])
    return Segment(index, key, int(newest[at]) + 1, first=first, last=first + at)
