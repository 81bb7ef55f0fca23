from __future__ import annotations

import json
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet as pq
import pytest

from stack.dataset.digest import content_digest
from stack.dataset.read import read_dataset
from stack.dataset.rows import column_array
from stack.dataset.selection import select_all
from stack.dataset.write import write_v30
from stack.dataset.write_plan import Caps, plan_files
from stack.errors import StackError


@pytest.fixture(scope="module")
def v30(delivery: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("read30") / "out"
    selection = select_all(read_dataset(delivery))
    write_v30(selection, out, plan=plan_files(selection, caps=Caps(0.0015, 0.004, 2)), jobs=1)
    return out


@pytest.fixture
def copy(v30: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(v30, tmp_path / "copy"))


def change_episodes(root: Path, change) -> None:
    for file in sorted((root / "meta/episodes").glob("*/*.parquet")):
        pq.write_table(change(pq.read_table(file)), file)


def check_rows(root: Path, deliveries) -> None:
    spec = deliveries.Delivery()
    for episode in read_dataset(root).episodes:
        got = column_array(episode, read_dataset(root).features["observation.state"])
        assert got.tolist() == [
            deliveries.state_of(spec, episode.index, f) for f in range(spec.lengths[episode.index])
        ]


def test_stale_file_numbers_do_not_matter(copy: Path, deliveries) -> None:
    """lerobot #2401: the episode at a file boundary bears the old file's number."""

    def stale(table: pa.Table) -> pa.Table:
        at = table.column_names.index("data/file_index")
        return table.set_column(at, "data/file_index", pa.array([0] * len(table)))

    change_episodes(copy, stale)
    check_rows(copy, deliveries)


def test_rows_of_the_episode_table_are_addressed_by_key(copy: Path, deliveries) -> None:
    files = sorted((copy / "meta/episodes").glob("*/*.parquet"))
    whole = pa.concat_tables(pq.read_table(file) for file in files)
    for file in files:
        file.unlink()
    pq.write_table(whole.take(list(range(5))[::-1]), files[0])
    dataset = read_dataset(copy)
    assert [e.tasks[0] for e in dataset.episodes[:2]] == ["fold the shirt", "把毛巾放进盒子"]
    check_rows(copy, deliveries)


def test_the_episode_table_may_lie_in_several_files(copy: Path, deliveries) -> None:
    files = sorted((copy / "meta/episodes").glob("*/*.parquet"))
    assert len(files) > 1
    whole = pa.concat_tables(pq.read_table(file) for file in files)
    assert [e.length for e in read_dataset(copy).episodes] == [7, 5, 9, 4, 6]
    for file in files:
        file.unlink()
    pq.write_table(whole, files[0])
    assert [e.length for e in read_dataset(copy).episodes] == [7, 5, 9, 4, 6]


def test_a_table_stored_twice_counts_once(copy: Path) -> None:
    for file in sorted((copy / "meta/episodes").glob("*/*.parquet")):
        shutil.copy(file, file.with_name(f"again-{file.name}"))
    dataset = read_dataset(copy)
    assert len(dataset.episodes) == 5 and dataset.notes == ()


def test_doubles_and_a_plain_task_column_are_read(copy: Path) -> None:
    tasks = pq.read_table(copy / "meta/tasks.parquet").to_pylist()[::-1]
    plain = pa.table(
        {"task_index": [float(t["task_index"]) for t in tasks], "task": [t["task"] for t in tasks]}
    )
    pq.write_table(plain, copy / "meta/tasks.parquet")
    assert read_dataset(copy).tasks == {0: "fold the shirt", 1: "把毛巾放进盒子"}


def test_the_nameless_index_of_older_writers_is_read(copy: Path) -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"task_index": [0, 1]}, index=["one", "two"])
    frame.to_parquet(copy / "meta/tasks.parquet")
    assert "__index_level_0__" in pq.read_schema(copy / "meta/tasks.parquet").names
    assert read_dataset(copy).tasks == {0: "one", 1: "two"}


def test_clip_starts_count_frames(v30: Path) -> None:
    starts: dict[Path, int] = {}
    for episode in read_dataset(v30).episodes:
        clip = episode.clips["observation.images.head"]
        assert clip.start == starts.get(clip.file, 0) and clip.count == episode.length
        starts[clip.file] = clip.start + clip.count
    assert len(starts) >= 2


def drift(table: pa.Table) -> pa.Table:
    """What running sums of container durations do: each start is a little later than the frames say."""
    name = "videos/observation.images.head/from_timestamp"
    at = table.column_names.index(name)
    values = table.column(name).to_pylist()
    return table.set_column(at, name, pa.array([v * 1.3 + 0.1 for v in values]))


def test_a_drifting_from_timestamp_is_mended_where_packets_allow_it(copy: Path, v30: Path) -> None:
    camera = "observation.images.head"
    meant = [e.clips[camera].start for e in read_dataset(v30).episodes]
    assert read_dataset(copy).notes == ()
    change_episodes(copy, drift)
    dataset = read_dataset(copy)
    assert {code for code, _ in dataset.notes} == {"clip-start-mended"}
    assert [e.clips[camera].start for e in dataset.episodes] == meant
    assert content_digest(dataset) == content_digest(read_dataset(v30))


def test_a_drifting_from_timestamp_is_named_where_packets_disagree(copy: Path, deliveries) -> None:
    change_episodes(copy, drift)
    file = sorted((copy / "videos/observation.images.head").glob("*/*.mp4"))[0]
    clips = [e.clips["observation.images.head"] for e in read_dataset(copy).episodes]
    rows = sum(clip.count for clip in clips if clip.file == file)
    deliveries.write_video(file, [deliveries.paint(n, 96, 64) for n in range(rows + 3)], 10)
    texts = [text for code, text in read_dataset(copy).notes if code == "clip-start-differs"]
    assert texts and f"the file has {rows + 3} frames and its episodes {rows} rows" in texts[0]
    assert "from_timestamp 0.1 s is frame 1 of file-000.mp4, but 0 frames lie before it" in texts[0]


def test_rows_of_one_episode_in_two_places_are_refused(copy: Path) -> None:
    first = sorted((copy / "data").glob("*/*.parquet"))[0]
    shutil.copy(first, copy / "data/chunk-000/file-900.parquet")
    with pytest.raises(StackError) as caught:
        read_dataset(copy)
    assert caught.value.id == "dataset-rows-scattered"


def test_an_episode_in_two_places_that_nobody_wants_is_left_out(v30: Path, copy: Path) -> None:
    """Its rows may not even be together: all others stay as they were, and their clips where they were."""
    whole = read_dataset(v30)
    (file,) = {e.rows.file.name for e in whole.episodes if e.index == 1}
    table = pq.read_table(copy / "data/chunk-000" / file)
    (copy / "data/chunk-001").mkdir(exist_ok=True)
    at = [n for n, e in enumerate(table.column("episode_index").to_pylist()) if e == 1]
    pq.write_table(table.slice(at[-1], 1), copy / "data/chunk-001/file-999.parquet")
    rest = pa.concat_tables([table.slice(0, at[-1]), table.slice(at[-1] + 1)])
    pq.write_table(rest, copy / "data/chunk-000" / file)
    with pytest.raises(StackError) as caught:
        read_dataset(copy)
    assert caught.value.id == "dataset-rows-scattered" and "exclude_episodes" in caught.value.do
    got = read_dataset(copy, leave_out=[1])
    assert "episode-left-out" in {code for code, _ in got.notes}
    assert [e.length for e in got.episodes] == [e.length for e in whole.episodes]
    for own, other in zip(got.episodes, whole.episodes, strict=True):
        assert [(c.start, c.count) for c in own.clips.values()] == [
            (c.start, c.count) for c in other.clips.values()
        ]


def test_rows_without_an_episode_column_are_found_by_position(copy: Path, deliveries) -> None:
    for file in (copy / "data").glob("*/*.parquet"):
        pq.write_table(pq.read_table(file).drop_columns(["episode_index"]), file)
    check_rows(copy, deliveries)


def test_totals_of_info_are_not_believed(copy: Path) -> None:
    info = json.loads((copy / "meta/info.json").read_text())
    info.update(total_episodes=99, total_frames=1)
    (copy / "meta/info.json").write_text(json.dumps(info))
    assert read_dataset(copy).frames == 31


# What hand-made and older files look like.


def test_columns_that_occur_twice_are_read_once(copy: Path, deliveries) -> None:
    for file in [*(copy / "data").glob("*/*.parquet"), *(copy / "meta/episodes").glob("*/*.parquet")]:
        table = pq.read_table(file)
        twice = [n for n in ("episode_index", "observation.state", "length") if n in table.column_names]
        for name in twice:
            table = table.append_column(name, table.column(name))
        pq.write_table(table, file)
    names = pq.read_schema(next((copy / "data").glob("*/*.parquet"))).names
    assert names.count("episode_index") == names.count("observation.state") == 2
    check_rows(copy, deliveries)
    assert [e.length for e in read_dataset(copy).episodes] == [7, 5, 9, 4, 6]


def test_linked_chunk_folders_and_files_are_followed(copy: Path, tmp_path: Path, deliveries) -> None:
    for top in ("data/chunk-000", "videos/observation.images.head"):
        (tmp_path / "away" / top).parent.mkdir(parents=True, exist_ok=True)
        shutil.move(copy / top, tmp_path / "away" / top)
        (copy / top).symlink_to(tmp_path / "away" / top)
    (copy / "data/loop").symlink_to(copy / "data")
    check_rows(copy, deliveries)
    assert all(len(e.clips) == 2 for e in read_dataset(copy).episodes)
    assert read_dataset(copy).notes == ()


def test_left_over_files_are_named_and_ignored(copy: Path, deliveries) -> None:
    assert read_dataset(copy).notes == ()
    (copy / "data/chunk-000/.DS_Store").write_bytes(b"x")
    (copy / "videos/observation.images.head/chunk-000/file-777.mp4").write_bytes(b"x")
    (copy / "images/observation.images.head/episode-000000").mkdir(parents=True)
    assert len(read_dataset(copy).notes) == 1
    (copy / "images/observation.images.head/episode-000000/frame-000000.png").write_bytes(b"x")
    [(code, text)] = read_dataset(copy).notes
    assert code == "left-over-files"
    assert "data/chunk-000/.DS_Store" in text and "file-777.mp4" in text and "images/ (1 files)" in text
    check_rows(copy, deliveries)


@pytest.mark.parametrize("template", ["../away/{video_key}.mp4", "/tmp/{video_key}/{file_index}.mp4"])
def test_paths_that_leave_the_folder_are_refused(copy: Path, template: str) -> None:
    info = json.loads((copy / "meta/info.json").read_text())
    info["video_path"] = template
    (copy / "meta/info.json").write_text(json.dumps(info))
    with pytest.raises(StackError) as caught:
        read_dataset(copy)
    assert caught.value.id == "dataset-path-outside" and template in caught.value.what


def test_one_file_an_episode_named_by_episode(copy: Path, deliveries) -> None:
    """Hand-made v3.0: `episode_NNNNNN` in place of `file-NNN`, videos in `video/`, jsonl beside parquet."""
    for file in sorted((copy / "data").glob("*/*.parquet")):
        table = pq.read_table(file)
        for number in sorted(set(table.column("episode_index").to_pylist())):
            rows = table.filter(pa.compute.equal(table.column("episode_index"), number))
            pq.write_table(rows, file.with_name(f"episode_{number:06d}.parquet"))
        file.unlink()
    shutil.move(copy / "videos", copy / "video")
    (copy / "meta/episodes.jsonl").write_text('{"episode_index": 0, "length": 99}\n')
    check_rows(copy, deliveries)
    dataset = read_dataset(copy)
    assert [e.rows.file.name for e in dataset.episodes] == [f"episode_{i:06d}.parquet" for i in range(5)]
    assert all(len(e.clips) == 2 for e in dataset.episodes)
    assert {code for code, _ in dataset.notes} == {"template-unresolved"}, "of the videos, which moved"


def test_an_episode_without_a_video_file_number_has_no_clip(copy: Path) -> None:
    """lerobot #2283: the number is null for one episode; it is not guessed from the episode's own."""

    def spoil(table: pa.Table) -> pa.Table:
        for name in ("chunk_index", "file_index", "from_timestamp"):
            column = f"videos/observation.images.head/{name}"
            at = table.column_names.index(column)
            numbers = table.column("episode_index").to_pylist()
            values = [
                None if n == 2 else v for n, v in zip(numbers, table.column(column).to_pylist(), strict=True)
            ]
            table = table.set_column(at, column, pa.array(values, table.column(column).type))
        return table

    assert all(len(e.clips) == 2 for e in read_dataset(copy).episodes)
    change_episodes(copy, spoil)
    dataset = read_dataset(copy)
    assert [set(e.clips) for e in dataset.episodes if len(e.clips) < 2] == [{"observation.images.hand"}]
    assert (
        "observation.images.head has no video file for episodes [2]" in dict(dataset.notes)["clips-missing"]
    )


@pytest.mark.parametrize("value", [None, True, -1, 7, 1.5, float("nan"), float("inf"), "x", [1], 10**18])
def test_any_value_in_the_episode_table_is_read_or_refused_never_a_crash(copy: Path, value) -> None:
    [*files] = sorted((copy / "meta/episodes").glob("*/*.parquet"))
    good = pq.read_table(files[0])
    for name in [name for name in good.column_names if not name.startswith("stats/")]:
        at = good.column_names.index(name)
        pq.write_table(good.set_column(at, name, pa.array([value] * len(good))), files[0])
        try:
            assert [e.length for e in read_dataset(copy).episodes] == [7, 5, 9, 4, 6]
        except StackError as error:
            assert error.where
