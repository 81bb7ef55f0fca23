"""Cutting AV1: pictures before the first key frame are encoded anew, the packets from there on are copied."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest

from stack.dataset.model import ClipRef
from stack.dataset.video import clip_digest, cut, decode, join, probe, why_not_together
from stack.dataset.video_segments import split
from stack.errors import StackError

FRAMES, RATE = 40, 30
CLOSE_DB = 38.0
SVT, AOM = "libsvtav1", "libaom-av1"
FULL = {"color_range": 2, "colorspace": 1, "color_primaries": 1, "color_trc": 1}
MOVIES = {
    "recorder": (SVT, {"preset": "12", "g": "2", "crf": "30"}, "yuv420p", (96, 64), {}),
    "long": (SVT, {"preset": "8", "g": "17", "crf": "20"}, "yuv420p", (96, 64), {}),
    "low-delay": (SVT, {"preset": "12", "g": "6", "svtav1-params": "pred-struct=1"}, "yuv420p", (96, 64), {}),
    "grain": (SVT, {"preset": "10", "g": "5", "svtav1-params": "film-grain=12"}, "yuv420p", (96, 64), {}),
    "ten-bit": (SVT, {"preset": "12", "g": "5"}, "yuv420p10le", (96, 64), {}),
    "full-range": (SVT, {"preset": "12", "g": "5"}, "yuv420p", (96, 64), FULL),
    "odd-size": (SVT, {"preset": "12", "g": "5"}, "yuv420p", (90, 74), {}),
    "aom": (AOM, {"cpu-used": "8", "g": "7", "lag-in-frames": "12"}, "yuv420p", (96, 64), {}),
}


def make(
    file: Path, picture, codec: str, options: dict, pix_fmt: str, size: tuple[int, int], colours: dict
) -> Path:
    with av.open(str(file), "w", format="mp4") as container:
        stream = container.add_stream(codec, rate=RATE, options=options)
        (stream.width, stream.height), stream.pix_fmt = size, pix_fmt
        for name, value in colours.items():
            setattr(stream.codec_context, name, value)
        for n in range(FRAMES):
            frame = av.VideoFrame.from_ndarray(picture(n, *size), format="rgb24").reformat(format=pix_fmt)
            frame.pts, frame.time_base = n, Fraction(1, RATE)
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return file


def packets(file: Path) -> list[av.Packet]:
    with av.open(str(file)) as container:
        return [packet for packet in container.demux(video=0) if packet.size]


def shown(file: Path, decoder: str) -> list[np.ndarray]:
    """All pictures by this decoder, which is told nothing but the packets."""
    context = av.CodecContext.create(decoder, "r")
    frames = [frame for packet in packets(file) for frame in context.decode(packet)]
    return [frame.to_ndarray(format="rgb24") for frame in frames + context.decode(None)]


def db(a: np.ndarray, b: np.ndarray) -> float:
    error = np.square(a.astype(float) - b).mean()
    return float("inf") if error == 0 else 10 * np.log10(255**2 / error)


def header_of(packet: bytes) -> bytes:
    """The OBU of type 1 that it begins with (one byte of size)."""
    return packet[: 2 + packet[1]] if packet[0] >> 3 & 15 == 1 else b""


def rewritten(file: Path, out: Path, change) -> Path:
    """The same packets after `change(number, payload)`."""
    with av.open(str(file)) as given, av.open(str(out), "w") as container:
        stream = container.add_stream_from_template(given.streams.video[0], opaque=True)
        for number, packet in enumerate(p for p in given.demux(video=0) if p.size):
            new = av.Packet(change(number, bytes(packet)))
            new.pts, new.dts, new.time_base = packet.pts, packet.dts, packet.time_base
            new.duration, new.is_keyframe, new.stream = packet.duration, packet.is_keyframe, stream
            container.mux(new)
    return out


@pytest.fixture(scope="module")
def movies(tmp_path_factory, deliveries):
    folder = tmp_path_factory.mktemp("av1")
    return {name: make(folder / f"{name}.mp4", deliveries.drifting, *kind) for name, kind in MOVIES.items()}


def check(file: Path, clip: ClipRef, out: Path, info) -> None:
    """What is copied, and what both decoders show, from the start and from each key frame."""
    keys = [n for n, packet in enumerate(packets(file)) if packet.is_keyframe]
    head = next(k for k in keys if k >= clip.start) - clip.start
    assert [(run.start, run.stop) for run in info.encoded] == ([(0, head)] if head else [])
    given, got = packets(file)[clip.start : clip.start + clip.count], packets(out)
    assert [bytes(p) for p in got[head:]] == [bytes(p) for p in given[head:]]
    assert [p.is_keyframe for p in got[head:]] == [p.is_keyframe for p in given[head:]]
    assert got[0].is_keyframe and all(header_of(bytes(p)) for p in got if p.is_keyframe)
    assert [p.pts * p.time_base for p in got] == [Fraction(n, RATE) for n in range(clip.count)]
    for decoder in ("libdav1d", "libaom-av1"):
        source = shown(file, decoder)[clip.start : clip.start + clip.count]
        pictures = shown(out, decoder)
        assert len(pictures) == clip.count
        for n, (a, b) in enumerate(zip(pictures, source, strict=True)):
            if n >= head:
                assert (a == b).all(), (decoder, n)
            else:
                assert db(a, b) > CLOSE_DB, (decoder, n)
                assert max(range(clip.count), key=lambda k, a=a: db(a, source[k])) == n
    order = np.random.default_rng(0).permutation(clip.count).tolist()
    pictures = shown(out, "libdav1d")
    for n, one in zip(order, decode(out, order), strict=True):
        assert (one == pictures[n]).all(), n


@pytest.mark.parametrize("name", MOVIES)
@pytest.mark.parametrize(("start", "count"), [(1, 39), (3, 20), (17, 9), (16, 24)])
def test_only_pictures_before_the_first_key_frame_are_encoded(movies, tmp_path, name, start, count) -> None:
    file = movies[name]
    clip = ClipRef(file, start, count)
    info = cut(clip, tmp_path / "out.mp4", RATE)
    same = ("codec", "width", "height", "pix_fmt", "extradata")
    assert [getattr(info, what) for what in same] == [getattr(probe(file), what) for what in same]
    check(file, clip, tmp_path / "out.mp4", info)


@pytest.mark.parametrize(("name", "headers"), [("long", 1), ("aom", 2)])
def test_a_cut_of_a_cut(movies, tmp_path, name, headers) -> None:
    file, one = movies[name], tmp_path / "one.mp4"
    keys = [n - 3 for n, p in enumerate(packets(file)) if p.is_keyframe and n > 3]
    cut(ClipRef(file, 3, 37), one, RATE)
    assert [n for n, p in enumerate(packets(one)) if p.is_keyframe] == [0, *keys]
    assert len({header_of(bytes(p)) for p in packets(one) if p.is_keyframe}) == headers
    on, off = ClipRef(one, keys[0], 20), ClipRef(one, 1, 30)
    check(one, on, tmp_path / "on.mp4", cut(on, tmp_path / "on.mp4", RATE))
    info = cut(off, tmp_path / "off.mp4", RATE)
    assert [(run.start, run.stop) for run in info.encoded] == [(0, keys[0] - 1 if headers == 1 else 30)]
    for decoder in ("libdav1d", "libaom-av1"):
        pairs = zip(shown(tmp_path / "off.mp4", decoder), shown(one, decoder)[1:31], strict=True)
        assert all(db(a, b) > CLOSE_DB for a, b in pairs)
    # What begins at a key frame joins by copying, whatever headers are inside.
    clips = [ClipRef(one, 0, 37), ClipRef(file, 0, FRAMES)]
    assert join(clips, tmp_path / "both.mp4", RATE).encoded == ()
    for decoder in ("libdav1d", "libaom-av1"):
        meant = shown(one, decoder) + shown(file, decoder)
        got = shown(tmp_path / "both.mp4", decoder)
        assert all((a == b).all() for a, b in zip(got, meant, strict=True))
    assert clip_digest(ClipRef(tmp_path / "both.mp4", 0, 37)) == clip_digest(clips[0])


def test_a_led_clip_has_a_file_of_its_own(movies, tmp_path) -> None:
    file = movies["recorder"]
    on, off = ClipRef(file, 2, 5), ClipRef(file, 3, 5)
    assert why_not_together(on, on) is None
    for pair in ((on, off), (off, on), (off, off)):
        assert "av1 that is encoded anew needs a file of its own" in (why_not_together(*pair) or "")
        with pytest.raises(StackError) as caught:
            join(pair, tmp_path / "out.mp4", RATE)
        assert caught.value.id == "video-not-joinable"


@pytest.mark.parametrize("at", [0, 12, 36])
@pytest.mark.parametrize("how", ["without", "another"])
def test_where_a_key_frame_does_not_bring_the_header_all_is_encoded(movies, tmp_path, at, how) -> None:
    """A decoder has to have it from elsewhere: `split` says so before anything is written."""
    other = header_of(bytes(packets(movies["aom"])[0]))

    def change(number: int, payload: bytes) -> bytes:
        header = header_of(payload)
        if number != at:
            return payload
        assert header and header != other
        return (other if how == "another" else b"") + payload[len(header) :]

    file = rewritten(movies["recorder"], tmp_path / "v.mp4", change)
    assert len(packets(file)) == FRAMES
    assert [(s.start, s.stop, bool(s.encode)) for s in split(ClipRef(file, 1, 9))] == [(1, 10, True)]
    if at > 0:  # the pictures that are asked for can still be decoded
        info = cut(ClipRef(file, 1, 9), tmp_path / "out.mp4", RATE)
        assert [(run.start, run.stop) for run in info.encoded] == [(0, 9)]


def test_pictures_of_another_kind_are_refused(movies, tmp_path, monkeypatch) -> None:
    import stack.dataset.video_encode_av1 as encode

    monkeypatch.setattr(encode, "FULL", 1)
    with pytest.raises(StackError) as caught:
        cut(ClipRef(movies["full-range"], 1, 20), tmp_path / "out.mp4", RATE)
    assert caught.value.id == "video-encode-failed"
    assert "is_full_range=False" in caught.value.what
    assert list(tmp_path.iterdir()) == []
