"""`videos: transcode`: small pictures, the right ones, whatever the sources' codecs and sizes were."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import av
import pytest

from stack.dataset.read import read_dataset
from stack.dataset.video import join
from stack.errors import StackError
from stack.files import tree_digest
from stack.prepare import plan, prepare
from stack.prepare.transcoding import transcoded

HEAD = "observation.images.head"


@pytest.fixture(scope="module")
def unlike(tmp_path_factory: pytest.TempPathFactory, deliveries: Any) -> Path:
    """Two deliveries whose cameras differ in codec and size."""
    root = tmp_path_factory.mktemp("unlike")
    deliveries.write_delivery(root / "a", deliveries.Delivery(cameras=((HEAD, 96, 64),), lengths=(7, 5)))
    other = deliveries.Delivery(number=1, cameras=((HEAD, 80, 96),), lengths=(6, 9), codec="mpeg4")
    deliveries.write_delivery(root / "b", other)
    return root


def manifest(root: Path, extra: str = "") -> str:
    return f"videos: transcode\n{extra}sources:\n  - path: {root / 'a'}\n  - path: {root / 'b'}\n"


def test_every_picture_is_small_and_the_right_one(unlike, load, tmp_path, deliveries) -> None:
    before = tree_digest(unlike)
    lines: list[str] = []
    loaded = load(manifest(unlike, "transcode: {size: 64, gop: 3}\n"))
    done = prepare(loaded, out=tmp_path / "out", jobs=1, log=lines.append)
    assert tree_digest(unlike) == before
    assert any("clips encoded: 4, 27 frames" in line for line in lines)
    assert any("64x64" in note and "3 frames" in note for note in done.notes)
    info = json.loads((tmp_path / "out" / "meta" / "info.json").read_text())
    assert info["features"][HEAD]["shape"] == [64, 64, 3]
    assert info["features"][HEAD]["info"]["video.codec"] == "h264"
    provenance = json.loads((tmp_path / "out" / "meta" / "provenance.json").read_text())
    assert provenance["operations"][-1]["videos"] == "transcode"
    written = read_dataset(tmp_path / "out")
    meant = [(0, 0, 7), (0, 1, 5), (1, 0, 6), (1, 1, 9)]
    for episode, (delivery, number, length) in zip(written.episodes, meant, strict=True):
        clip = episode.clips[HEAD]
        assert clip.count == length
        with av.open(str(clip.file)) as container:
            pictures = list(container.decode(video=0))[clip.start : clip.start + length]
        assert [p.key_frame for p in pictures] == [n % 3 == 0 for n in range(length)]
        # 96x64 becomes 64x42 between 11 black rows; 80x96 becomes 53x64 between black columns.
        inside = (slice(11, 53), slice(0, 64)) if delivery == 0 else (slice(0, 64), slice(5, 58))
        for n, picture in enumerate(pictures):
            got = picture.to_ndarray(format="rgb24")
            assert deliveries.read_identity(got[inside]) == deliveries.identity(delivery, 0, number, n)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["dataset.yaml", "out"]


def test_copying_such_sources_is_refused_and_transcoding_is_not(unlike, load) -> None:
    with pytest.raises(StackError) as caught:
        plan(load(manifest(unlike).replace("transcode", "join")))
    assert caught.value.id == "prepare-camera-differs"
    assert plan(load(manifest(unlike))).videos == "transcode"


def test_what_a_killed_call_encoded_is_used(unlike, load, tmp_path, monkeypatch) -> None:
    import stack.prepare.transcoding as module
    from stack.dataset.pool import Pool

    loaded = load(manifest(unlike, "transcode: {size: 32}\n"))
    made, settings, scratch = plan(loaded), loaded.manifest.transcode, tmp_path / "scratch"
    first = transcoded(made, settings, scratch, Pool(1), lambda _: None)
    files = {p.name: p.stat().st_mtime_ns for p in scratch.iterdir()}
    assert len(files) == 4
    (scratch / min(files)).unlink()
    encoded = []
    right = module.transcode_clip
    monkeypatch.setattr(module, "transcode_clip", lambda job: encoded.append(job) or right(job))
    again = transcoded(made, settings, scratch, Pool(1), lambda _: None)
    assert [job.out.name for job in encoded] == [min(files)]
    assert again.selection.episodes == first.selection.episodes
    transcoded(made, settings.model_copy(update={"gop": 5}), scratch, Pool(1), lambda _: None)
    assert len(encoded) == 5  # other settings are other files


@pytest.mark.parametrize("plant", ["another episode", "one frame late", "a wrong last frame"])
def test_wrong_pictures_are_refused(unlike, load, tmp_path, monkeypatch, plant: str) -> None:
    """Whoever encoded them: a worker, or an earlier call whose files are used again."""
    import stack.prepare.transcoding as module
    from stack.dataset.model import ClipRef

    loaded = load(manifest(unlike, "transcode: {size: 64}\n"))
    right = module.transcode_clip
    first = unlike / "a/videos/chunk-000" / HEAD / "episode_000000.mp4"
    other = first.with_name("episode_000001.mp4")

    def wrong(job: Any) -> Any:
        if job.clip.file != other:
            return right(job)
        if plant == "another episode":
            return right(dataclasses.replace(job, clip=ClipRef(first, 0, 5)))
        parts = {
            "one frame late": [(other, 1, 4), (other, 4, 1)],
            "a wrong last frame": [(other, 0, 4), (first, 4, 1)],
        }
        made = []
        for number, place in enumerate(parts[plant]):
            part = dataclasses.replace(job, clip=ClipRef(*place), out=tmp_path / f"part{number}.mp4")
            right(part)
            made.append(ClipRef(part.out, 0, part.clip.count))
        return join(made, job.out, job.fps)

    monkeypatch.setattr(module, "transcode_clip", wrong)
    with pytest.raises(StackError) as caught:
        prepare(loaded, out=tmp_path / "target" / "out", jobs=1)
    assert caught.value.id == "write-check-failed" and str(other) in caught.value.where
    assert list((tmp_path / "target").iterdir()) == []


def test_the_coarsest_quality_is_no_fault(unlike, load, tmp_path) -> None:
    done = prepare(load(manifest(unlike, "transcode: {size: 32, crf: 51}\n")), out=tmp_path / "out", jobs=1)
    assert done.frames == 27
