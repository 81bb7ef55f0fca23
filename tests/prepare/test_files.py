"""Which files an output has: caps from the manifest, and videos that cannot stand in one stream."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import av
import pyarrow as pa
import pytest

from stack.audit import audit
from stack.dataset.digest import content_digest
from stack.dataset.read import read_dataset
from stack.errors import StackError
from stack.prepare import outline, plan, prepare

HEAD = "observation.images.head"
SMALL = "caps: {data_mb: 0.0015, video_mb: 0.004, files_per_chunk: 2}\n"


def files(root: Path, kind: str) -> list[str]:
    return sorted(str(file.relative_to(root)) for file in root.glob(f"**/*.{kind}"))


def test_caps_of_the_manifest(two: Path, load: Any, tmp_path: Path) -> None:
    sources = f"sources: [{{path: {two}/a}}]\n"
    few, many = tmp_path / "few", tmp_path / "many"
    prepare(load(sources), out=few, jobs=1)
    prepare(load(SMALL + sources), out=many, jobs=1)
    assert [name for name in files(few, "parquet") if name.startswith("data")] == [
        "data/chunk-000/file-000.parquet"
    ]
    data = [name for name in files(many, "parquet") if name.startswith("data")]
    assert data[:3] == [f"data/chunk-00{n // 2}/file-00{n % 2}.parquet" for n in range(3)]
    assert len(files(many, "mp4")) > len(files(few, "mp4"))
    info = json.loads((many / "meta/info.json").read_text())
    assert (info["data_files_size_in_mb"], info["video_files_size_in_mb"]) == (0.0015, 0.004)
    assert info["chunks_size"] == 2
    assert content_digest(read_dataset(few)) == content_digest(read_dataset(many))
    told = outline(load(SMALL + sources)).rsplit("output", 1)[1]
    assert f"{len(data)} data files" in told and f"{len(files(many, 'mp4'))} video files" in told


def test_chunk_folders_of_v21(two: Path, load: Any, tmp_path: Path) -> None:
    text = f"version: v2.1\n{SMALL}sources: [{{path: {two}/a}}]\n"
    prepare(load(text), out=tmp_path / "out", jobs=1)
    data = [name for name in files(tmp_path / "out", "parquet") if name.startswith("data")]
    assert data == [f"data/chunk-00{n // 2}/episode_00000{n}.parquet" for n in range(5)]


@pytest.mark.parametrize("wrong", ["data_mb: 0", "video_mb: -1", "files_per_chunk: 0", "mb: 3"])
def test_caps_that_are_none(two: Path, load: Any, wrong: str) -> None:
    with pytest.raises(StackError) as caught:
        load(f"caps: {{{wrong}}}\nsources: [{{path: {two}/a}}]\n")
    assert caught.value.id == "manifest-invalid" and "caps" in caught.value.what


@pytest.mark.parametrize("inside", [False, True], ids=["two deliveries", "one delivery"])
def test_codecs_stand_in_files_of_their_own(
    deliveries: ModuleType, load: Any, tmp_path: Path, inside: bool
) -> None:
    """Every picture is where it belongs, a file holds one codec; it merges again and goes back to v2.1."""
    made = {"cameras": ((HEAD, 96, 64),), "lengths": (4, 3)}
    plain = deliveries.write_delivery(tmp_path / "h264", deliveries.Delivery(**made))
    other = deliveries.write_delivery(tmp_path / "mpeg4", deliveries.Delivery(codec="mpeg4", **made))
    if inside:  # the second delivery's pictures under the first one's name
        name = f"videos/chunk-000/{HEAD}/episode_000001.mp4"
        (plain / name).write_bytes((other / name).read_bytes())
        lengths, codecs, sources = (4, 3), ("h264", "mpeg4"), [plain]
    else:
        lengths, codecs, sources = (4, 3, 4, 3), ("h264", "mpeg4"), [plain, other]
    text = "sources:\n" + "".join(f"  - path: {root}\n" for root in sources)
    assert any(f"{HEAD}.codec" in str(entry) for entry in plan(load(text)).reconciled)
    out = tmp_path / "out"
    assert any("codec differs" in note for note in prepare(load(text), out=out, jobs=1).notes)
    held = []
    for name in files(out, "mp4"):
        with av.open(str(out / name)) as container:
            held.append(container.streams.video[0].codec_context.name)
    assert tuple(held) == codecs
    told = json.loads((out / "meta/info.json").read_text())["features"][HEAD]["info"]
    assert "video.codec" not in told and told["video.pix_fmt"] == "yuv420p"
    assert not [fault for fault in audit(out).faults if fault.code.startswith("video-codec")]
    again = load(f"version: v2.1\nsources: [{{path: {out}, name: x}}, {{path: {sources[0]}, name: y}}]\n")
    prepare(again, out=tmp_path / "again", jobs=1)
    for root, meant in ((out, lengths), (tmp_path / "again", (*lengths, 4, 3))):
        written = read_dataset(root)
        assert tuple(episode.length for episode in written.episodes) == meant
        for number, episode in enumerate(written.episodes):
            clip = episode.clips[HEAD]
            with av.open(str(clip.file)) as container:
                pictures = list(container.decode(video=0))[clip.start : clip.start + clip.count]
            got = [deliveries.read_identity(picture.to_ndarray(format="rgb24")) for picture in pictures]
            assert got == [deliveries.identity(0, 0, number % 2, n) for n in range(episode.length)]


def test_columns_that_nobody_declared_are_told(deliveries: ModuleType, load: Any, tmp_path: Path) -> None:
    root = deliveries.write_delivery(tmp_path / "d", deliveries.Delivery(lengths=(4, 3, 5), cameras=()))
    for episode, length in enumerate((4, 3, 5)):
        reward = pa.array([1.0] * length)
        deliveries.edit_rows(root, episode, lambda t, reward=reward: t.append_column("reward", reward))
    score = pa.array([1] * 3)
    deliveries.edit_rows(root, 1, lambda table: table.append_column("score", score))
    done = prepare(load(f"sources: [{{path: {root}}}]\n"), out=tmp_path / "out", jobs=1)
    notes = [note for note in done.notes if "info.json does not list" in note]
    assert any("all episodes" in note and "'reward'" in note for note in notes)
    assert any("episodes [1]" in note and "'score'" in note for note in notes)
    assert len(notes) == 2
