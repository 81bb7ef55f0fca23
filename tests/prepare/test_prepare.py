from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stack.dataset.digest import content_digest
from stack.dataset.read import read_dataset
from stack.dataset.write_plan import Caps
from stack.errors import StackError
from stack.files import sha256_file, tree_digest
from stack.prepare import plan, prepare

# (delivery number, its episode, frames) of the merged dataset, episode by episode: a without 1, then b.
EPISODES = [(0, 0, 7), (0, 2, 9), (0, 3, 4), (0, 4, 6), (1, 0, 3), (1, 1, 8), (1, 2, 5)]
TASKS = ["fold the shirt", "把毛巾放进盒子"]
TASK_OF = [0, 0, 1, 0, 0, 1, 0]  # b's texts: episode 0 -> its task 1, 1 -> its task 0, 2 -> its task 1


def test_rows_are_the_source_slices(merged: Path, deliveries) -> None:
    a = deliveries.Delivery()
    rows = [
        row for f in sorted((merged / "data").glob("*/*.parquet")) for row in pq.read_table(f).to_pylist()
    ]
    assert len(rows) == 42
    at = 0
    for number, (delivery, episode, length) in enumerate(EPISODES):
        for frame in range(length):
            row = rows[at]
            state = [deliveries.value(delivery, episode, frame, c) for c in range(a.state)]
            # Delivery b has the effectors first; by field name they come last.
            meant = state if delivery == 0 else state[2:] + state[:2]
            assert row["observation.state"] == meant
            assert row["action"] == [deliveries.value(delivery, episode, frame, 101 + c) for c in (0, 1)]
            assert (row["episode_index"], row["frame_index"], row["index"]) == (number, frame, at)
            assert row["task_index"] == TASK_OF[number]
            at += 1


def test_features_are_the_manifest_s(merged: Path) -> None:
    info = json.loads((merged / "meta/info.json").read_text())
    state = info["features"]["observation.state"]
    assert state["names"] == ["j0", "j1", "j2", "j3", "j4", "j5", "left", "right"]
    assert info["features"]["action"]["names"] == ["lift", "grip"]
    assert "ts" not in info["features"] and "observation.images.hand" not in info["features"]
    assert {k for k, v in info["features"].items() if v["dtype"] == "video"} == {
        "observation.images.head",
        "observation.images.wrist",
    }
    assert read_dataset(merged).tasks == dict(enumerate(TASKS))


def test_every_picture_is_the_right_one(merged: Path, deliveries) -> None:
    """Decoded by PyAV from the joined files at from_timestamp, not by our own reader."""
    import av

    table = pa.concat_tables(pq.read_table(f) for f in sorted((merged / "meta/episodes").glob("*/*")))
    for number, camera in enumerate(("observation.images.head", "observation.images.wrist")):
        pictures: dict[Path, list[int]] = {}
        for row, (delivery, episode, length) in zip(table.to_pylist(), EPISODES, strict=True):
            key = f"videos/{camera}"
            name = f"chunk-{row[f'{key}/chunk_index']:03d}/file-{row[f'{key}/file_index']:03d}.mp4"
            file = merged / "videos" / camera / name
            if file not in pictures:
                with av.open(str(file)) as container:
                    frames = [f.to_ndarray(format="rgb24") for f in container.decode(video=0)]
                pictures[file] = [deliveries.read_identity(frame) for frame in frames]
            start = round(row[f"{key}/from_timestamp"] * 10)
            meant = [deliveries.identity(delivery, number, episode, f) for f in range(length)]
            assert pictures[file][start : start + length] == meant
        assert sum(len(p) for p in pictures.values()) == 42
        assert len(pictures) >= 3


def test_provenance_tells_where_everything_came_from(merged: Path, two: Path) -> None:
    told = json.loads((merged / "meta/provenance.json").read_text())
    assert [(s["name"], s["path"], s["version"]) for s in told["sources"]] == [
        ("a", "a", "v2.1"),
        ("b", "b", "v2.1"),
    ]
    assert [(e["source"], e["source_episode"], e["frames"]) for e in told["episodes"]] == [
        ("ab"[d], e, n) for d, e, n in EPISODES
    ]
    assert told["content_digest"] == content_digest(read_dataset(merged))
    files = {p.relative_to(merged).as_posix(): p for p in merged.rglob("*") if p.is_file()}
    del files["meta/provenance.json"]
    assert told["files"] == {
        name: {"sha256": sha256_file(p), "size": p.stat().st_size} for name, p in files.items()
    }
    done = {(entry["do"], entry.get("source")) for entry in told["operations"]}
    assert {("exclude-episodes", "a"), ("slice", "a"), ("slice", "b"), ("rename-camera", "a")} <= done
    assert {"edit-task", "reconcile"} <= {entry["do"] for entry in told["operations"]}
    assert str(two) not in (merged / "meta/provenance.json").read_text()


def test_the_plan_says_field_by_field(merged_manifest) -> None:
    text = plan(merged_manifest).text()
    assert "7 episodes, 42 frames, 10 fps, 2 cameras, robot_type toy" in text
    assert "4 of 5 episodes (0, 2-4), 26 frames -> episodes 0-3" in text
    assert "3 of 3 episodes (0-2), 16 frames -> episodes 4-6" in text
    assert "renamed: camera observation.images.hand -> observation.images.wrist" in text
    assert "dropped: ts: the manifest does not keep it" in text
    assert "a: observation.state[0-5] + observation.state[6-7]" in text
    assert "b: observation.state[2-7] + observation.state[0-1]" in text
    assert "observation.state.fps entry: a: none; b: 10 -> not written" in text
    assert "observation.state.names entry: a: list of lists; b: list -> one list" in text
    assert "edited: fold the shirt  -> fold the shirt" in text


def test_jobs_do_not_change_a_byte(merged: Path, merged_manifest, tmp_path: Path) -> None:
    caps = Caps(data_mb=0.0015, video_mb=0.004, files_per_chunk=2)
    prepare(merged_manifest, out=tmp_path / "out", jobs=2, caps=caps)
    assert tree_digest(tmp_path / "out") == tree_digest(merged)


def test_sources_are_not_touched(two: Path, merged_manifest, tmp_path: Path) -> None:
    before = tree_digest(two)
    prepare(merged_manifest, out=tmp_path / "out", videos="link", jobs=1)
    assert tree_digest(two) == before


def test_without_features_all_shared_ones_are_kept_and_lists_are_flattened(
    load, two: Path, tmp_path: Path
) -> None:
    got = prepare(load(f"sources: [{{path: {two}/a}}]"), out=tmp_path / "out", jobs=1)
    assert got.widths == {"observation.state": 8, "action": 4, "ts": 1}
    rows = pq.read_table(next((tmp_path / "out/data").glob("*/*.parquet")))
    assert rows.schema.field("ts").type == pa.int64()
    assert rows.column("ts").to_pylist()[7] == 1_700_000_000_000_001_000


def test_missing_columns_are_derived(load, two: Path, deliveries, tmp_path: Path) -> None:
    root = deliveries.write_delivery(
        tmp_path / "bare",
        deliveries.Delivery(
            version="v2.0", drop_columns=("index", "frame_index", "episode_index", "task_index", "timestamp")
        ),
    )
    got = prepare(load(f"sources: [{{path: {root}}}]"), out=tmp_path / "out", jobs=1)
    assert sum("is missing in all episodes" in note for note in got.notes) == 5
    rows = pq.read_table(next((tmp_path / "out/data").glob("*/*.parquet")))
    assert rows.column("index").to_pylist() == list(range(31))
    assert rows.column("task_index").to_pylist() == [0] * 7 + [1] * 5 + [0] * 9 + [1] * 4 + [0] * 6
    assert rows.column("timestamp").to_pylist()[10] == np.float32(0.3)


def test_prepared_data_can_be_prepared_again(load, merged: Path, tmp_path: Path) -> None:
    text = f"sources: [{{path: {merged}, keep_episodes: [1, 2, 5]}}]"
    got = prepare(load(text), out=tmp_path / "out", jobs=1)
    assert (got.episodes, got.frames) == (3, 9 + 4 + 8)


# A kill leaves no target, and the next run succeeds.


def test_a_failure_in_the_middle_leaves_nothing(
    merged_manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from stack.prepare import run

    def fail(*_: object, **__: object) -> str:
        raise OSError("no such luck")

    monkeypatch.setattr(run, "begin_content_digest", fail)
    with pytest.raises(StackError, match="no such luck"):
        prepare(merged_manifest, out=tmp_path / "out", jobs=1)
    assert [p.name for p in tmp_path.iterdir()] == []
    shutil.rmtree(tmp_path, ignore_errors=True)


def test_whole_features_keep_their_field_table(load, two: Path, tmp_path: Path) -> None:
    """So that what the audit says of the prepared dataset can be answered by field, as for the delivery."""
    text = f"""
sources: [{{path: {two / "a"}}}]
features:
  observation.state: [{{from: observation.state, field: effector/position}}, {{from: observation.state}}]
"""
    out = tmp_path / "out"
    prepare(load(text), out=out, jobs=1)
    fields = read_dataset(out).features["observation.state"].fields
    assert fields["state/effector/position"] == (0, 1)
    assert fields["state/joint/position"] == (2, 3, 4, 5, 6, 7)
