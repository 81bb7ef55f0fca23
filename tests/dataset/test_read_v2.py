from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stack.dataset.digest import content_digest
from stack.dataset.model import Feature
from stack.dataset.read import read_dataset
from stack.dataset.rows import column_array, read_rows
from stack.dataset.selection import select_all
from stack.dataset.write import write_v30
from stack.errors import StackError


@pytest.fixture
def copy(delivery: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(delivery, tmp_path / "copy"))


def codes(root: Path) -> set[str]:
    return {code for code, _ in read_dataset(root).notes}


def test_a_clean_delivery_reads_without_notes(delivery: Path, deliveries) -> None:
    dataset = read_dataset(delivery)
    assert (dataset.version, dataset.fps, dataset.robot_type, dataset.frames) == ("v2.1", 10.0, "toy", 31)
    assert dataset.notes == ()
    assert [e.length for e in dataset.episodes] == [7, 5, 9, 4, 6]
    assert dataset.episodes[3].tasks == ("把毛巾放进盒子",)
    assert dataset.episodes[4].rows.file == delivery / "data/chunk-001/episode_000004.parquet"
    assert dataset.cameras == ("observation.images.head", "observation.images.hand")
    spec = deliveries.Delivery()
    got = column_array(dataset.episodes[2], dataset.features["observation.state"])
    assert got.dtype == np.float64
    np.testing.assert_array_equal(got, [deliveries.state_of(spec, 2, f) for f in range(9)])


def test_one_element_lists_become_scalars(delivery: Path) -> None:
    dataset = read_dataset(delivery)
    assert pa.types.is_list(read_rows(dataset.episodes[0].rows, ["ts"]).schema.field("ts").type)
    got = column_array(dataset.episodes[1], dataset.features["ts"])
    assert got.dtype == np.int64
    assert got.tolist() == [1_700_000_000_000_001_000 + f for f in range(5)]


def test_lengths_are_counted_not_believed(copy: Path, deliveries) -> None:
    deliveries.edit_rows(copy, 2, lambda table: table.slice(0, 6))
    dataset = read_dataset(copy)
    assert dataset.episodes[2].length == 6 and dataset.frames == 28
    assert "length-differs" in codes(copy)


def test_a_template_that_does_not_resolve_falls_back_to_numbers(copy: Path, deliveries) -> None:
    deliveries.edit_info(
        copy,
        lambda info: info.update(
            data_path="data/chunk-{episode_index:03d}/episode_{episode_index:06d}.parquet"
        ),
    )
    dataset = read_dataset(copy)
    assert [e.rows.file.name for e in dataset.episodes] == [f"episode_{i:06d}.parquet" for i in range(5)]
    assert "template-unresolved" in codes(copy)


def test_an_unknown_template_key_falls_back_to_numbers(copy: Path, deliveries) -> None:
    deliveries.edit_info(copy, lambda info: info.update(data_path="data/{nonsense}/x.parquet"))
    assert len(read_dataset(copy).episodes) == 5


def test_two_files_of_one_number_are_refused_unless_the_template_names_one(copy: Path, deliveries) -> None:
    stray = copy / "data/chunk-009/episode_000001.parquet"
    stray.parent.mkdir()
    shutil.copy(copy / "data/chunk-000/episode_000000.parquet", stray)
    dataset = read_dataset(copy)
    assert dataset.episodes[1].rows.file.parent.name == "chunk-000"
    assert "stray-files" in codes(copy)
    deliveries.edit_info(copy, lambda info: info.update(data_path="{nonsense}"))
    with pytest.raises(StackError, match="episode 1 has 2 files") as caught:
        read_dataset(copy)
    assert caught.value.id == "dataset-files-ambiguous"


@pytest.mark.parametrize(
    ("names", "meant"),
    [
        (None, None),
        (["a", "b", "c", "d", "e", "f", "g", "h"], tuple("abcdefgh")),
        ([["a", "b", "c", "d"], ["e", "f", "g", "h"]], tuple("abcdefgh")),
        ([list("abcdefgh")], tuple("abcdefgh")),
        ({"motors": list("abcdefgh")}, tuple("abcdefgh")),
        ({c: 7 - i for i, c in enumerate("abcdefgh")}, tuple("hgfedcba")),
        (["a", "b"], None),
    ],
)
def test_names_in_every_form(copy: Path, deliveries, names, meant) -> None:
    deliveries.edit_info(copy, lambda info: info["features"]["observation.state"].update(names=names))
    dataset = read_dataset(copy)
    assert dataset.features["observation.state"].names == meant
    assert ("names-length" in codes(copy)) == (names == ["a", "b"])


def test_the_field_table_is_read_and_bad_entries_are_noted(copy: Path, deliveries) -> None:
    table = {"state/joint/position": {"indices": [4, 5]}, "state/bad": {"indices": [7, 8]}}
    deliveries.edit_info(
        copy, lambda info: info["features"]["observation.state"].update(field_descriptions=table)
    )
    assert read_dataset(copy).features["observation.state"].fields == {"state/joint/position": (4, 5)}
    assert "field-unreadable" in codes(copy)


def test_a_camera_without_files_stays_a_feature(copy: Path, deliveries) -> None:
    shutil.rmtree(copy / "videos/chunk-000/observation.images.hand")
    shutil.rmtree(copy / "videos/chunk-001/observation.images.hand")
    dataset = read_dataset(copy)
    assert "observation.images.hand" in dataset.cameras
    assert all(set(e.clips) == {"observation.images.head"} for e in dataset.episodes)
    assert "camera-without-files" in codes(copy)


def test_missing_index_columns_are_noted(copy: Path, deliveries) -> None:
    for episode in range(5):
        deliveries.edit_rows(copy, episode, lambda table: table.drop_columns(["index", "task_index"]))
    texts = [text for code, text in read_dataset(copy).notes if code == "column-missing"]
    assert len(texts) == 2 and all("all episodes" in text for text in texts)


def test_tasks_are_looked_up_by_key(copy: Path) -> None:
    lines = [{"task_index": 7, "task": "seven"}, {"task_index": 2, "task": "two"}]
    (copy / "meta/tasks.jsonl").write_text("\n".join(json.dumps(line) for line in lines))
    assert read_dataset(copy).tasks == {7: "seven", 2: "two"}


def test_an_episode_without_rows_is_noted(copy: Path) -> None:
    (copy / "data/chunk-001/episode_000003.parquet").unlink()
    assert [e.index for e in read_dataset(copy).episodes] == [0, 1, 2, 4]
    assert "episodes-without-rows" in codes(copy)


# What cannot be read at all is one clear error.


@pytest.mark.parametrize(
    ("content", "id"),
    [
        (None, "dataset-info-missing"),
        ("{", "dataset-info-not-json"),
        ("version https://git-lfs.github.com/spec/v1\noid sha256:00\n", "dataset-lfs-pointer"),
        ("", "dataset-file-empty"),
        ('{"fps": 10}', "dataset-info-no-features"),
        ('{"features": {"a": {}}, "fps": 0}', "dataset-info-no-fps"),
    ],
)
def test_an_unusable_info_json_is_refused(copy: Path, content: str | None, id: str) -> None:
    file = copy / "meta/info.json"
    file.unlink()
    if content is not None:
        file.write_text(content)
    with pytest.raises(StackError) as caught:
        read_dataset(copy)
    assert caught.value.id == id


@pytest.mark.parametrize(
    ("spoil", "id"),
    [
        (lambda file: file.write_bytes(b""), "dataset-file-empty"),
        (lambda file: file.write_bytes(file.read_bytes()[:-40]), "dataset-file-truncated"),
        (
            lambda file: file.write_bytes(b"version https://git-lfs.github.com/spec/v1\n"),
            "dataset-lfs-pointer",
        ),
        (lambda file: file.write_bytes(b"this is no parquet file"), "dataset-file-not-parquet"),
    ],
)
def test_a_spoiled_parquet_file_is_refused_by_name(copy: Path, spoil, id: str) -> None:
    file = copy / "data/chunk-001/episode_000004.parquet"
    spoil(file)
    with pytest.raises(StackError) as caught:
        read_dataset(copy)
    assert caught.value.id == id and caught.value.where == str(file)


def test_no_rows_at_all_is_refused(copy: Path) -> None:
    shutil.rmtree(copy / "data")
    with pytest.raises(StackError) as caught:
        read_dataset(copy)
    assert caught.value.id == "dataset-no-rows"


def test_nesting_without_end_is_refused_not_a_crash(copy: Path) -> None:
    for name, code in (("episodes.jsonl", "dataset-meta-not-json"), ("info.json", "dataset-info-not-json")):
        (copy / "meta" / name).write_text("[" * 100_000)
        with pytest.raises(StackError) as caught:
            read_dataset(copy)
        assert caught.value.id == code


def test_a_broken_line_is_named(copy: Path) -> None:
    with (copy / "meta/tasks.jsonl").open("a") as file:
        file.write("{broken\n")
    with pytest.raises(StackError) as caught:
        read_dataset(copy)
    assert caught.value.where.endswith("tasks.jsonl:3")


@pytest.mark.parametrize(
    "value", [None, True, -1, 1.5, float("nan"), float("inf"), "x", [], [[]], {}, 10**30]
)
@pytest.mark.parametrize("key", ["fps", "features", "chunks_size", "data_path", "video_path", "robot_type"])
def test_any_value_in_info_json_is_read_or_refused_never_a_crash(copy: Path, deliveries, key, value) -> None:
    deliveries.edit_info(copy, lambda info: info.update({key: value}))
    try:
        assert len(read_dataset(copy).episodes) == 5
    except StackError as error:
        assert error.where.endswith("info.json")


@pytest.mark.parametrize(
    "value", [None, True, -1, 1.5, float("nan"), float("inf"), "x", [], [[]], {}, 10**30]
)
@pytest.mark.parametrize("key", ["dtype", "shape", "names", "field_descriptions"])
def test_any_value_in_a_feature_is_worked_around(copy: Path, deliveries, key, value) -> None:
    deliveries.edit_info(copy, lambda info: info["features"]["observation.state"].update({key: value}))
    assert len(read_dataset(copy).episodes) == 5


# Rows.


def test_ragged_rows_name_the_frame(copy: Path, deliveries) -> None:
    def shorten(table: pa.Table) -> pa.Table:
        rows = table.column("action").to_pylist()
        rows[3] = rows[3][:2]
        at = table.column_names.index("action")
        return table.set_column(at, "action", pa.array(rows, pa.list_(pa.float32())))

    deliveries.edit_rows(copy, 0, shorten)
    dataset = read_dataset(copy)
    with pytest.raises(StackError, match="declared 4 wide but has 2 values at frame 3"):
        column_array(dataset.episodes[0], dataset.features["action"])


def test_fractions_where_integers_are_declared_are_refused(copy: Path, deliveries) -> None:
    def spoil(table: pa.Table) -> pa.Table:
        at = table.column_names.index("frame_index")
        return table.set_column(at, "frame_index", pa.array([0, 1, 2.5, 3, 4, 5, 6], pa.float64()))

    deliveries.edit_rows(copy, 0, spoil)
    dataset = read_dataset(copy)
    with pytest.raises(StackError, match=r"holds 2\.5 at frame 2"):
        column_array(dataset.episodes[0], dataset.features["frame_index"])


def test_a_column_whose_name_begins_like_another_is_not_mixed_up(tmp_path: Path, delivery: Path) -> None:
    dataset = read_dataset(delivery)
    file = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"action.raw": [9.0] * 3, "action": [1.0, 2.0, 3.0]}), file)
    episode = type(dataset.episodes[0])(0, 3, (), type(dataset.episodes[0].rows)(file, 0, 3), {}, None)
    assert column_array(episode, Feature("action", "float64", (1,))).tolist() == [1, 2, 3]


def test_real_recordings_read(real_datasets: Path) -> None:
    counts = {}
    for name in ("cr5_tcp_v21", "g1_inspire_v21", "gr00t_picknplace_v20", "ioai_v21_video", "ioai_v30_video"):
        dataset = read_dataset(real_datasets / name)
        counts[name] = (dataset.version, len(dataset.episodes), dataset.frames)
    assert counts == {
        "cr5_tcp_v21": ("v2.1", 8, 1840),
        "g1_inspire_v21": ("v2.1", 4, 1461),
        "gr00t_picknplace_v20": ("v2.0", 5, 2096),
        "ioai_v21_video": ("v2.1", 2, 6),
        "ioai_v30_video": ("v3.0", 2, 6),
    }


def test_real_doubles_and_bare_scalars(real_datasets: Path) -> None:
    dataset = read_dataset(real_datasets / "ioai_v30_video")
    second = dataset.episodes[1]
    file = real_datasets / "ioai_v30_video/data/chunk-000/file-000.parquet"
    whole = pq.read_table(file)
    assert column_array(second, dataset.features["observation.state"]).tolist() == [
        pytest.approx(v) for v in whole.column("observation.state").to_pylist()[3:]
    ]
    assert column_array(second, dataset.features["frame_index"]).tolist() == [0, 1, 2]
    assert dataset.features["observation.images.cam"].shape == (64, 64, 3)
    assert second.clips["observation.images.cam"].file.name == "file-001.mp4"


def test_several_tasks_an_episode_go_frame_by_frame(copy: Path, deliveries, tmp_path: Path) -> None:
    def change(table: pa.Table) -> pa.Table:
        at = table.column_names.index("task_index")
        return table.set_column(at, "task_index", pa.array([0, 0, 1, 1, 1, 0, 0], pa.int64()))

    deliveries.edit_rows(copy, 0, change)
    write_v30(select_all(read_dataset(copy)), tmp_path / "out", jobs=1)
    table = pq.read_table(next((tmp_path / "out/data").glob("*/*.parquet")))
    assert table.column("task_index").to_pylist()[:8] == [0, 0, 1, 1, 1, 0, 0, 1]
    entries = pq.read_table(next((tmp_path / "out/meta/episodes").glob("*/*.parquet"))).to_pylist()
    assert entries[0]["tasks"] == ["fold the shirt", "把毛巾放进盒子"]
    assert entries[1]["tasks"] == ["把毛巾放进盒子"]
    assert content_digest(read_dataset(tmp_path / "out")) == content_digest(read_dataset(copy))


def test_a_linked_chunk_folder_is_followed(copy: Path, tmp_path: Path) -> None:
    shutil.move(copy / "data/chunk-001", tmp_path / "away")
    (copy / "data/chunk-001").symlink_to(tmp_path / "away")
    assert [e.length for e in read_dataset(copy).episodes] == [7, 5, 9, 4, 6]


@pytest.mark.parametrize("key", ["data_path", "video_path"])
def test_a_template_that_leaves_the_folder_is_refused(copy: Path, deliveries, key: str) -> None:
    deliveries.edit_info(copy, lambda info: info.update({key: "../../{episode_index}.parquet"}))
    with pytest.raises(StackError) as caught:
        read_dataset(copy)
    assert caught.value.id == "dataset-path-outside" and key in caught.value.what


@pytest.mark.parametrize("name", ["../../up", "/etc", "a*[b", ".."])
def test_a_camera_s_name_cannot_lead_outside(copy: Path, deliveries, name: str) -> None:
    deliveries.edit_info(
        copy, lambda info: info["features"].update({name: info["features"]["observation.images.head"]})
    )
    try:
        assert all(name not in e.clips for e in read_dataset(copy).episodes)
    except StackError as error:
        assert error.id == "dataset-path-outside"
