"""Cutting anywhere: what can be copied is copied bit for bit, and the rest stands close and in its place."""

from __future__ import annotations

import os
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

import av
import numpy as np
import pytest
from av.video.frame import PictureType

from stack.dataset.model import ClipRef
from stack.dataset.video import clip_digest, cut, decode, join, probe, why_not_together
from stack.dataset.video_h264 import parse_sets
from stack.errors import StackError

REAL = Path(os.environ.get("STACK_REAL_DATASETS", Path(__file__).parents[3] / "shared" / "datasets"))
CLOSE_DB = 38.0  # what is encoded anew; what the copies reach is infinite

H264 = {
    "plain": {"preset": "ultrafast", "g": "8", "bf": "0"},
    "b-frames": {"preset": "veryfast", "g": "12", "bf": "3", "sc_threshold": "0"},
    "pyramid": {"x264-params": "keyint=10:bframes=4:b-adapt=0:b-pyramid=normal:scenecut=0:ref=3"},
    "open-gop": {"x264-params": "keyint=8:bframes=3:b-adapt=0:open-gop=1:scenecut=0"},
    "one-key": {"preset": "veryfast", "g": "250", "bf": "3", "sc_threshold": "0"},
    "baseline": {"preset": "veryfast", "profile": "baseline", "g": "9"},
}
OTHERS = {
    "hevc": ("libx265", {"preset": "ultrafast", "x265-params": "keyint=8:bframes=3:log-level=none"}),
    "vp9": ("libvpx-vp9", {"g": "6", "cpu-used": "8", "deadline": "realtime", "b": "4M"}),
    "mpeg4": ("mpeg4", {"g": "10", "bf": "2", "qmin": "1", "qmax": "2"}),
}
FRAMES = 40


def make(file: Path, picture, codec: str, options: dict[str, str], *, pix_fmt: str = "yuv420p") -> Path:
    with av.open(str(file), "w", format="mp4") as container:
        stream = container.add_stream(codec, rate=30, options=options)
        stream.width, stream.height, stream.pix_fmt = 96, 64, pix_fmt
        for n in range(FRAMES):
            frame = av.VideoFrame.from_ndarray(picture(n, 96, 64), format="rgb24")
            frame.pts, frame.time_base = n, Fraction(1, 30)
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return file


@pytest.fixture(scope="module")
def movies(tmp_path_factory, deliveries):
    """name -> (file, its pictures as PyAV alone decodes them)."""
    folder = tmp_path_factory.mktemp("movies")
    picture = deliveries.drifting
    made = {name: make(folder / f"{name}.mp4", picture, "libx264", options) for name, options in H264.items()}
    for name, (codec, options) in OTHERS.items():
        made[name] = make(folder / f"{name}.mp4", picture, codec, options)
    return {name: (file, pictures_of(file)) for name, file in made.items()}


def decoded(file: Path) -> list[av.VideoFrame]:
    with av.open(str(file)) as container:
        return list(container.decode(video=0))


def pictures_of(file: Path) -> list[np.ndarray]:
    return [frame.to_ndarray(format="rgb24") for frame in decoded(file)]


def idr_frames(file: Path) -> list[int]:
    """Presentation numbers of H.264 IDR pictures, by NAL type (5), lengths of four bytes."""
    found, times = [], []
    with av.open(str(file)) as container:
        for packet in container.demux(video=0):
            if not packet.size:
                continue
            times.append(packet.pts)
            data, at = bytes(packet), 0
            while at < len(data):
                if data[at + 4] & 31 == 5:
                    found.append(packet.pts)
                    break
                at += 4 + int.from_bytes(data[at : at + 4], "big")
    return [sorted(times).index(pts) for pts in found]


def db(a: np.ndarray, b: np.ndarray) -> float:
    error = np.square(a.astype(float) - b).mean()
    return float("inf") if error == 0 else 10 * np.log10(255**2 / error)


def check(out: Path, info, source: list[np.ndarray], first: int = 0) -> None:
    """Copied pictures are the source's; encoded ones are close, and closest to their own source picture."""
    frames = decoded(out)[first : first + len(source)]
    assert [f.pts * f.time_base for f in frames] == [Fraction(first + n, 30) for n in range(len(source))]
    anew = {n for run in info.encoded for n in range(run.start, run.stop)}
    for n, frame in enumerate(frames):
        got = frame.to_ndarray(format="rgb24")
        if first + n not in anew:
            assert (got == source[n]).all(), n
            continue
        assert db(got, source[n]) > CLOSE_DB, n
        assert max(range(len(source)), key=lambda k: db(got, source[k])) == n


def code_of(call) -> tuple[str, StackError]:
    with pytest.raises(StackError) as caught:
        call()
    return caught.value.id, caught.value


@pytest.mark.parametrize("name", H264)
@pytest.mark.parametrize(("start", "count"), [(0, 40), (1, 39), (3, 20), (7, 30), (13, 1), (5, 3), (33, 7)])
def test_a_cut_holds_exactly_its_frames(movies, tmp_path, name, start, count):
    file, source = movies[name]
    before = file.read_bytes()
    info = cut(ClipRef(file, start, count), tmp_path / "out.mp4", 30)
    assert info.frames == count
    assert info.file == tmp_path / "out.mp4"
    check(tmp_path / "out.mp4", info, source[start : start + count])
    # Nothing is encoded anew that need not be.
    end = start + count
    key = next((k for k in idr_frames(file) if start <= k < end), end)
    head = [run for run in info.encoded if run.start == 0]
    assert (head[0].stop if head else 0) >= key - start
    if key < end:
        assert [run.stop for run in head] in ([], [key - start])
        assert not head or "no key frame" in head[0].reason
        tail = [run for run in info.encoded if run.start > 0]
        assert all("built from a later one" in run.reason for run in tail)
        assert sum(run.stop - run.start for run in tail) <= 4  # less than one run of B-frames
        assert end < FRAMES or not tail
    assert file.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["out.mp4"]


def test_an_end_inside_b_frames_is_encoded_and_no_more(deliveries, tmp_path):
    # Fixed order I P B B B P B B B ...: frames 5 to 7 are built from frame 8.
    fixed = {"x264-params": "b-adapt=0:bframes=3:b-pyramid=none:scenecut=0:keyint=40"}
    file = make(tmp_path / "v.mp4", deliveries.drifting, "libx264", fixed)
    assert "".join(PictureType(f.pict_type).name for f in decoded(file)[:9]) == "IBBBPBBBP"
    info = cut(ClipRef(file, 0, 7), tmp_path / "out.mp4", 30)
    assert [(run.start, run.stop) for run in info.encoded] == [(5, 7)]
    check(tmp_path / "out.mp4", info, pictures_of(file)[:7])


def test_open_gops_are_copied_from_the_first_idr_only(movies, tmp_path):
    file, source = movies["open-gop"]
    flagged = [n for n, f in enumerate(decoded(file)) if f.key_frame]
    assert idr_frames(file) == [0]
    assert len(flagged) > 2
    info = cut(ClipRef(file, flagged[1], 20), tmp_path / "out.mp4", 30)
    assert [(run.start, run.stop) for run in info.encoded] == [(0, 20)]
    check(tmp_path / "out.mp4", info, source[flagged[1] : flagged[1] + 20])


@pytest.mark.parametrize("name", OTHERS)
def test_other_codecs_are_encoded_as_a_whole_and_say_so(movies, tmp_path, name):
    file, source = movies[name]
    clip = ClipRef(file, 3, 25)
    info = cut(clip, tmp_path / "out.mp4", 30)
    before = probe(file)
    same = ("codec", "width", "height", "pix_fmt")
    assert [getattr(info, what) for what in same] == [getattr(before, what) for what in same]
    assert [(run.start, run.stop) for run in info.encoded] == [(0, 25)]
    assert "no key frame" in info.encoded[0].reason
    check(tmp_path / "out.mp4", info, source[3:28])
    whole = cut(ClipRef(file, 0, FRAMES), tmp_path / "whole.mp4", 30)
    assert whole.encoded == ()
    check(tmp_path / "whole.mp4", whole, source)


def test_cut_clips_join_with_whole_ones(movies, tmp_path):
    file, source = movies["b-frames"]
    keys = idr_frames(file)
    clips = [
        ClipRef(file, 5, 20),
        ClipRef(file, 0, FRAMES),
        ClipRef(file, 37, 3),
        ClipRef(file, keys[1], keys[2] - keys[1]),
        ClipRef(file, 1, 10),
    ]
    info = join(clips, tmp_path / "out.mp4", 30)
    place = 0
    for clip in clips:
        check(tmp_path / "out.mp4", info, source[clip.start : clip.start + clip.count], place)
        if clip.start in keys:
            got = clip_digest(ClipRef(tmp_path / "out.mp4", place, clip.count))
            assert got == clip_digest(clip)  # whatever parameter sets its neighbours brought
        place += clip.count
    assert info.frames == place
    packets = [p for p in av.open(str(tmp_path / "out.mp4")).demux(video=0) if p.size]
    assert all(b.dts > a.dts for a, b in pairwise(packets))
    # Reached in any order, each frame is the one that a player shows.
    shown = pictures_of(tmp_path / "out.mp4")
    order = np.random.default_rng(0).permutation(place).tolist()
    for n, got in zip(order, decode(tmp_path / "out.mp4", order), strict=True):
        assert (got == shown[n]).all(), n


def test_a_cut_of_a_cut_needs_no_further_parameter_sets(movies, tmp_path):
    file, _ = movies["b-frames"]
    cut(ClipRef(file, 5, 30), tmp_path / "one.mp4", 30)
    info = cut(ClipRef(tmp_path / "one.mp4", 9, 21), tmp_path / "two.mp4", 30)
    first, second = (parse_sets(probe(tmp_path / f"{n}.mp4").extradata) for n in ("one", "two"))
    assert first is not None and second is not None
    assert len(parse_sets(probe(file).extradata).sps) == 1
    assert len(first.sps) == len(second.sps) == 2
    check(tmp_path / "two.mp4", info, pictures_of(tmp_path / "one.mp4")[9:30])


def test_full_range_pictures_stay_full_range(deliveries, tmp_path):
    file = make(tmp_path / "v.mp4", deliveries.drifting, "libx264", H264["b-frames"], pix_fmt="yuvj420p")
    info = cut(ClipRef(file, 4, 20), tmp_path / "out.mp4", 30)
    assert info.pix_fmt == "yuvj420p"
    check(tmp_path / "out.mp4", info, pictures_of(file)[4:24])


def test_what_cannot_be_spliced_needs_a_file_of_its_own(movies, tmp_path):
    file, _ = movies["vp9"]
    keys = probe(file).key_frames
    off, on = ClipRef(file, keys[1] + 1, 5), ClipRef(file, keys[1], 6)
    assert why_not_together(on, on) is None
    assert "vp9 that is encoded anew needs a file of its own" in why_not_together(on, off)
    code, error = code_of(lambda: join([on, off], tmp_path / "out.mp4", 30))
    assert code == "video-not-joinable"
    assert error.do
    h264, _ = movies["b-frames"]
    assert why_not_together(ClipRef(h264, 1, 5), ClipRef(h264, 2, 9)) is None
    assert "codec differs" in why_not_together(on, ClipRef(h264, 1, 5))
    assert not (tmp_path / "out.mp4").exists()


def test_pictures_in_the_wrong_place_are_caught(movies, tmp_path, monkeypatch):
    import stack.dataset.video_encode as encode

    file, _ = movies["b-frames"]
    monkeypatch.setattr(
        encode.Splicer,
        "encode",
        lambda self, segment, real=encode.Splicer.encode: real(
            self, encode.Segment(segment.index, segment.start + 1, segment.stop + 1, "shifted")
        ),
    )
    code, error = code_of(lambda: cut(ClipRef(file, 5, 20), tmp_path / "out.mp4", 30))
    assert code == "video-encode-not-close"
    assert "dB" in error.what
    assert list(tmp_path.iterdir()) == []


def test_no_encoder_is_said_plainly(movies, tmp_path, monkeypatch):
    import stack.dataset.video_encode as encode

    monkeypatch.setitem(encode.ENCODERS, "hevc", "no-such-encoder")
    file, _ = movies["hevc"]
    code, error = code_of(lambda: cut(ClipRef(file, 5, 20), tmp_path / "out.mp4", 30))
    assert code == "video-no-encoder"
    assert "hevc" in error.what
    assert error.exit == 3


@pytest.mark.parametrize("start", [1, 100, 180])
def test_real_recordings_with_b_frames_are_cut(tmp_path, start):
    files = sorted((REAL / "gr00t_picknplace_v20").rglob("*.mp4"))
    if not files:
        pytest.skip("the real recording gr00t_picknplace_v20 is not on this machine")
    file = files[0]
    count = min(150, probe(file).frames - start)
    info = cut(ClipRef(file, start, count), tmp_path / "out.mp4", 20)
    assert [t * info.time_base for t in info.pts] == [Fraction(n, 20) for n in range(count)]
    source, got = pictures_of(file)[start : start + count], pictures_of(tmp_path / "out.mp4")
    anew = {n for run in info.encoded for n in range(run.start, run.stop)}
    key = next((k for k in idr_frames(file) if start <= k < start + count), start + count)
    assert key - start <= len(anew) <= key - start + 4
    for n, (a, b) in enumerate(zip(got, source, strict=True)):
        assert db(a, b) > 35 if n in anew else (a == b).all(), n
