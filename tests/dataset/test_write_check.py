"""What was written is compared with its sources, clip by clip: wrong pictures never get the target's name."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stack.dataset import write_files
from stack.dataset.model import ClipRef
from stack.dataset.read import read_dataset
from stack.dataset.selection import select_all
from stack.dataset.video import cut, join
from stack.dataset.write import write_v30
from stack.dataset.write_check_video import VideoCheck, check_ends, check_video_file
from stack.dataset.write_plan import VideoFile
from stack.dataset.write_v21 import write_v21
from stack.errors import StackError, WorkFailed

HEAD = "observation.images.head"
FPS = 10


@pytest.fixture(scope="module")
def even(tmp_path_factory: pytest.TempPathFactory, deliveries: Any) -> Path:
    """Episodes of one length, so that a swapped clip leaves every count right."""
    wanted = deliveries.Delivery(lengths=(6, 6, 6), cameras=((HEAD, 96, 64),))
    return deliveries.write_delivery(tmp_path_factory.mktemp("even") / "even", wanted)


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory, even: Path) -> Path:
    """The same in one video file whose only key frame is its first: clips are cut, not copied whole."""
    from stack.dataset.video_decode import decode

    out = tmp_path_factory.mktemp("packed") / "packed"
    write_v30(select_all(read_dataset(even)), out, jobs=1)
    (file,) = (out / "videos").rglob("*.mp4")
    _encode(file, list(decode(file, range(18))), gop=99)
    return out


def _encode(file: Path, pictures: list[np.ndarray], *, gop: int, codec: str = "libx264") -> Path:
    from fractions import Fraction

    import av

    file.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(file), "w", options={"video_track_timescale": "10240"}) as container:
        stream = container.add_stream(codec, rate=FPS, options={"g": str(gop), "bf": "0", "crf": "12"})
        stream.height, stream.width = pictures[0].shape[:2]
        stream.pix_fmt = "yuv420p"
        if codec != "libx264":
            stream.bit_rate = 8_000_000
        for number, picture in enumerate(pictures):
            frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
            frame.pts, frame.time_base = number, Fraction(1, FPS)
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return file


def swapped(clips: list[ClipRef]) -> list[ClipRef]:
    return [clips[1], clips[0], *clips[2:]] if len(clips) > 1 else [_other(clips[0])]


def _other(clip: ClipRef) -> ClipRef:
    """Another episode's clip of the same length."""
    if clip.start or "file-" in clip.file.name:
        return ClipRef(clip.file, (clip.start + clip.count) % 18, clip.count)
    number = int(clip.file.stem[-6:])
    return ClipRef(clip.file.with_name(f"episode_{(number + 1) % 3:06d}.mp4"), 0, clip.count)


def late(clips: list[ClipRef]) -> list[ClipRef]:
    """The second clip begins one frame late; its last picture stands twice."""
    clip = clips[-1]
    end = clip.start + clip.count - 1
    return [*clips[:-1], ClipRef(clip.file, clip.start + 1, clip.count - 1), ClipRef(clip.file, end, 1)]


def wrong_end(clips: list[ClipRef]) -> list[ClipRef]:
    clip = clips[-1]
    other = _other(clip)
    return [*clips[:-1], ClipRef(clip.file, clip.start, clip.count - 1), ClipRef(other.file, other.start, 1)]


PLANTS = [swapped, late, wrong_end]


def _plant(monkeypatch: pytest.MonkeyPatch, plant: Any) -> None:
    def wrong(clips: Any, out: Path, fps: float) -> Any:
        return join(plant(list(clips)), out, fps)

    monkeypatch.setattr(write_files, "join", wrong)


@pytest.mark.parametrize("write", [write_v30, write_v21])
@pytest.mark.parametrize("source", ["even", "packed"])
@pytest.mark.parametrize("plant", PLANTS)
def test_wrong_pictures_are_refused_though_all_counts_are_right(
    even: Path,
    packed: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    source: str,
    write: Any,
    plant: Any,
) -> None:
    """Joined and cut files, copied and encoded anew."""
    selection = select_all(read_dataset({"even": even, "packed": packed}[source]))
    write(selection, tmp_path / "right", jobs=1)
    _plant(monkeypatch, plant)
    with pytest.raises(WorkFailed) as caught:
        write(selection, tmp_path / "wrong", jobs=1)
    assert caught.value.id == "write-check-failed"
    assert HEAD in caught.value.where and "episode" in caught.value.where
    assert [p.name for p in tmp_path.iterdir()] == ["right"]


@pytest.mark.parametrize("can_link", [True, False])
def test_a_link_to_another_episode_is_refused(
    even: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, can_link: bool
) -> None:
    selection = select_all(read_dataset(even))

    def link(source: Path, target: Path) -> None:
        other = _other(ClipRef(source, 0, 6)).file
        target.hardlink_to(other) if can_link else shutil.copyfile(other, target)

    monkeypatch.setattr(write_files, "_link", link)
    with pytest.raises(WorkFailed) as caught:
        write_v30(selection, tmp_path / "out", jobs=1, videos="link")
    assert caught.value.id == "write-check-failed"
    monkeypatch.setattr(write_files, "_link", lambda source, target: shutil.copyfile(source, target))
    write_v30(selection, tmp_path / "out", jobs=1, videos="link")


def test_one_byte_that_changed_on_the_disk_is_seen(
    even: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the middle of a clip, where nobody looks at pictures."""

    def spoilt(clips: Any, out: Path, fps: float) -> Any:
        info = join(clips, out, fps)
        content = bytearray(out.read_bytes())
        content[content.index(b"mdat") + 4 + len(content) // 3] ^= 1
        out.write_bytes(bytes(content))
        return info

    monkeypatch.setattr(write_files, "join", spoilt)
    with pytest.raises(StackError) as caught:
        write_v30(select_all(read_dataset(even)), tmp_path / "out", jobs=1)
    assert caught.value.id == "write-check-failed" and "bytes" in caught.value.what
    assert list(tmp_path.iterdir()) == []


def _slow(frames: int, step: float) -> list[np.ndarray]:
    """A scene that moves by less than the encoder's tolerance from picture to picture."""
    across = np.arange(96) / 96
    lines = [120 + 40 * np.sin(2 * np.pi * (across + step * n / 96)) for n in range(frames)]
    return [np.repeat(np.tile(line, (64, 1))[..., None], 3, axis=2).astype(np.uint8) for line in lines]


@pytest.mark.parametrize("start", [1, 3])
@pytest.mark.parametrize("codec", ["libx264", "mpeg4"])
def test_a_clip_that_is_one_frame_late_in_a_slow_scene_is_seen(
    tmp_path: Path, codec: str, start: int
) -> None:
    """Each picture is within the tolerance of the one before it, and still the wrong one is told."""
    pictures = _slow(12, 1.0)
    near_db = 10 * np.log10(255**2 / np.square(pictures[1].astype(float) - pictures[0]).mean())
    assert near_db > 35
    source = _encode(tmp_path / "source.mp4", pictures, gop=12, codec=codec)
    meant = ClipRef(source, start, 6)
    entry = VideoFile("camera", 0, 0, (0,), (meant,))
    out = tmp_path / entry.path
    out.parent.mkdir(parents=True)
    cut(meant, out, FPS)
    check_video_file(VideoCheck(tmp_path, entry, FPS))
    for wrong in (start - 1, start + 1):
        cut(ClipRef(source, wrong, 6), out, FPS)
        with pytest.raises(WorkFailed) as caught:
            check_video_file(VideoCheck(tmp_path, entry, FPS))
        assert caught.value.id == "write-check-failed"


@pytest.mark.parametrize("kind", ["still", "noise on a still", "hardly moving"])
@pytest.mark.parametrize("codec", ["libx264", "mpeg4"])
def test_scenes_in_which_neighbours_are_alike_are_not_refused(tmp_path: Path, kind: str, codec: str) -> None:
    """An encoder repeats pictures that hardly differ; that is no fault."""
    random = np.random.default_rng(5)
    pictures = _slow(12, 0.05 if kind == "hardly moving" else 0.0)
    if kind.startswith("noise"):
        shake = random.integers(-2, 3, (12, *pictures[0].shape))
        pictures = [
            np.clip(p + noise, 0, 255).astype(np.uint8) for p, noise in zip(pictures, shake, strict=True)
        ]
    source = _encode(tmp_path / "source.mp4", pictures, gop=12, codec=codec)
    for start, count in ((1, 1), (1, 2), (2, 3), (3, 9)):
        entry = VideoFile("camera", 0, start, (0,), (ClipRef(source, start, count),))
        (tmp_path / entry.path).parent.mkdir(parents=True, exist_ok=True)
        cut(entry.clips[0], tmp_path / entry.path, FPS)
        check_video_file(VideoCheck(tmp_path, entry, FPS))


def test_the_ends_are_compared_with_their_own_pictures() -> None:
    pictures = _slow(9, 2.0)

    def given(shift: int) -> Any:
        return lambda numbers: [pictures[n + shift] for n in numbers]

    check_ends(8, given(0), given(0), 30, "here")
    with pytest.raises(WorkFailed, match="frame 0 of the clip shows the source's frame 1"):
        check_ends(8, given(0), given(1), 20, "here")
    with pytest.raises(WorkFailed, match=r"is \d+\.\d dB from its source, 99 are asked"):
        check_ends(1, given(0), given(1), 99, "here")
