"""The frame reader against lerobot's own, picture by picture; its bound; and its behaviour in forks."""

from __future__ import annotations

import multiprocessing
import random
from pathlib import Path
from typing import Any

import numpy
import pytest

from stack.errors import WorkFailed

pytestmark = pytest.mark.lerobot

FPS, FRAMES = 30, 75


def theirs(path: Path, seconds: list[float], tolerance_s: float) -> Any:
    """lerobot's own decoding with its pyav backend."""
    from stack.train import lines

    lines.modeling()
    from lerobot.datasets.video_utils import decode_video_frames

    return decode_video_frames(path, seconds, tolerance_s, "pyav")


@pytest.fixture(scope="module")
def videos(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One key frame in all, one in ten, and AV1 with one in two, as lerobot records."""
    import av

    made = {}
    for name, codec, gop, extra in (
        ("h264-gop-all", "libx264", 1000, {"bf": "2"}),
        ("h264-gop-10", "libx264", 10, {}),
        ("av1-gop-2", "libsvtav1", 2, {"preset": "12"}),
    ):
        path = tmp_path_factory.mktemp("videos") / f"{name}.mp4"
        with av.open(str(path), "w") as container:
            stream = container.add_stream(codec, rate=FPS, options=extra)
            stream.width, stream.height, stream.pix_fmt = 96, 64, "yuv420p"
            stream.codec_context.gop_size = gop
            for number in range(FRAMES):
                picture = numpy.zeros((64, 96, 3), numpy.uint8)
                picture[:, number : number + 16] = (255, 3 * number, 90)
                for packet in stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")):
                    container.mux(packet)
            for packet in stream.encode():
                container.mux(packet)
        made[name] = path
    return made


@pytest.mark.parametrize("name", ["h264-gop-all", "h264-gop-10", "av1-gop-2"])
def test_every_frame_is_lerobots_in_any_order(videos: dict[str, Path], name: str) -> None:
    from stack.train.frames import FrameReader

    reader, path = FrameReader(), videos[name]
    numbers = [0, FRAMES - 1, 5, 6, 7, 7, 30, 29, 31]
    numbers += random.Random(3).sample(range(FRAMES), 20)
    for number in numbers:
        seconds = [number / FPS]
        assert reader(path, seconds, 1e-4).equal(theirs(path, seconds, 1e-4)), number
    several = [n / FPS for n in (12, 13, 14)]
    assert reader(path, several, 1e-4).equal(theirs(path, several, 1e-4))
    raw = reader(path, [0.5], 1e-4, return_uint8=True)
    assert str(raw.dtype) == "torch.uint8" and (raw.float() / 255).equal(reader(path, [0.5], 1e-4))


@pytest.mark.parametrize(
    ("codec", "options"),
    [
        ("libx264", {"x264-params": "keyint=20:min-keyint=20:scenecut=0:bframes=3:b-adapt=0:open-gop=1"}),
        ("libx265", {"x265-params": "keyint=20:min-keyint=20:scenecut=0:bframes=4:log-level=none"}),
        ("mpeg4", {"g": "12", "bf": "2", "b": "4000000"}),
        ("libx264", {"x264-params": "keyint=12:intra-refresh=1:scenecut=0:bframes=0"}),
    ],
)
def test_open_groups_of_pictures_are_read_whole_in_any_order(
    tmp_path: Path, codec: str, options: dict[str, str]
) -> None:
    """Where lerobot's reader finds no picture; the right ones come from decoding the whole file."""
    import av

    from stack.train.frames import FrameReader

    path = tmp_path / "open.mp4"
    noise = numpy.random.default_rng(0).integers(0, 255, (64, 200, 3), numpy.uint8)
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=FPS, options=options)
        stream.width, stream.height, stream.pix_fmt = 96, 64, "yuv420p"
        for number in range(FRAMES):
            picture = numpy.ascontiguousarray(noise[:, number : number + 96])
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        container.mux(stream.encode())
    with av.open(str(path)) as container:
        whole = [picture.to_ndarray(format="rgb24") for picture in container.decode(video=0)]
    fails, kept = 0, FrameReader()
    for number in random.Random(7).sample(range(FRAMES), FRAMES):
        for reader in (FrameReader(), kept):
            [found] = reader(path, [number / FPS], 1e-4, return_uint8=True)
            assert numpy.array_equal(found.permute(1, 2, 0).numpy(), whole[number]), number
        try:
            theirs(path, [number / FPS], 1e-4)
        except Exception:
            fails += 1
    assert fails


def test_open_files_have_a_bound(videos: dict[str, Path], tmp_path: Path) -> None:
    import os
    import shutil

    from stack.train.frames import FrameReader

    def open_here() -> int:
        handles = [Path(f"/proc/self/fd/{n}") for n in os.listdir("/proc/self/fd")]
        return sum(str(tmp_path) in os.path.realpath(handle) for handle in handles)

    reader = FrameReader(open_files=3)
    paths = [shutil.copy(videos["h264-gop-10"], tmp_path / f"{n}.mp4") for n in range(8)]
    for turn in range(2):
        for number, path in enumerate(paths):
            frame = (number * 7 + turn) / FPS
            assert reader(path, [frame], 1e-4).equal(theirs(path, [frame], 1e-4))
            assert len(reader) <= 3 and open_here() <= 3


@pytest.mark.parametrize("seconds", [FRAMES / FPS + 0.5, 0.3 / FPS])
def test_a_frame_that_is_not_there(videos: dict[str, Path], seconds: float) -> None:
    from stack.train.frames import FrameReader

    reader, path = FrameReader(), videos["h264-gop-10"]
    with pytest.raises(WorkFailed, match=r"no frame at .* s within 0\.0001 s") as caught:
        reader(path, [seconds], 1e-4)
    assert caught.value.where == str(path)
    assert reader(path, [0.1], 1e-4).equal(theirs(path, [0.1], 1e-4))


def test_a_video_that_is_cut_off(videos: dict[str, Path], tmp_path: Path) -> None:
    from stack.train.frames import FrameReader

    cut = tmp_path / "cut.mp4"
    cut.write_bytes(videos["h264-gop-10"].read_bytes()[:600])
    with pytest.raises(WorkFailed, match=r"cannot be (opened|decoded)"):
        FrameReader()(cut, [1.0], 1e-4)


def _read(reader: Any, path: Path, first: int, answers: Any) -> None:
    answers.put([reader(path, [n / FPS], 1e-4).sum().item() for n in range(first, FRAMES, 9)])


def test_forks_do_not_disturb_each_other(videos: dict[str, Path]) -> None:
    """A file opened before the fork: parent and child share its position, and must not share the reader."""
    from stack.train.frames import FrameReader

    reader, path = FrameReader(), videos["h264-gop-10"]
    reader(path, [0.4], 1e-4)
    context = multiprocessing.get_context("fork")
    answers = [context.SimpleQueue() for _ in range(2)]
    children = [context.Process(target=_read, args=(reader, path, n, answers[n])) for n in range(2)]
    for child in children:
        child.start()
    for number in (40, 3, 60, 22):
        assert reader(path, [number / FPS], 1e-4).equal(theirs(path, [number / FPS], 1e-4))
    for first, answer in enumerate(answers):
        want = [theirs(path, [n / FPS], 1e-4).sum().item() for n in range(first, FRAMES, 9)]
        assert answer.get() == want
    for child in children:
        child.join()
