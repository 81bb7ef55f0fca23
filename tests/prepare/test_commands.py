"""convert, merge, drop and stats, as a user calls them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

from stack.cli import cli
from stack.dataset.digest import content_digest
from stack.dataset.read import read_dataset
from stack.errors import StackError
from stack.files import sha256_file, tree_digest
from stack.prepare.provenance import source_digest


def stack(*words: object) -> Result:
    result = CliRunner().invoke(cli, [str(word) for word in words])
    if isinstance(result.exception, StackError):
        raise result.exception
    assert result.exception is None, result.output
    return result


def origins(out: Path) -> list[tuple[str, int]]:
    told = json.loads((out / "meta/provenance.json").read_text())
    return [(e["source"], e["source_episode"]) for e in told["episodes"]]


@pytest.fixture(scope="module")
def v30(two: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("converted") / "v30"
    stack("convert", two / "a", out, "--jobs", 1)
    return out


def test_convert_there_and_back(two: Path, v30: Path, tmp_path: Path) -> None:
    before = tree_digest(two)
    result = stack("convert", v30, tmp_path / "v21", "--to", "v2.1", "--jobs", 1)
    assert {read_dataset(r).version for r in (v30, tmp_path / "v21")} == {"v3.0", "v2.1"}
    digests = {content_digest(read_dataset(r)) for r in (two / "a", v30, tmp_path / "v21")}
    assert len(digests) == 1 and f"content {digests.pop()}" in result.stdout
    assert tree_digest(two) == before


def test_the_table_says_what_was_taken_and_kept(two: Path, tmp_path: Path) -> None:
    text = stack("drop", two / "a", tmp_path / "out", "--episodes", "0,2-3", "--jobs", 1).stdout
    lines = [line.split() for line in text.splitlines()]
    assert ["a", "v2.1", "2", "5", "11", "3", "episodes"] in lines
    assert ["together", "v2.1", "2", "5", "11"] in lines
    assert ["action", "float32", "4", "a0,", "a1,", "a2,", "a3"] in lines
    assert ["observation.images.head", "video", "96x64"] in lines


def test_drop_keeps_the_version_and_every_other_episode(two: Path, v30: Path, tmp_path: Path) -> None:
    stack("drop", two / "a", tmp_path / "v21", "--episodes", "0,2-3", "--jobs", 1)
    stack("drop", v30, tmp_path / "v30", "--episodes", "0,2-3", "--jobs", 1)
    old, new = read_dataset(tmp_path / "v21"), read_dataset(tmp_path / "v30")
    assert (old.version, new.version) == ("v2.1", "v3.0")
    assert [p for _, p in origins(tmp_path / "v30")] == [p for _, p in origins(tmp_path / "v21")] == [1, 4]
    assert content_digest(old) == content_digest(new)


def test_merge_takes_names_apart_and_merges_again(two: Path, v30: Path, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other/v30").symlink_to(v30)
    stack("merge", v30, two / "a", tmp_path / "other/v30", tmp_path / "out", "--jobs", 1)
    assert origins(tmp_path / "out") == [(s, n) for s in ("v30", "a", "v30-2") for n in range(5)]
    stack("merge", tmp_path / "out", v30, tmp_path / "again", "--jobs", 1)
    assert len(read_dataset(tmp_path / "again").episodes) == 20


def test_merge_refuses_what_differs_and_leaves_nothing(two: Path, tmp_path: Path) -> None:
    with pytest.raises(StackError) as caught:
        stack("merge", two / "a", two / "b", tmp_path / "out", "--jobs", 1)
    assert caught.value.id == "prepare-names-differ"
    assert "channel 0 is 'j0' in a and 'left' in b" in caught.value.what
    assert [p.name for p in tmp_path.iterdir() if not p.name.endswith(".lock")] == []


def test_a_dry_run_writes_nothing(two: Path, tmp_path: Path) -> None:
    text = stack("convert", two / "a", tmp_path / "out", "--to", "v2.1", "--dry-run").stdout
    assert "5 episodes, 31 frames" in text and "version v2.1" in text and "5 data files" in text
    assert list(tmp_path.iterdir()) == []


def test_questions_are_answered_by_an_option(deliveries, tmp_path: Path) -> None:
    root = deliveries.write_delivery(tmp_path / "clock", deliveries.Delivery(clock_start_s=0.03))
    with pytest.raises(StackError) as caught:
        stack("convert", root, tmp_path / "out", "--jobs", 1)
    assert caught.value.id == "prepare-timestamps" and "--decide timestamps=restamp" in caught.value.do
    stack("convert", root, tmp_path / "out", "--decide", "timestamps=restamp", "--jobs", 1)
    assert len(read_dataset(tmp_path / "out").episodes) == 5


def test_requests_that_are_wrong(two: Path, tmp_path: Path) -> None:
    for words, id in (
        (("drop", two / "a", tmp_path / "o", "--episodes", "9-7"), "request-invalid"),
        (("drop", two / "a", tmp_path / "o", "--episodes", "77"), "prepare-no-such-episode"),
        (("drop", two / "a", tmp_path / "o", "--episodes", "0-4"), "prepare-no-episodes"),
        (("convert", two / "a", tmp_path / "o", "--decide", "time=restamp"), "request-decide"),
        (("convert", two / "a", tmp_path / "o", "--decide", "timestamps=yes"), "request-invalid"),
        (("convert", tmp_path / "none", tmp_path / "o"), "dataset-missing"),
        (("convert", two / "a", two / "b"), "target-exists"),
        (("stats", tmp_path / "none"), "dataset-missing"),
    ):
        with pytest.raises(StackError) as caught:
            stack(*words)
        assert caught.value.id == id, words
        assert "Traceback" not in str(caught.value)


# Statistics.


def test_stats_of_a_prepared_dataset_are_those_it_has(v30: Path, tmp_path: Path) -> None:
    stack("stats", v30, "--json", tmp_path / "stats.json", "--jobs", 1)
    assert json.loads((tmp_path / "stats.json").read_text()) == json.loads(
        (v30 / "meta/stats.json").read_text()
    )


def test_stats_of_a_delivery_are_those_of_its_rows(two: Path, tmp_path: Path, deliveries) -> None:
    text = stack("stats", two / "a", "--json", tmp_path / "stats.json", "--jobs", 1).stdout
    spec = deliveries.Delivery()
    rows = np.array([deliveries.action_of(spec, e, f) for e, n in enumerate(spec.lengths) for f in range(n)])
    got = json.loads((tmp_path / "stats.json").read_text())["action"]
    for key, meant in (
        ("mean", rows.mean(axis=0)),
        ("std", rows.std(axis=0)),
        ("min", rows.min(axis=0)),
        ("q01", np.percentile(rows, 1, axis=0)),
        ("q90", np.percentile(rows, 90, axis=0)),
    ):
        np.testing.assert_allclose(got[key], meant, rtol=1e-12)
    assert got["count"] == [31]
    assert any(line.split()[:3] == ["action", "a2", "31"] for line in text.splitlines())


def test_write_mends_stored_statistics_and_the_told_hash(v30: Path, tmp_path: Path) -> None:
    import shutil

    root = Path(shutil.copytree(v30, tmp_path / "copy"))
    file = root / "meta/stats.json"
    good = file.read_text()
    wrong = json.loads(good)
    wrong["action"]["q99"] = [0.0] * 4
    file.write_text(json.dumps(wrong))
    stack("stats", root, "--jobs", 1)
    assert json.loads(file.read_text())["action"]["q99"] == [0.0] * 4  # not without --write
    stack("stats", root, "--write", "--jobs", 1)
    assert file.read_text() == good
    told = json.loads((root / "meta/provenance.json").read_text())["files"]["meta/stats.json"]
    assert told == {"sha256": sha256_file(file), "size": file.stat().st_size}


def test_write_gives_a_v21_delivery_its_episode_statistics(two: Path, tmp_path: Path) -> None:
    import shutil

    root = Path(shutil.copytree(two / "b", tmp_path / "b"))
    stack("stats", root, "--write", "--jobs", 1)
    lines = [json.loads(line) for line in (root / "meta/episodes_stats.jsonl").read_text().splitlines()]
    assert [entry["episode_index"] for entry in lines] == [0, 1, 2]
    for entry, length in zip(lines, (3, 8, 5), strict=True):
        table = pq.read_table(root / f"data/chunk-000/episode_{entry['episode_index']:06d}.parquet")
        rows = np.array(table.column("observation.state").to_pylist())
        np.testing.assert_allclose(entry["stats"]["observation.state"]["max"], rows.max(axis=0))
        assert entry["stats"]["action"]["count"] == [length]
        assert np.array(entry["stats"]["observation.images.head"]["mean"]).shape == (3, 1, 1)


def test_norm_stats_are_what_openpi_loads(v30: Path, tmp_path: Path) -> None:
    """`openpi.shared.normalize`: one key, state and actions, four lists of the raw width each."""
    stack("stats", v30, "--norm-stats", tmp_path / "assets/norm_stats.json", "--jobs", 1)
    told = json.loads((tmp_path / "assets/norm_stats.json").read_text())
    assert set(told) == {"norm_stats"} and set(told["norm_stats"]) == {"state", "actions"}
    table = pa.concat_tables(pq.read_table(f) for f in sorted((v30 / "data").glob("*/*")))
    for key, column in (("state", "observation.state"), ("actions", "action")):
        rows = np.array(table.column(column).to_pylist(), dtype=np.float64)
        entry = told["norm_stats"][key]
        assert set(entry) == {"mean", "std", "q01", "q99"}
        np.testing.assert_allclose(entry["mean"], rows.mean(axis=0), rtol=1e-12)
        np.testing.assert_allclose(entry["std"], rows.std(axis=0), rtol=1e-9)
        np.testing.assert_allclose(entry["q01"], np.percentile(rows, 1, axis=0), rtol=1e-12)
        np.testing.assert_allclose(entry["q99"], np.percentile(rows, 99, axis=0), rtol=1e-12)


def test_norm_stats_need_state_and_action(deliveries, tmp_path: Path) -> None:
    root = deliveries.write_delivery(tmp_path / "d", deliveries.Delivery(lengths=(3,)))
    deliveries.edit_info(root, lambda info: info["features"].pop("action"))
    with pytest.raises(StackError) as caught:
        stack("stats", root, "--norm-stats", tmp_path / "n.json", "--jobs", 1)
    assert caught.value.id == "norm-stats-no-feature" and "'actions'" in caught.value.what
    assert not (tmp_path / "n.json").exists()


def test_statistics_that_do_not_exist_name_the_feature(deliveries, tmp_path: Path) -> None:
    root = deliveries.write_delivery(tmp_path / "d", deliveries.Delivery(lengths=(3,)))

    def spoil(table: pa.Table) -> pa.Table:
        rows = table.column("action").to_pylist()
        rows[1][2] = float("nan")
        at = table.column_names.index("action")
        return table.set_column(at, "action", pa.array(rows, pa.list_(pa.float32())))

    deliveries.edit_rows(root, 0, spoil)
    with pytest.raises(StackError) as caught:
        stack("stats", root, "--jobs", 1)
    assert caught.value.id == "stats-not-finite" and caught.value.where == "action"


def test_what_has_no_statistics_is_said_and_left_out(deliveries, tmp_path: Path) -> None:
    root = deliveries.write_delivery(tmp_path / "d", deliveries.Delivery(lengths=(3,), cameras=()))
    deliveries.edit_rows(
        root,
        0,
        lambda table: table.append_column("note", pa.array(["a", "b", "c"])).append_column(
            "done", pa.array([False, False, True])
        ),
    )

    def declare(info: dict) -> None:
        info["features"]["note"] = {"dtype": "language", "shape": [1], "names": None}
        info["features"]["done"] = {"dtype": "bool", "shape": [1], "names": None}

    deliveries.edit_info(root, declare)
    result = stack("stats", root, "--json", tmp_path / "s.json", "--jobs", 1)
    got = json.loads((tmp_path / "s.json").read_text())
    assert "note" not in got and "note: language has no statistics" in result.stderr
    assert got["done"]["mean"] == [pytest.approx(1 / 3)] and got["done"]["max"] == [1]


def test_provenance_reaches_back_to_the_first_delivery(two: Path, v30: Path, tmp_path: Path) -> None:
    """Converted, dropped from, merged: each episode still tells the recording that it is."""
    stack("drop", v30, tmp_path / "less", "--episodes", "0", "--jobs", 1)
    stack("merge", tmp_path / "less", v30, tmp_path / "both", "--jobs", 1)
    told = json.loads((tmp_path / "both/meta/provenance.json").read_text())
    first, last = told["episodes"][0], told["episodes"][-1]
    assert (first["source"], first["source_episode"]) == ("less", 0)
    assert [(s["source"], s["source_episode"]) for s in first["before"]] == [("v30", 1), ("a", 1)]
    assert (last["source"], last["source_episode"]) == ("v30", 4)
    assert [(s["source"], s["source_episode"]) for s in last["before"]] == [("a", 4)]
    (converted,) = told["sources"][0]["sources"]
    assert converted["name"] == "v30" and [s["name"] for s in converted["sources"]] == ["a"]
    assert converted["sources"][0]["rows_digest"] == source_digest(two / "a")
