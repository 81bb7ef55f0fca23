"""Mending: what can be counted or computed is repaired on a copy, the rest is said, nothing else changes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stack.audit import audit
from stack.audit.mend import Mended, mend
from stack.errors import BadRequest, WorkFailed
from stack.files import tree_digest

INFO, STATS, TABLE = "meta/info.json", "meta/stats.json", "meta/episodes/chunk-000/file-000.parquet"
HAND = "observation.images.hand"
LENGTHS = (56, 64, 64, 80)
Change = Callable[[Path], None]


def data(episode: int) -> str:
    return f"data/chunk-000/episode_{episode:06d}.parquet"


def in_json(file: str, change: Callable[[Any], None]) -> Change:
    def damage(root: Path) -> None:
        value = json.loads((root / file).read_text())
        change(value)
        (root / file).write_text(json.dumps(value))

    return damage


def in_lines(file: str, change: Callable[[list[Any]], None]) -> Change:
    def damage(root: Path) -> None:
        lines = [json.loads(line) for line in (root / file).read_text().splitlines()]
        change(lines)
        (root / file).write_text("".join(json.dumps(line) + "\n" for line in lines))

    return damage


def in_column(file: str, name: str, change: Callable[[list[Any]], list[Any]], kind: Any = None) -> Change:
    def damage(root: Path) -> None:
        table = pq.read_table(root / file)
        array = pa.array(change(table.column(name).to_pylist()), kind or table.schema.field(name).type)
        pq.write_table(table.set_column(table.column_names.index(name), name, array), root / file)

    return damage


def put(position: int, key: str, value: Any) -> Callable[[list[Any]], None]:
    return lambda lines: lines[position].update({key: value})


def replaced(position: int, value: Any) -> Callable[[list[Any]], list[Any]]:
    return lambda values: [value if i == position else v for i, v in enumerate(values)]


def in_stats(change: Callable[[dict[str, Any]], None]) -> Change:
    return in_lines("meta/episodes_stats.jsonl", lambda lines: change(lines[1]["stats"]))


def without_column(file: str, name: str) -> Change:
    def damage(root: Path) -> None:
        pq.write_table(pq.read_table(root / file).drop_columns([name]), root / file)

    return damage


def moved_videos(root: Path) -> None:
    """Camera first, chunk second: another usual form; the template still says the first."""
    for file in sorted((root / "videos").rglob("*.mp4")):
        camera, name = file.parts[-2:]
        new = root / "videos" / camera / "chunk-000" / name
        new.parent.mkdir(parents=True, exist_ok=True)
        file.rename(new)


def reversed_tasks(root: Path) -> None:
    file = root / "meta/tasks.parquet"
    pq.write_table(pq.read_table(file).take([1, 0]), file)


def plain_tasks(root: Path) -> None:
    file = root / "meta/tasks.parquet"
    pq.write_table(pq.read_table(file).replace_schema_metadata(None), file)


def phantom() -> Change:
    """A camera that info.json declares and nothing else speaks of."""

    def change(info: Any) -> None:
        info["features"]["observation.images.phantom"] = dict(info["features"][HAND])

    return in_json(INFO, change)


V21: dict[str, tuple[str, Change]] = {
    "totals": (
        "totals-lie",
        in_json(INFO, lambda i: i.update(total_frames=9, total_chunks=0, total_videos=1)),
    ),
    "no-data-path": ("info-key-wrong", in_json(INFO, lambda i: i.pop("data_path"))),
    "no-video-path": ("info-key-wrong", in_json(INFO, lambda i: i.update(video_path=None))),
    "chunks": ("info-key-wrong", in_json(INFO, lambda i: i.update(chunks_size=0))),
    "splits": ("splits-lie", in_json(INFO, lambda i: i.update(splits={"train": "0:100"}))),
    "version": ("version-differs", in_json(INFO, lambda i: i.update(codebase_version="v3.0"))),
    "template": ("template-does-not-resolve", moved_videos),
    "fps-entry": ("feature-fps-entry", in_json(INFO, lambda i: i["features"]["action"].update(fps=10))),
    "nested-names": (
        "names-do-not-fit",
        in_json(INFO, lambda i: i["features"]["action"].update(names=[list("abcdef")])),
    ),
    "codec": (
        "video-codec-differs",
        in_json(INFO, lambda i: i["features"][HAND]["info"].update({"video.codec": "av1"})),
    ),
    "size": ("video-size-differs", in_json(INFO, lambda i: i["features"][HAND].update(shape=[99, 99, 3]))),
    "index": ("index-gaps", in_column(data(2), "index", lambda v: [x + 7 for x in v])),
    "episode-index": ("index-gaps", in_column(data(1), "episode_index", lambda v: [9] * len(v))),
    "no-frame-index": ("index-column-missing", without_column(data(1), "frame_index")),
    "lists": (
        "list-typed-scalar",
        in_column(data(0), "task_index", lambda v: [[x] for x in v], pa.list_(pa.int64())),
    ),
    "length": ("episode-length-differs", in_lines("meta/episodes.jsonl", put(1, "length", 65))),
    "tasks": ("task-differs", in_lines("meta/episodes.jsonl", put(2, "tasks", ["something else"]))),
    "placeholder": ("stats-count-zero", in_stats(lambda s: s[HAND].update(count=[0]))),
    "nested-stats": ("stats-nested", in_stats(lambda s: s["action"].update(mean=[s["action"]["mean"]]))),
    "flat-camera": ("stats-shape-mismatch", in_stats(lambda s: s[HAND].update(mean=[0.1, 0.1, 0.1]))),
    "no-stats": ("stats-missing", in_stats(lambda s: s.pop("action"))),
    "phantom": ("camera-without-files", phantom()),
    "dtype": ("dtype-differs", in_json(INFO, lambda i: i["features"]["action"].update(dtype="int64"))),
    "shape": ("width-differs", in_json(INFO, lambda i: i["features"]["action"].update(shape=[7]))),
    "shape-and-names": (
        "width-differs",
        in_json(INFO, lambda i: i["features"]["action"].update(shape=[7], names=list("abcdefg"))),
    ),
    "wrong-stats": ("stats-differ", in_stats(lambda s: s["action"].update(max=[9.0] * 6))),
}
V30: dict[str, tuple[str, Change]] = {
    "keys": (
        "info-key-wrong",
        in_json(INFO, lambda i: [i.pop(k) for k in ("data_path", "chunks_size", "robot_type")]),
    ),
    "quantiles": ("stats-quantiles-wrong", in_json(STATS, lambda s: s["action"].update(q99=[0.1] * 6))),
    "no-quantiles": ("stats-quantiles-missing", in_json(STATS, lambda s: s["action"].pop("q01"))),
    "nan": ("stats-not-finite", in_json(STATS, lambda s: s["action"].update(std=[float("nan")] * 6))),
    "no-camera-stats": ("stats-missing", in_json(STATS, lambda s: s.pop(HAND))),
    "camera-names": ("names-do-not-fit", in_json(INFO, lambda i: i["features"][HAND].update(names=None))),
    "range": ("rows-range-wrong", in_column(TABLE, "dataset_from_index", replaced(2, 7))),
    "file-index": ("data-file-index-wrong", in_column(TABLE, "data/file_index", replaced(2, 0))),
    "clip": ("clip-times-wrong", in_column(TABLE, f"videos/{HAND}/to_timestamp", replaced(1, 11.9))),
    "task-order": ("task-order", reversed_tasks),
    "plain-tasks": ("task-not-text", plain_tasks),
    "frame-index": (
        "index-gaps",
        in_column("data/chunk-000/file-000.parquet", "frame_index", replaced(60, 99)),
    ),
    "total": ("totals-lie", in_json(INFO, lambda i: i.update(total_episodes=5))),
    "phantom": ("camera-without-files", phantom()),
}
CASES = [("v2.1", name) for name in V21] + [("v3.0", name) for name in V30]


def vectors(root: Path) -> list[Any]:
    rows = [
        pq.read_table(file, columns=["observation.state", "action"]).to_pylist()
        for file in sorted(root.glob("data/*/*.parquet"))
    ]
    return [row for table in rows for row in table]


def check_mended(done: Mended, code: str) -> None:
    assert done.after is not None
    assert done.before.of(code)
    assert not done.after.of(code), done.after.of(code)
    assert done.ok
    assert code in done.gone
    assert any(code in step.codes for step in done.steps)


@pytest.mark.parametrize(("version", "name"), CASES)
def test_what_can_be_mended_is(
    version: str, name: str, copy_good: Callable[[str], Path], tmp_path: Path
) -> None:
    code, damage = (V21 if version == "v2.1" else V30)[name]
    source = copy_good(version)
    damage(source)
    digest = tree_digest(source)
    done = mend(source, tmp_path / "mended")
    check_mended(done, code)
    assert tree_digest(source) == digest
    assert vectors(tmp_path / "mended") == vectors(source)
    # Judged by a fresh look at the folder, not by what mend says of itself.
    again = audit(tmp_path / "mended")
    assert [f.code for f in again.faults if f.severity == "error"] == []


def test_all_at_once(copy_good: Callable[[str], Path], tmp_path: Path) -> None:
    source = copy_good("v2.1")
    for name, (_, damage) in V21.items():
        if name not in ("no-stats", "template"):
            damage(source)
    done = mend(source, tmp_path / "mended")
    assert done.ok, done.text()
    assert "mended; " in done.text().splitlines()[-1]
    assert "NOT" not in done.text()


def test_declarations_become_what_the_rows_hold(copy_good: Callable[[str], Path], tmp_path: Path) -> None:
    source = copy_good("v2.1")
    for name in ("phantom", "dtype", "shape-and-names"):
        V21[name][1](source)
    before = json.loads((source / INFO).read_text())["features"]
    mend(source, tmp_path / "mended")
    after = json.loads((tmp_path / "mended" / INFO).read_text())["features"]
    assert set(before) - set(after) == {"observation.images.phantom"}
    assert after["action"] == {"dtype": "float32", "shape": [6], "names": None}


def test_a_camera_that_was_recorded_is_not_taken_out(
    copy_good: Callable[[str], Path], tmp_path: Path
) -> None:
    """Its statistics are there, so its files were lost: that is for a person to settle."""
    source = copy_good("v2.1")
    shutil.rmtree(source / "videos/chunk-000" / HAND)
    done = mend(source, tmp_path / "mended")
    assert not done.ok
    assert HAND in json.loads((tmp_path / "mended" / INFO).read_text())["features"]
    (left,) = [item for item in done.left if item.code == "camera-without-files"]
    assert "recorded once" in left.why
    assert "NOT mended" in done.text()


def test_which_of_two_values_was_meant_is_left(copy_good: Callable[[str], Path], tmp_path: Path) -> None:
    source = copy_good("v2.1")
    text = (source / INFO).read_text()
    (source / INFO).write_text(text.replace('"fps": 10,', '"fps": 30, "fps": 10,', 1))
    done = mend(source, tmp_path / "mended", dry_run=True)
    (left,) = [item for item in done.left if item.code == "meta-json-doubtful"]
    assert left.why.startswith(INFO)


def test_what_is_no_file_stays_behind_and_is_not_called_mended(
    copy_good: Callable[[str], Path], tmp_path: Path
) -> None:
    """A pipe in place of rows, and a link to a folder above."""
    source = copy_good("v2.1")
    (source / data(1)).unlink()
    os.mkfifo(source / data(1))
    (source / "data/loop").symlink_to("..")
    V21["length"][1](source)
    done = mend(source, tmp_path / "mended")
    assert not done.ok and done.after is not None and done.after.of("file-missing")
    assert "NOT mended wholly" in done.text()
    assert sorted(p.name for p in (tmp_path / "mended").iterdir()) == ["data", "meta", "videos"]
    assert not (tmp_path / "mended/data/loop").exists()


def test_files_that_differ_in_type_are_left(copy_good: Callable[[str], Path], tmp_path: Path) -> None:
    source = copy_good("v2.1")
    whole = in_column(data(1), "action", lambda v: [[int(x) for x in r] for r in v], pa.list_(pa.int64()))
    whole(source)
    V21["dtype"][1](source)
    done = mend(source, tmp_path / "mended", dry_run=True)
    assert any(item.code == "dtype-differs" and "files differ" in item.why for item in done.left)
    assert not any("dtype-differs" in step.codes for step in done.steps)


def test_statistics_are_those_of_numpy(copy_good: Callable[[str], Path], tmp_path: Path) -> None:
    source = copy_good("v3.0")
    (source / STATS).unlink()
    mend(source, tmp_path / "mended")
    stats = json.loads((tmp_path / "mended" / STATS).read_text())
    rows = np.array([row["action"] for row in vectors(source)], np.float64)
    assert np.allclose(stats["action"]["mean"], rows.mean(0))
    assert np.allclose(stats["action"]["q99"], np.quantile(rows, 0.99, axis=0))
    assert stats["episode_index"]["max"] == [3]
    assert np.shape(stats[HAND]["mean"]) == (3, 1, 1)
    # The hand camera's pictures are grey levels of 90 to 150 with a bright square.
    assert 90 / 255 < np.mean(stats[HAND]["mean"]) < 170 / 255


def test_a_dry_run_says_the_same_and_writes_nothing(copy_good: Callable[[str], Path], tmp_path: Path) -> None:
    source = copy_good("v2.1")
    for name in ("totals", "index", "placeholder"):
        V21[name][1](source)
    dry = mend(source, tmp_path / "mended", dry_run=True)
    assert not (tmp_path / "mended").exists()
    assert not dry.ok
    real = mend(source, tmp_path / "mended")
    assert [(s.file, s.text) for s in dry.steps] == [(s.file, s.text) for s in real.steps]
    assert "total_frames: 9 becomes 264" in dry.text()
    assert "nothing was written" in dry.text()


def test_what_cannot_be_mended_is_never_called_mended(
    copy_good: Callable[[str], Path], tmp_path: Path
) -> None:
    source = copy_good("v2.1")
    in_column(data(1), "action", replaced(5, [float("nan")] * 6))(source)
    (source / f"videos/chunk-000/{HAND}/episode_000002.mp4").unlink()
    V21["totals"][1](source)
    done = mend(source, tmp_path / "mended")
    assert not done.ok
    assert "totals-lie" in done.gone
    last = done.text().splitlines()[-1]
    assert last.startswith("NOT mended wholly")
    said = done.text()
    assert "NOT mended: rows-not-finite" in said
    assert "NOT mended: video-missing" in said


def test_missing_rows_are_not_counted_away(copy_good: Callable[[str], Path], tmp_path: Path) -> None:
    source = copy_good("v2.1")
    (source / data(1)).unlink()
    done = mend(source, tmp_path / "mended")
    assert not done.ok
    info = json.loads((tmp_path / "mended" / INFO).read_text())
    assert info["total_frames"] == 264  # as it was
    assert {"totals-lie"} <= {item.code for item in done.left}


def test_rows_out_of_order_are_not_numbered_over(copy_good: Callable[[str], Path], tmp_path: Path) -> None:
    source = copy_good("v2.1")
    table = pq.read_table(source / data(1))
    order = [1, 0, 3, 2, *range(4, len(table))]
    pq.write_table(table.take(order), source / data(1))
    done = mend(source, tmp_path / "mended", restamp=True)
    assert not done.ok
    assert any("out of order" in item.why for item in done.left)
    frames = pq.read_table(tmp_path / "mended" / data(1)).column("frame_index").to_pylist()
    assert frames[:4] == [1, 0, 3, 2]


def test_timestamps_only_where_asked(copy_good: Callable[[str], Path], tmp_path: Path) -> None:
    source = copy_good("v2.1")
    in_column(data(1), "timestamp", lambda v: [x + 0.03 for x in v])(source)
    left = mend(source, tmp_path / "left")
    assert left.after is not None
    assert left.after.of("timestamps-off")
    done = mend(source, tmp_path / "mended", restamp=True)
    check_mended(done, "timestamps-off")
    times = pq.read_table(tmp_path / "mended" / data(1)).column("timestamp").to_numpy()
    assert np.allclose(times, np.arange(64) / 10, atol=1e-6)


def test_good_data_is_left_alone(good: dict[str, Path], tmp_path: Path) -> None:
    done = mend(good["v3.0"], tmp_path / "mended")
    assert done.steps == ()
    assert done.ok
    assert tree_digest(tmp_path / "mended") == tree_digest(good["v3.0"])


@pytest.mark.usefixtures("in_this_process")
def test_a_value_that_changes_stops_everything(
    copy_good: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = copy_good("v2.1")
    V21["index"][1](source)
    import stack.audit.mend_rows as rows

    real = rows._rewrite

    def spoil(root: Path, *, file: str, **how: Any) -> None:
        real(root, file=file, **how)
        in_column(file, "action", lambda v: [[0.0] * 6 for _ in v])(root)

    monkeypatch.setattr(rows, "_rewrite", spoil)
    with pytest.raises(WorkFailed, match="values of action are others"):
        mend(source, tmp_path / "mended")
    assert not (tmp_path / "mended").exists()


def test_a_target_in_the_source_is_refused(copy_good: Callable[[str], Path]) -> None:
    source = copy_good("v2.1")
    with pytest.raises(BadRequest, match="inside the source"):
        mend(source, source / "mended")


def test_the_demos_first_delivery(deliveries: Path, tmp_path: Path) -> None:
    """All that is left of its faults are decisions: which episodes, which channels."""
    done = mend(deliveries / "demo_task", tmp_path / "mended")
    assert done.after is not None
    assert {"stats-count-zero", "list-typed-scalar"} <= set(done.gone)
    assert {f.code for f in done.after.faults if f.severity == "error"} <= {
        "rows-not-finite",
        "column-unknown",
    }


def test_the_command(copy_good: Callable[[str], Path], tmp_path: Path) -> None:
    source = copy_good("v2.1")
    V21["totals"][1](source)
    command = [sys.executable, "-m", "stack", "mend", str(source), str(tmp_path / "mended")]
    dry = subprocess.run([*command, "--dry-run"], capture_output=True, text=True, timeout=60)
    assert dry.returncode == 1
    assert not (tmp_path / "mended").exists()
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "gone: totals-lie" in done.stdout
    again = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert again.returncode == 2
    assert "exists already" in again.stderr
