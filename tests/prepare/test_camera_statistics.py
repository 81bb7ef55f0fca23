"""Stored camera statistics: kept where pictures agree, taken anew where not, against brute force."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import av
import numpy as np
import pyarrow.parquet as pq
import pytest

from stack.dataset.model import ClipRef
from stack.dataset.read import read_dataset
from stack.dataset.stats_stored import KeptCamera, NotKept, keep_or_why, stored_camera_stats
from stack.dataset.video_glance import glance, glance_frames
from stack.prepare import plan, prepare

HEAD, HAND = CAMERAS = ("observation.images.head", "observation.images.hand")
LENGTHS = (7, 120, 30)
QUANTILES = {"q01": 1, "q10": 10, "q50": 50, "q90": 90, "q99": 99}
MOMENTS = ("min", "max", "mean", "std")


def sampled(length: int) -> list[int]:
    """lerobot's rule, written again: at least 100 of them where there are so many, else length ** 0.75."""
    wanted = max(min(100, length), min(int(length**0.75), 10_000))
    return np.round(np.linspace(0, length - 1, wanted)).astype(int).tolist()


def pictures_of(file: Path) -> list[np.ndarray]:
    with av.open(str(file)) as container:
        return [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]


def pixels_of(pictures: list[np.ndarray]) -> np.ndarray:
    return np.concatenate([picture.reshape(-1, 3) for picture in pictures]).astype(np.float64) / 255


def entry(pixels: np.ndarray, count: int) -> dict[str, Any]:
    found = {name: getattr(pixels, name)(axis=0).reshape(3, 1, 1).tolist() for name in MOMENTS}
    return {**found, "count": [count]}


@pytest.fixture(scope="module")
def delivery(tmp_path_factory: pytest.TempPathFactory, deliveries) -> Path:
    """Three episodes, each of another scene that changes over time; without camera statistics."""
    root = tmp_path_factory.mktemp("statistics") / "d"
    deliveries.write_delivery(
        root, deliveries.Delivery(lengths=LENGTHS, cameras=tuple((name, 64, 48) for name in CAMERAS))
    )
    for number, camera in enumerate(CAMERAS):
        for episode, length in enumerate(LENGTHS):
            rng = np.random.default_rng((number, episode))
            scene = rng.integers(20 + 40 * episode, 120 + 40 * episode, (6, 8, 3)).repeat(8, 0).repeat(8, 1)
            ramp = np.linspace(0, 12, length).astype(int)
            deliveries.write_video(
                clip(root, camera, episode), [(scene + step).astype(np.uint8) for step in ramp], 10
            )
    return root


def clip(root: Path, camera: str, episode: int) -> Path:
    return root / "videos" / "chunk-000" / camera / f"episode_{episode:06d}.mp4"


@pytest.fixture(scope="module")
def right(delivery: Path) -> dict[tuple[str, int], dict[str, Any]]:
    """What a recorder would have stored of each clip."""
    return {
        (camera, episode): entry(samples(delivery, camera, episode), len(sampled(length)))
        for camera in CAMERAS
        for episode, length in enumerate(LENGTHS)
    }


def samples(root: Path, camera: str, episode: int) -> np.ndarray:
    pictures = pictures_of(clip(root, camera, episode))
    return pixels_of([pictures[n] for n in sampled(len(pictures))])


@pytest.fixture
def source(delivery: Path, tmp_path: Path) -> Path:
    """The delivery under another name, whose statistics a test may write."""
    root = tmp_path / "source"
    (root / "meta").mkdir(parents=True)
    for folder in ("data", "videos"):
        (root / folder).symlink_to(delivery / folder)
    for file in (delivery / "meta").iterdir():
        (root / "meta" / file.name).write_bytes(file.read_bytes())
    return root


def put(root: Path, entries: dict[tuple[str, int], Any]) -> Path:
    lines = [
        {"episode_index": e, "stats": {c: entries[c, e] for c in CAMERAS if (c, e) in entries}}
        for e in range(len(LENGTHS))
    ]
    (root / "meta" / "episodes_stats.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return root


def written(out: Path) -> tuple[dict[str, Any], dict[tuple[str, int], dict[str, Any]]]:
    """stats.json, and the statistics in the episode table."""
    rows = pq.read_table(next((out / "meta" / "episodes").rglob("*.parquet"))).to_pylist()
    own = {
        (camera, row["episode_index"]): {
            key: row[f"stats/{camera}/{key}"] for key in ("count", *MOMENTS, *QUANTILES)
        }
        for row in rows
        for camera in CAMERAS
    }
    return json.loads((out / "meta" / "stats.json").read_text()), own


def check_pooled(got: dict[str, Any], delivery: Path, camera: str, atol: float = 1e-12) -> None:
    pixels = np.concatenate([samples(delivery, camera, episode) for episode in range(len(LENGTHS))])
    assert got["count"] == [sum(len(sampled(length)) for length in LENGTHS)]
    for name in MOMENTS:
        np.testing.assert_allclose(
            np.ravel(got[name]), getattr(pixels, name)(axis=0), rtol=0, atol=atol, err_msg=name
        )


def told(out: Path) -> dict[str, Any]:
    return json.loads((out / "meta" / "provenance.json").read_text())["camera_statistics"]


def test_sound_statistics_are_kept_and_pooled_exactly(source, right, delivery, load, tmp_path, monkeypatch):
    import stack.dataset.write_work as work

    monkeypatch.setattr(work, "sample_camera", lambda clip: pytest.fail(f"{clip} was sampled"))
    loaded = load(f"sources: [{{path: {put(source, right)}}}]")
    got = prepare(loaded, out=tmp_path / "out", jobs=1)
    assert not [note for note in got.notes if "statistics" in note]
    pooled, own = written(tmp_path / "out")
    for key, meant in right.items():
        assert {name: own[key][name] for name in ("count", *MOMENTS)} == meant
    for camera in CAMERAS:
        check_pooled(pooled[camera], delivery, camera)
        looked, weights = [], []
        for episode, length in enumerate(LENGTHS):
            file = clip(delivery, camera, episode)
            numbers, _ = glance_frames(ClipRef(file, 0, length))
            pixels = pixels_of([pictures_of(file)[n] for n in numbers])
            looked.append(pixels)
            weights.append(np.full(len(pixels), len(sampled(length)) / len(numbers)))
        for name, percent in QUANTILES.items():
            meant = [
                np.percentile(
                    np.concatenate(looked)[:, channel],
                    percent,
                    weights=np.concatenate(weights),
                    method="inverted_cdf",
                )
                for channel in range(3)
            ]
            np.testing.assert_allclose(np.ravel(pooled[camera][name]), meant, atol=1e-12)
    counts = told(tmp_path / "out")
    assert (counts["clips_as_stored"], counts["clips_sampled"]) == (6, 0)
    assert counts["pictures_checked"] >= 6
    assert "camera statistics: of 6 clips as stored" in got.plan.text()


def _other_scene(right: dict[str, Any]) -> dict[str, Any]:
    moved = {name: (np.array(right[name]) * 0.5).tolist() for name in MOMENTS}
    return {**right, **moved}


PLANTED = {
    "another dataset's": (_other_scene, "contradicted"),
    "count 0": (lambda e: {**e, "count": [0]}, "unsound"),
    "zeros": (lambda e: {**e, **{n: np.zeros((3, 1, 1)).tolist() for n in MOMENTS}}, "contradicted"),
    "nested": (lambda e: {n: v if n == "count" else [v] for n, v in e.items()}, "unsound"),
    "nested count": (lambda e: {**e, "count": [e["count"]]}, "unsound"),
    "0 to 255": (lambda e: {**e, **{n: (np.array(e[n]) * 255).tolist() for n in MOMENTS}}, "unsound"),
    "flat": (lambda e: {**e, "mean": np.ravel(e["mean"]).tolist()}, "unsound"),
    "not finite": (lambda e: {**e, "std": [[[math.nan]]] * 3}, "unsound"),
    "impossible std": (lambda e: {**e, "std": [[[0.6]]] * 3}, "unsound"),
    "mean outside": (lambda e: {**e, "mean": e["max"], "max": e["mean"]}, "unsound"),
    "narrow": (lambda e: {**e, "min": e["mean"], "max": e["mean"], "std": [[[0.0]]] * 3}, "contradicted"),
    "no mean": (lambda e: {n: v for n, v in e.items() if n != "mean"}, "unsound"),
    "of all frames": (lambda e: {**e, "count": [LENGTHS[1]]}, "unsound"),
    "no object": (lambda e: [1, 2], "absent"),
    "text": (lambda e: {**e, "min": "dark"}, "unsound"),
}


def test_a_scene_that_changes_is_looked_at_more_often(tmp_path, deliveries):
    """The middle picture alone speaks against statistics that are right; all together do not."""
    file = tmp_path / "v.mp4"
    rng = np.random.default_rng(3)
    scene = rng.integers(60, 90, (6, 8, 3)).repeat(8, 0).repeat(8, 1)
    with av.open(str(file), "w") as container:
        stream = container.add_stream("libx264", rate=10, options={"g": "5"})
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        for n in range(60):
            lit = scene + (100 if n < 20 else 0)  # the light goes out after a third
            container.mux(stream.encode(av.VideoFrame.from_ndarray(lit.astype(np.uint8))))
        container.mux(stream.encode(None))
    pictures = pictures_of(file)
    right = entry(pixels_of([pictures[n] for n in sampled(60)]), len(sampled(60)))
    whole = ClipRef(file, 0, 60)
    found = keep_or_why(right, whole)
    assert isinstance(found, KeptCamera) and found.seen.frames > 1
    dark = entry(pixels_of(pictures[20:]), len(sampled(60)))
    assert isinstance(keep_or_why({**dark, "mean": [[[0.05]]] * 3, "min": [[[0]]] * 3}, whole), NotKept)
    levels = np.stack([np.bincount(pictures[30][..., c].ravel(), minlength=256) for c in range(3)])
    assert found.seen.histogram.sum() == found.seen.frames * levels.sum()


@pytest.mark.parametrize("fault", PLANTED)
def test_what_is_wrong_is_not_kept(source, right, fault):
    spoil, kind = PLANTED[fault]
    put(source, {**right, (HEAD, 1): spoil(right[HEAD, 1])})
    raw = stored_camera_stats(source, "v2.1", CAMERAS)
    dataset = read_dataset(source)
    for camera in CAMERAS:
        for episode in dataset.episodes:
            found = keep_or_why(raw[camera].get(episode.index), episode.clips[camera])
            if (camera, episode.index) == (HEAD, 1):
                assert isinstance(found, NotKept) and found.kind == kind, found
            else:
                assert isinstance(found, KeptCamera), found


def test_a_clip_that_is_not_kept_is_sampled_and_told(source, right, delivery, load, tmp_path):
    spoiled = {**right, (HEAD, 1): PLANTED["count 0"][0](right[HEAD, 1])}
    del spoiled[HAND, 2]
    loaded = load(f"sources: [{{path: {put(source, spoiled)}}}]")
    got = prepare(loaded, out=tmp_path / "out", jobs=1)
    notes = [note for note in got.notes if "statistics" in note]
    assert len(notes) == 2
    assert f"{HEAD}: statistics of 1 clips are sampled" in notes[0] and "count is 0" in notes[0]
    assert f"{HAND}: statistics of 1 clips are sampled" in notes[1] and "absent" in notes[1]
    pooled, own = written(tmp_path / "out")
    for camera in CAMERAS:
        check_pooled(pooled[camera], delivery, camera)
    pixels = samples(delivery, HEAD, 1)
    assert own[HEAD, 1]["count"] == [100]
    for name, percent in QUANTILES.items():
        meant = np.percentile(pixels, percent, axis=0)
        np.testing.assert_allclose(np.ravel(own[HEAD, 1][name]), meant, atol=1e-12)
    counts = told(tmp_path / "out")
    assert (counts["clips_as_stored"], counts["clips_sampled"]) == (4, 2)


def test_kept_and_sampled_clips_stand_in_one_table(source, right, load, tmp_path, monkeypatch):
    """Of each episode another camera is sampled, in row groups of one: columns must keep their order."""
    monkeypatch.setattr("stack.dataset.write_meta.EPISODES_AT_ONCE", 1)
    spoiled = {key: entry for key, entry in right.items() if key not in ((HAND, 1), (HEAD, 2))}
    loaded = load(f"sources: [{{path: {put(source, spoiled)}}}]")
    prepare(loaded, out=tmp_path / "out", jobs=2)
    (file,) = (tmp_path / "out/meta/episodes").rglob("*.parquet")
    assert pq.ParquetFile(file).num_row_groups == len(LENGTHS)
    _, own = written(tmp_path / "out")
    for key, entry in right.items():
        if key in spoiled:
            assert {name: own[key][name] for name in entry} == entry
        else:
            np.testing.assert_allclose(np.ravel(own[key]["mean"]), np.ravel(entry["mean"]), atol=1e-12)


def test_sampled_on_request(source, right, delivery, load, tmp_path):
    lying = {key: _other_scene(value) for key, value in right.items()}
    loaded = load(f"camera_statistics: sampled\nsources: [{{path: {put(source, lying)}}}]")
    got = prepare(loaded, out=tmp_path / "out", jobs=1)
    assert not [note for note in got.notes if "statistics" in note]
    pooled, _ = written(tmp_path / "out")
    for camera in CAMERAS:
        check_pooled(pooled[camera], delivery, camera)
        pixels = np.concatenate([samples(delivery, camera, episode) for episode in range(len(LENGTHS))])
        for name, percent in QUANTILES.items():
            meant = np.percentile(pixels, percent, axis=0)
            np.testing.assert_allclose(np.ravel(pooled[camera][name]), meant, atol=1e-12)
    assert told(tmp_path / "out")["clips_sampled"] == 6


def test_a_prepared_dataset_carries_its_own_on(source, right, load, tmp_path):
    """v3.0: from the episode table, with quantiles of single episodes; clips lie inside joined files."""
    first = load(f"camera_statistics: sampled\nsources: [{{path: {source}}}]")
    prepare(first, out=tmp_path / "once", jobs=1)
    again = load(f"sources: [{{path: {tmp_path / 'once'}}}]")
    got = prepare(again, out=tmp_path / "twice", jobs=1)
    assert got.plan.kept_clips == 6
    assert written(tmp_path / "twice")[1] == written(tmp_path / "once")[1]


def test_pictures_encoded_anew_are_sampled(source, right, load):
    loaded = load(f"videos: transcode\nsources: [{{path: {put(source, right)}}}]")
    assert plan(loaded, jobs=1).kept_clips == 0


@pytest.mark.parametrize("codec", ["libx264", "libx265", "libsvtav1", "mpeg4"])
def test_a_glance_shows_what_decoding_shows(tmp_path, deliveries, codec):
    rng = np.random.default_rng(5)
    scene = rng.integers(0, 255, (30, 40, 3)).repeat(8, 0).repeat(8, 1)  # 320 wide: thinned
    file = tmp_path / "v.mp4"
    with av.open(str(file), "w") as container:
        stream = container.add_stream(codec, rate=10, options={"g": "4"})
        stream.width, stream.height, stream.pix_fmt = 320, 240, "yuv420p"
        for n in range(24):
            frame = av.VideoFrame.from_ndarray(np.roll(scene, 8 * n, axis=1).astype(np.uint8))
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    for whole in (ClipRef(file, 0, 24), ClipRef(file, 5, 11), ClipRef(file, 5, 2)):
        first, more = glance_frames(whole)
        numbers = [*first, *more]
        assert len(numbers) == len(set(numbers)) and numbers
        assert all(whole.start <= n < whole.start + whole.count for n in numbers)
        pictures = pictures_of(file)
        for number, picture in zip(numbers, glance(whole, numbers), strict=True):
            assert np.array_equal(picture, pictures[number][::2, ::2])


REAL = Path(os.environ.get("STACK_REAL_DATASETS", Path(__file__).parents[3] / "shared" / "datasets"))


@pytest.mark.parametrize("name", ["cr5_tcp_v21", "g1_inspire_v21", "ioai_v21_video", "ioai_v30_video"])
def test_what_real_recorders_stored_is_kept(name):
    """Each was measured by its recorder, before encoding; the pictures still agree."""
    if not (REAL / name).is_dir():
        pytest.skip("the real recordings are not here")
    dataset = read_dataset(REAL / name)
    cameras = [camera for camera in dataset.cameras if not dataset.features[camera].is_image]
    raw = stored_camera_stats(dataset.root, dataset.version, cameras)
    found = [
        keep_or_why(raw[camera].get(episode.index), episode.clips[camera])
        for camera in cameras
        for episode in dataset.episodes[:4]
        if camera in episode.clips
    ]
    assert found and not [one for one in found if isinstance(one, NotKept)]
