"""Transcoding: the policy's own resize rule, a key frame every few frames, each picture in its place."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest

from stack.dataset.model import ClipRef
from stack.dataset.video import clip_digest, join, probe
from stack.dataset.video_transcode import resize_with_pad, resized_shape, transcode
from stack.errors import StackError

SIZES = [(240, 320), (48, 64), (64, 48), (480, 640), (224, 224), (100, 224), (100, 37), (800, 1280), (33, 57)]


def scene(n: int, height: int, width: int) -> np.ndarray:
    y, x = np.mgrid[:height, :width]
    image = np.stack(
        [110 + 90 * np.sin((x + 4 * n) / 17), 2 * y % 200 + 20, 128 + 60 * np.cos((x + y) / 11)], -1
    )
    left = (n * 9) % (width - 20)
    image[10:30, left : left + 20] = (240, 20, 40)
    return image.astype(np.uint8)


@pytest.fixture(scope="module")
def movies(tmp_path_factory):
    files = []
    for number, frames in enumerate((25, 40)):
        file = tmp_path_factory.mktemp("movies") / f"{number}.mp4"
        with av.open(str(file), "w") as container:
            stream = container.add_stream("libx264", rate=30, options={"g": "12", "bf": "2", "crf": "4"})
            stream.width, stream.height, stream.pix_fmt = 128, 80, "yuv420p"
            for n in range(frames):
                frame = av.VideoFrame.from_ndarray(scene(n + 60 * number, 80, 128), format="rgb24")
                frame.pts, frame.time_base = n, Fraction(1, 30)
                container.mux(stream.encode(frame))
            container.mux(stream.encode(None))
        files.append(file)
    return files


def pictures(file: Path) -> list[np.ndarray]:
    with av.open(str(file)) as container:
        return [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]


def by_hand(picture: np.ndarray, size: int) -> np.ndarray:
    """The rule written out pixel by pixel in double precision."""
    height, width = picture.shape[:2]
    ratio = max(width / size, height / size)
    rows, columns = int(height / ratio), int(width / ratio)
    out = np.zeros((size, size, 3))
    for r in range(rows):
        y = max((r + 0.5) * height / rows - 0.5, 0)
        y0, y1 = int(y), min(int(y) + 1, height - 1)
        for c in range(columns):
            x = max((c + 0.5) * width / columns - 0.5, 0)
            x0, x1 = int(x), min(int(x) + 1, width - 1)
            top = picture[y0, x0] * (1 - x + x0) + picture[y0, x1] * (x - x0)
            bottom = picture[y1, x0] * (1 - x + x0) + picture[y1, x1] * (x - x0)
            out[(size - rows) // 2 + r, (size - columns) // 2 + c] = top * (1 - y + y0) + bottom * (y - y0)
    return out


@pytest.mark.parametrize(("height", "width"), [(48, 64), (33, 57), (20, 20), (100, 37)])
def test_the_rule_by_hand(height, width):
    picture = np.random.default_rng(height).integers(0, 256, (height, width, 3), dtype=np.uint8)
    got = resize_with_pad(picture, 40)
    assert got.dtype == np.uint8
    assert got.shape == (40, 40, 3)
    assert np.abs(got - by_hand(picture, 40)).max() <= 0.5 + 1e-3
    rows, columns = resized_shape(height, width, 40)
    assert max(rows, columns) == 40
    inside = np.zeros((40, 40), dtype=bool)
    inside[(40 - rows) // 2 :, (40 - columns) // 2 :][:rows, :columns] = True
    assert (got[~inside] == 0).all()


@pytest.mark.lerobot
def test_the_rule_is_the_policys_own():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    modeling = pytest.importorskip("lerobot.policies.pi05.modeling_pi05", reason="lerobot is not installed")
    for height, width in SIZES:
        picture = np.random.default_rng(width).integers(0, 256, (height, width, 3), dtype=np.uint8)
        theirs = modeling.resize_with_pad_torch(torch.from_numpy(picture)[None].float() / 255, 224, 224)[0]
        rows, columns = resized_shape(height, width, 224)
        top, left = (224 - rows) // 2, (224 - columns) // 2
        inside = (slice(top, top + rows), slice(left, left + columns))
        got = resize_with_pad(picture, 224)
        assert np.abs(got[inside] - 255 * theirs.numpy()[inside]).max() < 0.53, (height, width)
        padding = np.ones((224, 224), dtype=bool)
        padding[inside] = False
        # What the policy pads with: 0 in 0.6, and -1, which no picture can hold, in 0.4.
        assert set(np.unique(theirs.numpy()[padding])) <= {0.0, -1.0}
        assert (got[padding] == 0).all()


@pytest.mark.parametrize("gop", [1, 2, 5])
def test_pictures_are_resized_and_in_their_place(movies, tmp_path, gop):
    clips = [ClipRef(movies[0], 3, 20), ClipRef(movies[1], 0, 40), ClipRef(movies[1], 7, 5)]
    info = transcode(clips, tmp_path / "out.mp4", 30, size=64, gop=gop)
    assert (info.codec, info.width, info.height, info.pix_fmt) == ("h264", 64, 64, "yuv420p")
    assert [t * info.time_base for t in info.pts] == [Fraction(n, 30) for n in range(65)]
    wanted = [p for c in clips for p in pictures(c.file)[c.start : c.start + c.count]]
    wanted = [resize_with_pad(picture, 64).astype(float) for picture in wanted]  # proven by hand above
    for n, got in enumerate(pictures(tmp_path / "out.mp4")):
        errors = [float(np.square(got - picture).mean()) for picture in wanted]
        assert 10 * np.log10(255**2 / errors[n]) > 26, n
        assert errors[n] == min(errors)
    starts = [0, 20, 60]
    wanted_keys = {s + k for s, c in zip(starts, clips, strict=True) for k in range(0, c.count, gop)}
    assert set(info.key_frames) == wanted_keys
    assert not info.has_b_frames
    # Each clip can be copied out again.
    join([ClipRef(tmp_path / "out.mp4", 20, 40)], tmp_path / "again.mp4", 30)
    assert clip_digest(ClipRef(tmp_path / "again.mp4", 0, 40)) == clip_digest(
        ClipRef(tmp_path / "out.mp4", 20, 40)
    )
    assert sorted(p.name for p in tmp_path.iterdir()) == ["again.mp4", "out.mp4"]


@pytest.mark.parametrize("codec", ["hevc", "av1"])
def test_other_codecs(movies, tmp_path, codec):
    info = transcode([ClipRef(movies[0], 0, 12)], tmp_path / "out.mp4", 30, size=64, gop=4, codec=codec)
    assert (info.codec, info.frames, info.key_frames) == (codec, 12, (0, 4, 8))


def test_progress_tells_rate_and_time_left(movies, tmp_path, monkeypatch):
    import stack.dataset.progress as progress

    monkeypatch.setattr(progress, "EVERY_S", 0.0)
    lines: list[str] = []
    transcode(
        [ClipRef(movies[0], 0, 25), ClipRef(movies[1], 0, 40)],
        tmp_path / "o.mp4",
        30,
        size=64,
        log=lines.append,
    )
    assert "1 of 2" in lines[0]
    assert "25 frames of 65 frames" in lines[0]
    assert "frames/s" in lines[0]
    assert "left" in lines[0]
    assert "65 frames" in lines[-1]


def test_what_cannot_be_transcoded_is_said(movies, tmp_path):
    for call, code in (
        (lambda: transcode([], tmp_path / "o.mp4", 30, size=64), "video-no-clips"),
        (
            lambda: transcode([ClipRef(movies[0], 20, 10)], tmp_path / "o.mp4", 30, size=64),
            "video-clip-out-of-range",
        ),
        (
            lambda: transcode([ClipRef(tmp_path / "no.mp4", 0, 1)], tmp_path / "o.mp4", 30, size=64),
            "video-missing",
        ),
        (
            lambda: transcode([ClipRef(movies[0], 0, 5)], tmp_path / "o.mp4", 30, size=64, codec="vc1"),
            "video-no-encoder",
        ),
    ):
        with pytest.raises(StackError) as caught:
            call()
        assert caught.value.id == code
    assert list(tmp_path.iterdir()) == []
    assert probe(movies[0]).frames == 25
