"""Videos as cameras and tools leave them: sound, other encoder settings, other codecs."""

from __future__ import annotations

import json
import struct
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from stack.dataset.digest import content_digest
from stack.dataset.read import read_dataset
from stack.dataset.video import probe
from stack.manifests import DatasetManifest, Loaded
from stack.prepare import Prepared
from stack.prepare.direct import preview, request, run

HEAD = "observation.images.head"
FPS = 10


def join(sources: list[Path], out: Path, *, version: str = "v3.0", videos: str = "join") -> Prepared:
    loaded = request(sources, out, version=version)
    return run(loaded, out=out, videos=videos, jobs=1, replace=False, log=lambda _: None)


def encode(
    file: Path, pictures: list[np.ndarray], codec: str, options: dict[str, str], *, sound: bool
) -> None:
    with av.open(str(file), "w", options={"video_track_timescale": "10240"}) as container:
        video = container.add_stream(codec, rate=FPS, options=options)
        video.height, video.width = pictures[0].shape[:2]
        video.pix_fmt = "yuv420p"
        audio = container.add_stream("aac", rate=16000, layout="mono") if sound else None
        for number, picture in enumerate(pictures):
            frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
            frame.pts, frame.time_base = number, Fraction(1, FPS)
            container.mux(video.encode(frame))
        if audio is not None:
            silence = av.AudioFrame.from_ndarray(
                np.zeros((1, 1024), np.float32), format="fltp", layout="mono"
            )
            silence.sample_rate = 16000
            container.mux([*audio.encode(silence), *audio.encode(None)])
        container.mux(video.encode(None))


@pytest.fixture
def make(tmp_path: Path, deliveries: Any) -> Any:
    """A delivery of two episodes and one camera, whose files are encoded as asked."""

    def write(name: str, number: int, codec: str = "libx264", sound: bool = False, **options: str) -> Path:
        wanted = deliveries.Delivery(number=number, cameras=((HEAD, 64, 64),), lengths=(5, 4))
        root = Path(deliveries.write_delivery(tmp_path / name, wanted))
        for episode, length in enumerate(wanted.lengths):
            names = [deliveries.identity(number, 0, episode, frame) for frame in range(length)]
            pictures = [deliveries.paint(n, 64, 64) for n in names]
            file = root / f"videos/chunk-000/{HEAD}/episode_{episode:06d}.mp4"
            encode(file, pictures, codec, options, sound=sound)
        return root

    return write


def identities(root: Path, deliveries: Any) -> list[int]:
    """What the pictures of the dataset say, episode by episode, by a plain decoder."""
    said: list[int] = []
    for episode in read_dataset(root).episodes:
        clip = episode.clips[HEAD]
        with av.open(str(clip.file)) as container:
            pictures = [p.to_ndarray(format="rgb24") for p in container.decode(video=0)]
        said += [deliveries.read_identity(p) for p in pictures[clip.start : clip.start + clip.count]]
    return said


def meant(deliveries: Any, *numbers: int) -> list[int]:
    return [
        deliveries.identity(number, 0, episode, frame)
        for number in numbers
        for episode, length in enumerate((5, 4))
        for frame in range(length)
    ]


@pytest.mark.parametrize("videos", ["join", "link"])
def test_sound_is_left_out_with_a_note(make, tmp_path: Path, deliveries: Any, videos: str) -> None:
    a, b = make("a", 0), make("b", 1, sound=True)
    note = f"b: {HEAD} has sound in episodes 0-1; it is left out"
    out = tmp_path / "out"
    assert note in preview(request([a, b], out), videos=videos, jobs=1)
    assert note in join([a, b], out, videos=videos).notes
    for file in out.rglob("*.mp4"):
        with av.open(str(file)) as container:
            assert [stream.type for stream in container.streams] == ["video"]
    assert json.loads((out / "meta/info.json").read_text())["features"][HEAD]["info"]["has_audio"] is False
    assert identities(out, deliveries) == meant(deliveries, 0, 1)
    assert not [text for text in join([a], tmp_path / "a-out").notes if "sound" in text]


@pytest.mark.parametrize(
    ("name", "times_ms", "worst"),
    [("uneven", (0, 40, 300, 350, 450), "0.100"), ("late", (2000, 2100, 2200, 2300, 2400), "2.000")],
)
def test_frame_times_that_are_replaced_are_told(
    make, tmp_path: Path, deliveries: Any, name: str, times_ms: tuple[int, ...], worst: str
) -> None:
    """One frame a row: the number counts, as lerobot's seconds would lead to other pictures."""
    source, out = make("a", 0), tmp_path / "out"
    file = source / f"videos/chunk-000/{HEAD}/episode_000000.mp4"
    pictures = [deliveries.paint(deliveries.identity(0, 0, 0, n), 64, 64) for n in range(5)]
    with av.open(str(file), "w", options={"video_track_timescale": "10240"}) as container:
        stream = container.add_stream("libx264", rate=FPS, options={"bf": "0", "crf": "12"})
        stream.width = stream.height = 64
        stream.pix_fmt = "yuv420p"
        stream.codec_context.time_base = Fraction(1, 1000)
        for picture, time_ms in zip(pictures, times_ms, strict=True):
            frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
            frame.pts, frame.time_base = time_ms, Fraction(1, 1000)
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    note = f"a: {HEAD} shows frames at other times than frame number / fps in episodes 0, up to {worst} s "
    note += "away; there is one frame a row, and frame n is written at n / fps"
    assert note in join([source], out).notes
    assert identities(out, deliveries) == meant(deliveries, 0)
    for written in out.rglob("*.mp4"):
        with av.open(str(written)) as container:
            times = [float(p.time) for p in container.decode(video=0)]
        np.testing.assert_allclose(times, np.arange(len(times)) / FPS, atol=1e-6)
    assert not [text for text in join([out], tmp_path / "again").notes if "other times" in text]


def turn(file: Path) -> None:
    """The track header asks for a quarter turn to the right (ISO/IEC 14496-12, 8.3.2)."""
    content = bytearray(file.read_bytes())
    at = content.index(b"tkhd") + 4 + 40
    content[at : at + 36] = struct.pack(">9i", 0, 1 << 16, 0, -1 << 16, 0, 0, 0, 0, 1 << 30)
    file.write_bytes(content)


def add_track(file: Path, other: Path) -> None:
    """The pictures of another file as a second video track."""
    both = file.with_suffix(".both.mp4")
    with av.open(str(file)) as first, av.open(str(other)) as second, av.open(str(both), "w") as out:
        streams = [out.add_stream_from_template(source.streams.video[0]) for source in (first, second)]
        for source, stream in zip((first, second), streams, strict=True):
            for packet in source.demux(source.streams.video[0]):
                if packet.size:
                    packet.stream = stream
                    out.mux(packet)
    both.replace(file)


@pytest.mark.parametrize("videos", ["join", "link"])
@pytest.mark.parametrize("codec", ["libx264", "mpeg4"])
def test_a_turn_mark_is_taken_off_with_a_note(
    make, tmp_path: Path, deliveries: Any, videos: str, codec: str
) -> None:
    """H.264 goes by our own reader of MP4, MPEG-4 by FFmpeg's."""
    source, out = make("a", 0, codec=codec), tmp_path / "out"
    turn(source / f"videos/chunk-000/{HEAD}/episode_000001.mp4")
    note = f"a: {HEAD} asks to be shown turned, mirrored or stretched in episodes 1; pictures are written as "
    note += "they are stored, without the mark, which decoders follow or not"
    assert note in preview(request([source], out), videos=videos, jobs=1)
    assert note in join([source], out, videos=videos).notes
    for file in out.rglob("*.mp4"):
        content = file.read_bytes()
        at = content.index(b"tkhd") + 4 + 40
        assert struct.unpack(">9i", content[at : at + 36]) == (65536, 0, 0, 0, 65536, 0, 0, 0, 1 << 30)
    assert identities(out, deliveries) == meant(deliveries, 0)
    assert not [text for text in join([out], tmp_path / "again").notes if "turned" in text]


@pytest.mark.parametrize("videos", ["join", "link"])
def test_the_first_of_several_video_tracks_is_taken_with_a_note(
    make, tmp_path: Path, deliveries: Any, videos: str
) -> None:
    source, other, out = make("a", 0), make("other", 1), tmp_path / "out"
    name = f"videos/chunk-000/{HEAD}/episode_000000.mp4"
    add_track(source / name, other / name)
    note = f"a: {HEAD} has more than one video track in episodes 0; the first one is taken, as lerobot does "
    note += "with PyAV, the others are left out"
    assert note in join([source], out, videos=videos).notes
    for file in out.rglob("*.mp4"):
        with av.open(str(file)) as container:
            assert len(container.streams) == 1
    assert identities(out, deliveries) == meant(deliveries, 0)


def test_other_encoder_settings_begin_a_new_file_with_a_note(make, tmp_path: Path, deliveries: Any) -> None:
    """The same codec and size, other parameter sets: no file mixes them, and no picture is encoded anew."""
    plain = {"g": "12", "crf": "12"}
    a, b = make("a", 0, bf="2", **plain), make("b", 1, bf="0", profile="baseline", **plain)
    c = make("c", 2, bf="2", **plain)
    done = join([a, b, c], tmp_path / "out")
    files = sorted((tmp_path / "out/videos").rglob("*.mp4"))
    assert [file.name for file in files] == ["file-000.mp4", "file-001.mp4", "file-002.mp4"]
    rolled = [note for note in done.notes if "a new file begins at episode" in note]
    assert [note.split("episode ")[1].split(":")[0] for note in rolled] == ["2", "4"]
    assert all("codec parameters (extradata) differ" in note for note in rolled)
    assert identities(tmp_path / "out", deliveries) == meant(deliveries, 0, 1, 2)
    # Each joined file decodes to the sources' pictures, bit for bit.
    for source, file in zip((a, b, c), files, strict=True):
        given = [p for f in sorted((source / "videos").rglob("*.mp4")) for p in _decoded(f)]
        assert all(np.array_equal(x, y) for x, y in zip(given, _decoded(file), strict=True))


def _decoded(file: Path) -> list[np.ndarray]:
    with av.open(str(file)) as container:
        return [p.to_ndarray() for p in container.decode(video=0)]


def test_av1_is_copied_there_and_back(make, tmp_path: Path, deliveries: Any) -> None:
    source = make("a", 3, codec="libsvtav1", g="2", preset="12", crf="20")
    join([source], tmp_path / "v30")
    join([tmp_path / "v30"], tmp_path / "v21", version="v2.1")
    assert identities(tmp_path / "v30", deliveries) == meant(deliveries, 3)
    digests = {content_digest(read_dataset(root)) for root in (source, tmp_path / "v30", tmp_path / "v21")}
    assert len(digests) == 1
    info = json.loads((tmp_path / "v30/meta/info.json").read_text())["features"][HEAD]["info"]
    assert info["video.codec"] == "av1"


def cut_open(file: Path, pictures: list[np.ndarray], codec: str, options: dict[str, str]) -> None:
    """Pictures behind a cut of an open GOP: the first one is marked as a key frame and resets no decoder."""
    long = file.with_suffix(".long.mp4")
    encode(long, [*reversed(pictures[:4]), *pictures], codec, options, sound=False)
    with av.open(str(long)) as source, av.open(str(file), "w") as target:
        old = source.streams.video[0]
        new = target.add_stream_from_template(old)
        packets = [packet for packet in source.demux(old) if packet.size]
        begin = [n for n, packet in enumerate(packets) if packet.is_keyframe][1]
        start, step = packets[begin].pts, packets[begin].duration
        kept = [packet for packet in packets[begin:] if packet.pts >= start]  # others need what is cut off
        for n, packet in enumerate(kept):
            packet.pts, packet.dts, packet.stream = packet.pts - start, (n - 3) * step, new
            target.mux(packet)
    long.unlink()


@pytest.mark.parametrize(
    ("codec", "options"),
    [
        ("libx265", {"x265-params": "keyint=4:min-keyint=4:open-gop=1:bframes=2:scenecut=0:log-level=none"}),
        ("libx264", {"x264-params": "keyint=4:min-keyint=4:open-gop=1:bframes=2:b-adapt=0:scenecut=0"}),
    ],
)
@pytest.mark.parametrize("videos", ["link", "join"])
def test_a_file_that_starts_in_an_open_gop_is_written_whatever_the_mode(
    make: Any, deliveries: Any, tmp_path: Path, codec: str, options: dict[str, str], videos: str
) -> None:
    source = make("open", 0)
    file = source / f"videos/chunk-000/{HEAD}/episode_000000.mp4"
    pictures = [deliveries.paint(deliveries.identity(0, 0, 0, frame), 64, 64) for frame in range(5)]
    cut_open(file, pictures, codec, options)
    assert probe(file).frames == 5 and not probe(file).is_key(0)
    prepared = join([source], tmp_path / "out", videos=videos)
    assert identities(tmp_path / "out", deliveries) == meant(deliveries, 0)
    assert any("encoded anew" in note and "episodes 0" in note for note in prepared.notes)
    first = read_dataset(tmp_path / "out").episodes[0].clips[HEAD]
    assert probe(first.file).is_key(first.start)
    assert not first.file.samefile(file)


def cannot_seek(file: Path) -> list[int]:
    """Frames that are not shown when decoding begins at the key frame before them."""
    with av.open(str(file)) as container:
        stream = container.streams.video[0]
        ticks = round(1 / FPS / stream.time_base)
        count, lost = sum(1 for packet in container.demux(stream) if packet.size), []
        for number in range(count):
            container.seek(number * ticks, stream=stream, backward=True)
            shown = next((f for f in container.decode(stream) if f.pts >= number * ticks), None)
            if shown is None or shown.pts != number * ticks:
                lost.append(number)
    return lost


OPEN = {"x265-params": "keyint=3:min-keyint=3:open-gop=1:bframes=2:b-adapt=0:scenecut=0:log-level=none"}


@pytest.mark.parametrize("videos", ["join", "link", "transcode"])
def test_pictures_that_lerobot_cannot_fetch_are_told_where_they_are_copied(
    make: Any, deliveries: Any, tmp_path: Path, videos: str
) -> None:
    source, plain = make("open", 0, codec="libx265", **OPEN), make("plain", 1, g="2")
    lost = [len(cannot_seek(file)) for file in sorted((source / "videos").rglob("*.mp4"))]
    assert all(lost)
    prepared = join([source, plain], tmp_path / "out", videos=videos)
    told = [note for note in prepared.notes if "open groups of pictures" in note]
    written = sum(len(cannot_seek(file)) for file in sorted((tmp_path / "out/videos").rglob("*.mp4")))
    if videos == "transcode":
        assert told == [] and written == 0
        return
    assert written == sum(lost)
    [note] = told
    assert note.startswith(f"open: {HEAD} has open groups of pictures in episodes 0-1: {sum(lost)} pictures ")
    assert "videos: transcode" in note
    assert identities(tmp_path / "out", deliveries) == meant(deliveries, 0, 1)
    # One episode of two: those of the other are not counted.
    source_of_one = {"path": str(source), "keep_episodes": [1]}
    asked = {"schema": "stack/dataset/1", "name": "one", "sources": [source_of_one]}
    loaded = Loaded(DatasetManifest.model_validate(asked), tmp_path / "one.yaml", allow_outside=True)
    assert f"open groups of pictures in episodes 1: {lost[1]} pictures " in preview(
        loaded, videos=videos, jobs=1
    )
