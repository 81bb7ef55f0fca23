"""What is refused says where and what to do, in words that are true of the files."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from stack.cli import cli
from stack.dataset.read import read_dataset
from stack.errors import StackError
from stack.prepare import plan

STATE = "observation.state"
LENGTHS = (5, 7, 4)


@pytest.fixture
def source(deliveries: ModuleType, tmp_path: Path) -> Path:
    root: Path = deliveries.write_delivery(
        tmp_path / "source", deliveries.Delivery(lengths=LENGTHS, cameras=())
    )
    return root


def rows_of(root: Path, episode: int) -> Path:
    return root / f"data/chunk-000/episode_{episode:06d}.parquet"


def refused(load: Any, root: Path) -> StackError:
    with pytest.raises(StackError) as caught:
        plan(load(f"sources: [{{path: {root}}}]\n"))
    return caught.value


def column(root: Path, name: str, values: Callable[[list[Any]], list[Any]], kind: pa.DataType) -> None:
    """Write a column of all episodes anew."""
    for episode in range(len(LENGTHS)):
        table = pq.read_table(rows_of(root, episode))
        made = pa.array(values(table[name].to_pylist()), kind)
        pq.write_table(table.set_column(table.column_names.index(name), name, made), rows_of(root, episode))


def without_column(name: str) -> Callable[[Path], object]:
    def drop(root: Path) -> None:
        for episode in range(len(LENGTHS)):
            table = pq.read_table(rows_of(root, episode))
            pq.write_table(table.drop_columns([name]), rows_of(root, episode))

    return drop


def dead_link(root: Path) -> None:
    rows_of(root, 1).unlink()
    rows_of(root, 1).symlink_to("nowhere/else.parquet")


def no_episode_table(root: Path) -> None:
    """As v3.0."""
    (root / "meta/episodes.jsonl").unlink()
    (root / "meta/episodes_stats.jsonl").unlink()
    info = root / "meta/info.json"
    info.write_text(info.read_text().replace('"v2.1"', '"v3.0"'))


def text(name: str, content: str) -> Callable[[Path], object]:
    return lambda root: (root / "meta" / name).write_text(content)


BROKEN: dict[str, tuple[Callable[[Path], object], str]] = {
    "info cut": (text("info.json", '{"codebase_version": '), "meta/info.json"),
    "info without features": (text("info.json", '{"fps": 10}'), "meta/info.json"),
    "info without fps": (text("info.json", '{"features": {"a": {"dtype": "float32"}}}'), "meta/info.json"),
    "episodes cut": (text("episodes.jsonl", '{"episode_index": 0}\n{"episode_in'), "meta/episodes.jsonl:2"),
    "tasks cut": (text("tasks.jsonl", '{"task_index": 0, "ta'), "meta/tasks.jsonl:1"),
    "line no object": (text("episodes.jsonl", "[1]\n"), "meta/episodes.jsonl:1"),
    "not text": (lambda root: (root / "meta/tasks.jsonl").write_bytes(b"\xff\xfe{}"), "meta/tasks.jsonl:1"),
    "dead link": (dead_link, "episode_000001.parquet"),
    "no episode table": (no_episode_table, "source"),
    "no rows": (lambda root: shutil.rmtree(root / "data"), "source"),
    "not parquet": (lambda root: rows_of(root, 1).write_bytes(b"x" * 99), "episode_000001.parquet"),
    "column nowhere": (without_column("action"), "episode_000000.parquet"),
    "task fraction": (
        lambda root: column(root, "task_index", lambda v: [0.5] * len(v), pa.float64()),
        "episode 0",
    ),
    "task text": (
        lambda root: column(root, "task_index", lambda v: ["0"] * len(v), pa.string()),
        "episode 0",
    ),
    "task null": (
        lambda root: column(root, "task_index", lambda v: [None] * len(v), pa.int64()),
        "episode 0",
    ),
    "folder nowhere": (shutil.rmtree, "source"),
}


@pytest.mark.parametrize("broken", BROKEN)
def test_each_refusal_says_where_and_what_to_do(broken: str, source: Path, load: Any) -> None:
    spoil, where = BROKEN[broken]
    spoil(source)
    error = refused(load, source)
    assert where in error.where and error.do, error


def test_a_dead_link_says_what_it_leads_to(source: Path, load: Any) -> None:
    dead_link(source)
    assert "nowhere/else.parquet" in refused(load, source).what


def test_the_remedies_for_a_bad_task_index_work(source: Path, load: Any) -> None:
    column(source, "task_index", lambda values: ["0"] * len(values), pa.string())
    assert "remove the column" in refused(load, source).do
    without_column("task_index")(source)
    made = plan(load(f"sources: [{{path: {source}}}]\n"))
    assert [item.episode.tasks for item in made.selection.episodes] == [
        ("fold the shirt",),
        ("把毛巾放进盒子",),
        ("fold the shirt",),
    ]


def test_the_remedy_for_a_column_that_is_nowhere_works(source: Path, load: Any) -> None:
    without_column("action")(source)
    assert "'features' in a manifest" in refused(load, source).do
    text = f"sources: [{{path: {source}}}]\nfeatures: {{{STATE}: [{{from: {STATE}}}]}}\n"
    assert list(plan(load(text)).selection.features) == [STATE]


@pytest.mark.parametrize(
    ("kind", "row", "said"),
    [
        (pa.list_(pa.float32()), None, f"{STATE} is null at frame 2"),
        (pa.list_(pa.float32(), 8), None, f"{STATE} is null at row 2"),
        (pa.list_(pa.float32()), [1, 2, 3, None, 5, 6, 7, 8], f"{STATE} holds null at episode 1, frame 2"),
    ],
)
def test_a_null_is_called_null_and_its_place_told(
    source: Path, load: Any, kind: pa.DataType, row: Any, said: str
) -> None:
    table = pq.read_table(rows_of(source, 1))
    values = table[STATE].to_pylist()
    values[2] = row
    at = table.column_names.index(STATE)
    pq.write_table(table.set_column(at, STATE, pa.array(values, kind)), rows_of(source, 1))
    error = refused(load, source)
    assert said in error.what and "nan" not in error.what, error
    assert "episode 1" in f"{error.where} {error.what}" and "episode_000001.parquet" in error.where
    assert "exclude_episodes: [1]" in error.do


def test_a_null_number_of_a_task_is_called_null(source: Path, load: Any) -> None:
    column(source, "task_index", lambda v: [None if n == 2 else x for n, x in enumerate(v)], pa.int64())
    error = refused(load, source)
    assert "task_index" in error.what and "null at frame 2" in error.what and "nan" not in error.what


def test_a_row_of_a_packed_file_is_counted_in_the_file(source: Path, load: Any, tmp_path: Path) -> None:
    """Arrow cannot read a null in a column of fixed-size lists; the second row group of the file has it."""
    assert CliRunner().invoke(cli, ["convert", str(source), str(tmp_path / "packed")]).exit_code == 0
    file = tmp_path / "packed/data/chunk-000/file-000.parquet"
    table = pq.read_table(file)
    values = table[STATE].to_pylist()
    values[LENGTHS[0] + 3] = None
    made = pa.array(values, pa.list_(pa.float32(), 8))
    table = table.set_column(table.column_names.index(STATE), STATE, made)
    with pq.ParquetWriter(file, table.schema) as writer:
        for episode, length in enumerate(LENGTHS):
            writer.write_table(table.slice(sum(LENGTHS[:episode]), length))
    error = refused(load, tmp_path / "packed")
    assert f"{STATE} is null at row {LENGTHS[0] + 3} of the file" in error.what and "episode 1" in error.where


def test_a_value_that_float32_cannot_hold_is_told_as_it_is(source: Path, load: Any) -> None:
    """With the line that keeps it, which works."""
    column(source, STATE, lambda values: [[1e40] * 8 for _ in values], pa.list_(pa.float64()))
    error = refused(load, source)
    assert f"{STATE} holds 1e+40" in error.what and "float32" in error.what
    line = f"cast: {{{STATE}: float64}}"
    assert line in error.do
    made = plan(load(f"sources: [{{path: {source}}}]\n{line}\n"))
    assert made.selection.features[STATE].dtype == "float64"


def test_a_value_that_is_not_finite_has_no_such_line(source: Path, load: Any) -> None:
    column(source, STATE, lambda values: [[float("inf")] * 8 for _ in values], pa.list_(pa.float64()))
    error = refused(load, source)
    assert "holds inf" in error.what and "cast" not in error.do


def test_without_a_manifest_no_path_of_one_is_told(source: Path, deliveries: ModuleType) -> None:
    """Two sources that differ in fps, which is told at the manifest."""
    other = deliveries.write_delivery(
        source.parent / "other", deliveries.Delivery(number=1, lengths=LENGTHS, cameras=(), fps=20)
    )
    result = CliRunner().invoke(cli, ["merge", str(source), str(other), str(source.parent / "out")])
    assert isinstance(result.exception, StackError)
    assert result.exception.where == "(the command line)"
    assert str(Path.cwd()) not in result.exception.what


def test_rows_that_cannot_be_read_are_told_with_the_file(source: Path) -> None:
    whole = rows_of(source, 1).read_bytes()
    rows_of(source, 1).write_bytes(whole[: len(whole) // 2])
    with pytest.raises(StackError) as caught:
        read_dataset(source)
    assert caught.value.id == "dataset-file-truncated" and caught.value.do


@pytest.mark.parametrize("what", ["task", "channel", "robot_type"])
def test_half_a_character_is_refused_while_planning(
    tmp_path: Path, load: Any, deliveries: Any, what: str
) -> None:
    """JSON can spell half a pair of surrogates; no UTF-8 file can hold it."""
    root, half = deliveries.write_delivery(tmp_path / "a", deliveries.Delivery(cameras=())), "half \ud800"
    if what == "task":
        file = root / "meta/tasks.jsonl"
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        file.write_text("".join(json.dumps({**line, "task": half + line["task"]}) + "\n" for line in lines))

    def spoil(info: dict[str, Any]) -> None:
        if what == "robot_type":
            info["robot_type"] = half
        elif what == "channel":
            width = info["features"][STATE]["shape"][0]
            info["features"][STATE]["names"] = [half, *(f"c{n}" for n in range(1, width))]

    deliveries.edit_info(root, spoil)
    with pytest.raises(StackError) as caught:
        plan(load(f"sources: [{{path: {root}}}]\n"))
    assert caught.value.id == "prepare-text-unwritable" and caught.value.exit == 2
    assert "half \\ud800" in caught.value.what
    assert str(caught.value).encode(), "the message itself can be printed"
