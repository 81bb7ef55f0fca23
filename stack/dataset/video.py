"""Videos by frame number: stream-copy join and digests of coded clips; the door to probing and decoding."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

import av
from av.packet import Packet
from av.video.stream import VideoStream

from stack.dataset.model import ClipRef
from stack.dataset.video_decode import decode
from stack.dataset.video_index import (
    CodedFrame,
    VideoIndex,
    VideoInfo,
    demux,
    describe_extradata,
    index_video,
    open_video,
    probe,
)
from stack.errors import BadRequest, WorkFailed

__all__ = ["VideoInfo", "clip_digest", "decode", "exact_rate", "join", "probe", "why_not_joinable"]

TICKS_PER_S_MIN = 10_000  # below this the MP4 muxer would choose a time base of its own
RATE_DENOMINATOR_MAX = 1_000_000


def exact_rate(fps: float) -> Fraction:
    """The rational rate a float stands for: 30.0 -> 30, 29.97 -> 2997/100, 29.97002997... -> 30000/1001."""
    if not 0 < fps < 1_000_000:
        raise BadRequest("video-fps-impossible", f"fps must be positive and finite, not {fps}")
    return Fraction(fps).limit_denominator(RATE_DENOMINATOR_MAX)


def why_not_joinable(a: VideoInfo, b: VideoInfo) -> str | None:
    """Why two files' packets cannot stand in one stream, with both values; None if they can."""
    for what, left, right in (
        ("codec", a.codec, b.codec),
        ("picture size", f"{a.width}x{a.height}", f"{b.width}x{b.height}"),
        ("pixel format", a.pix_fmt, b.pix_fmt),
    ):
        if left != right:
            return f"{what} differs: {left} in {a.file}, {right} in {b.file}"
    if a.extradata != b.extradata:
        left, right = describe_extradata(a.extradata), describe_extradata(b.extradata)
        return f"codec parameters (extradata) differ: {left} in {a.file}, {right} in {b.file}"
    return None


@dataclass(frozen=True)
class _Cut:
    """The packets of a clip: those of decode positions `first` to `last` whose frame is in the clip."""

    clip: ClipRef
    index: VideoIndex
    first: int
    last: int

    def coded(self) -> Iterator[CodedFrame]:
        frames = range(self.clip.start, self.clip.start + self.clip.count)
        return (c for c in self.index.coded[self.first : self.last + 1] if c.frame in frames)


def _cut(clip: ClipRef) -> _Cut:
    """Find a clip's packets.

    Raises:
        BadRequest: the clip is empty or past the end, does not start at a key frame, or ends where shown
            pictures need a picture that is shown after the end.
    """
    index = index_video(clip.file)
    info, where, end = index.info, str(clip.file), clip.start + clip.count
    if clip.start < 0 or clip.count < 1 or end > info.frames:
        what = f"frames {clip.start} to {end} are asked of a video of {info.frames} frames"
        raise BadRequest("video-clip-out-of-range", what, where=where, do="correct the episode's length")
    if clip.start not in info.key_frames:
        before = max((k for k in info.key_frames if k < clip.start), default="none")
        raise BadRequest(
            "video-clip-not-at-key-frame",
            f"the clip starts at frame {clip.start}, which is no key frame; the last one before is {before}",
            where=where,
            do="copy the whole file, or cut at a key frame; this cut needs re-encoding",
        )
    first = index.position(clip.start)
    taken, at = 0, first
    while taken < clip.count:
        frame = index.coded[at].frame
        if frame >= end:
            raise BadRequest(
                "video-clip-ends-inside-b-frames",
                f"the clip ends before frame {end}, but a picture before it is built from frame {frame}",
                where=where,
                do="copy the whole file, or cut at a key frame; this cut needs re-encoding",
            )
        # Pictures that follow the key frame in the file and precede it on the screen are the last clip's.
        taken += frame >= clip.start
        at += 1
    return _Cut(clip, index, first, at - 1)


class _Packets:
    """Reads cuts from files, keeping the last file open: cuts in file order are one forward pass."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._file: Path | None = None

    def __enter__(self) -> _Packets:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def stream(self, file: Path) -> VideoStream:
        if file != self._file:
            self._stack.close()
            self._container, self._stream = self._stack.enter_context(open_video(file))
            self._demux = demux(self._container, self._stream, file)
            self._file, self._at = file, 0
        return self._stream

    def read(self, cut: _Cut) -> Iterator[tuple[CodedFrame, Packet]]:
        self.stream(cut.clip.file)
        if cut.first != self._at:
            self._seek(cut.index.coded[cut.first])
            self._at = cut.first
        wanted = range(cut.clip.start, cut.clip.start + cut.clip.count)
        while self._at <= cut.last:
            coded = cut.index.coded[self._at]
            packet = next((p for p in self._demux if p.pts == coded.pts), None)
            if packet is None or packet.size != coded.size_bytes:
                raise WorkFailed(
                    "video-changed", f"frame {coded.frame} is not where it was", where=str(cut.clip.file)
                )
            self._at += 1
            if coded.frame in wanted:
                yield coded, packet

    def _seek(self, key: CodedFrame) -> None:
        assert self._file is not None
        self._container.seek(key.dts, backward=True, stream=self._stream)
        self._demux = demux(self._container, self._stream, self._file)


def join(clips: Sequence[ClipRef], out: Path, fps: float) -> VideoInfo:
    """Stream-copy clips, one after another, into one MP4 in which frame n is shown at exactly n / fps.

    The time base divides the frame period. dts count up by one period a packet, behind pts by the deepest
    reordering of any clip; where that makes the first dts negative, the muxer's edit list brings the first
    pts to 0. The sources' own frame times and sound are left out. The file is written beside `out`, checked
    packet by packet, and renamed.

    Raises:
        BadRequest: no clips; a clip that cannot be read or cut; clips that do not fit into one stream.
        WorkFailed: what was written is not what was meant (disk full, a muxer's fault).
    """
    if not clips:
        raise BadRequest("video-no-clips", "there is nothing to join", where=str(out))
    cuts = [_cut(clip) for clip in clips]
    for cut in cuts:
        if reason := why_not_joinable(cuts[0].index.info, cut.index.info):
            raise BadRequest(
                "video-not-joinable",
                reason,
                where=str(cut.clip.file),
                do="keep one file an episode (videos: link), or re-encode one of them",
            )
    rate = exact_rate(fps)
    scale = 1
    while rate.numerator * scale < TICKS_PER_S_MIN:
        scale *= 2
    out.parent.mkdir(parents=True, exist_ok=True)
    partial = out.with_name(f".{out.stem}.partial-{os.getpid()}{out.suffix}")
    try:
        _mux(cuts, partial, ticks_per_s=rate.numerator * scale, ticks=rate.denominator * scale)
        info = _check_joined(cuts, partial, rate, out)
        partial.replace(out)
    finally:
        partial.unlink(missing_ok=True)
    return replace(info, file=out)


def _placed(cuts: Sequence[_Cut]) -> Iterator[tuple[int, CodedFrame]]:
    """(presentation number in the joined file, packet) in decode order."""
    offset = 0
    for cut in cuts:
        for coded in cut.coded():
            yield offset + coded.frame - cut.clip.start, coded
        offset += cut.clip.count


def _mux(cuts: Sequence[_Cut], out: Path, *, ticks_per_s: int, ticks: int) -> None:
    delay = max(k - n for k, (n, _) in enumerate(_placed(cuts)))
    options = {
        "video_track_timescale": str(ticks_per_s),
        # The edit list's length is kept in this unit; a coarser one could hide the last frame.
        "movie_timescale": str(ticks_per_s),
        "fflags": "+bitexact",
    }
    places = enumerate(n for n, _ in _placed(cuts))
    with _Packets() as packets:
        template = packets.stream(cuts[0].clip.file)
        try:
            with av.open(str(out), mode="w", format="mp4", options=options) as container:
                # Opaque: a codec that can be read need not have an encoder here.
                stream = container.add_stream_from_template(template, opaque=True)
                stream.time_base = Fraction(1, ticks_per_s)
                for cut in cuts:
                    for _, packet in packets.read(cut):
                        k, n = next(places)
                        packet.time_base = Fraction(1, ticks_per_s)
                        packet.pts, packet.dts, packet.duration = n * ticks, (k - delay) * ticks, ticks
                        packet.stream = stream
                        container.mux_one(packet)
        except (av.FFmpegError, OSError) as error:
            raise WorkFailed("video-join-failed", f"writing failed: {error}", where=str(out)) from error


def _check_joined(cuts: Sequence[_Cut], written: Path, rate: Fraction, out: Path) -> VideoInfo:
    got = index_video(written)
    wrong = why_not_joinable(cuts[0].index.info, got.info)
    meant = [(n, c.size_bytes, c.is_key) for n, c in _placed(cuts)]
    if wrong is None and meant != [(c.frame, c.size_bytes, c.is_key) for c in got.coded]:
        wrong = f"{len(meant)} frames were meant and {got.info.frames} are there, or their order differs"
    period = 1 / rate
    base = got.info.time_base
    if wrong is None and any(ticks * base != n * period for n, ticks in enumerate(got.info.pts)):
        wrong = "frame times are not n / fps"
    dts = [c.dts for c in got.coded]
    if wrong is None and any(after <= before for before, after in pairwise(dts)):
        wrong = "decode times do not rise"
    if wrong is not None:
        raise WorkFailed(
            "video-join-check-failed", f"not what was meant was written: {wrong}", where=str(out)
        )
    return got.info


def clip_digest(clip: ClipRef) -> str:
    """sha256 over codec, size, pixel format and the coded packets of a clip, in decode order.

    Equal for the same coded pictures in a source file and in a joined file; times and packing are left out.
    """
    cut = _cut(clip)
    info = cut.index.info
    digest = hashlib.sha256(f"{info.codec} {info.width}x{info.height} {info.pix_fmt}\n".encode())
    digest.update(info.extradata)
    with _Packets() as packets:
        for coded, packet in packets.read(cut):
            digest.update(f"\n{coded.frame - clip.start} {packet.size}\n".encode())
            digest.update(bytes(packet))
    return digest.hexdigest()
