"""Episodes that meta/ lists and that have no rows, and row files that nothing lists."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from stack.cli import cli
from stack.dataset.read import read_dataset
from stack.errors import StackError
from stack.prepare import plan

LENGTHS = (7, 5, 9, 4, 6)
HEAD = (("observation.images.head", 96, 64),)


def stack(*words: object) -> tuple[bool, str]:
    """Whether it worked, and all that it said."""
    result = CliRunner().invoke(cli, [str(word) for word in words])
    return result.exit_code == 0, f"{result.output}{result.exception or ''}"


def rows_of(root: Path, episode: int) -> Path:
    return root / f"data/chunk-{episode // 3:03d}/episode_{episode:06d}.parquet"


def states(root: Path) -> list[list[float]]:
    tables = [pq.read_table(file) for file in sorted(root.glob("data/*/*.parquet"))]
    return [row for table in tables for row in table["observation.state"].to_pylist()]


def meant(deliveries: ModuleType, spec: Any, episodes: list[int]) -> list[list[float]]:
    return [deliveries.state_of(spec, e, f) for e in episodes for f in range(spec.lengths[e])]


@pytest.fixture
def v21(deliveries: ModuleType, tmp_path: Path) -> Path:
    root: Path = deliveries.write_delivery(tmp_path / "source", deliveries.Delivery(cameras=HEAD))
    return root


@pytest.fixture
def v30(v21: Path, tmp_path: Path) -> Path:
    """All five episodes in one row file and one video."""
    assert stack("convert", v21, tmp_path / "packed", "--jobs", 1)[0]
    return tmp_path / "packed"


def lose(root: Path, episodes: list[int]) -> None:
    """Take rows away: whole files of v2.1, row by row from the one file of v3.0."""
    for file in sorted(root.glob("data/*/*.parquet")):
        table = pq.read_table(file)
        mine = pc.is_in(table["episode_index"], value_set=pa.array(episodes))
        left = table.filter(pc.invert(mine))
        if left.num_rows:
            pq.write_table(left, file)
        else:
            file.unlink()


@pytest.mark.parametrize("layout", ["v21", "v30"])
@pytest.mark.parametrize("lost", [[2], [0], [4], [1, 3]])
def test_lost_rows_are_refused_until_the_episode_is_left_out(
    layout: str, lost: list[int], deliveries: ModuleType, load: Any, tmp_path: Path, request: Any
) -> None:
    """Wherever they stand: in the middle, first, or last with the video still there."""
    root = request.getfixturevalue(layout)
    lose(root, lost)
    with pytest.raises(StackError) as caught:
        plan(load(f"sources: [{{path: {root}}}]\n"))
    error = caught.value
    assert error.id == "prepare-rows-missing" and f"'{root.name}'" in error.what
    for episode in lost:
        assert str(episode) in error.what
        file = rows_of(root, episode) if layout == "v21" else root / "data/chunk-000/file-000.parquet"
        assert file.relative_to(root).as_posix() in error.what
    line = f"exclude_episodes: [{', '.join(map(str, lost))}]"
    assert line in error.do and "also[" not in error.what, "nothing but the lost rows is wrong"
    kept = [episode for episode in range(5) if episode not in lost]
    made = plan(load(f"sources: [{{path: {root}, {line}}}]\n"))
    assert [selected.episode.origin.episode for selected in made.selection.episodes] == kept

    is_done, said = stack("convert", root, tmp_path / "no", "--jobs", 1)
    told = f"stack drop {root} SMALLER --episodes {','.join(map(str, lost))}"
    assert not is_done and told in said and not (tmp_path / "no").exists()
    is_done, said = stack(*told.split()[1:3], tmp_path / "smaller", *told.split()[4:], "--jobs", 1)
    assert is_done, said
    assert f"{len(kept)}         5 " in said, "of as many as meta lists"
    assert stack("convert", tmp_path / "smaller", tmp_path / "out", "--jobs", 1)[0]
    spec = deliveries.Delivery()
    assert states(tmp_path / "out") == meant(deliveries, spec, kept)


def test_drop_is_told_all_its_episodes(v21: Path, tmp_path: Path) -> None:
    lose(v21, [2])
    is_done, said = stack("drop", v21, tmp_path / "less", "--episodes", "0", "--jobs", 1)
    assert not is_done and "give --episodes 0,2" in said
    assert stack("drop", v21, tmp_path / "less", "--episodes", "0,2", "--jobs", 1)[0]


def test_a_list_that_goes_on_behind_the_last_episode_is_a_subset(
    v21: Path, deliveries: ModuleType, tmp_path: Path
) -> None:
    """Neither rows nor videos of what comes after, as where the first episodes of a dataset were taken."""
    lose(v21, [3, 4])
    shutil.rmtree(v21 / "videos/chunk-001")
    dataset = read_dataset(v21)
    assert [(absent.index, absent.is_lost) for absent in dataset.absent] == [(3, False), (4, False)]
    is_done, said = stack("convert", v21, tmp_path / "out", "--jobs", 1)
    assert is_done and "source: listed in meta/ but without a data file: [3, 4]" in said
    assert "3         5 " in said and "3 of 5 episodes (0-2)" in said
    assert states(tmp_path / "out") == meant(deliveries, deliveries.Delivery(), [0, 1, 2])


def test_an_episode_that_is_listed_with_no_frames_has_lost_none(v21: Path) -> None:
    lose(v21, [2])
    file = v21 / "meta/episodes.jsonl"
    entries = [json.loads(line) for line in file.read_text().splitlines()]
    entries[2]["length"] = 0
    file.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    assert [absent.is_lost for absent in read_dataset(v21).absent] == [False]


def test_a_copy_that_nothing_lists_is_left_out_with_a_note(
    deliveries: ModuleType, load: Any, tmp_path: Path
) -> None:
    """Its rows say that they are of an episode that has a file of its own."""
    spec = deliveries.Delivery(cameras=())
    root = deliveries.write_delivery(tmp_path / "source", spec)
    shutil.copy(rows_of(root, 0), rows_of(root, 1).with_name("episode_000009.parquet"))
    is_done, said = stack("convert", root, tmp_path / "out", "--jobs", 1)
    assert is_done, said
    assert "source: data/chunk-000/episode_000009.parquet: episode 9 is not listed" in said
    assert "of episode 0" in said
    assert states(tmp_path / "out") == meant(deliveries, spec, [0, 1, 2, 3, 4])
    made = plan(load(f"sources: [{{path: {root}, exclude_episodes: [9]}}]\n"))
    assert len(made.selection.episodes) == 5, "a manifest that names it goes on to work"


def test_an_episode_that_nothing_lists_and_that_is_its_own_is_kept(
    deliveries: ModuleType, tmp_path: Path
) -> None:
    root = deliveries.write_delivery(tmp_path / "source", deliveries.Delivery(cameras=()))
    file = root / "meta/episodes.jsonl"
    file.write_text("".join(line + "\n" for line in file.read_text().splitlines()[:4]))
    assert [episode.index for episode in read_dataset(root).episodes] == [0, 1, 2, 3, 4]


def test_a_renamed_row_file_loses_its_episode_with_both_told(
    deliveries: ModuleType, load: Any, tmp_path: Path
) -> None:
    root = deliveries.write_delivery(tmp_path / "source", deliveries.Delivery(cameras=()))
    rows_of(root, 1).rename(rows_of(root, 1).with_name("episode_000009.parquet"))
    assert [
        text for code, text in read_dataset(root).notes if code == "left-over-rows" and "episode 1," in text
    ]
    with pytest.raises(StackError) as caught:
        plan(load(f"sources: [{{path: {root}}}]\n"))
    assert caught.value.id == "prepare-rows-missing" and "episodes 1," in caught.value.what


def test_two_sources_get_a_place_of_their_own_each(v21: Path, v30: Path, tmp_path: Path) -> None:
    lose(v21, [2])
    lose(v30, [1])
    is_done, said = stack("merge", v21, v30, tmp_path / "out", "--jobs", 1)
    assert not is_done
    told = re.findall(r"`stack drop (\S+) (SMALLER-\d) --episodes (\d+)`", said)
    assert [(Path(source), episodes) for source, _, episodes in told] == [(v21, "2"), (v30, "1")]
    assert len({place for _, place, _ in told}) == 2
    for source, place, episodes in told:
        assert stack("drop", source, tmp_path / place, "--episodes", episodes, "--jobs", 1)[0]
    places = [tmp_path / place for _, place, _ in told]
    assert stack("merge", *places, tmp_path / "out", "--jobs", 1)[0]
    assert len(read_dataset(tmp_path / "out").episodes) == 8
