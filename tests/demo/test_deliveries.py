"""The deliveries, read with pyarrow, json and PyAV alone: right v2.1 but for the faults that are listed."""

from __future__ import annotations

import json
from pathlib import Path

import av
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stack.demo import write_demo
from stack.demo.deliveries import write_deliveries
from stack.demo.faults import PLANTED
from stack.demo.identity import Identity, read_identity
from stack.errors import StackError
from stack.files import tree_digest

EPISODES = {"demo_task": 12, "demo_task-1": 8}
CAMERAS = {"top_head": (96, 160), "hand_left": (64, 96), "hand_right": (80, 128)}
KEYS = [f"observation.images.{name}" for name in CAMERAS]
INDEX = ("frame_index", "episode_index", "index", "task_index")


def info_of(root: Path) -> dict:
    return json.loads((root / "meta/info.json").read_text("utf-8"))


def lines_of(root: Path, name: str) -> list[dict]:
    return [json.loads(line) for line in (root / "meta" / f"{name}.jsonl").read_text("utf-8").splitlines()]


def table_of(root: Path, episode: int) -> pa.Table:
    return pq.read_table(root / f"data/chunk-000/episode_{episode:06d}.parquet")


def video_of(root: Path, key: str, episode: int) -> Path:
    return root / f"videos/chunk-000/{key}/episode_{episode:06d}.mp4"


def pictures_of(file: Path) -> list[np.ndarray]:
    with av.open(str(file)) as container:
        return [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]


def vectors(table: pa.Table, name: str) -> np.ndarray:
    return np.array(table[name].to_pylist(), dtype=np.float64)


def pooled(deliveries: Path, feature: str) -> np.ndarray:
    """All rows of what is trained on: both deliveries without the aborted episode."""
    return np.concatenate(
        [
            vectors(table_of(deliveries / name, episode), feature)
            for name, count in EPISODES.items()
            for episode in range(count)
            if (name, episode) != ("demo_task", 7)
        ]
    )


@pytest.fixture(params=EPISODES)
def delivery(request, deliveries) -> Path:
    return deliveries / request.param


def test_same_seed_same_bytes(deliveries, tmp_path):
    write_deliveries(tmp_path / "again")
    assert tree_digest(tmp_path / "again") == tree_digest(deliveries)
    write_deliveries(tmp_path / "other", seed=1)
    assert tree_digest(tmp_path / "other") != tree_digest(deliveries)


def test_existing_folder_is_left_alone(tmp_path):
    (tmp_path / "demo_task").mkdir()
    (tmp_path / "demo_task" / "mine.txt").touch()
    with pytest.raises(StackError) as caught:
        write_deliveries(tmp_path)
    assert caught.value.id == "target-exists"
    assert [p.name for p in tmp_path.rglob("*")] == ["demo_task", "mine.txt"]


def test_totals_are_those_of_the_files(delivery):
    info, episodes = info_of(delivery), lines_of(delivery, "episodes")
    count = EPISODES[delivery.name]
    tables = [table_of(delivery, episode) for episode in range(count)]
    assert info["codebase_version"] == "v2.1"
    assert info["fps"] == 30
    assert info["total_episodes"] == count == len(episodes) == len(list(delivery.rglob("*.parquet")))
    assert info["total_frames"] == sum(len(table) for table in tables)
    assert info["total_videos"] == 3 * count == len(list(delivery.rglob("*.mp4")))
    assert info["total_tasks"] == len(lines_of(delivery, "tasks"))
    assert info["splits"] == {"train": f"0:{count}"}
    assert (info["total_chunks"], info["chunks_size"]) == (1, 1000)
    assert [e["episode_index"] for e in episodes] == list(range(count))
    assert [e["length"] for e in episodes] == [len(table) for table in tables]
    assert all(36 <= len(table) <= 64 for table in tables)
    for key in KEYS:
        assert (
            delivery / info["video_path"].format(episode_chunk=0, episode_index=count - 1, video_key=key)
        ).is_file()


def test_rows_are_numbered_and_timed(delivery):
    tasks = {line["task_index"]: line["task"] for line in lines_of(delivery, "tasks")}
    start = 0
    for episode, line in enumerate(lines_of(delivery, "episodes")):
        table = table_of(delivery, episode)
        n = len(table)
        assert table["frame_index"].to_pylist() == list(range(n))
        assert table["index"].to_pylist() == list(range(start, start + n))
        assert table["episode_index"].to_pylist() == [episode] * n
        assert [tasks[i] for i in set(table["task_index"].to_pylist())] == line["tasks"]
        assert table["timestamp"].type == pa.float32()
        np.testing.assert_allclose(table["timestamp"].to_numpy(), np.arange(n) / 30, atol=1e-6)
        assert {table[name].type for name in INDEX} == {pa.int64()}
        start += n


def test_columns_are_the_features_without_the_cameras(delivery):
    features = info_of(delivery)["features"]
    table = table_of(delivery, 0)
    assert set(table.column_names) == set(features) - set(KEYS)
    for name, width in (("observation.state", 163), ("action", 36)):
        assert features[name]["shape"] == [width]
        assert table[name].type == pa.list_(pa.float32(), width)
    described = json.loads(table.schema.metadata[b"huggingface"])["info"]["features"]
    assert set(described) == set(table.column_names)


def test_field_tables_say_where_the_joints_are(delivery):
    features = info_of(delivery)["features"]
    for feature, kind, width, joints in (
        ("observation.state", "state", 163, range(28, 42)),
        ("action", "action", 36, range(16, 30)),
    ):
        fields = features[feature]["field_descriptions"]
        assert all(name.startswith(f"{kind}/") for name in fields)
        assert fields[f"{kind}/joint/position"]["indices"] == list(joints)
        assert fields[f"{kind}/effector/position"]["indices"] == [0, 1]
        assert all(f["dimensions"] == len(f["indices"]) and f["description"] for f in fields.values())
        assert sorted(i for f in fields.values() for i in f["indices"]) == list(range(width))
        names = features[feature]["names"]
        names = names["motors"] if isinstance(names, dict) else names
        assert len(set(names)) == width
        assert names[joints[0]] == "joint_position_left_arm_joint_1"


def test_every_frame_carries_its_identity(deliveries):
    frames = 0
    for number, (name, count) in enumerate(EPISODES.items()):
        for camera, (key, size) in enumerate(zip(KEYS, CAMERAS.values(), strict=True)):
            for episode in range(count):
                pictures = pictures_of(video_of(deliveries / name, key, episode))
                assert len(pictures) == len(table_of(deliveries / name, episode))
                for n, picture in enumerate(pictures):
                    assert picture.shape == (*size, 3)
                    assert read_identity(picture) == Identity(number, camera, episode, n)
                frames += len(pictures)
    assert frames > 3 * 20 * 36


def test_videos_are_as_declared(delivery):
    features = info_of(delivery)["features"]
    for key in KEYS:
        with av.open(str(video_of(delivery, key, 0))) as container:
            stream = container.streams.video[0]
            declared = features[key]
            assert declared["dtype"] == "video"
            assert declared["shape"] == [stream.height, stream.width, 3]
            assert declared["names"] == ["height", "width", "channels"]
            assert declared["info"]["video.codec"] == stream.codec.canonical_name == "h264"
            assert declared["info"]["video.pix_fmt"] == stream.pix_fmt == "yuv420p"
            assert stream.average_rate == declared["info"]["video.fps"] == 30


def test_statistics_that_are_no_planted_fault_are_right(delivery):
    for line in lines_of(delivery, "episodes_stats"):
        table = table_of(delivery, line["episode_index"])
        assert set(line["stats"]) == set(info_of(delivery)["features"])
        for name, stats in line["stats"].items():
            assert set(stats) == {"min", "max", "mean", "std", "count"}
            if name in KEYS:
                continue
            values = vectors(table, name).reshape(len(table), -1)
            values = values[np.isfinite(values).all(axis=1)]
            assert np.ravel(stats["count"]).tolist() == [len(table)]
            np.testing.assert_allclose(np.ravel(stats["min"]), values.min(0), rtol=1e-9)
            np.testing.assert_allclose(np.ravel(stats["max"]), values.max(0), rtol=1e-9)
            np.testing.assert_allclose(np.ravel(stats["mean"]), values.mean(0), rtol=1e-9, atol=1e-12)
            if name != "ts":  # float64 resolves 256 ns at this epoch
                np.testing.assert_allclose(np.ravel(stats["std"]), values.std(0), rtol=1e-6, atol=1e-9)


# the planted faults, each at its place


def test_list_typed_scalars(delivery):
    features = info_of(delivery)["features"]
    for name, dtype in (("ts", pa.int64()), ("action_src_status", pa.uint64())):
        column = table_of(delivery, 3)[name]
        assert column.type == pa.list_(dtype)
        assert {len(v) for v in column.to_pylist()} == {1}
        assert features[name]["shape"] == [1]
    clock = np.diff(np.ravel(table_of(delivery, 3)["ts"].to_pylist()))
    assert set(clock) <= {33_333_333, 33_333_334}


def test_video_statistics_with_count_zero(deliveries):
    for line in lines_of(deliveries / "demo_task", "episodes_stats"):
        for key in KEYS:
            assert line["stats"][key]["count"] == [0]
            assert line["stats"][key]["mean"] == line["stats"][key]["max"] == [[[0.0]], [[0.0]], [[0.0]]]
    good = lines_of(deliveries / "demo_task-1", "episodes_stats")[2]["stats"][KEYS[1]]
    pixels = np.stack(pictures_of(video_of(deliveries / "demo_task-1", KEYS[1], 2)))
    assert good["count"] == [len(pixels)]
    np.testing.assert_allclose(np.array(good["mean"])[:, 0, 0], pixels.mean((0, 1, 2)) / 255, rtol=1e-9)
    np.testing.assert_allclose(np.array(good["std"])[:, 0, 0], pixels.std((0, 1, 2)) / 255, rtol=1e-9)


def test_nested_and_misshapen_statistics(deliveries):
    for name in EPISODES:
        for line in lines_of(deliveries / name, "episodes_stats"):
            nested = [f for f, s in line["stats"].items() if f not in KEYS and np.ndim(s["min"]) == 2]
            assert nested == ([] if name == "demo_task" else ["observation.state"])
            misshapen = [f for f, s in line["stats"].items() if np.shape(s["count"]) != (1,)]
            assert misshapen == (["timestamp"] if name == "demo_task" else [])
            if misshapen:
                assert np.shape(line["stats"]["timestamp"]["count"]) == (1, 1)
                assert np.shape(line["stats"]["timestamp"]["std"]) == (1,)


def test_fps_entry_and_names_differ(deliveries):
    first, second = (info_of(deliveries / name)["features"] for name in EPISODES)
    assert list(first) == list(second)
    assert not any("fps" in feature for feature in first.values())
    assert all(feature["fps"] == 30 for feature in second.values())
    for name in ("observation.state", "action"):
        assert first[name]["names"] == {"motors": second[name]["names"]}


def test_one_aborted_episode(deliveries):
    bad = {
        (name, episode, feature)
        for name, count in EPISODES.items()
        for episode in range(count)
        for feature in ("observation.state", "action")
        if not np.isfinite(vectors(table_of(deliveries / name, episode), feature)).all()
    }
    assert bad == {("demo_task", 7, "observation.state")}
    state = vectors(table_of(deliveries / "demo_task", 7), "observation.state")
    rows, channels = np.nonzero(~np.isfinite(state))
    assert set(channels) == set(range(28, 42))
    assert set(rows) == set(range(len(state) - 5, len(state)))


def test_task_texts(deliveries):
    first, second = ([line["task"] for line in lines_of(deliveries / name, "tasks")] for name in EPISODES)
    chinese = [text for text in first + second if any("\u4e00" <= c <= "\u9fff" for c in text)]
    assert first == ["抓取红色方块"]
    assert set(first) < set(second)
    assert len(second) == 3
    assert len(set(chinese)) == 2
    assert "Pick up the blue block" in second
    raw = (deliveries / "demo_task-1/meta/tasks.jsonl").read_bytes()
    assert "抓取绿色方块".encode() in raw


def test_every_planted_fault_names_a_real_place(deliveries):
    codes = {fault.code for fault in PLANTED}
    assert codes == {
        "list-typed-scalar",
        "stats-count-zero",
        "stats-nested",
        "stats-shape-mismatch",
        "feature-fps-entry",
        "rows-not-finite",
        "stats-quantiles-missing",
        "state-too-wide",
        "action-too-wide",
        "channel-extreme-scale",
        "extra-policy-feature",
        "format-needs-conversion",
    }
    for fault in PLANTED:
        features = info_of(deliveries / fault.delivery)["features"]
        assert fault.feature is None or fault.feature in features
        assert fault.episode is None or 0 <= fault.episode < EPISODES[fault.delivery]
        assert fault.what


# what happens to those who train on it unsliced


def quantile_mapped(values: np.ndarray) -> np.ndarray:
    """pi0.5's QUANTILES normalisation: [q01, q99] to [-1, 1], extrapolated beyond."""
    low, high = np.percentile(values, [1, 99], axis=0)
    return 2 * (values - low) / np.where(high > low, high - low, 1e-8) - 1


def test_base_velocity_explodes_the_loss(deliveries):
    action = pooled(deliveries, "action")
    assert len(action) > 900
    burst = (np.abs(action[:, 34:36]) > 0.1).any(axis=1)
    assert 0 < burst.mean() < 0.008
    assert (np.abs(action[:, 34:36]).max(axis=0) < 0.51).all()
    low, high = np.percentile(action[:, 34:36], [1, 99], axis=0)
    assert (high < 1e-3).all()
    assert (low > -1e-3).all()
    mapped = quantile_mapped(action)
    assert np.abs(np.delete(mapped, [34, 35], axis=1)).max() < 5
    assert (np.abs(mapped[:, 34:36]).max(axis=0) > 500).all()
    # The flow-matching target is noise - action; one chunk of 10 in a batch of 4 is enough.
    frame = int(np.flatnonzero(burst)[0])
    chunk = mapped[frame - 4 : frame + 6]
    assert np.square(chunk).mean() / 4 > 1e4


def test_bursts_are_in_several_episodes_of_both(deliveries):
    for name, count in EPISODES.items():
        hit = [
            episode
            for episode in range(count)
            if (np.abs(vectors(table_of(deliveries / name, episode), "action")[:, 34]) > 0.1).any()
        ]
        assert len(hit) >= 2
        alone = np.concatenate([vectors(table_of(deliveries / name, e), "action") for e in range(count)])
        assert np.abs(quantile_mapped(alone)[:, 34]).max() > 500


def test_motor_currents_spike(deliveries):
    state = pooled(deliveries, "observation.state")
    fields = info_of(deliveries / "demo_task")["features"]["observation.state"]["field_descriptions"]
    current = state[:, fields["state/joint/current"]["indices"]]
    assert (np.abs(current).max(axis=0) > 1500).all()
    assert np.abs(current).max() <= 3000
    assert (np.abs(current) < 20).mean() > 0.99
    assert (
        np.abs(quantile_mapped(state)[:, fields["state/joint/current"]["indices"]]).max(axis=0) > 100
    ).all()
    wrench = state[:, fields["state/end/wrench"]["indices"]]
    assert 30 < np.abs(wrench).max() <= 50
    lens = state[:, fields["state/extrinsic/top_head"]["indices"]]
    assert 800 < np.abs(lens).max() <= 1000


def test_the_slice_is_harmless(deliveries):
    state, action = pooled(deliveries, "observation.state"), pooled(deliveries, "action")
    kept = {"state": state[:, [*range(28, 42), 0, 1]], "action": action[:, [*range(16, 30), 0, 1]]}
    for values in kept.values():
        assert (np.ptp(values, axis=0) > 0.05).all()
        assert np.abs(quantile_mapped(values)).max() < 4
    grippers = kept["state"][:, 14:]
    assert 0 <= grippers.min() < 0.1
    assert 0.9 < grippers.max() <= 1


def test_the_picture_tells_where_to_go(deliveries):
    """A linear policy that sees the named block does far better than one that knows the joints alone."""
    colours = {"抓取红色方块": 0, "抓取绿色方块": 1, "Pick up the blue block": 2}
    episodes = []
    for name, count in EPISODES.items():
        for episode, line in enumerate(lines_of(deliveries / name, "episodes")[:count]):
            if (name, episode) == ("demo_task", 7):
                continue
            table = table_of(deliveries / name, episode)
            joints = vectors(table, "observation.state")[:24, 28:42]
            steps = vectors(table, "action")[:24, 16:30] - joints
            picture = pictures_of(video_of(deliveries / name, KEYS[0], episode))[0][20:].astype(float)
            channel = colours[line["tasks"][0]]
            lead = picture[..., channel] - np.delete(picture, channel, axis=2).max(axis=2)
            down, across = np.nonzero(lead > 60)
            assert len(across) > 50, (name, episode)
            place = np.array([across.mean() / picture.shape[1], down.mean() / picture.shape[0]])
            right = place[0] > 0.5
            seen = np.tile([*(place * right), *(place * ~right), right], (24, 1))
            episodes.append((joints, np.c_[joints, seen], steps))

    def left_over(kind: int) -> float:
        """Squared error over variance; each episode is predicted by a ridge fitted on the others."""
        errors, goals = [], []
        for out in range(len(episodes)):
            rest = [e for n, e in enumerate(episodes) if n != out]
            inputs = np.concatenate([np.c_[e[kind], np.ones(24)] for e in rest])
            gram = inputs.T @ inputs + 1e-4 * np.eye(inputs.shape[1])
            weights = np.linalg.solve(gram, inputs.T @ np.concatenate([e[2] for e in rest]))
            errors.append(np.c_[episodes[out][kind], np.ones(24)] @ weights - episodes[out][2])
            goals.append(episodes[out][2])
        return float(np.square(errors).mean() / np.concatenate(goals).var(axis=0).mean())

    assert len(episodes) == 19
    assert left_over(1) < 0.1
    assert left_over(0) > 4 * left_over(1)


def test_demo_is_whole_and_reports_itself(tmp_path):
    lines = []
    report = write_demo(tmp_path / "demo", log=lines.append)
    assert [p.name for p in report.deliveries] == ["demo_task", "demo_task-1"]
    assert [p.name for p in report.models] == ["toy-pi05", "toy-tokenizer"]
    files = [p for p in (tmp_path / "demo").rglob("*") if p.is_file()]
    assert report.files == len(files)
    assert report.size_bytes == sum(p.stat().st_size for p in files) < 10_000_000
    assert any("12 episodes" in line for line in lines)
    assert [p.name for p in tmp_path.iterdir()] == ["demo"]
    with pytest.raises(StackError) as caught:
        write_demo(tmp_path / "demo")
    assert caught.value.id == "target-exists"
