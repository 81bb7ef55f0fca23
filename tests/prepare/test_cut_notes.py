"""The notes on pictures that are encoded anew, against the packets that were really copied."""

from __future__ import annotations

import os
import re
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pyarrow.parquet as pq
import pytest
from av.video.frame import PictureType

from stack.dataset.model import ClipRef
from stack.dataset.video import probe
from stack.dataset.video_segments import encoded_anew
from stack.prepare import outline, prepare

HEAD, HAND = "observation.images.head", "observation.images.hand"
LENGTHS = (7, 5, 9, 4, 6)
FPS = 10
X265 = "log-level=none:scenecut=0:min-keyint={g}:keyint={g}:bframes={bf}"
CODECS: dict[str, tuple[str, dict[str, str]]] = {
    "h264, every picture a key": ("libx264", {"g": "1", "bf": "0"}),
    "h264": ("libx264", {"g": "4", "bf": "0", "sc_threshold": "0"}),
    "h264, b-frames": ("libx264", {"g": "12", "bf": "2", "b_strategy": "0", "sc_threshold": "0"}),
    "h264, one key, deep b-frames": (
        "libx264",
        {"x264-params": "keyint=250:scenecut=0:bframes=5:ref=6:weightp=2:b-adapt=0"},
    ),
    "av1, every picture a key": ("libsvtav1", {"g": "1", "preset": "12", "crf": "20"}),
    "av1, as recorded": ("libsvtav1", {"g": "2", "preset": "12", "crf": "20"}),
    "av1, long": ("libsvtav1", {"g": "7", "preset": "12", "crf": "20"}),
    "mpeg4": ("mpeg4", {"g": "12", "bf": "0"}),
    "mpeg4, b-frames": ("mpeg4", {"g": "12", "bf": "2"}),
    "hevc": ("libx265", {"preset": "ultrafast", "x265-params": X265.format(g=6, bf=0) + ":open-gop=0"}),
    "hevc, b-frames": ("libx265", {"preset": "fast", "x265-params": X265.format(g=7, bf=2) + ":open-gop=0"}),
    "hevc, open": ("libx265", {"preset": "fast", "x265-params": X265.format(g=4, bf=2) + ":open-gop=1"}),
    "vp9": ("libvpx-vp9", {"g": "4", "cpu-used": "8", "deadline": "realtime", "auto-alt-ref": "0"}),
}
NOTE = re.compile(
    r"(?P<source>\S+): (?P<camera>\S+): (?:all (?P<all>\d+)|(?P<some>\d+) of (?P<of>\d+)) pictures of "
    r"episodes (?P<episodes>[\d, -]+) are encoded anew(?P<rest>, the others are copied)? "
    r"\(the first: .+\)"
)


def encode(
    file: Path, pictures: list[np.ndarray], codec: str, options: dict[str, str], keys: tuple[int, ...] = ()
) -> None:
    with av.open(str(file), "w", format="mp4") as container:
        stream = container.add_stream(codec, rate=FPS, options=options)
        stream.height, stream.width = pictures[0].shape[:2]
        stream.pix_fmt = "yuv420p"
        if codec in ("mpeg4", "libvpx-vp9"):
            stream.bit_rate = 4_000_000
        for number, picture in enumerate(pictures):
            frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
            frame.pts, frame.time_base = number, Fraction(1, FPS)
            frame.pict_type = PictureType.I if number in keys else PictureType.NONE
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))


def payloads(file: Path) -> list[bytes]:
    """The coded pictures in the order in which they are shown."""
    with av.open(str(file)) as container:
        packets = [(packet.pts, bytes(packet)) for packet in container.demux(video=0) if packet.size]
    return [payload for _, payload in sorted(packets)]


def packed(
    root: Path, deliveries: Any, codec: str, options: dict[str, str], keys: tuple[int, ...] = ()
) -> Path:
    """A v3.0 dataset of five episodes whose head pictures are one stream, encoded in one go."""
    from stack.manifests import DatasetManifest, Loaded

    plain = deliveries.write_delivery(root / "plain", deliveries.Delivery(lengths=LENGTHS))
    asked = {"schema": "stack/dataset/1", "name": "src", "sources": [{"path": str(plain)}]}
    loaded = Loaded(DatasetManifest.model_validate(asked), root / "src.yaml", allow_outside=True)
    prepare(loaded, out=root / "src", jobs=1)
    pictures = [
        deliveries.paint(deliveries.identity(0, 0, episode, frame), 96, 64)
        for episode, length in enumerate(LENGTHS)
        for frame in range(length)
    ]
    [file] = (root / "src/videos" / HEAD).rglob("*.mp4")
    encode(file, pictures, codec, options, keys)
    return root / "src"


def written_clips(out: Path, camera: str, version: str) -> list[list[bytes]]:
    """The coded pictures of each output episode, found by the layout alone."""
    if version == "v2.1":
        return [payloads(file) for file in sorted(out.glob(f"videos/*/{camera}/*.mp4"))]
    table = pq.read_table(next(out.glob("meta/episodes/*/*.parquet"))).to_pylist()
    clips = []
    for row in sorted(table, key=lambda row: row["episode_index"]):
        chunk, number, start_s = (
            row[f"videos/{camera}/{name}"] for name in ("chunk_index", "file_index", "from_timestamp")
        )
        file = out / f"videos/{camera}/chunk-{chunk:03d}/file-{number:03d}.mp4"
        first = round(start_s * FPS)
        clips.append(payloads(file)[first : first + row["length"]])
    return clips


def numbers(text: str) -> list[int]:
    found = []
    for part in text.split(", "):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found


def check_notes(notes: list[str], source: Path, out: Path, version: str, kept: list[int]) -> int:
    """Each note names exactly the clips with pictures that are not the source's; says how many those are."""
    told = [match for match in map(NOTE.fullmatch, map(str.strip, notes)) if match]
    assert len(told) == sum("are encoded anew" in note for note in notes)
    total = 0
    for camera in (HEAD, HAND):
        [file] = (source / "videos" / camera).rglob("*.mp4")
        given, starts = payloads(file), np.cumsum([0, *LENGTHS])
        anew: dict[int, int] = {}
        for episode, clip in zip(kept, written_clips(out, camera, version), strict=True):
            own = given[starts[episode] : starts[episode + 1]]
            assert len(clip) == len(own)
            if count := sum(a != b for a, b in zip(clip, own, strict=True)):
                anew[episode] = count
        own_notes = [note for note in told if note["camera"] == camera]
        named = [n for note in own_notes for n in numbers(note["episodes"])]
        assert sorted(named) == sorted(anew)
        for note in own_notes:
            episodes = numbers(note["episodes"])
            assert note["source"] == "src"
            assert int(note["all"] or note["some"]) == sum(anew[n] for n in episodes)
            assert int(note["all"] or note["of"]) == sum(LENGTHS[n] for n in episodes)
            assert all((anew[n] == LENGTHS[n]) == bool(note["all"]) for n in episodes)
            assert bool(note["rest"]) != bool(note["all"])
        total += sum(anew.values())
    return total


@pytest.mark.parametrize("name", CODECS)
def test_the_notes_name_exactly_what_was_not_copied(load, tmp_path: Path, deliveries, name: str) -> None:
    codec, options = CODECS[name]
    source = packed(tmp_path, deliveries, codec, options)
    for version in ("v2.1", "v3.0"):
        manifest = load(f"version: {version}\nsources: [{{path: {source}, exclude_episodes: [3]}}]")
        notes = list(prepare(manifest, out=tmp_path / version, jobs=1).notes)
        total = check_notes(notes, source, tmp_path / version, version, [0, 1, 2, 4])
        assert (total == 0) == ("every picture a key" in name)
        planned = [line.strip() for line in outline(manifest).split("\n") if "encoded anew" in line]
        assert planned == [note for note in notes if "encoded anew" in note and NOTE.fullmatch(note)]


@pytest.mark.parametrize(
    ("codec", "b_frames", "kinds", "count"),
    [
        ("libx264", "2", "IBBPBBP", None),
        ("mpeg4", "2", "IBBPBBP", None),
        ("libx264", "3", "IBBBPBB", "2 of 7"),
        ("mpeg4", "3", "IBBBPBB", "all 7"),
    ],
)
def test_a_clip_on_a_key_frame_is_named_where_its_end_needs_a_later_picture(
    load, tmp_path: Path, deliveries, codec: str, b_frames: str, kinds: str, count: str | None
) -> None:
    order = {"g": "250", "bf": b_frames, "b_strategy": "0", "sc_threshold": "0"}
    source = packed(tmp_path, deliveries, codec, order)
    [file] = (source / "videos" / HEAD).rglob("*.mp4")
    with av.open(str(file)) as container:
        shown = [PictureType(frame.pict_type).name for frame in container.decode(video=0)]
    assert "".join(shown[: LENGTHS[0]]) == kinds
    for version in ("v2.1", "v3.0"):
        manifest = load(f"version: {version}\nsources: [{{path: {source}, keep_episodes: [0]}}]")
        notes = list(prepare(manifest, out=tmp_path / version, jobs=1).notes)
        check_notes(notes, source, tmp_path / version, version, [0])
        told = [note.split(" pictures of ")[0] for note in notes if "encoded anew" in note]
        assert told == ([f"src: {HEAD}: {count}"] if count else [])


def test_a_whole_file_is_named_where_it_starts_with_no_key_frame(load, tmp_path: Path, deliveries) -> None:
    """Its first picture is marked as one, and is open (HEVC CRA): it cannot stand behind other pictures."""
    source = deliveries.write_delivery(tmp_path / "src", deliveries.Delivery(lengths=(5,)))
    file = source / f"videos/chunk-000/{HEAD}/episode_000000.mp4"
    pictures = [deliveries.paint(deliveries.identity(0, 0, 1 - k // 4, k % 4), 96, 64) for k in range(4)]
    pictures += [deliveries.paint(deliveries.identity(0, 0, 0, k), 96, 64) for k in range(5)]
    whole = tmp_path / "whole.mp4"
    encode(whole, pictures, "libx265", {"x265-params": X265.format(g=4, bf=0) + ":open-gop=1"})
    with av.open(str(whole)) as given, av.open(str(file), "w") as container:
        stream = container.add_stream_from_template(given.streams.video[0])
        packets = [packet for packet in given.demux(video=0) if packet.size][4:]
        first = packets[0].pts
        assert (bytes(packets[0])[4] >> 1) & 0x3F == 21  # CRA_NUT
        for packet in packets:
            packet.pts, packet.dts, packet.stream = packet.pts - first, packet.pts - first, stream
            container.mux(packet)
    got = prepare(load(f"sources: [{{path: {source}}}]"), out=tmp_path / "out", jobs=1)
    told = [note.split(" pictures of ")[0] for note in got.notes if "encoded anew" in note]
    [written] = (tmp_path / "out/videos" / HEAD).rglob("*.mp4")
    assert not set(payloads(written)) & set(payloads(file))
    assert told == [f"src: {HEAD}: all 5"]


def test_a_transcoding_tells_of_no_cut(load, tmp_path: Path, deliveries) -> None:
    source = packed(tmp_path, deliveries, *CODECS["av1, as recorded"])
    told = outline(load(f"videos: transcode\nsources: [{{path: {source}}}]"))
    assert not [line for line in told.split("\n") if NOTE.fullmatch(line.strip())]


def test_a_camera_that_is_not_written_is_not_named(load, tmp_path: Path, deliveries) -> None:
    source = packed(tmp_path, deliveries, *CODECS["mpeg4"])
    told = outline(load(f"sources: [{{path: {source}}}]\ncameras: {{{HAND}: {{}}}}"))
    assert "encoded anew" not in told


@pytest.mark.parametrize("name", ["h264, b-frames", "mpeg4, b-frames", "av1, as recorded"])
def test_counting_opens_no_file_again(tmp_path: Path, name: str) -> None:
    """A file that was looked at is known by its size and times, and not read a second time."""
    file = tmp_path / "v.mp4"
    pictures = [np.full((64, 96, 3), 8 * n, np.uint8) for n in range(20)]
    encode(file, pictures, *CODECS[name])
    clip, stat = ClipRef(file, 3, 11), file.stat()
    assert probe(file).frames == 20
    file.write_bytes(bytes(stat.st_size))
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    anew = encoded_anew(clip)
    assert anew is not None
    assert 0 < anew.pictures <= anew.of == 11


@pytest.mark.parametrize("version", ["v2.1", "v3.0"])
@pytest.mark.parametrize("keys", [(14,), (9, 14, 26), ()])
def test_open_groups_are_counted_among_copied_pictures_only(
    load, tmp_path: Path, deliveries, version: str, keys: tuple[int, ...]
) -> None:
    """Open groups of three pictures all over the file, and few places from which a clip can be copied."""
    x264 = "keyint=3:min-keyint=3:scenecut=0:bframes=2:b-adapt=0:open-gop=1"
    source = packed(tmp_path, deliveries, "libx264", {"forced-idr": "1", "x264-params": x264}, keys)
    [file] = (source / "videos" / HEAD).rglob("*.mp4")
    assert probe(file).key_frames == (0, *keys)
    manifest = load(f"version: {version}\nsources: [{{path: {source}}}]")
    notes = [n for n in prepare(manifest, out=tmp_path / "out", jobs=1).notes if "open groups" in n]
    written = sum(len(probe(file).leading) for file in (tmp_path / "out/videos").rglob("*.mp4"))
    told = [int(count) for note in notes for count in re.findall(r": (\d+) pictures", note)]
    assert 0 < written < len(probe(file).leading)
    assert told == [written]
