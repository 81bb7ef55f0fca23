"""Files written box by box against FFmpeg: the same packets, times and pictures as from its own muxer."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest

import stack.dataset.video as video
import stack.dataset.video_boxes as boxes
from stack.dataset.model import ClipRef
from stack.dataset.video_index import _index_from_tables, index_by_demuxing

KINDS = {
    "h264": ("libx264", {"g": "8", "bf": "0"}),
    "b-frames": ("libx264", {"g": "12", "bf": "3"}),
    "all-key": ("libx264", {"g": "1", "bf": "0"}),
    "hevc": ("libx265", {"x265-params": "keyint=8:bframes=3:open-gop=0:log-level=none"}),
    "av1": ("libsvtav1", {"preset": "12", "g": "2"}),
}


def make(file: Path, kind: str, seed: int, frames: int) -> Path:
    codec, options = KINDS[kind]
    rng = np.random.default_rng(seed)
    with av.open(str(file), "w") as container:
        stream = container.add_stream(codec, rate=30, options=options)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        for n in range(frames):
            picture = rng.integers(0, 255, (6, 8, 3), dtype=np.uint8).repeat(8, 0).repeat(8, 1)
            frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
            frame.pts, frame.time_base = n, Fraction(1, 30)
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return file


def told(file: Path) -> dict[str, object]:
    """All that FFmpeg says of a file."""
    with av.open(str(file)) as container:
        stream = container.streams.video[0]
        context = stream.codec_context
        packets = [(p.pts, p.dts, p.duration, p.is_keyframe, bytes(p)) for p in container.demux(0) if p.size]
        head = (context.name, bytes(context.extradata or b""), context.width, context.height, context.pix_fmt)
        times = (stream.time_base, stream.average_rate, stream.duration, stream.frames, container.duration)
        tracks = [track.type for track in container.streams]
    with av.open(str(file)) as container:
        pictures = [(f.pts, f.to_ndarray(format="rgb24").tobytes()) for f in container.decode(video=0)]
    return {"head": head, "times": times, "tracks": tracks, "packets": packets, "pictures": pictures}


@pytest.mark.parametrize("fps", [30, 29.97])
@pytest.mark.parametrize("kind", KINDS)
def test_ffmpeg_reads_what_its_own_muxer_would_have_written(tmp_path, monkeypatch, kind, fps):
    files = [make(tmp_path / f"{n}.mp4", kind, n, frames) for n, frames in enumerate((24, 1, 17))]
    clips = [ClipRef(file, 0, count) for file, count in zip(files, (24, 1, 17), strict=True)]
    wrote = []
    right = boxes.write_runs
    monkeypatch.setattr(video, "write_runs", lambda *given: (wrote.append(given), right(*given)))
    video.join(clips, tmp_path / "ours.mp4", fps)
    assert len(wrote) == 1
    monkeypatch.setattr(video, "_is_plain", lambda index: False)
    video.join(clips, tmp_path / "theirs.mp4", fps)
    assert len(wrote) == 1
    ours, theirs = told(tmp_path / "ours.mp4"), told(tmp_path / "theirs.mp4")
    assert ours == theirs
    assert len(ours["pictures"]) == 42
    quick, slow = _index_from_tables(tmp_path / "ours.mp4"), index_by_demuxing(tmp_path / "ours.mp4")
    assert quick is not None
    assert quick.info == slow.info


def test_a_joined_file_joins_again(tmp_path):
    file = make(tmp_path / "v.mp4", "b-frames", 0, 30)
    video.join([ClipRef(file, 0, 30)] * 3, tmp_path / "once.mp4", 30)
    clips = [ClipRef(tmp_path / "once.mp4", 30 * n, 30) for n in (2, 0, 1)]
    video.join(clips, tmp_path / "twice.mp4", 30)
    once, twice = told(tmp_path / "once.mp4"), told(tmp_path / "twice.mp4")
    assert twice == once  # three equal clips, so any order gives the same


def test_files_larger_than_four_gigabytes(tmp_path, monkeypatch):
    """With the limit at 1,000 bytes, so that wide durations and places are written, and FFmpeg reads them."""
    file = make(tmp_path / "v.mp4", "b-frames", 0, 30)
    video.join([ClipRef(file, 0, 30)] * 2, tmp_path / "narrow.mp4", 30)
    monkeypatch.setattr(boxes, "WIDE", 1000)
    video.join([ClipRef(file, 0, 30)] * 2, tmp_path / "wide.mp4", 30)
    assert b"co64" in (tmp_path / "wide.mp4").read_bytes()
    assert told(tmp_path / "wide.mp4") == told(tmp_path / "narrow.mp4")


@pytest.mark.parametrize("kind", ["h264", "b-frames"])
def test_turned_pictures_are_told_and_written_upright(tmp_path, kind):
    """A joined file has one matrix for all of its clips, and not all decoders follow it."""
    file = make(tmp_path / "v.mp4", kind, 0, 8)
    upright = told(file)
    data = bytearray(file.read_bytes())
    at = data.index(b"tkhd") + 4 + 40
    data[at : at + 8] = (0).to_bytes(4, "big") + (1 << 16).to_bytes(4, "big")
    file.write_bytes(data)
    index = _index_from_tables(file)
    assert index is not None and index.info.is_turned and index_by_demuxing(file).info.is_turned
    written = video.join([ClipRef(file, 0, 8)], tmp_path / "out.mp4", 30)
    assert not written.is_turned and not index_by_demuxing(tmp_path / "out.mp4").info.is_turned
    for what in ("packets", "pictures"):
        assert [one[-1] for one in told(tmp_path / "out.mp4")[what]] == [one[-1] for one in upright[what]]
