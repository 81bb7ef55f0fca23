"""Sample tables against FFmpeg's demuxer: the same packets, times and key frames, or no answer at all."""

from __future__ import annotations

import os
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest

from stack.dataset.model import ClipRef
from stack.dataset.video import join
from stack.dataset.video_index import _index_from_tables, index_by_demuxing, index_video
from stack.dataset.video_tables import read_tables

REAL = Path(os.environ.get("STACK_REAL_DATASETS", Path(__file__).parents[3] / "shared" / "datasets"))

PLAIN = {
    "h264": ("libx264", {"g": "8", "bf": "0"}, {}),
    "b-frames": ("libx264", {"g": "12", "bf": "3"}, {}),
    "faststart": ("libx264", {"g": "12", "bf": "3"}, {"movflags": "faststart"}),
    "90k": ("libx264", {"g": "12", "bf": "3"}, {"video_track_timescale": "90000"}),
    "ms": ("libx264", {"g": "12", "bf": "2"}, {"video_track_timescale": "1000"}),
    "no-edit-list": ("libx264", {"g": "12", "bf": "0"}, {"use_editlist": "0"}),
    "hevc": ("libx265", {"x265-params": "keyint=8:bframes=3:log-level=none"}, {}),
    "av1": ("libsvtav1", {"preset": "12", "g": "2"}, {}),
}
NOT_PLAIN = {
    "mpeg4": ("mpeg4", {"g": "10"}, {}),
    "fragments": ("libx264", {"g": "8"}, {"movflags": "frag_keyframe+empty_moov"}),
}


def make(file: Path, kind: tuple[str, dict[str, str], dict[str, str]], *, sound: bool = False) -> Path:
    codec, options, mux = kind
    rng = np.random.default_rng(0)
    with av.open(str(file), "w", format="mp4", options=mux) as container:
        stream = container.add_stream(codec, rate=30, options=options)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        audio = container.add_stream("aac", rate=16000, layout="mono") if sound else None
        for n in range(50):
            picture = rng.integers(0, 255, (48, 64, 3), dtype=np.uint8)
            frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
            frame.pts, frame.time_base = n, Fraction(1, 30)
            container.mux(stream.encode(frame))
            if audio is not None:
                silence = av.AudioFrame.from_ndarray(
                    np.zeros((1, 533), np.float32), format="fltp", layout="mono"
                )
                silence.sample_rate = 16000
                container.mux(audio.encode(silence))
        container.mux(stream.encode(None))
        if audio is not None:
            container.mux(audio.encode(None))
    return file


def check(file: Path) -> None:
    quick, slow = _index_from_tables(file), index_by_demuxing(file)
    assert quick is not None
    assert quick.info == slow.info
    assert [replace(coded, offset=None) for coded in quick.coded] == list(slow.coded)
    data = file.read_bytes()
    with av.open(str(file)) as container:
        packets = [bytes(packet) for packet in container.demux(video=0) if packet.size]
    assert [data[c.offset : c.offset + c.size_bytes] for c in quick.coded] == packets


@pytest.mark.parametrize("kind", PLAIN)
def test_tables_say_what_the_demuxer_says(tmp_path, kind):
    check(make(tmp_path / "v.mp4", PLAIN[kind]))


def test_sound_beside_the_pictures(tmp_path):
    file = make(tmp_path / "v.mp4", PLAIN["b-frames"], sound=True)
    check(file)
    assert index_video(file).info.has_audio


def test_joined_and_cut_files(tmp_path):
    file = make(tmp_path / "v.mp4", PLAIN["b-frames"])
    join([ClipRef(file, 0, 50), ClipRef(file, 7, 30), ClipRef(file, 0, 50)], tmp_path / "out.mp4", 29.97)
    check(tmp_path / "out.mp4")


@pytest.mark.parametrize("kind", NOT_PLAIN)
def test_what_is_not_plain_is_left_to_the_demuxer(tmp_path, kind):
    file = make(tmp_path / "v.mp4", NOT_PLAIN[kind])
    assert _index_from_tables(file) is None
    assert index_video(file).info.frames == 50


def test_an_edit_list_that_hides_frames_is_left_to_the_demuxer(tmp_path):
    data = bytearray(make(tmp_path / "v.mp4", PLAIN["b-frames"]).read_bytes())
    at = data.index(b"elst") + 16  # media_time of the only edit
    for hidden in (512, 4096):
        edited = bytearray(data)
        edited[at : at + 4] = (int.from_bytes(data[at : at + 4], "big") + hidden).to_bytes(4, "big")
        assert read_tables(bytes(edited)) is None
    short = bytearray(data)
    short[at - 4 : at] = (500).to_bytes(4, "big")  # shows half a second of it
    assert read_tables(bytes(short)) is None
    assert read_tables(bytes(data)) is not None


def test_any_damage_is_no_answer_or_the_same(tmp_path):
    """Bytes of the index changed at random: never a crash, and never samples outside the file."""
    data = make(tmp_path / "v.mp4", PLAIN["b-frames"]).read_bytes()
    start = data.index(b"moov") - 4
    rng = np.random.default_rng(1)
    for _ in range(400):
        broken = bytearray(data)
        for at in rng.integers(start, len(data), 3):
            broken[at] = rng.integers(0, 256)
        tables = read_tables(bytes(broken))
        if tables is not None:
            assert (tables.sizes > 0).all()
            assert int((tables.offsets + tables.sizes).max()) <= len(data)
            assert int(tables.offsets.min()) >= 0
    for cut in (0, 7, 100, start + 30, len(data) - 5):
        assert read_tables(data[:cut]) is None


def test_real_recordings():
    files = sorted(REAL.rglob("*.mp4"))
    if not files:
        pytest.skip("the real recordings are not on this machine")
    for file in files:
        check(file)
