"""The painted identity: exact, kept by lossy video, and not seen where there is none."""

from __future__ import annotations

import io

import av
import numpy as np
import pytest

from stack.demo.identity import Identity, band_height, paint, read_identity


def blank(height: int = 64, width: int = 96, level: int = 0) -> np.ndarray:
    return np.full((height, width, 3), level, dtype=np.uint8)


def compress(picture: np.ndarray, crf: int) -> np.ndarray:
    buffer = io.BytesIO()
    with av.open(buffer, "w", format="mp4") as container:
        stream = container.add_stream("libx264", rate=30, options={"crf": str(crf)})
        stream.height, stream.width, stream.pix_fmt = *picture.shape[:2], "yuv420p"
        container.mux([*stream.encode(av.VideoFrame.from_ndarray(picture)), *stream.encode(None)])
    buffer.seek(0)
    with av.open(buffer) as container:
        return next(container.decode(video=0)).to_ndarray(format="rgb24")


@pytest.mark.parametrize(
    "identity",
    [Identity(0, 0, 0, 0), Identity(7, 7, 255, 1023), Identity(1, 2, 7, 59), Identity(0, 1, 128, 512)],
)
@pytest.mark.parametrize(("height", "width"), [(64, 96), (80, 128), (96, 160), (480, 640)])
def test_what_is_painted_is_read(identity, height, width):
    picture = np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)
    below = picture[band_height(width) :].copy()
    paint(picture, identity)
    assert read_identity(picture) == identity
    assert (picture[band_height(width) :] == below).all()
    assert read_identity(compress(picture, crf=32)) == identity


def test_every_bit_counts():
    picture = blank()
    paint(picture, Identity(1, 2, 100, 500))
    for row in range(2):
        for column in range(16):
            broken = picture.copy()
            block = broken[row * 6 : row * 6 + 6, column * 6 : column * 6 + 6]
            block[:] = 255 - block
            assert read_identity(broken) is None, (row, column)


@pytest.mark.parametrize("level", [0, 24, 128, 232, 255])
def test_even_pictures_have_no_identity(level):
    assert read_identity(blank(level=level)) is None


def test_other_pictures_have_no_identity():
    rng = np.random.default_rng(1)
    pictures = [rng.integers(0, 256, (64, 96, 3), dtype=np.uint8) for _ in range(50)]
    pictures += [np.tile(np.linspace(0, 255, 96).astype(np.uint8)[None, :, None], (64, 1, 3)), blank(20, 30)]
    assert [read_identity(p) for p in pictures] == [None] * len(pictures)


@pytest.mark.parametrize(
    "identity", [Identity(8, 0, 0, 0), Identity(0, 8, 0, 0), Identity(0, 0, 256, 0), Identity(0, 0, 0, -1)]
)
def test_numbers_that_do_not_fit_are_refused(identity):
    with pytest.raises(ValueError, match="does not fit"):
        paint(blank(), identity)


def test_small_pictures_are_refused():
    with pytest.raises(ValueError, match="no room"):
        paint(blank(32, 48), Identity(0, 0, 0, 0))
