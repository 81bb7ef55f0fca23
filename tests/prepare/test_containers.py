"""Videos that are no MP4s: named so by the template of a v2.1 delivery, and codecs that no MP4 holds."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from types import ModuleType
from typing import Any

import av
import pytest

from stack.audit import audit
from stack.errors import BadRequest
from stack.prepare.direct import request, run

HEAD = "observation.images.head"
FPS = 10


@pytest.fixture
def make(deliveries: ModuleType, tmp_path: Path) -> Any:
    """A v2.1 delivery whose videos are of a codec and a container, and are named so."""

    def write(codec: str, ending: str) -> Path:
        wanted = deliveries.Delivery(cameras=((HEAD, 64, 64),), lengths=(5, 4))
        root: Path = deliveries.write_delivery(tmp_path / "source", wanted)
        for episode, length in enumerate(wanted.lengths):
            old = root / f"videos/chunk-000/{HEAD}/episode_{episode:06d}.mp4"
            old.unlink()
            with av.open(str(old.with_suffix(ending)), "w") as container:
                stream = container.add_stream(codec, rate=FPS)
                stream.width, stream.height, stream.bit_rate = 64, 64, 4_000_000
                stream.pix_fmt = "yuv420p"
                for number in range(length):
                    picture = deliveries.paint(deliveries.identity(0, 0, episode, number), 64, 64)
                    frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
                    frame.pts, frame.time_base = number, Fraction(1, FPS)
                    container.mux(stream.encode(frame))
                container.mux(stream.encode(None))
        template = "videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}" + ending
        deliveries.edit_info(root, lambda info: info.update(video_path=template))
        return root

    return write


def said(file: Path, deliveries: ModuleType) -> list[int]:
    with av.open(str(file)) as container:
        return [deliveries.read_identity(f.to_ndarray(format="rgb24")) for f in container.decode(video=0)]


@pytest.mark.parametrize("videos", ["join", "link", "transcode"])
@pytest.mark.parametrize(("codec", "ending"), [("libx264", ".mkv"), ("mpeg4", ".avi"), ("libx264", ".mov")])
def test_files_that_the_template_names_otherwise_are_read(
    make: Any, deliveries: ModuleType, tmp_path: Path, codec: str, ending: str, videos: str
) -> None:
    if codec == "libx264" and ending == ".mkv":
        codec = "libvpx-vp9"  # without B-frames, whose times Matroska rounds out of order
    source, out = make(codec, ending), tmp_path / "out"
    run(request([source], out), out=out, videos=videos, jobs=1, replace=False, log=lambda _: None)
    found = [n for file in sorted((out / "videos").rglob("*.mp4")) for n in said(file, deliveries)]
    assert found == [
        deliveries.identity(0, 0, e, n) for e, length in enumerate((5, 4)) for n in range(length)
    ]
    report = audit(source)
    missed = {"file-missing", "video-missing", "camera-without-files", "template-does-not-resolve"}
    assert not missed & {fault.code for fault in report.faults}


@pytest.mark.parametrize("codec", ["libvpx", "ffv1"])
def test_a_codec_that_no_mp4_holds_is_refused_with_what_to_do(
    make: Any, deliveries: ModuleType, tmp_path: Path, codec: str
) -> None:
    source, out = make(codec, ".mkv"), tmp_path / "out"

    def prepare(videos: str) -> None:
        run(request([source], out), out=out, videos=videos, jobs=1, replace=False, log=lambda _: None)

    with pytest.raises(BadRequest) as caught:
        prepare("join")
    assert caught.value.id == "prepare-codec-not-in-mp4" and "videos: transcode" in caught.value.do
    assert caught.value.where.endswith("episode_000000.mkv") and not out.exists()
    prepare("transcode")
    found = [n for file in sorted((out / "videos").rglob("*.mp4")) for n in said(file, deliveries)]
    assert len(found) == 9
