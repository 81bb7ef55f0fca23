"""Videos by frame number: cut, join and digests of coded clips; the door to probing and decoding."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from fractions import Fraction
from pathlib import Path

import av
import numpy as np

from stack.dataset.model import ClipRef
from stack.dataset.video_boxes import BRANDS, Run, write_runs
from stack.dataset.video_decode import decode
from stack.dataset.video_encode import Splicer, check_close, encode_file, pictures_of, same_again
from stack.dataset.video_encode_av1 import Leader
from stack.dataset.video_h264 import parse_sets, used_pps
from stack.dataset.video_index import describe_extradata, index_video, is_unchanged, probe
from stack.dataset.video_model import VideoIndex, VideoInfo
from stack.dataset.video_mux import exact_rate, mp4_holds, ticks_of, whole_file, why_badly_timed
from stack.dataset.video_open import open_video
from stack.dataset.video_packets import PacketReader, Part, changed
from stack.dataset.video_segments import Segment, can_splice, split, whole_copy
from stack.dataset.video_tables import make_upright
from stack.errors import BadRequest, WorkFailed

__all__ = [
    "EncodedFrames",
    "VideoInfo",
    "WrittenVideo",
    "clip_digest",
    "cut",
    "decode",
    "exact_rate",
    "join",
    "probe",
    "why_not_joinable",
    "why_not_together",
]


@dataclass(frozen=True)
class EncodedFrames:
    """Frames `start` to `stop` (half-open) of a written file that were encoded anew, and why."""

    start: int
    stop: int
    reason: str


@dataclass(frozen=True, slots=True)
class WrittenVideo(VideoInfo):
    """A file that was written; all frames that `encoded` does not name are copies, bit for bit."""

    encoded: tuple[EncodedFrames, ...] = ()


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


def why_not_together(a: ClipRef, b: ClipRef, infos: Mapping[Path, VideoInfo] | None = None) -> str | None:
    """Why two clips cannot stand in one file; None if they can.

    Beyond `why_not_joinable`: a clip of which pictures must be encoded anew needs a file of its own, except
    in H.264.

    Args:
        infos: what probing gave, where the caller has it already.
    """
    left, right = ((infos or {}).get(clip.file) or probe(clip.file) for clip in (a, b))
    if a.file != b.file and (reason := why_not_joinable(left, right)):
        return reason
    for clip, info in ((a, left), (b, right)):
        if reason := _why_alone(clip, info):
            return f"{info.codec} that is encoded anew needs a file of its own, and {reason}"
    return None


def _why_alone(clip: ClipRef, info: VideoInfo) -> str | None:
    end = clip.start + clip.count
    plain_end = end == info.frames or not info.has_b_frames
    if can_splice(info) or (info.is_key(clip.start) and plain_end):
        return None
    return next((s.encode for s in split(clip) if s.encode), None)


def cut(clip: ClipRef, out: Path, fps: float) -> WrittenVideo:
    """Write a clip as an MP4 of its own, exactly its frames, frame n shown at n / fps.

    What can be copied is copied; `WrittenVideo.encoded` names the frames that were encoded anew. In H.264
    these are the ones before the first key frame and those at the end that need a later picture; in AV1 the
    former, where each key frame brings its sequence header. Any other clip that starts off a key frame, or
    ends before a picture that it needs, is encoded anew as a whole, with the same codec, size and pixel
    format. They are decoded again and compared with their source.

    Raises:
        BadRequest, NotAble, WorkFailed: as `join`.
    """
    return join([clip], out, fps)


def join(clips: Sequence[ClipRef], out: Path, fps: float) -> WrittenVideo:
    """Write clips, one after another, into one MP4 in which frame n is shown at exactly n / fps.

    Packets are copied; pictures are encoded anew where a cut asks for it (see `cut`). The time
    base divides the frame period. dts count up by one period a packet, behind pts by the deepest reordering
    of any clip; where that makes the first dts negative, the muxer's edit list brings the first pts to 0.
    The sources' own frame times and sound are left out. The file is written beside `out`, checked packet by
    packet, and renamed.

    Raises:
        BadRequest: no clips; a clip that cannot be read; clips that do not fit into one stream.
        NotAble: pictures must be encoded anew and there is no encoder for them.
        WorkFailed: what was written is not what was meant (disk full, a muxer's fault).
    """
    if not clips:
        raise BadRequest("video-no-clips", "there is nothing to join", where=str(out))
    cuts = [split(clip) for clip in clips]
    segments = [segment for parts in cuts for segment in parts]
    first = segments[0].index.info
    for segment in segments:
        if reason := why_not_joinable(first, segment.index.info):
            raise _not_joinable(reason, segment)
    rate = exact_rate(fps)
    with whole_file(out) as partial:
        is_led = len(clips) == 1 and len(segments) > 1
        if can_splice(first) or is_led or not any(segment.encode for segment in segments):
            info = _splice(segments, partial, rate, out)
        elif len(segments) == 1:
            encode_file(pictures_of(segments[0]), partial, same_again(first), rate)
            info = _check_encoded(segments[0], partial, rate, out)
        else:
            alone = next(segment for segment in segments if segment.encode)
            reason = f"{first.codec} that is encoded anew needs a file of its own, and {alone.encode}"
            raise _not_joinable(reason, alone)
        places = [(place, segment) for place, segment in _placed(segments) if segment.encode]
        check_close(partial, places, out)
    encoded = tuple(EncodedFrames(n, n + s.count, s.encode or "") for n, s in places)
    known = {field.name: getattr(info, field.name) for field in fields(VideoInfo)}
    return WrittenVideo(**{**known, "file": out}, encoded=encoded)


def _not_joinable(reason: str, segment: Segment) -> BadRequest:
    return BadRequest(
        "video-not-joinable",
        reason,
        where=str(segment.index.info.file),
        do="keep one file an episode (videos: link), or encode all anew (videos: transcode)",
    )


def _placed(segments: Sequence[Segment]) -> Iterator[tuple[int, Segment]]:
    """(first frame number in the joined file, segment)."""
    place = 0
    for segment in segments:
        yield place, segment
        place += segment.count


def _splice(segments: Sequence[Segment], partial: Path, rate: Fraction, out: Path) -> VideoInfo:
    first = segments[0].index.info
    extradata, splicer = first.extradata, None
    if any(segment.encode for segment in segments):
        splicer = _splicer(segments[0].index, rate)
        extradata = splicer.extradata
    if splicer is None and first.codec in BRANDS and all(_is_plain(s.index) for s in segments):
        runs = [_run(segment, place) for place, segment in _placed(segments)]
        index = segments[0].index
        write_runs(runs, partial, first.codec, index.entry or b"", index.size or b"", ticks_of(rate))
        parts = [Part(segment, place) for place, segment in _placed(segments)]
        return _check_joined(parts, partial, rate, extradata, out)
    parts = []
    for place, segment in _placed(segments):
        samples = tuple(splicer.encode(segment)) if splicer and segment.encode else ()
        parts.append(Part(segment, place, samples))
    _mux(parts, partial, rate, extradata)
    return _check_joined(parts, partial, rate, extradata, out)


def _splicer(index: VideoIndex, rate: Fraction) -> Splicer | Leader:
    if index.info.codec == "av1":
        return Leader(index, rate)
    sets = parse_sets(index.info.extradata)
    assert sets is not None  # `can_splice` has looked
    return Splicer(index.info, sets, rate)


def _is_plain(index: VideoIndex) -> bool:
    return index.packets.offsets is not None and index.entry is not None and index.size is not None


def _run(segment: Segment, place: int) -> Run:
    """A segment's packets, for files that are still as they were when they were looked at."""
    index, places = segment.index, segment.places()
    packets = index.packets
    if packets.offsets is None or not is_unchanged(index):
        raise changed(index, 0)
    frames = packets.frames[places] - segment.start + place
    sizes, is_sync = packets.sizes[places], packets.is_sync[places]
    return Run(index.info.file, frames, packets.offsets[places], sizes, is_sync)


def _mux(parts: Sequence[Part], out: Path, rate: Fraction, extradata: bytes) -> None:
    ticks = ticks_of(rate)
    places = [n for part in parts for n, _, _ in part.coded()]
    delay = max(k - n for k, n in enumerate(places))
    order = enumerate(places)
    first = parts[0].segment.index.info.file
    if not mp4_holds(codec := parts[0].segment.index.info.codec):
        raise BadRequest(
            "video-codec-not-in-mp4",
            f"its pictures are {codec}, which no MP4 holds: they cannot be copied",
            where=str(first),
            do="encode all pictures anew (videos: transcode)",
        )
    with PacketReader() as source, open_video(first) as (_, template):
        try:
            with av.open(str(out), mode="w", format="mp4", options=ticks.options) as container:
                # Opaque: a codec that can be read need not have an encoder here.
                stream = container.add_stream_from_template(template, opaque=True)
                stream.time_base = ticks.time_base
                if extradata != template.codec_context.extradata:
                    stream.codec_context.extradata = extradata
                for part in parts:
                    for packet in part.packets(source):
                        k, n = next(order)
                        packet.time_base = ticks.time_base
                        packet.pts, packet.dts = n * ticks.per_frame, (k - delay) * ticks.per_frame
                        packet.duration = ticks.per_frame
                        packet.stream = stream
                        container.mux_one(packet)
            if parts[0].segment.index.info.is_turned:
                make_upright(out)
        except (av.FFmpegError, OSError) as error:
            raise WorkFailed("video-join-failed", f"writing failed: {error}", where=str(out)) from error


def _check_joined(
    parts: Sequence[Part], written: Path, rate: Fraction, extradata: bytes, out: Path
) -> VideoInfo:
    got = index_video(written)
    tables = [part.table() for part in parts]
    meant = [np.concatenate(column) for column in zip(*tables, strict=True)]
    there = (got.packets.frames, got.packets.sizes, got.packets.is_key)
    wrong = _why_other(parts[0].segment.index.info, got.info)
    if wrong is None and got.info.extradata != extradata:
        wrong = "codec parameters (extradata) differ"
    if wrong is None and got.info.is_turned:
        wrong = "it asks to be shown turned"
    if wrong is None and not all(map(np.array_equal, meant, there)):
        wrong = f"{len(meant[0])} frames were meant and {got.info.frames} are there, or their order differs"
    return _checked(got, wrong, rate, out)


def _check_encoded(segment: Segment, written: Path, rate: Fraction, out: Path) -> VideoInfo:
    got = index_video(written)
    wrong = _why_other(segment.index.info, got.info)
    if wrong is None and got.info.frames != segment.count:
        wrong = f"{segment.count} frames were meant and {got.info.frames} are there"
    return _checked(got, wrong, rate, out)


def _why_other(meant: VideoInfo, got: VideoInfo) -> str | None:
    for what in ("codec", "width", "height", "pix_fmt"):
        if getattr(meant, what) != getattr(got, what):
            return f"{what} {getattr(meant, what)} was meant, {getattr(got, what)} is there"
    return None


def _checked(got: VideoIndex, wrong: str | None, rate: Fraction, out: Path) -> VideoInfo:
    wrong = wrong or why_badly_timed(got, rate)
    if wrong is not None:
        raise WorkFailed(
            "video-join-check-failed", f"not what was meant was written: {wrong}", where=str(out)
        )
    return got.info


def clip_digest(clip: ClipRef) -> str:
    """sha256 over codec, size, pixel format and the coded packets of a clip, in decode order.

    Equal for the same coded pictures in a source file and in a joined file; times and packing are left out,
    and so are H.264 parameter sets that none of the clip's pictures uses. Frame numbers and sizes of all
    packets come first, as little-endian int64, so that the bytes can be read in runs.

    Raises:
        BadRequest: the clip does not start at a key frame, or ends where a picture needs a later one.
    """
    segment = whole_copy(clip)
    info = segment.index.info
    digest = hashlib.sha256(f"{info.codec} {info.width}x{info.height} {info.pix_fmt}\n".encode())
    with PacketReader() as packets:
        digest.update(_used_extradata(segment, packets))
        table, places = segment.index.packets, segment.places()
        columns = table.frames[places] - clip.start, table.sizes[places]
        digest.update(b"%d packets\n" % len(places) + np.stack(columns).astype("<i8").tobytes())
        for block in packets.blocks(segment):
            digest.update(block)
    return digest.hexdigest()


def _used_extradata(segment: Segment, packets: PacketReader) -> bytes:
    info = segment.index.info
    sets = parse_sets(info.extradata) if info.codec == "h264" else None
    if sets is None or len(sets.sps) == len(sets.pps) == 1:
        return info.extradata
    used: set[int] = set()
    for _, _, packet in packets.read(segment):
        used |= used_pps(packet, sets.length_size)
    return sets.only(used).to_bytes()
