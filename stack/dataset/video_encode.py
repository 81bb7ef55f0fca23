"""Pictures encoded anew: as the file had them, or between copied pictures of an H.264 stream."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
from av.codec.context import Flags
from av.video.codeccontext import VideoCodecContext
from av.video.frame import PictureType, VideoFrame

from stack.dataset.realtime import no_realtime
from stack.dataset.video_decode import decode_frames
from stack.dataset.video_h264 import (
    PPS,
    SPS,
    SPS_NUMBERS,
    ParameterSets,
    as_sample,
    split_start_codes,
)
from stack.dataset.video_model import VideoInfo
from stack.dataset.video_mux import ticks_of
from stack.dataset.video_open import open_video
from stack.dataset.video_segments import Segment
from stack.errors import NotAble, WorkFailed

ENCODERS = {
    "h264": "libx264",
    "hevc": "libx265",
    "av1": "libsvtav1",
    "mpeg4": "mpeg4",
    "vp9": "libvpx-vp9",
}
PROFILES = {66: "baseline", 77: "main", 88: "main", 100: "high", 110: "high10", 122: "high422"}
CUT_CRF = 12  # close to the source: what is encoded anew has been encoded once already
SPLICE_GOP = 12
PSNR_MIN_DB = 30.0


@dataclass(frozen=True)
class Colours:
    """How numbers mean colours, as FFmpeg counts them (ISO/IEC 23091-2); 2 and 0 say nothing."""

    range: int = 0
    matrix: int = 2
    primaries: int = 2
    transfer: int = 2


@dataclass(frozen=True)
class Encoding:
    """What pictures become. No pictures are built from later ones, and each file starts at a key frame."""

    codec: str
    width: int
    height: int
    pix_fmt: str
    gop: int
    crf: int = CUT_CRF
    colours: Colours = Colours()

    def options(self) -> dict[str, str]:
        """The encoder's own options; `crf` is on its own scale."""
        fixed = {"g": str(self.gop), "bf": "0"}
        return {
            "h264": {**fixed, "preset": "veryfast", "crf": str(self.crf), "x264-params": "info=0"},
            "hevc": {
                "preset": "veryfast",
                "crf": str(self.crf),
                "x265-params": f"bframes=0:keyint={self.gop}:min-keyint=1:open-gop=0:info=0:log-level=none",
            },
            "av1": {
                "g": str(self.gop),
                "preset": "8",
                "crf": str(self.crf),
                "svtav1-params": "pred-struct=1:lp=1",
            },
            "mpeg4": {**fixed, "qmin": "1", "qmax": "2", "mbd": "rd"},
            "vp9": {
                "g": str(self.gop),
                "crf": str(self.crf),
                "b:v": "0",
                "cpu-used": "4",
                "lag-in-frames": "0",
            },
        }[self.codec]


def encoder_for(codec: str, pix_fmt: str) -> str:
    """The encoder's name.

    Raises:
        NotAble: this build of FFmpeg cannot encode such pictures.
    """
    name = ENCODERS.get(codec)
    do = "leave the episode out, or choose videos: transcode"
    if name is None:
        raise NotAble("video-no-encoder", f"nothing here encodes {codec}", do=do)
    try:
        formats = av.codec.Codec(name, "w").video_formats
    except (av.FFmpegError, ValueError) as error:
        raise NotAble(
            "video-no-encoder", f"PyAV has no {name}, which encodes {codec}: {error}", do=do
        ) from error
    if formats and pix_fmt not in {one.name for one in formats}:
        raise NotAble("video-no-encoder", f"{name} does not encode {pix_fmt} pictures", do=do)
    return name


def same_again(info: VideoInfo) -> Encoding:
    """An encoding that gives a file's pictures back with the same codec, size and pixel format."""
    keys = [*info.key_frames, info.frames]
    gop = int(np.diff(keys).max()) if len(keys) > 1 else info.frames
    fmt = info.pix_fmt or "yuv420p"
    return Encoding(info.codec, info.width, info.height, fmt, gop, colours=colours_of(info))


def colours_of(info: VideoInfo) -> Colours:
    with open_video(info.file) as (_, stream):
        context = stream.codec_context
        return Colours(context.color_range, context.colorspace, context.color_primaries, context.color_trc)


def set_colours(context: VideoCodecContext, colours: Colours) -> None:
    context.color_range, context.colorspace = colours.range, colours.matrix
    context.color_primaries, context.color_trc = colours.primaries, colours.transfer


def encode_file(pictures: Iterable[VideoFrame], out: Path, encoding: Encoding, rate: Fraction) -> int:
    """Write one MP4 in which picture n is shown at exactly n / fps; says how many were written.

    Raises:
        NotAble: there is no such encoder.
        WorkFailed: encoding or writing failed.
    """
    name = encoder_for(encoding.codec, encoding.pix_fmt)
    ticks = ticks_of(rate)
    count = written = 0
    try:
        with no_realtime(), av.open(str(out), mode="w", format="mp4", options=ticks.options) as container:
            stream = container.add_stream(name, rate=rate, options=encoding.options())
            stream.width, stream.height, stream.pix_fmt = encoding.width, encoding.height, encoding.pix_fmt
            stream.codec_context.thread_count = 1  # work is spread over processes by the callers
            set_colours(stream.codec_context, encoding.colours)
            for count, picture in enumerate(pictures, 1):
                for packet in stream.encode(_numbered(picture, count - 1, rate)):
                    written += _mux_timed(container, packet, stream, rate)
            for packet in stream.encode(None):
                written += _mux_timed(container, packet, stream, rate)
    except (av.FFmpegError, OSError) as error:
        raise WorkFailed("video-encode-failed", f"encoding failed: {error}", where=str(out)) from error
    if written != count:
        what = f"{count} pictures went into the encoder and {written} came out"
        raise WorkFailed("video-encode-failed", what, where=str(out))
    return count


def _mux_timed(
    container: av.container.OutputContainer, packet: av.Packet, stream: object, rate: Fraction
) -> int:
    if not packet.size:
        return 0
    ticks = ticks_of(rate)
    number = round(packet.pts * packet.time_base * rate)
    packet.time_base = ticks.time_base
    packet.pts = packet.dts = number * ticks.per_frame
    packet.duration = ticks.per_frame
    packet.stream = stream
    container.mux_one(packet)
    return 1


def _numbered(picture: VideoFrame, number: int, rate: Fraction) -> VideoFrame:
    picture.pts, picture.time_base = number, 1 / rate
    # A decoded picture keeps its kind, which an encoder would take as an order.
    picture.pict_type = PictureType.NONE
    return picture


def pictures_of(segment: Segment) -> Iterator[VideoFrame]:
    """The pictures of a segment as the decoder gives them."""
    return decode_frames(segment.index.info.file, range(segment.start, segment.stop))


class Splicer:
    """Encodes H.264 pictures that fit between a file's copied ones: own parameter sets, all else the same."""

    def __init__(self, info: VideoInfo, sets: ParameterSets, rate: Fraction) -> None:
        encoder_for("h264", info.pix_fmt or "yuv420p")
        self._info, self._rate, self._colours = info, rate, colours_of(info)
        self._length_size = sets.length_size
        self._number, self.sets = self._choose(sets)

    @property
    def extradata(self) -> bytes:
        return self.sets.to_bytes()

    def _choose(self, sets: ParameterSets) -> tuple[int, ParameterSets]:
        """A number under which our sets are there already, as after an earlier cut, or a free one."""
        taken = set(sets.sps) | set(sets.pps)
        free = next((n for n in range(SPS_NUMBERS) if n not in taken), None)
        for number in sorted(set(sets.sps) & set(sets.pps)):
            if (sets.sps[number], sets.pps[number]) == self._own_sets(number, sets):
                return number, sets
        if free is None:
            raise NotAble(
                "video-cut-not-possible", "all 32 parameter sets are taken", where=str(self._info.file)
            )
        return free, sets.plus(free, *self._own_sets(free, sets))

    def _own_sets(self, number: int, sets: ParameterSets) -> tuple[bytes, bytes]:
        context = self._open(number, sets)
        units = {unit[0] & 0x1F: unit for unit in split_start_codes(bytes(context.extradata or b""))}
        return units[SPS], units[PPS]

    def _open(self, number: int, sets: ParameterSets) -> VideoCodecContext:
        info = self._info
        context = av.CodecContext.create("libx264", "w")
        assert isinstance(context, VideoCodecContext)
        context.width, context.height, context.pix_fmt = info.width, info.height, info.pix_fmt or "yuv420p"
        context.time_base, context.framerate = 1 / self._rate, self._rate
        context.thread_count = 1
        set_colours(context, self._colours)
        context.flags |= Flags.global_header
        context.options = {
            "preset": "fast",
            "crf": str(CUT_CRF),
            "g": str(SPLICE_GOP),
            "bf": "0",
            # The level is the source's, so that the header of a merged avcC stays as it was.
            "level": str(sets.level),
            "x264-params": f"sps-id={number}:info=0:ref=1:log-level=none",
            **({"profile": PROFILES[sets.profile]} if sets.profile in PROFILES else {}),
        }
        context.open()
        return context

    def encode(self, segment: Segment) -> list[tuple[bytes, bool]]:
        """(sample, is key) of each picture, in order.

        Raises:
            BadRequest: a picture cannot be decoded.
            WorkFailed: the encoder failed.
        """
        where = str(self._info.file)
        samples: list[tuple[bytes, bool]] = []
        for packet in encode_packets(self._open(self._number, self.sets), segment, self._rate):
            sample = as_sample(bytes(packet), self._length_size)
            if sample is None:
                what = f"a picture is too large for lengths of {self._length_size} bytes"
                raise WorkFailed("video-encode-failed", what, where=where)
            samples.append((sample, packet.is_keyframe))
        return samples


def encode_packets(context: VideoCodecContext, segment: Segment, rate: Fraction) -> list[av.Packet]:
    """The packets that an opened encoder makes of a segment's pictures, one a picture.

    Raises:
        BadRequest: a picture cannot be decoded.
        WorkFailed: the encoder failed.
    """
    where = str(segment.index.info.file)
    try:
        packets = []
        for number, picture in enumerate(pictures_of(segment)):
            packets += context.encode(_numbered(picture, number, rate))
        packets += context.encode(None)
    except av.FFmpegError as error:
        raise WorkFailed("video-encode-failed", f"encoding failed: {error}", where=where) from error
    if len(packets) != segment.count:
        what = f"{segment.count} pictures went into the encoder and {len(packets)} came out"
        raise WorkFailed("video-encode-failed", what, where=where)
    return packets


def check_close(out: Path, places: Sequence[tuple[int, Segment]], where: Path) -> None:
    """Decode what was encoded anew and compare it, picture by picture, with the source.

    Args:
        places: first frame number in `out`, and the segment that was encoded there.

    Raises:
        WorkFailed: a picture is farther from its source than `PSNR_MIN_DB` allows.
    """
    for first, segment in places:
        again = decode_frames(out, range(first, first + segment.count))
        for n, (got, meant) in enumerate(zip(again, pictures_of(segment), strict=True)):
            db = psnr_db(got, meant)
            if db < PSNR_MIN_DB:
                what = f"frame {first + n} came out {db:.1f} dB from its source; {PSNR_MIN_DB:g} dB are asked"
                raise WorkFailed("video-encode-not-close", what, where=str(where))


def psnr_db(a: VideoFrame, b: VideoFrame) -> float:
    """Peak signal to noise of two pictures of one size, over RGB."""
    left, right = (one.to_ndarray(format="rgb24").astype(np.int32) for one in (a, b))
    error = float(np.square(left - right).mean())
    return float("inf") if error == 0 else 10 * float(np.log10(255**2 / error))
