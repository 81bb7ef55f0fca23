"""What a manifest can ask for: episodes by task, casts, cameras by rule, splits, versions."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import av
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stack.dataset.digest import content_digest
from stack.dataset.read import read_dataset
from stack.errors import StackError
from stack.prepare import outline, plan, prepare, summary

HEAD, HAND = "observation.images.head", "observation.images.hand"


@pytest.fixture
def copy(two: Path, tmp_path: Path) -> Path:
    """Both deliveries, free to change."""
    return Path(shutil.copytree(two, tmp_path / "two"))


def refusal(load, text: str) -> StackError:
    with pytest.raises(StackError) as caught:
        plan(load(text))
    return caught.value


def origins(out: Path) -> list[tuple[str, int]]:
    told = json.loads((out / "meta/provenance.json").read_text())
    return [(e["source"], e["source_episode"]) for e in told["episodes"]]


def operations(out: Path) -> list[dict[str, Any]]:
    return json.loads((out / "meta/provenance.json").read_text())["operations"]


def rows(out: Path) -> pa.Table:
    return pa.concat_tables(pq.read_table(f) for f in sorted((out / "data").glob("*/*.parquet")))


def pictures(file: Path) -> list[np.ndarray]:
    with av.open(str(file)) as container:
        return [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]


# Episodes by task.


def test_episodes_by_task(load, two: Path, tmp_path: Path) -> None:
    kept = prepare(
        load(f"sources: [{{path: {two}/a, keep_tasks: [fold the shirt]}}]"), out=tmp_path / "kept", jobs=1
    )
    assert origins(tmp_path / "kept") == [("a", 0), ("a", 2), ("a", 4)] and kept.frames == 22
    prepare(
        load(f"sources: [{{path: {two}/a, exclude_tasks: [fold the shirt], exclude_episodes: [1]}}]"),
        out=tmp_path / "left",
        jobs=1,
    )
    assert origins(tmp_path / "left") == [("a", 3)]
    assert read_dataset(tmp_path / "left").tasks == {0: "把毛巾放进盒子"}


def test_an_episode_counts_for_every_task_of_its_rows(load, copy: Path, deliveries) -> None:
    def change(table: pa.Table) -> pa.Table:
        at = table.column_names.index("task_index")
        return table.set_column(at, "task_index", pa.array([0, 0, 0, 1, 0, 0, 0], pa.int64()))

    deliveries.edit_rows(copy / "a", 0, change)  # episodes.jsonl still lists one task
    made = plan(load(f"sources: [{{path: {copy}/a, keep_tasks: [把毛巾放进盒子]}}]"))
    assert [s.episode.origin.episode for s in made.selection.episodes] == [0, 1, 3]
    made = plan(load(f"sources: [{{path: {copy}/a, exclude_tasks: [把毛巾放进盒子]}}]"))
    assert [s.episode.origin.episode for s in made.selection.episodes] == [2, 4]


def test_tasks_that_do_not_exist_or_leave_nothing(load, two: Path) -> None:
    error = refusal(load, f"sources: [{{path: {two}/a, keep_tasks: [fold the shrt]}}]")
    assert error.id == "prepare-no-such-task" and "did you mean 'fold the shirt'" in error.what
    error = refusal(
        load, f"sources: [{{path: {two}/a, keep_episodes: [1], exclude_tasks: [把毛巾放进盒子]}}]"
    )
    assert error.id == "prepare-no-episodes"


# Renaming and casting.


def test_renamed_features_and_casts(load, two: Path, tmp_path: Path, deliveries) -> None:
    text = f"""
sources: [{{path: {two}/a}}]
features: {{state: [{{from: observation.state}}], action: [{{from: action}}], stamp: [{{from: ts}}]}}
cast: {{state: float64, stamp: uint32}}
"""
    with pytest.raises(StackError) as caught:
        prepare(load(text), out=tmp_path / "out", jobs=1)
    assert caught.value.id == "rows-cast-lossy"
    assert "stamp holds 1700000000000000000 at frame 0, channel 0, which uint32" in caught.value.what
    assert not (tmp_path / "out").exists()
    prepare(load(text.replace("uint32", "float64")), out=tmp_path / "out", jobs=1)
    table = rows(tmp_path / "out")
    assert table.schema.field("state").type == pa.list_(pa.float64(), 8)
    assert table.schema.field("stamp").type == pa.float64()
    assert table.schema.field("action").type == pa.list_(pa.float32(), 4)
    assert table.column("state").to_pylist()[0] == deliveries.state_of(deliveries.Delivery(), 0, 0)
    assert {"do": "cast", "feature": "state", "dtype": "float64"} in operations(tmp_path / "out")


def test_fractions_are_not_cut_off(load, two: Path) -> None:
    error = refusal(load, f"sources: [{{path: {two}/a}}]\ncast: {{action: int32}}")
    assert error.id == "rows-cast-lossy" and "action holds 0.39" in error.what
    assert "frame 0, channel 0" in error.what


def test_a_cast_settles_kinds_that_differ(load, copy: Path, deliveries) -> None:
    def whole(table: pa.Table) -> pa.Table:
        at = table.column_names.index("action")
        return table.set_column(at, "action", pa.array([[1, 2, 3, 4]] * len(table), pa.list_(pa.int64())))

    for episode in range(3):
        deliveries.edit_rows(copy / "b", episode, whole)
    deliveries.edit_info(copy / "b", lambda info: info["features"]["action"].update(dtype="int64"))
    text = f"sources: [{{path: {copy}/a}}, {{path: {copy}/b}}]\nfeatures: {{action: [{{from: action}}]}}\n"
    error = refusal(load, text)
    assert error.id == "prepare-dtype-differs" and "cast: {action: float32}" in error.do
    assert plan(load(text + "cast: {action: float32}\n")).selection.features["action"].dtype == "float32"


def test_a_cast_of_what_is_not_kept(load, two: Path) -> None:
    error = refusal(load, f"sources: [{{path: {two}/a}}]\ncast: {{acton: float64}}")
    assert error.id == "prepare-cast-unfit" and "cast.acton" in error.what


# Cameras by rule.

RULE = """
sources: [{{path: {0}/a}}, {{path: {0}/b}}]
features: {{action: [{{from: action}}]}}
cameras: {{observation.images.head: {{}}, observation.images.hand: {{when_missing: {1}}}}}
"""


@pytest.fixture
def gappy(copy: Path, deliveries) -> Path:
    """`a` lacks the hand camera's file of episode 3, `b` does not know that camera."""
    (copy / f"a/videos/chunk-001/{HAND}/episode_000003.mp4").unlink()
    shutil.rmtree(copy / f"b/videos/chunk-000/{HAND}")
    deliveries.edit_info(copy / "b", lambda info: info["features"].pop(HAND))
    return copy


def test_a_missing_camera_is_refused_without_a_rule(load, gappy: Path) -> None:
    error = refusal(load, RULE.format(gappy, "refuse"))
    assert error.id == "prepare-no-such-camera" and "when_missing: black" in error.do
    error = refusal(load, RULE.format(gappy, "refuse").replace(f", {{path: {gappy}/b}}", ""))
    assert error.id == "prepare-clips-missing" and "when_missing: black" in error.do


def test_a_missing_camera_is_dropped_by_rule(load, gappy: Path, tmp_path: Path) -> None:
    got = prepare(load(RULE.format(gappy, "drop")), out=tmp_path / "out", jobs=1)
    assert got.cameras == (HEAD,) and got.episodes == 8
    assert HAND not in read_dataset(tmp_path / "out").features
    assert "observation.images.hand of a: no video file holds it" in summary(got)


def test_a_missing_camera_is_filled_with_black(load, gappy: Path, tmp_path: Path, deliveries) -> None:
    before = {p: p.stat().st_mtime_ns for p in gappy.rglob("*")}
    got = prepare(load(RULE.format(gappy, "black")), out=tmp_path / "out", jobs=1)
    assert got.cameras == (HEAD, HAND)
    lengths = (7, 5, 9, 4, 6, 3, 8, 5)
    black = {3, 5, 6, 7}
    shown: dict[Path, list[np.ndarray]] = {}
    for episode in read_dataset(tmp_path / "out").episodes:
        clip = episode.clips[HAND]
        seen = shown.setdefault(clip.file, pictures(clip.file))[clip.start : clip.start + clip.count]
        assert len(seen) == lengths[episode.index]
        if episode.index in black:
            assert max(picture.max() for picture in seen) <= 2
        else:
            meant = [deliveries.identity(0, 1, episode.index, f) for f in range(len(seen))]
            assert [deliveries.read_identity(picture) for picture in seen] == meant
    fills = [op for op in operations(tmp_path / "out") if op["do"] == "fill-black"]
    assert [(op["source"], op["episodes"]) for op in fills] == [("a", [3]), ("b", [0, 1, 2])]
    assert any("black pictures" in note for note in got.notes)
    left = {p.name for p in tmp_path.iterdir() if not p.name.endswith(".lock")}
    assert left == {"two", "out", "dataset.yaml"}
    assert before == {p: p.stat().st_mtime_ns for p in gappy.rglob("*")}
    again = prepare(load(RULE.format(gappy, "black")), out=tmp_path / "again", jobs=2)
    assert again.content_digest == got.content_digest


def test_parts_of_a_split_tell_only_what_is_filled_in_them(load, gappy: Path, tmp_path: Path) -> None:
    text = RULE.format(gappy, "black") + "split: {one: ['0-5'], two: rest}\n"
    with pytest.raises(StackError) as caught:
        prepare(load(text), out=tmp_path / "out", jobs=1, replace=True)
    assert caught.value.id == "prepare-split-replace"
    prepare(load(text), out=tmp_path / "out", jobs=1)
    told = {
        name: [
            (op["source"], op["episodes"]) for op in operations(tmp_path / "out" / name) if "fill" in op["do"]
        ]
        for name in ("one", "two")
    }
    assert told == {"one": [("a", [3]), ("b", [0])], "two": [("b", [1, 2])]}
    left = {p.name for p in tmp_path.iterdir() if not p.name.endswith(".lock")}
    assert left == {"two", "out", "dataset.yaml"}


def test_a_filled_plan_can_be_looked_at(load, gappy: Path) -> None:
    text = outline(load(RULE.format(gappy, "black")))
    assert "observation.images.hand: black pictures" in text and "b: episodes 0-2" in text


def test_a_camera_that_nobody_has_is_not_made_up(load, gappy: Path) -> None:
    error = refusal(load, RULE.format(gappy, "black").replace(f"{{path: {gappy}/a}}, ", ""))
    assert error.id == "prepare-camera-nowhere"


# Splits.

SPLIT = "sources: [{{path: {0}/a}}, {{path: {0}/b}}]\nfeatures: {{action: [{{from: action}}]}}\nsplit: {1}\n"


def test_a_split_by_fractions(load, two: Path, tmp_path: Path) -> None:
    got = prepare(load(SPLIT.format(two, "{train: 0.75, val: rest}")), out=tmp_path / "out", jobs=1)
    parts = {part.out.name: part for part in got.parts}
    assert {name: part.episodes for name, part in parts.items()} == {"train": 6, "val": 2}
    assert (got.episodes, got.frames) == (8, 47)
    taken = {name: origins(tmp_path / "out" / name) for name in parts}
    everything = [("a", n) for n in range(5)] + [("b", n) for n in range(3)]
    assert sorted(taken["train"] + taken["val"]) == everything
    assert all(pairs == sorted(pairs) for pairs in taken.values())
    for name, pairs in taken.items():
        root = tmp_path / "out" / name
        dataset = read_dataset(root)
        assert [e.index for e in dataset.episodes] == list(range(len(pairs))) and dataset.notes == ()
        assert content_digest(dataset) == parts[name].content_digest
        values = np.array(rows(root).column("action").to_pylist(), dtype=np.float64)
        stats = json.loads((root / "meta/stats.json").read_text())["action"]
        np.testing.assert_allclose(stats["q99"], np.percentile(values, 99, axis=0), rtol=1e-9)
    assert "part val: 2 episodes" in summary(got)


def test_episodes_in_no_part_are_told(load, two: Path, tmp_path: Path) -> None:
    everything = {("a", n) for n in range(5)} | {("b", n) for n in range(3)}
    for number, split in enumerate(("{x: 0.5, y: 0.25}", "{x: [0, 1, 2, 3], y: [6, 7]}")):
        loaded, out = load(SPLIT.format(two, split)), tmp_path / str(number)
        got = prepare(loaded, out=out, jobs=1)
        left = sorted(everything - {*origins(out / "x"), *origins(out / "y")})
        assert len(left) == 2
        (note,) = [note for note in got.notes if "in no part" in note]
        assert note in outline(loaded) and note in summary(got)
        assert note.startswith("split: 2 of 8 episodes are in no part (")
        assert all(name in note and str(episode) in note for name, episode in left)
    whole = outline(load(SPLIT.format(two, "{x: 0.5, y: rest}")))
    assert "in no part" not in whole


def test_what_fractions_draw_does_not_change(load, two: Path) -> None:
    """By the rule that is written down, worked out here anew."""
    import hashlib

    everything = [("a", n) for n in range(5)] + [("b", n) for n in range(3)]
    drawn = sorted(everything, key=lambda pair: hashlib.sha256(f"{pair[0]}/{pair[1]}".encode()).hexdigest())
    text = outline(load(SPLIT.format(two, "{train: 0.75, val: 0.25}")))
    held = sorted(drawn[6:])
    for source in "ab":
        numbers = [n for name, n in held if name == source]
        if numbers:
            assert f"{source} {numbers[0]}" in text.split("part val")[1]


@pytest.mark.parametrize(
    ("fractions", "counts"),
    [
        ({"x": 0.5, "y": 0.5}, [4, 4]),
        ({"x": 0.34, "y": 0.33, "z": 0.33}, [3, 3, 2]),
        ({"x": 0.98, "y": 0.02}, [7, 1]),
        ({"x": 0.5, "y": 0.25}, [4, 2]),
    ],
)
def test_counts_of_fractions(load, two: Path, fractions: dict[str, float], counts: list[int]) -> None:
    from stack.prepare.split import split_plan

    loaded = load(SPLIT.format(two, json.dumps(fractions)))
    parts = split_plan(plan(loaded), loaded.manifest.split, "")
    assert sorted((len(p.selection.episodes) for p in parts.values()), reverse=True) == counts


def test_a_split_by_episodes(load, two: Path, tmp_path: Path) -> None:
    prepare(load(SPLIT.format(two, "{val: [1, '5-6'], train: rest}")), out=tmp_path / "out", jobs=1)
    assert origins(tmp_path / "out/val") == [("a", 1), ("b", 0), ("b", 1)]
    assert origins(tmp_path / "out/train") == [("a", 0), ("a", 2), ("a", 3), ("a", 4), ("b", 2)]


def test_a_split_by_tasks(load, two: Path, tmp_path: Path) -> None:
    text = SPLIT.format(two, "{fold: {tasks: [fold the shirt]}, other: rest}")
    got = prepare(load(text + 'tasks: {"fold the shirt ": fold the shirt}\n'), out=tmp_path / "out", jobs=1)
    folded = [("a", 0), ("a", 2), ("a", 4), ("b", 0), ("b", 2)]
    assert origins(tmp_path / "out/fold") == folded and got.episodes == 8
    assert origins(tmp_path / "out/other") == [("a", 1), ("a", 3), ("b", 1)]
    assert read_dataset(tmp_path / "out/other").tasks == {0: "把毛巾放进盒子"}


def test_tasks_that_cannot_split(load, copy: Path, deliveries) -> None:
    with pytest.raises(StackError) as caught:
        outline(load(SPLIT.format(copy, "{x: {tasks: [fold]}, y: rest}")))
    assert caught.value.id == "prepare-no-such-task" and "'fold the shirt'" in caught.value.what

    def change(table: pa.Table) -> pa.Table:
        at = table.column_names.index("task_index")
        return table.set_column(at, "task_index", pa.array([0, 0, 0, 1, 0, 0, 0], pa.int64()))

    deliveries.edit_rows(copy / "a", 0, change)
    with pytest.raises(StackError) as caught:
        outline(load(SPLIT.format(copy, "{x: {tasks: [fold the shirt]}, y: {tasks: [把毛巾放进盒子]}}")))
    assert caught.value.id == "prepare-split-overlap"
    assert "episode 0 of the prepared dataset is in split.x and in split.y" in caught.value.what


def test_splits_that_cannot_be(load, two: Path, tmp_path: Path) -> None:
    with pytest.raises(StackError) as caught:
        outline(load(SPLIT.format(two, "{val: [9], train: rest}")))
    assert caught.value.id == "prepare-no-such-episode" and "has 0-7" in caught.value.what
    with pytest.raises(StackError) as caught:
        outline(load(SPLIT.format(two, "{val: ['0-7'], train: rest}")))
    assert caught.value.id == "prepare-split-empty" and "split.train" in caught.value.what
    for bad, told in (
        ("{val: 0.5, train: 0.6}", "add up to 1.1"),
        ("{val: [1], train: [1]}", "in two parts"),
        ("{val: 0.5, train: [1]}", "not by both"),
        ("{val: 0.5, train: {tasks: [x]}}", "not by both"),
        ("{val: {task: [x]}, train: rest}", "did you mean 'tasks'"),
        ("{val: 1, train: rest}", "ambiguous"),
        ("{val: 1.5, train: rest}", "between 0 and 1"),
        ("{val: rest, train: rest}", "only one part"),
    ):
        with pytest.raises(StackError, match=told):
            load(SPLIT.format(two, bad))


# Versions, pictures in rows, and cuts.


def test_v21_is_written_on_request_and_reads_back_the_same(load, two: Path, tmp_path: Path) -> None:
    text = f"sources: [{{path: {two}/a}}]\n"
    new = prepare(load(text), out=tmp_path / "v30", jobs=1)
    old = prepare(load(text + "version: v2.1\n"), out=tmp_path / "v21", jobs=1)
    assert old.content_digest == new.content_digest
    assert read_dataset(tmp_path / "v21").version == "v2.1"
    assert json.loads((tmp_path / "v21/meta/provenance.json").read_text())["operations"][-1] == {
        "do": "write",
        "version": "v2.1",
        "videos": "join",
    }


def test_pictures_in_rows_are_prepared(load, real_datasets: Path, tmp_path: Path) -> None:
    source = real_datasets / "ioai_v21_image"
    text = f"sources: [{{path: {source}}}]\ncameras: {{front: {{from: observation.images.cam}}}}\n"
    got = prepare(load(text + "expect: {cameras: 1, frames: 6}\n"), out=tmp_path / "out", jobs=1)
    assert got.cameras == ("front",)
    given = [
        cell
        for file in sorted(source.glob("data/*/*.parquet"))
        for cell in pq.read_table(file).column("observation.images.cam").to_pylist()
    ]
    assert [cell["bytes"] for cell in rows(tmp_path / "out").column("front").to_pylist()] == given
    stats = json.loads((tmp_path / "out/meta/stats.json").read_text())["front"]
    assert np.ravel(stats["mean"]).tolist() == pytest.approx([0, 100 / 255, 1])
    back = prepare(load(f"sources: [{{path: {tmp_path}/out}}]\nversion: v2.1"), out=tmp_path / "v21", jobs=1)
    assert back.content_digest == got.content_digest


def test_a_camera_in_rows_here_and_in_videos_there(load, real_datasets: Path) -> None:
    paths = ", ".join(f"{{path: {real_datasets / name}}}" for name in ("ioai_v21_image", "ioai_v21_video"))
    error = refusal(load, f"sources: [{paths}]")
    assert (
        error.id == "prepare-camera-kinds"
        and "image in ioai_v21_image, video in ioai_v21_video" in error.what
    )


@pytest.fixture
def packed(load, two: Path, tmp_path: Path) -> Path:
    """A v3.0 dataset with one video file a camera, made from `a`."""
    prepare(load(f"sources: [{{path: {two}/a}}]"), out=tmp_path / "packed", jobs=1)
    return tmp_path / "packed"


def drift(root: Path) -> None:
    for file in (root / "meta/episodes").glob("*/*.parquet"):
        table = pq.read_table(file)
        name = f"videos/{HEAD}/from_timestamp"
        at = table.column_names.index(name)
        later = [value * 1.2 + 0.1 for value in table.column(name).to_pylist()]
        pq.write_table(table.set_column(at, name, pa.array(later)), file)


def test_drifting_clip_starts_are_mended_with_a_note(load, packed: Path, tmp_path: Path) -> None:
    drift(packed)
    got = prepare(load(f"sources: [{{path: {packed}}}]"), out=tmp_path / "out", jobs=1)
    assert any("exactly one frame a row (31)" in note for note in got.notes)
    told = json.loads((packed / "meta/provenance.json").read_text())["content_digest"]
    assert got.content_digest == told


@pytest.mark.parametrize("wrong_s", [9.0, -1.0])
def test_a_clip_start_that_upsets_the_order_is_refused(load, packed: Path, wrong_s: float) -> None:
    """Frames and rows agree, but counting in the order of from_timestamp would shift every episode."""
    for file in (packed / "meta/episodes").glob("*/*.parquet"):
        table = pq.read_table(file)
        name = f"videos/{HEAD}/from_timestamp"
        values = table.column(name).to_pylist()
        values[2] = wrong_s
        pq.write_table(table.set_column(table.column_names.index(name), name, pa.array(values)), file)
    error = refusal(load, f"sources: [{{path: {packed}}}]")
    assert error.id == "prepare-clip-start-differs"
    assert f"episode 2: from_timestamp {wrong_s:g} s is frame" in error.what
    assert "counting does not settle it" in error.what


def test_clip_starts_that_counts_do_not_settle_are_refused(load, packed: Path, deliveries) -> None:
    drift(packed)
    [file] = (packed / "videos" / HEAD).rglob("*.mp4")
    file.unlink()
    deliveries.write_video(file, [deliveries.paint(n, 96, 64) for n in range(33)], 10)
    error = refusal(load, f"sources: [{{path: {packed}}}]")
    assert error.id == "prepare-frames-differ" and "also" not in error.what
    assert "episodes 0-4 of 'packed': the video has 33 frames, its episodes have 31 rows" in error.what
    assert "from_timestamp 0.1 s is frame 1" in error.what
    # All episodes share the file: leaving them out would leave nothing, so that is not proposed.
    assert "exclude_episodes" not in error.do
    # A camera that is not kept asks nothing.
    plan(load(f"sources: [{{path: {packed}}}]\ncameras: {{observation.images.hand: {{}}}}"))


def test_a_cut_off_a_key_frame_is_noted_and_exact(load, packed: Path, tmp_path: Path, deliveries) -> None:
    """One key frame in the whole file: every clip but the first begins off one."""
    [file] = (packed / "videos" / HEAD).rglob("*.mp4")
    shown = pictures(file)
    file.unlink()
    with av.open(str(file), "w") as container:
        stream = container.add_stream(
            "libx264", rate=10, options={"g": "250", "bf": "2", "sc_threshold": "0", "crf": "10"}
        )
        stream.height, stream.width, stream.pix_fmt = 64, 96, "yuv420p"
        for number, picture in enumerate(shown):
            frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
            frame.pts = number
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    got = prepare(
        load(f"sources: [{{path: {packed}, exclude_episodes: [0, 3]}}]"), out=tmp_path / "out", jobs=1
    )
    assert any(f"{HEAD}: all 20 pictures of episodes 1-2, 4 are encoded anew" in note for note in got.notes)
    for episode, (given, length) in zip(
        read_dataset(tmp_path / "out").episodes, ((1, 5), (2, 9), (4, 6)), strict=True
    ):
        clip = episode.clips[HEAD]
        seen = pictures(clip.file)[clip.start : clip.start + clip.count]
        meant = [deliveries.identity(0, 0, given, f) for f in range(length)]
        assert [deliveries.read_identity(picture) for picture in seen] == meant
