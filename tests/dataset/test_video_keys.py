"""Pictures that who seeks to a key frame cannot fetch, against decoders that seek."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest

from stack.dataset.video_index import index_by_demuxing, index_video

FPS = 10
FRAMES = 50
X264 = "keyint=12:min-keyint=12:scenecut=0:bframes=3:b-adapt=0"
X265 = "log-level=none:scenecut=0:min-keyint=12:keyint=12:bframes=3:b-adapt=0"
OPEN = {
    "h264": ("libx264", {"x264-params": f"{X264}:open-gop=1"}),
    "hevc": ("libx265", {"x265-params": f"{X265}:open-gop=1"}),
    "hevc as x265 writes it": ("libx265", {"g": "12", "x265-params": "log-level=none"}),
    "hevc without B-pyramid": ("libx265", {"x265-params": f"{X265}:open-gop=1:b-pyramid=0"}),
    "mpeg4": ("mpeg4", {"g": "12", "bf": "2", "b": "4000000"}),
}
REFRESHED = {
    "h264": ("libx264", {"x264-params": "keyint=12:intra-refresh=1:scenecut=0:bframes=0"}),
    "h264, for streaming": ("libx264", {"tune": "zerolatency", "intra-refresh": "1", "g": "10"}),
    "h264, B-frames": ("libx264", {"x264-params": "keyint=20:intra-refresh=1:scenecut=0:bframes=2"}),
}
CLOSED = {
    "h264": ("libx264", {"x264-params": X264}),
    "h264, no B-frames": ("libx264", {"g": "2", "bf": "0"}),
    "hevc": ("libx265", {"x265-params": f"{X265}:open-gop=0"}),
    "hevc, what leads needs the key frame only": (
        "libx265",
        {"x265-params": f"{X265}:open-gop=0:radl=2"},
    ),
    "hevc, one key frame": ("libx265", {"x265-params": "log-level=none:keyint=250:open-gop=1"}),
    "av1": ("libsvtav1", {"preset": "12", "g": "12"}),
    "vp9": ("libvpx-vp9", {"g": "12", "cpu-used": "8", "deadline": "realtime"}),
    "mpeg4, no B-frames": ("mpeg4", {"g": "12", "bf": "0", "b": "4000000"}),
}


def make(file: Path, codec: str, options: dict[str, str]) -> Path:
    rng = np.random.default_rng(0)
    large = rng.integers(0, 255, (96, 160, 3), dtype=np.uint8)
    with av.open(str(file), "w") as container:
        stream = container.add_stream(codec, rate=FPS, options=options)
        stream.width, stream.height, stream.pix_fmt = 96, 64, "yuv420p"
        for number in range(FRAMES):
            part = large[number // 2 : number // 2 + 64, number : number + 96]
            frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(part), format="rgb24")
            frame.pts, frame.time_base = number, Fraction(1, FPS)
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return file


def by_seeking(file: Path, number: int) -> bool:
    """Whether decoding from the key frame before a picture on shows it as decoding the whole file does."""
    with av.open(str(file)) as container:
        whole = [frame.to_ndarray() for frame in container.decode(video=0)]
    with av.open(str(file)) as container:
        stream = container.streams.video[0]
        container.seek(round(number / FPS / stream.time_base), stream=stream, backward=True)
        for frame in container.decode(stream):
            if round(frame.time * FPS) >= number:
                return round(frame.time * FPS) == number and np.array_equal(frame.to_ndarray(), whole[number])
    return False


def by_lerobot(file: Path, number: int) -> bool:
    pytest.importorskip("lerobot")
    from lerobot.datasets.video_utils import decode_video_frames

    try:
        decode_video_frames(file, [number / FPS], 1e-4, "pyav")
    except Exception as error:
        assert "tolerance" in str(error) or isinstance(error, IndexError), error  # another picture, or none
        return False
    return True


@pytest.mark.parametrize("kind", OPEN)
def test_pictures_that_cannot_be_fetched_are_the_leading_ones(tmp_path: Path, kind: str) -> None:
    file = make(tmp_path / "v.mp4", *OPEN[kind])
    lost = [number for number in range(FRAMES) if not by_seeking(file, number)]
    assert lost
    assert list(index_video(file).info.leading) == lost


@pytest.mark.parametrize("kind", REFRESHED)
def test_of_pictures_refreshed_part_by_part_only_the_first_are_certain(tmp_path: Path, kind: str) -> None:
    """Which of the others a decoder leaves out, gives wrong or gives right hangs on the pictures."""
    file = make(tmp_path / "v.mp4", *REFRESHED[kind])
    lost = {number for number in range(FRAMES) if not by_seeking(file, number)}
    info = index_video(file).info
    assert lost and lost <= set(info.leading)
    assert info.key_frames == (0,)
    assert set(range(info.leading[0])) | set(info.leading) == set(range(FRAMES))


@pytest.mark.lerobot
@pytest.mark.parametrize("kind", OPEN)
def test_lerobot_cannot_fetch_leading_pictures(tmp_path: Path, kind: str) -> None:
    """All, or all but those that are shown when the key frame is decoded: versions round times unlike."""
    file = make(tmp_path / "v.mp4", *OPEN[kind])
    lost = {number for number in range(FRAMES) if not by_lerobot(file, number)}
    assert lost and lost <= set(index_video(file).info.leading)


@pytest.mark.parametrize("fetch", [by_seeking, pytest.param(by_lerobot, marks=pytest.mark.lerobot)])
@pytest.mark.parametrize("kind", CLOSED)
def test_where_all_pictures_can_be_fetched_none_leads(
    tmp_path: Path, kind: str, fetch: Callable[[Path, int], bool]
) -> None:
    file = make(tmp_path / "v.mp4", *CLOSED[kind])
    assert all(fetch(file, number) for number in range(FRAMES))
    assert index_video(file).info.leading == ()


@pytest.mark.parametrize("kind", [*OPEN.values(), *REFRESHED.values(), *CLOSED.values()])
def test_sample_tables_and_the_demuxer_tell_the_same(
    tmp_path: Path, kind: tuple[str, dict[str, str]]
) -> None:
    file = make(tmp_path / "v.mp4", *kind)
    assert index_video(file).info.leading == index_by_demuxing(file).info.leading
