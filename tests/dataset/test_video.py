"""Videos against PyAV's own decoder, on codecs, time bases and faults as they occur in deliveries."""

from __future__ import annotations

import os
import resource
import signal
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

import av
import numpy as np
import pytest
from av.video.frame import PictureType

from stack.dataset.model import ClipRef
from stack.dataset.video import clip_digest, decode, exact_rate, join, probe, why_not_joinable
from stack.errors import StackError

REAL = Path(os.environ.get("STACK_REAL_DATASETS", Path(__file__).parents[3] / "shared" / "datasets"))

CODECS = {
    "h264": ("libx264", {"preset": "ultrafast", "g": "8", "bf": "0"}),
    "h264-b": ("libx264", {"preset": "veryfast", "g": "12", "bf": "3"}),
    "av1": ("libsvtav1", {"preset": "12", "g": "2"}),
    "mpeg4": ("mpeg4", {"g": "10"}),
    "mpeg4-b": ("mpeg4", {"g": "10", "bf": "2"}),
    "hevc-open-gop": ("libx265", {"preset": "ultrafast", "x265-params": "keyint=8:bframes=3:log-level=none"}),
}


def make_video(
    file: Path,
    frames: int,
    *,
    codec: str = "h264",
    seed: int = 0,
    size: tuple[int, int] = (64, 48),
    pix_fmt: str = "yuv420p",
    rate: Fraction | int = 30,
    timescale: int | None = None,
    options: dict[str, str] | None = None,
    mux: dict[str, str] | None = None,
) -> Path:
    """A moving square on noise that changes every frame: no two frames look alike."""
    name, settings = CODECS[codec]
    rng = np.random.default_rng(seed)
    muxer = {**({"video_track_timescale": str(timescale)} if timescale else {}), **(mux or {})}
    with av.open(str(file), "w", format="mp4", options=muxer) as container:
        stream = container.add_stream(name, rate=rate, options={**settings, **(options or {})})
        stream.width, stream.height, stream.pix_fmt = *size, pix_fmt
        for n in range(frames):
            picture = rng.integers(0, 60, (size[1], size[0], 3), dtype=np.uint8)
            picture[8:24, (n * 3) % 40 : (n * 3) % 40 + 16] = (200, 40 + 3 * n % 200, 90)
            frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
            frame.pts, frame.time_base = n, 1 / Fraction(rate)
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return file


def decoded(file: Path) -> list[av.VideoFrame]:
    with av.open(str(file)) as container:
        return list(container.decode(video=0))


def rgb(frames: list[av.VideoFrame]) -> list[np.ndarray]:
    return [frame.to_ndarray(format="rgb24") for frame in frames]


def kinds(frames: list[av.VideoFrame]) -> str:
    return "".join(PictureType(frame.pict_type).name for frame in frames)


def packets_of(file: Path) -> list[av.Packet]:
    with av.open(str(file)) as container:
        return [packet for packet in container.demux(video=0) if packet.size]


def whole(file: Path) -> ClipRef:
    return ClipRef(file, 0, len(decoded(file)))


def code_of(call) -> tuple[str, StackError]:
    with pytest.raises(StackError) as caught:
        call()
    return caught.value.id, caught.value


# probe


@pytest.mark.parametrize("codec", CODECS)
def test_probe_agrees_with_the_decoder(tmp_path, codec):
    file = make_video(tmp_path / "v.mp4", 30, codec=codec)
    frames, info = decoded(file), probe(file)
    assert info.frames == len(frames) == 30
    assert info.codec == codec.split("-")[0]
    assert (info.width, info.height, info.pix_fmt) == (64, 48, "yuv420p")
    assert info.fps == 30
    assert info.duration_s == 1.0
    assert not info.has_audio
    assert list(info.pts) == [frame.pts for frame in frames]
    assert info.has_b_frames == ("B" in kinds(frames))
    keys = {n for n, frame in enumerate(frames) if frame.key_frame}
    if codec == "hevc-open-gop":
        assert info.key_frames == (0,)  # later key frames are CRA: decoding cannot start there cleanly
    else:
        assert set(info.key_frames) == keys


def test_probe_finds_audio(tmp_path):
    file = tmp_path / "sound.mp4"
    with av.open(str(file), "w") as container:
        video = container.add_stream("libx264", rate=30)
        video.width, video.height, video.pix_fmt = 32, 32, "yuv420p"
        audio = container.add_stream("aac", rate=16000, layout="mono")
        for _ in range(5):
            container.mux(video.encode(av.VideoFrame.from_ndarray(np.zeros((32, 32, 3), np.uint8))))
        silence = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), format="fltp", layout="mono")
        silence.sample_rate = 16000
        container.mux(audio.encode(silence))
        container.mux([*video.encode(None), *audio.encode(None)])
    assert probe(file).has_audio
    assert probe(file).frames == 5


def test_probe_sees_a_changed_file(tmp_path):
    file = make_video(tmp_path / "v.mp4", 10)
    assert probe(file).frames == 10
    make_video(tmp_path / "w.mp4", 13).replace(file)
    assert probe(file).frames == 13


@pytest.mark.parametrize("codec", ["h264", "h264-b"])
@pytest.mark.parametrize("hidden", [4, 12])
def test_frames_hidden_by_an_edit_list_do_not_count(tmp_path, codec, hidden):
    whole_file = make_video(
        tmp_path / "v.mp4", 40, codec=codec, options={"sc_threshold": "0"}, mux={"use_editlist": "1"}
    )
    pictures = rgb(decoded(whole_file))
    data = bytearray(whole_file.read_bytes())
    at = data.index(b"elst") + 16  # media_time of the first edit, in ticks of 1/15360 s
    media_time = int.from_bytes(data[at : at + 4], "big") + hidden * 512
    data[at : at + 4] = media_time.to_bytes(4, "big")
    file = tmp_path / "edited.mp4"
    file.write_bytes(data)
    assert len(decoded(file)) == 40 - hidden
    assert probe(file).frames == 40 - hidden
    got = list(decode(file, [0, 39 - hidden, 20]))
    for n, picture in zip((0, 39 - hidden, 20), got, strict=True):
        assert (picture == pictures[hidden + n]).all()
    first_key = probe(file).key_frames[0]
    if first_key:
        assert code_of(lambda: clip_digest(ClipRef(file, 0, 40 - hidden)))[0] == "video-clip-not-at-key-frame"
    join([ClipRef(file, first_key, 40 - hidden - first_key)], tmp_path / "out.mp4", 30)
    for picture, wanted in zip(
        rgb(decoded(tmp_path / "out.mp4")), pictures[hidden + first_key :], strict=True
    ):
        assert (picture == wanted).all()


def test_files_that_are_no_video(tmp_path):
    good = make_video(tmp_path / "good.mp4", 20)
    data = good.read_bytes()
    fast = make_video(tmp_path / "fast.mp4", 20, mux={"movflags": "faststart"}).read_bytes()
    assert fast.index(b"moov") < fast.index(b"mdat")
    (tmp_path / "empty.mp4").write_bytes(b"")
    (tmp_path / "cut.mp4").write_bytes(data[: len(data) // 2])
    (tmp_path / "cut-fast.mp4").write_bytes(fast[:-200])
    (tmp_path / "no-index.mp4").write_bytes(data[: data.index(b"moov") - 4])
    (tmp_path / "text.mp4").write_text("no video at all, but some bytes of text\n" * 20)
    (tmp_path / "lfs.mp4").write_text(
        "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a2146\nsize 12345\n"
    )
    wanted = {
        "missing.mp4": "video-missing",
        "empty.mp4": "video-empty",
        "cut.mp4": "video-truncated",
        "cut-fast.mp4": "video-truncated",
        "no-index.mp4": "video-truncated",
        "text.mp4": "video-not-readable",
        "lfs.mp4": "video-is-lfs-pointer",
    }
    for name, code in wanted.items():
        for call in (
            probe,
            lambda f: list(decode(f, [0])),
            lambda f: join([ClipRef(f, 0, 1)], tmp_path / "o", 30),
        ):
            got, error = code_of(lambda call=call, name=name: call(tmp_path / name))
            assert got == code, name
            assert error.where == str(tmp_path / name)
            assert error.do
    assert probe(good).frames == 20


# join


@pytest.mark.parametrize("codec", [c for c in CODECS if c != "hevc-open-gop"])
def test_joined_frames_are_the_sources_frames_at_n_over_fps(tmp_path, codec):
    files = [make_video(tmp_path / f"{n}.mp4", 13 + 5 * n, codec=codec, seed=n) for n in range(3)]
    info = join([whole(file) for file in files], tmp_path / "out.mp4", 30)
    wanted = [picture for file in files for picture in rgb(decoded(file))]
    got = decoded(tmp_path / "out.mp4")
    assert info.frames == len(got) == len(wanted) == 54
    for n, (frame, picture) in enumerate(zip(got, wanted, strict=True)):
        assert frame.pts * frame.time_base == Fraction(n, 30)
        assert (frame.to_ndarray(format="rgb24") == picture).all(), n
    packets = packets_of(tmp_path / "out.mp4")
    assert all(b.dts > a.dts for a, b in pairwise(packets))
    assert all(p.dts <= p.pts for p in packets)
    assert info.has_b_frames == any(p.dts != p.pts for p in packets)


@pytest.mark.parametrize("codec", ["h264", "h264-b"])
def test_mixed_time_bases_become_one(tmp_path, codec):
    scales = (15360, 90000, 1000)  # ms ticks cannot say 1/30 s exactly
    files = [
        make_video(tmp_path / f"{s}.mp4", 24, codec=codec, seed=n, timescale=s) for n, s in enumerate(scales)
    ]
    assert {probe(file).time_base for file in files} == {Fraction(1, s) for s in scales}
    assert {probe(file).fps for file in files} == {30}
    join([whole(file) for file in files], tmp_path / "out.mp4", 30)
    with av.open(str(tmp_path / "out.mp4")) as container:
        assert container.streams.video[0].average_rate == 30
        times = [frame.pts * frame.time_base for frame in container.decode(video=0)]
    assert times == [Fraction(n, 30) for n in range(72)]


@pytest.mark.parametrize(
    ("fps", "exact"),
    [
        (30.0, Fraction(30)),
        (10.0, Fraction(10)),
        (29.97, Fraction(2997, 100)),
        (30000 / 1001, Fraction(30000, 1001)),
        (23.976, Fraction(23976, 1000)),
        (0.5, Fraction(1, 2)),
    ],
)
def test_any_rate_has_exact_ticks(tmp_path, fps, exact):
    assert exact_rate(fps) == exact
    file = make_video(tmp_path / "v.mp4", 24, codec="h264-b", rate=exact)
    join([whole(file), whole(file)], tmp_path / "out.mp4", fps)
    got = decoded(tmp_path / "out.mp4")
    assert [frame.pts * frame.time_base for frame in got] == [n / exact for n in range(48)]
    assert probe(tmp_path / "out.mp4").fps == exact


@pytest.mark.parametrize("fps", [0, -30, float("nan"), float("inf")])
def test_impossible_rates_are_refused(tmp_path, fps):
    file = make_video(tmp_path / "v.mp4", 3)
    assert code_of(lambda: join([whole(file)], tmp_path / "out.mp4", fps))[0] == "video-fps-impossible"


@pytest.mark.parametrize("codec", ["h264", "h264-b", "av1"])
def test_clips_are_cut_at_key_frames(tmp_path, codec):
    file = make_video(tmp_path / "v.mp4", 40, codec=codec)
    keys = [n for n, frame in enumerate(decoded(file)) if frame.key_frame]
    first, second, third = keys[1], keys[2], keys[3]
    clips = [
        ClipRef(file, second, third - second),
        ClipRef(file, 0, first),
        ClipRef(file, second, 40 - second),
    ]
    join(clips, tmp_path / "out.mp4", 30)
    source, got = rgb(decoded(file)), rgb(decoded(tmp_path / "out.mp4"))
    wanted = [*source[second:third], *source[:first], *source[second:]]
    assert len(got) == len(wanted)
    assert all((a == b).all() for a, b in zip(got, wanted, strict=True))


def test_digest_between_key_frames_is_refused(tmp_path):
    file = make_video(tmp_path / "v.mp4", 40, codec="h264-b", options={"sc_threshold": "0"})
    assert probe(file).key_frames == (0, 12, 24, 36)
    code, error = code_of(lambda: clip_digest(ClipRef(file, 13, 10)))
    assert code == "video-clip-not-at-key-frame"
    assert "13" in error.what
    assert "12" in error.what


def test_digest_of_an_end_that_needs_later_frames_is_refused(tmp_path):
    # Fixed order I P B B B P B B B ...: frames 1 to 3 are built from frame 4.
    fixed = {"x264-params": "b-adapt=0:bframes=3:b-pyramid=none:scenecut=0:keyint=40"}
    file = make_video(tmp_path / "v.mp4", 40, codec="h264-b", options=fixed)
    assert kinds(decoded(file)[:9]) == "IBBBPBBBP"
    assert code_of(lambda: clip_digest(ClipRef(file, 0, 4)))[0] == "video-clip-ends-inside-b-frames"
    info = join([ClipRef(file, 0, 5)], tmp_path / "out.mp4", 30)
    assert info.encoded == ()
    got, source = rgb(decoded(tmp_path / "out.mp4")), rgb(decoded(file))[:5]
    assert len(got) == 5
    assert all((a == b).all() for a, b in zip(got, source, strict=True))


def test_open_gop_is_no_place_to_copy_from(tmp_path):
    file = make_video(tmp_path / "v.mp4", 40, codec="hevc-open-gop")
    flagged = [n for n, frame in enumerate(decoded(file)) if frame.key_frame]
    assert len(flagged) > 1
    cut = ClipRef(file, flagged[1], 40 - flagged[1])
    assert code_of(lambda: clip_digest(cut))[0] == "video-clip-not-at-key-frame"
    join([ClipRef(file, 0, 40)], tmp_path / "out.mp4", 30)
    assert [f.pts * f.time_base for f in decoded(tmp_path / "out.mp4")] == [
        Fraction(n, 30) for n in range(40)
    ]


@pytest.mark.parametrize(("start", "count"), [(0, 31), (30, 1), (-1, 5), (0, 0)])
def test_clips_outside_the_file_are_refused(tmp_path, start, count):
    file = make_video(tmp_path / "v.mp4", 30)
    code, error = code_of(lambda: join([ClipRef(file, start, count)], tmp_path / "out.mp4", 30))
    assert code == "video-clip-out-of-range"
    assert "30 frames" in error.what


def test_files_that_do_not_fit_are_refused_by_name(tmp_path):
    base = make_video(tmp_path / "base.mp4", 10)
    others = {
        "codec": (make_video(tmp_path / "codec.mp4", 10, codec="mpeg4"), "h264", "mpeg4"),
        "picture size": (make_video(tmp_path / "size.mp4", 10, size=(96, 48)), "64x48", "96x48"),
        "pixel format": (make_video(tmp_path / "pix.mp4", 10, pix_fmt="yuv444p"), "yuv420p", "yuv444p"),
        "extradata": (make_video(tmp_path / "extra.mp4", 10, codec="h264-b"), "base.mp4", "extra.mp4"),
    }
    for what, (other, left, right) in others.items():
        reason = why_not_joinable(probe(base), probe(other))
        assert reason is not None
        assert what in reason
        assert left in reason
        assert right in reason
        code, error = code_of(lambda other=other: join([whole(base), whole(other)], tmp_path / "out.mp4", 30))
        assert code == "video-not-joinable"
        assert error.what == reason
    assert why_not_joinable(probe(base), probe(make_video(tmp_path / "same.mp4", 7, seed=9))) is None
    assert not list(tmp_path.glob("*out*"))


def test_nothing_to_join(tmp_path):
    assert code_of(lambda: join([], tmp_path / "out.mp4", 30))[0] == "video-no-clips"


def test_a_failed_join_leaves_the_old_file(tmp_path):
    file = make_video(tmp_path / "v.mp4", 10)
    out = tmp_path / "out.mp4"
    join([whole(file)], out, 30)
    before = out.read_bytes()
    small = resource.getrlimit(resource.RLIMIT_FSIZE)
    heard = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, small[1]))  # a disk that is full
    try:
        code, error = code_of(lambda: join([whole(file), whole(file)], out, 30))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, small)
        signal.signal(signal.SIGXFSZ, heard)
    assert code == "video-join-failed"
    assert error.exit == 4
    assert out.read_bytes() == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out.mp4", "v.mp4"]


@pytest.mark.parametrize("way", ["write_runs", "_mux"])
def test_check_after_join_sees_a_wrong_file(tmp_path, monkeypatch, way):
    import stack.dataset.video as video

    file = make_video(tmp_path / "v.mp4", 12, codec="h264-b")
    if way == "_mux":
        monkeypatch.setattr(video, "_is_plain", lambda index: False)
    right = getattr(video, way)
    monkeypatch.setattr(video, way, lambda parts, *rest: right(parts[:1], *rest))
    code, _ = code_of(lambda: join([whole(file), whole(file)], tmp_path / "out.mp4", 30))
    assert code == "video-join-check-failed"
    monkeypatch.setattr(video, way, right)
    exact = video.ticks_of
    monkeypatch.setattr(video, "ticks_of", lambda rate: exact(rate * Fraction(29, 30)))
    code, error = code_of(lambda: join([whole(file), whole(file)], tmp_path / "out.mp4", 30))
    assert code == "video-join-check-failed"
    assert "n / fps" in error.what
    assert not (tmp_path / "out.mp4").exists()


def test_sources_are_not_touched_and_joins_repeat(tmp_path):
    file = make_video(tmp_path / "v.mp4", 20, codec="h264-b")
    before = file.read_bytes()
    file.chmod(0o444)
    join([whole(file)] * 2, tmp_path / "a.mp4", 30)
    join([whole(file)] * 2, tmp_path / "b.mp4", 30)
    assert file.read_bytes() == before
    assert (tmp_path / "a.mp4").read_bytes() == (tmp_path / "b.mp4").read_bytes()


# digests


@pytest.mark.parametrize("codec", [c for c in CODECS if c != "hevc-open-gop"])
def test_digest_survives_joining_and_tells_pictures_apart(tmp_path, codec):
    files = [
        make_video(tmp_path / f"{n}.mp4", 10 + n, codec=codec, seed=n, timescale=90000) for n in range(3)
    ]
    join([whole(file) for file in files], tmp_path / "out.mp4", 30)
    start, digests = 0, []
    for file in files:
        clip = whole(file)
        digests.append(clip_digest(clip))
        assert clip_digest(ClipRef(tmp_path / "out.mp4", start, clip.count)) == digests[-1]
        start += clip.count
    assert len(set(digests)) == 3


def test_digest_sees_one_changed_byte(tmp_path):
    file = make_video(tmp_path / "v.mp4", 10)
    before = clip_digest(whole(file))
    data = bytearray(file.read_bytes())
    packet = bytes(packets_of(file)[5])
    at = bytes(data).index(packet) + len(packet) // 2
    data[at] ^= 1
    (tmp_path / "w.mp4").write_bytes(data)
    assert clip_digest(ClipRef(tmp_path / "w.mp4", 0, 10)) != before


# decode


@pytest.mark.parametrize("codec", CODECS)
def test_decode_gives_the_frame_asked_for(tmp_path, codec):
    file = make_video(tmp_path / "v.mp4", 60, codec=codec)
    wanted = rgb(decoded(file))
    for asked in (range(60), [0], [59], [17, 18, 58], [40, 3, 3, 59, 0, 41], range(59, -1, -7)):
        got = list(decode(file, asked))
        assert len(got) == len(asked)
        for n, picture in zip(asked, got, strict=True):
            assert picture.dtype == np.uint8
            assert picture.shape == (48, 64, 3)
            assert (picture == wanted[n]).all(), (codec, n)


@pytest.mark.parametrize("frame", [-1, 30])
def test_decode_out_of_range(tmp_path, frame):
    file = make_video(tmp_path / "v.mp4", 30)
    code, error = code_of(lambda: list(decode(file, [0, frame])))
    assert code == "video-frame-out-of-range"
    assert "30 frames" in error.what


def test_damaged_pictures_are_an_error(tmp_path):
    file = make_video(tmp_path / "v.mp4", 16, options={"g": "16"})
    data = bytearray(file.read_bytes())
    packet = bytes(packets_of(file)[8])
    at = bytes(data).index(packet)
    data[at + 5 : at + len(packet)] = bytes(len(packet) - 5)
    (tmp_path / "w.mp4").write_bytes(data)
    assert len(list(decode(tmp_path / "w.mp4", range(8)))) == 8
    assert code_of(lambda: list(decode(tmp_path / "w.mp4", range(16))))[0] == "video-not-decodable"


# the real recordings


@pytest.mark.parametrize(
    ("name", "fps"),
    [("gr00t_picknplace_v20", 20), ("cr5_tcp_v21", 10), ("g1_inspire_v21", 30), ("ioai_v21_video", 10)],
)
def test_real_recordings_join(tmp_path, name, fps):
    files = sorted((REAL / name).rglob("*.mp4"))
    if not files:
        pytest.skip(f"the real recording {name} is not on this machine")
    clips = [ClipRef(file, 0, probe(file).frames) for file in files]
    info = join(clips, tmp_path / "out.mp4", fps)
    assert info.frames == sum(clip.count for clip in clips)
    assert [t * info.time_base for t in info.pts] == [Fraction(n, fps) for n in range(info.frames)]
    if name == "gr00t_picknplace_v20":
        assert info.has_b_frames
        assert max(b - a for a, b in pairwise(info.key_frames)) > 100
    start = 0
    for clip in clips[:2]:
        here = [0, 1, clip.count // 2, clip.count - 1]
        with av.open(str(clip.file)) as container:
            wanted = {
                n: f.to_ndarray(format="rgb24") for n, f in enumerate(container.decode(video=0)) if n in here
            }
        for n, picture in zip(here, decode(tmp_path / "out.mp4", [start + n for n in here]), strict=True):
            assert (picture == wanted[n]).all()
        assert clip_digest(ClipRef(tmp_path / "out.mp4", start, clip.count)) == clip_digest(clip)
        start += clip.count


@pytest.mark.lerobot
@pytest.mark.parametrize("codec", ["h264", "h264-b", "av1"])
def test_lerobot_finds_each_frame_at_n_over_fps(tmp_path, codec):
    video_utils = pytest.importorskip("lerobot.datasets.video_utils", reason="lerobot is not installed")
    files = [make_video(tmp_path / f"{n}.mp4", 25, codec=codec, seed=n) for n in range(3)]
    join([whole(file) for file in files], tmp_path / "out.mp4", 30)
    wanted = [picture for file in files for picture in rgb(decoded(file))]
    for n in (0, 1, 24, 25, 26, 49, 50, 74):
        start, row = divmod(n, 25)
        # As the loader asks: the episode's from_timestamp (double) + the row's timestamp (float32).
        time_s = start * 25 / 30 + float(np.float32(row / 30))
        frame = video_utils.decode_video_frames(tmp_path / "out.mp4", [time_s], 1e-4, backend="pyav")[0]
        got = np.asarray(frame.permute(1, 2, 0) * 255).round()
        assert np.abs(got - wanted[n]).mean() < 2.5, n
        assert np.abs(got - wanted[n]).mean() < np.abs(got - wanted[n - 1]).mean()
