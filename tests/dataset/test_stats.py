"""Statistics against brute force: numpy on expanded data, and lerobot's own sampling."""

from __future__ import annotations

import math
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest

from stack.dataset.model import ClipRef
from stack.dataset.stats import (
    CameraSample,
    camera_stats,
    columns_stats,
    sample_camera,
    sampled_frames,
    thinning,
    vector_stats,
)
from stack.errors import BadRequest, StackError

QUANTILES = {"q01": 1, "q10": 10, "q50": 50, "q90": 90, "q99": 99}


def test_quantiles_are_percentiles_over_all_rows():
    rng = np.random.default_rng(0)
    # Each "episode" around its own operating point: averaging episode quantiles would be far off.
    values = np.concatenate([rng.normal(c, 0.1, (50, 19)) for c in rng.normal(0, 2, 40)]).astype(np.float32)
    stats = vector_stats(values)
    for name, percent in QUANTILES.items():
        for channel in range(19):
            column = sorted(float(v) for v in values[:, channel])
            place = Fraction(percent, 100) * (len(column) - 1)
            low = int(place)
            high = min(low + 1, len(column) - 1)
            wanted = column[low] + (column[high] - column[low]) * float(place - low)
            assert getattr(stats, name)[channel] == pytest.approx(wanted, rel=1e-12, abs=1e-12)
    assert stats.count.tolist() == [2000]
    assert stats.mean.shape == (19,)


def test_std_survives_a_large_mean():
    rng = np.random.default_rng(1)
    values = (1000 + rng.normal(0, 0.01, 5000)).astype(np.float32)
    exact = [Fraction(float(v)) for v in values]
    mean = sum(exact) / len(exact)
    variance = sum((v - mean) ** 2 for v in exact) / len(exact)
    stats = vector_stats(values)
    assert stats.std.shape == (1,)
    assert stats.mean[0] == pytest.approx(float(mean), rel=1e-15)
    assert stats.std[0] == pytest.approx(math.sqrt(variance), rel=1e-9)
    assert 0.009 < stats.std[0] < 0.011


def test_constant_channel_has_no_spread():
    stats = vector_stats(np.full((1001, 2), 0.1, dtype=np.float32))
    assert stats.std.tolist() == [0.0, 0.0]
    assert stats.q01.tolist() == stats.q99.tolist() == stats.min.tolist() == [float(np.float32(0.1))] * 2


def test_integers_stay_integers():
    big = 2**60 + 1
    json = vector_stats(np.array([3, 1, big], dtype=np.int64)).to_json()
    assert json["min"] == [1]
    assert json["max"] == [big]
    assert isinstance(json["max"][0], int)
    assert json["q50"] == [3.0]
    assert json["count"] == [3]


def test_one_row_is_its_own_quantile():
    stats = vector_stats(np.array([[1.5, -2.0]]))
    for name in ("min", "max", "mean", *QUANTILES):
        assert getattr(stats, name).tolist() == [1.5, -2.0]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_not_finite_is_an_error_that_names_the_place(bad):
    values = np.zeros((10, 12), dtype=np.float32)
    values[4, 9] = bad
    with pytest.raises(StackError) as caught:
        vector_stats(values, where="action")
    assert caught.value.id == "stats-not-finite"
    assert "row 4" in caught.value.what
    assert "channel 9" in caught.value.what
    assert caught.value.where == "action"


@pytest.mark.parametrize(
    ("values", "code"),
    [(np.zeros((0, 3)), "stats-no-rows"), (np.array(["a"]), "stats-not-numeric")],
)
def test_what_has_no_statistics_is_refused(values, code):
    with pytest.raises(StackError) as caught:
        vector_stats(values)
    assert caught.value.id == code


def make_video(file: Path, frames: int, height: int, width: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    with av.open(str(file), "w") as container:
        stream = container.add_stream("libx264", rate=30, options={"preset": "ultrafast", "g": "250"})
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        for _ in range(frames):
            picture = np.repeat(np.repeat(rng.integers(0, 256, (height // 8, width // 8, 3)), 8, 0), 8, 1)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture.astype(np.uint8))))
        container.mux(stream.encode(None))


def all_frames(file: Path) -> list[np.ndarray]:
    with av.open(str(file)) as container:
        return [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]


def test_camera_statistics_are_those_of_the_expanded_pixels(tmp_path):
    clips, pixels, frames = [], [], 0
    for seed, count in enumerate((7, 160)):
        file = tmp_path / f"{seed}.mp4"
        make_video(file, count, 48, 64, seed)
        clips.append(ClipRef(file, 0, count))
        # 160 ** 0.75 = 44.9 is below the floor of 100 samples.
        wanted = range(7) if count == 7 else [round(i * 159 / 99) for i in range(100)]
        decoded = all_frames(file)
        pixels += [decoded[n].reshape(-1, 3) for n in wanted]
        frames += len(wanted)
    expanded = np.concatenate(pixels).astype(np.float64) / 255
    stats = camera_stats(clips)
    assert stats.count.tolist() == [107] == [frames]
    assert stats.mean.shape == (3, 1, 1)
    for name, wanted in {
        "min": expanded.min(0),
        "max": expanded.max(0),
        "mean": expanded.mean(0),
        "std": expanded.std(0),
        **{name: np.percentile(expanded, percent, axis=0) for name, percent in QUANTILES.items()},
    }.items():
        np.testing.assert_allclose(getattr(stats, name).ravel(), wanted, rtol=0, atol=1e-12, err_msg=name)


def test_samples_merge_exactly(tmp_path):
    clips = []
    for seed in range(3):
        file = tmp_path / f"{seed}.mp4"
        make_video(file, 5 + seed, 32, 32, seed)
        clips.append(ClipRef(file, 0, 5 + seed))
    samples = [sample_camera(clip) for clip in clips]
    merged = samples[0].merge(samples[1], samples[2])
    assert merged.frames == 18
    assert merged.histogram.sum() == 18 * 32 * 32 * 3
    assert merged.stats().to_json() == camera_stats(clips).to_json()
    assert merged.stats().to_json() == samples[2].merge(samples[0].merge(samples[1])).stats().to_json()


def test_quantiles_between_two_levels():
    histogram = np.zeros((3, 256), dtype=np.int64)
    histogram[:, 10], histogram[:, 200] = 3, 1
    stats = CameraSample(histogram, 1).stats()
    levels = np.array([10, 10, 10, 200]) / 255
    for name, percent in QUANTILES.items():
        assert getattr(stats, name)[0, 0, 0] == pytest.approx(np.percentile(levels, percent), abs=1e-15)
    assert stats.std[1, 0, 0] == pytest.approx(levels.std(), abs=1e-15)


def test_large_pictures_are_thinned(tmp_path):
    file = tmp_path / "large.mp4"
    make_video(file, 3, 240, 480, 5)
    sample = sample_camera(ClipRef(file, 0, 3))
    # 480 / 150 = 3.2: every third row and column.
    expanded = np.concatenate([f[::3, ::3].reshape(-1, 3) for f in all_frames(file)])
    for channel in range(3):
        levels, counts = np.unique(expanded[:, channel], return_counts=True)
        assert sample.histogram[channel, levels].tolist() == counts.tolist()
        assert sample.histogram[channel].sum() == counts.sum()


def test_clip_inside_a_file_is_sampled_at_its_place(tmp_path):
    file = tmp_path / "joined.mp4"
    make_video(file, 60, 32, 32, 3)
    sample = sample_camera(ClipRef(file, 25, 10))
    expanded = np.concatenate([f.reshape(-1, 3) for f in all_frames(file)[25:35]])
    assert sample.frames == 10
    assert sample.histogram[0].tolist() == np.bincount(expanded[:, 0], minlength=256).tolist()


@pytest.mark.lerobot
def test_sampling_is_lerobots():
    compute_stats = pytest.importorskip("lerobot.datasets.compute_stats", reason="lerobot is not installed")
    for length in [*range(1, 700), 999, 1000, 2000, 5000, 10_000, 123_457, 250_000, 300_000]:
        assert sampled_frames(length) == compute_stats.sample_indices(length), length
    for height, width in [(48, 64), (299, 200), (300, 200), (480, 640), (640, 480), (800, 1280), (300, 300)]:
        step = thinning(height, width)
        picture = np.zeros((3, height, width), dtype=np.uint8)
        assert picture[:, ::step, ::step].shape == compute_stats.auto_downsample_height_width(picture).shape


def test_columns_counted_together_are_counted_as_each_alone():
    rng = np.random.default_rng(11)
    rows = 301
    columns = {
        "index": np.arange(7, 7 + rows),
        "done": rng.integers(0, 2, rows).astype(bool),
        "episode_index": np.full(rows, 5),
        "small": rng.integers(-9, 9, rows).astype(np.int8),
        "timestamp": (np.arange(rows) / 30).astype(np.float32),
        "state": rng.normal(1000, 0.01, (rows, 3)).astype(np.float32),
        "count": rng.integers(0, 2**63, rows).astype(np.uint64),
        "task_index": rng.integers(0, 3, rows),
    }
    found = columns_stats(columns)
    assert list(found) == list(columns)
    for name, values in columns.items():
        alone, got = vector_stats(values), found[name]
        assert got.to_json() == alone.to_json(), name
        for field in ("min", "max", "mean", "q50"):
            assert getattr(got, field).dtype == getattr(alone, field).dtype
            assert getattr(got, field).shape == getattr(alone, field).shape
        assert got.q90.ravel()[0] == np.percentile(values.reshape(rows, -1)[:, 0].astype(float), 90)


def test_columns_counted_together_name_the_one_that_is_wrong():
    columns = {"index": np.arange(3), "frame_index": np.arange(3), "reward": np.array([0.0, np.nan, 1.0])}
    with pytest.raises(BadRequest) as caught:
        columns_stats(columns, where="episode 4")
    assert caught.value.where == "episode 4, reward"
    with pytest.raises(BadRequest) as caught:
        columns_stats({"index": np.arange(0)}, where="episode 4")
    assert (caught.value.id, caught.value.where) == ("stats-no-rows", "episode 4, index")
