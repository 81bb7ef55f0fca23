"""AV1 pictures encoded anew before a file's copied ones: own sequence header, all else the same."""

from __future__ import annotations

from fractions import Fraction

import av
from av.codec.context import Flags
from av.video.codeccontext import VideoCodecContext

from stack.dataset.realtime import no_realtime
from stack.dataset.video_av1 import DELIMITER, own_header, parse_header
from stack.dataset.video_encode import Colours, encode_packets, encoder_for, same_again, set_colours
from stack.dataset.video_model import VideoIndex
from stack.dataset.video_segments import Segment
from stack.errors import WorkFailed

TV, FULL = 1, 2  # FFmpeg's numbers of the ranges


class Leader:
    """Encodes AV1 pictures that fit before a file's copied ones, which begin with a sequence header."""

    def __init__(self, index: VideoIndex, rate: Fraction) -> None:
        sequence = parse_header(index.header)
        assert sequence is not None  # `can_lead` has looked
        self._info, self._rate, self._sequence = index.info, rate, sequence
        self.extradata = index.info.extradata

    def _open(self) -> VideoCodecContext:
        info, sequence = self._info, self._sequence
        encoding = same_again(info)
        context = av.CodecContext.create(encoder_for(encoding.codec, encoding.pix_fmt), "w")
        assert isinstance(context, VideoCodecContext)
        context.width, context.height, context.pix_fmt = encoding.width, encoding.height, encoding.pix_fmt
        context.time_base, context.framerate = 1 / self._rate, self._rate
        context.thread_count = 1
        primaries, transfer, matrix = sequence.colours
        kind = FULL if sequence.is_full_range else TV
        set_colours(context, Colours(kind, matrix, primaries, transfer))
        context.flags |= Flags.global_header
        context.options = encoding.options()
        context.open()
        return context

    def encode(self, segment: Segment) -> list[tuple[bytes, bool]]:
        """(sample, is key) of each picture, in order.

        Raises:
            BadRequest: a picture cannot be decoded.
            NotAble: there is no encoder for such pictures.
            WorkFailed: the encoder failed, or made pictures of another kind.
        """
        with no_realtime():
            packets = encode_packets(self._open(), segment, self._rate)
        samples = [(bytes(packet).removeprefix(DELIMITER), packet.is_keyframe) for packet in packets]
        made = parse_header(own_header(samples[0][0]))
        if made != self._sequence:
            what = f"the encoder made {made}, which cannot stand before {self._sequence}"
            raise WorkFailed("video-encode-failed", what, where=str(self._info.file))
        return samples
