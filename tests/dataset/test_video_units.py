"""Damage inside coded pictures is found while copying; sound pictures of any codec and encoder pass."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from types import ModuleType

import av
import numpy as np
import pytest
from click.testing import CliRunner

from stack.cli import cli
from stack.dataset.model import ClipRef
from stack.dataset.video import clip_digest, probe
from stack.dataset.video_index import index_video
from stack.dataset.video_units import first_broken
from stack.errors import StackError

FRAMES = 24
ENCODERS = {
    "h264": ("libx264", {"g": "12", "bf": "2"}),
    "h264-slices": ("libx264", {"g": "12", "x264-params": "slices=4"}),
    "h264-small": ("libx264", {"g": "12", "crf": "51"}),  # lengths below 256: three zero bytes each
    "hevc": ("libx265", {"g": "8", "x265-params": "log-level=error"}),
    "av1": ("libsvtav1", {"g": "8", "preset": "12"}),
}
HEAD = "observation.images.head"


def encode(file: Path, encoder: str, pictures: Sequence[np.ndarray]) -> Path:
    name, options = ENCODERS[encoder]
    file.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(file), "w") as container:
        stream = container.add_stream(name, rate=10, options=options)
        stream.height, stream.width = pictures[0].shape[:2]
        stream.pix_fmt = "yuv420p"
        for number, picture in enumerate(pictures):
            frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
            frame.pts, frame.time_base = number, Fraction(1, 10)
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return file


def scene(frames: int = FRAMES) -> list[np.ndarray]:
    rng = np.random.default_rng(3)
    still = rng.integers(0, 256, (64, 96, 3))
    return [np.roll(still, 3 * n, axis=1).astype(np.uint8) for n in range(frames)]


@pytest.fixture(scope="module")
def clips(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("clips")
    return {name: encode(root / f"{name}.mp4", name, scene()) for name in ENCODERS}


def packets(file: Path) -> list[tuple[int, int, int]]:
    """(frame, offset, size) in decode order, by PyAV's own demuxer."""
    with av.open(str(file)) as container:
        stream = container.streams.video[0]
        found = [(p.pts, p.pos, p.size) for p in container.demux(stream) if p.size]
    order = sorted(pts for pts, _, _ in found)
    return [(order.index(pts), at, size) for pts, at, size in found]


@pytest.mark.parametrize("encoder", ENCODERS)
def test_sound_pictures_pass(clips: dict[str, Path], encoder: str) -> None:
    """All at once, in runs, and one by one."""
    file = clips[encoder]
    info, raw = probe(file), file.read_bytes()
    own = [raw[at : at + size] for _, at, size in packets(file)]
    for together in (1, 5, len(own)):
        for start in range(0, len(own), together):
            part = own[start : start + together]
            ends = np.cumsum([len(payload) for payload in part])
            assert first_broken(info, b"".join(part), ends) is None
    assert clip_digest(ClipRef(file, 0, FRAMES))


@pytest.mark.parametrize("encoder", ENCODERS)
@pytest.mark.parametrize("damage", ["other bytes", "zeros", "another start", "moved by one byte"])
def test_damage_is_found_in_the_frame_that_has_it(
    clips: dict[str, Path], tmp_path: Path, encoder: str, damage: str
) -> None:
    for place in (3, FRAMES // 2, FRAMES - 2):
        frame, at, size = packets(clips[encoder])[place]
        raw = bytearray(clips[encoder].read_bytes())
        if damage == "other bytes":
            raw[at : at + size] = b"\x55" * size
        elif damage == "zeros":
            raw[at : at + size] = bytes(size)
        elif damage == "another start":
            raw[at : at + 3] = b"\xa5\xff\xff"
        else:
            raw[at : at + size] = raw[at + 1 : at + size] + b"\x7f"
        file = tmp_path / f"{place}.mp4"
        file.write_bytes(raw)
        with pytest.raises(StackError) as caught:
            clip_digest(ClipRef(file, 0, FRAMES))
        assert caught.value.id == "video-frame-damaged" and f"frame {frame} is damaged" in caught.value.what
        assert str(file) in caught.value.where and caught.value.do


@pytest.mark.parametrize("encoder", ["h264", "h264-slices", "hevc"])
def test_a_hole_between_good_lengths_is_found(clips: dict[str, Path], tmp_path: Path, encoder: str) -> None:
    """As a download leaves it that skipped a block: the picture begins and ends as it should."""
    frame, at, size = max(packets(clips[encoder])[2:], key=lambda packet: packet[2])
    raw = bytearray(clips[encoder].read_bytes())
    raw[at + size // 2 : at + size // 2 + 20] = bytes(20)
    file = tmp_path / "hole.mp4"
    file.write_bytes(raw)
    with pytest.raises(StackError, match=f"frame {frame} is damaged"):
        clip_digest(ClipRef(file, 0, FRAMES))


def test_zeros_that_fill_up_a_unit_are_none(clips: dict[str, Path]) -> None:
    info = probe(clips["h264"])
    unit = b"\x65" + b"\x11" * 30
    for filled, broken in ((unit + bytes(8), None), (unit + bytes(8) + b"\x11", 1)):
        good = len(unit).to_bytes(4, "big") + unit
        block = good + len(filled).to_bytes(4, "big") + filled + good
        ends = np.cumsum([len(good), 4 + len(filled), len(good)])
        assert first_broken(info, block, ends) == broken


def test_obus_by_hand(clips: dict[str, Path]) -> None:
    """Temporal unit, extension, sizes of one and of two bytes, and a last one without a size."""
    info = probe(clips["av1"])
    small, large = b"\x12\x00", b"\x32\xc8\x01" + b"\x09" * 200
    extended, open_end = b"\x36\x00\x02ab", b"\x30rest"
    sound = [small + large, small + extended + large, small + open_end]
    ends = np.cumsum([len(one) for one in sound])
    assert first_broken(info, b"".join(sound), ends) is None
    for wrong in (
        large[:-1],
        small + large[:-1],
        b"\x92\x00",
        b"\x12",
        b"\x32" + b"\xff" * 9,
        small + b"\x32",
    ):
        block = sound[0] + wrong + sound[1]
        ends = np.cumsum([len(sound[0]), len(wrong), len(sound[1])])
        assert first_broken(info, block, ends) == 1, wrong


@pytest.mark.parametrize("videos", ["join", "link"])
def test_a_damaged_clip_ends_the_command_and_leaves_nothing(
    deliveries: ModuleType, tmp_path: Path, videos: str
) -> None:
    """One of three clips, in a frame that nothing else looks at; what is excluded is not looked at."""
    made = deliveries.Delivery(lengths=(7, 24, 9), cameras=((HEAD, 96, 64),), task_of=(0, 0, 0))
    source = deliveries.write_delivery(tmp_path / "source", made)
    name = f"videos/chunk-000/{HEAD}/episode_000001.mp4"
    (source / name).unlink()
    file = encode(source / name, "h264", scene())
    frame, at, size = packets(file)[15]
    assert not index_video(file).info.is_key(frame)
    raw = bytearray(file.read_bytes())
    raw[at : at + size] = b"\x55" * size
    file.write_bytes(raw)
    words = ["convert", str(source), str(tmp_path / "out"), "--videos", videos]
    result = CliRunner().invoke(cli, words)
    error = result.exception
    assert isinstance(error, StackError) and error.id == "video-frame-damaged"
    assert f"frame {frame} is damaged" in error.what
    assert str(file) in error.where and "episode 1 of 'source'" in error.where
    assert sorted(path.name for path in tmp_path.iterdir() if not path.name.endswith(".lock")) == ["source"]
    good = CliRunner().invoke(cli, ["drop", str(source), str(tmp_path / "out"), "--episodes", "1"])
    assert good.exit_code == 0, good.output
    shutil.rmtree(tmp_path / "out")
    assert json.loads((source / "meta/info.json").read_text())["total_episodes"] == 3
