"""What really differs or is wrong is refused, with both values and the lines that settle it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pytest

from stack.errors import Exit, StackError
from stack.prepare import plan, prepare


@pytest.fixture
def pair(two: Path, tmp_path: Path) -> Path:
    shutil.copytree(two / "a", tmp_path / "pair/a")
    shutil.copytree(two / "b", tmp_path / "pair/b")
    return tmp_path / "pair"


NAMES = [*(f"j{i}" for i in range(6)), "left", "right"]
PLAIN = "sources: [{{path: {0}/a}}, {{path: {0}/b}}]\n"
BY_FIELD = (
    PLAIN + "features:\n"
    "  observation.state: [{{from: observation.state, field: joint/position}},"
    " {{from: observation.state, field: effector/position}}]\n"
    "  action: [{{from: action}}]\n"
)


def refusal(load, text: str) -> StackError:
    with pytest.raises(StackError) as caught:
        plan(load(text))
    return caught.value


def test_the_good_pair_is_not_refused(load, pair: Path) -> None:
    assert len(plan(load(BY_FIELD.format(pair))).selection.episodes) == 8


def test_channel_names(load, pair: Path) -> None:
    error = refusal(load, PLAIN.format(pair))
    assert error.id == "prepare-names-differ" and error.exit == Exit.BAD_REQUEST
    assert "features.observation.state: channel 0 is 'j0' in a and 'left' in b" in error.what
    assert "observation.state: [{from: observation.state, names: [j0, j1" in error.do, "not by position"


def renamed(deliveries, root: Path, names: list[str]) -> None:
    def change(info: dict) -> None:
        info["features"]["action"]["names"] = names

    deliveries.edit_info(root, change)


@pytest.mark.parametrize(
    ("names", "slices"),
    [
        (["a1", "a0", "a2", "a3"], "names: [a0, a1, a2, a3]"),  # the same ones, elsewhere
        (["grip", "a0", "a1", "a2"], "names: [a0, a1, a2]"),  # some of them, elsewhere
        (["a0", "a1", "a2", "grip"], "at: [0, 4], names: [a0, a1, a2, a3]"),  # nothing elsewhere
        (["x", "y", "z", "grip"], "at: [0, 4], names: [a0, a1, a2, a3]"),  # other words
        (["a1", "a1", "a0", "a2"], "names: [a0, a2]"),  # a name that says nothing
    ],
)
def test_the_proposed_line_gives_no_channel_the_name_of_another(
    load, pair: Path, deliveries, names: list[str], slices: str
) -> None:
    """Pasted, it is accepted, and every channel of both sources holds what its name says."""
    renamed(deliveries, pair / "a", ["a0", "a1", "a2", "a3"])
    renamed(deliveries, pair / "b", names)
    sources = PLAIN.format(pair) + "features:\n"
    state = "  observation.state: [{from: observation.state, field: joint/position}]\n"
    error = refusal(load, sources + state + "  action: [{from: action}]\n")
    line = f"action: [{{from: action, {slices}}}]"
    assert error.id == "prepare-names-differ" and line in error.do
    made = plan(load(f"{sources}{state}  {line}\n"))
    for recipe, own in zip(made.selection.recipes.values(), (["a0", "a1", "a2", "a3"], names), strict=True):
        (take,) = recipe.columns["action"]
        written = made.selection.features["action"].names
        for channel, name in zip(take.channels, written, strict=True):
            assert own[channel] == name or name not in own


def test_lines_for_several_features_stand_under_one_key(load, pair: Path, deliveries) -> None:
    renamed(deliveries, pair / "b", ["a1", "a0", "a2", "a3"])
    error = refusal(load, PLAIN.format(pair))
    assert error.do.count("features:") == 1
    assert "observation.state: [{" in error.do and "\n    action: [{" in error.do


def test_a_slice_without_channels(load, pair: Path) -> None:
    error = refusal(load, PLAIN.format(pair) + "features: {action: [{from: action, names: []}]}\n")
    assert error.id == "manifest-invalid" and "'names' is empty" in error.what


def test_fps(load, pair: Path, deliveries) -> None:
    deliveries.edit_info(pair / "b", lambda info: info.update(fps=20))
    error = refusal(load, BY_FIELD.format(pair))
    assert error.id == "prepare-fps-differs" and "10.0 in a, 20.0 in b" in error.what


def test_robot_type_and_the_line_that_settles_it(load, pair: Path, deliveries) -> None:
    deliveries.edit_info(pair / "b", lambda info: info.update(robot_type="g1"))
    error = refusal(load, BY_FIELD.format(pair))
    assert error.id == "prepare-robot-type-differs" and "toy in a, g1 in b" in error.what
    assert "robot_type: toy" in error.do
    assert plan(load(BY_FIELD.format(pair) + "robot_type: toy\n")).selection.robot_type == "toy"


def test_width(load, pair: Path, deliveries) -> None:
    wide = deliveries.Delivery(number=1, names=NAMES, action=5)
    shutil.rmtree(pair / "b")
    deliveries.write_delivery(pair / "b", wide)
    error = refusal(load, PLAIN.format(pair))
    assert error.id == "prepare-features-differ" and "4 in a, 5 in b" in error.what
    assert "action: [{from: action, at: [0, 4]}]" in error.do


def test_camera_size(load, pair: Path, deliveries) -> None:
    cameras = (("observation.images.head", 128, 64), ("observation.images.hand", 64, 64))
    shutil.rmtree(pair / "b")
    deliveries.write_delivery(pair / "b", deliveries.Delivery(number=1, names=NAMES, cameras=cameras))
    error = refusal(load, PLAIN.format(pair))
    assert error.id == "prepare-camera-differs"
    assert "size differs: 96x64 in a episode 0, 128x64 in b episode 0" in error.what
    shutil.rmtree(pair / "b")
    assert "videos: transcode" in error.do


def test_a_feature_that_one_source_lacks(load, pair: Path, deliveries) -> None:
    deliveries.edit_info(pair / "b", lambda info: info["features"].pop("action"))
    error = refusal(load, BY_FIELD.format(pair))
    assert error.id == "prepare-no-such-feature" and "source 'b' has no feature 'action'" in error.what
    text = PLAIN.format(pair) + "features:\n  s: [{from: observation.state, field: joint/position}]\n"
    assert "action" not in plan(load(text)).selection.features


def test_a_camera_that_one_source_lacks(load, pair: Path, deliveries) -> None:
    deliveries.edit_info(pair / "b", lambda info: info["features"].pop("observation.images.hand"))
    text = BY_FIELD.format(pair)
    assert plan(load(text)).selection.cameras == ("observation.images.head",)
    error = refusal(load, text + "cameras: {observation.images.hand: {}}\n")
    assert error.id == "prepare-no-such-camera" and "source 'b' has no camera" in error.what


def test_fields_and_channels_that_do_not_exist_name_the_nearest(load, pair: Path) -> None:
    text = f"sources: [{{path: {pair}/a}}]\nfeatures:\n  s: [{{from: observation.state, %s}}]\n"
    error = refusal(load, text % "field: joint/positon")
    assert error.id == "prepare-no-such-field" and "did you mean 'state/joint/position'?" in error.what
    error = refusal(load, text % "names: [lefd]")
    assert error.id == "prepare-no-such-channel" and "did you mean 'left'?" in error.what
    error = refusal(load, text % "at: [4, 9]")
    assert error.id == "prepare-slice-outside" and "8 wide" in error.what
    error = refusal(load, text.replace("from: observation.state", "from: action") % "field: joint/position")
    assert error.id == "prepare-no-field-table" and "at: [0, 4]" in error.do


def test_episodes_that_do_not_exist_name_what_exists(load, pair: Path) -> None:
    error = refusal(load, f"sources: [{{path: {pair}/a, exclude_episodes: [2, 9]}}]")
    assert error.id == "prepare-no-such-episode"
    assert "names episode 9, but it has episodes 0-4" in error.what
    error = refusal(load, f"sources: [{{path: {pair}/b, keep_episodes: ['2-4']}}]")
    assert "names episode 3, 4, but it has episodes 0-2" in error.what


def test_a_task_text_that_does_not_exist(load, pair: Path) -> None:
    error = refusal(load, BY_FIELD.format(pair) + "tasks: {fold the shrt: fold}\n")
    assert error.id == "prepare-no-such-task" and "'fold the shirt'" in error.what


def test_nan_names_episode_frame_and_channel_and_only_where_kept(load, pair: Path, deliveries) -> None:
    def spoil(table: pa.Table) -> pa.Table:
        rows = table.column("observation.state").to_pylist()
        rows[3][7] = float("nan")
        rows[4][7] = float("inf")
        at = table.column_names.index("observation.state")
        return table.set_column(at, "observation.state", pa.array(rows, pa.list_(pa.float32())))

    deliveries.edit_rows(pair / "a", 2, spoil)
    source = f"sources: [{{path: {pair}/a%s}}]\n"
    error = refusal(load, source % "")
    assert error.id == "prepare-not-finite"
    assert "nan at episode 2, frame 3, channel 7 ('right'); 2 values" in error.what
    assert "exclude_episodes: [2]" in error.do
    plan(load(source % ", exclude_episodes: [2]"))
    plan(load(source % "" + "features: {s: [{from: observation.state, field: joint/position}]}"))


def test_a_video_with_another_number_of_frames(load, pair: Path, deliveries) -> None:
    file = pair / "a/videos/chunk-000/observation.images.hand/episode_000001.mp4"
    deliveries.write_video(file, [deliveries.paint(n, 64, 64) for n in range(6)], 10)
    for decide in ("", ", decide: {timestamps: restamp}"):
        error = refusal(load, f"sources: [{{path: {pair}/a{decide}}}]")
        assert error.id == "prepare-frames-differ"
        assert "episode 1 of 'a': the video has 6 frames, its episodes have 5 rows" in error.what


def test_clock_timestamps_ask_for_a_decision(load, deliveries, tmp_path: Path) -> None:
    root = deliveries.write_delivery(tmp_path / "clock", deliveries.Delivery(clock_start_s=0.03))
    error = refusal(load, f"sources: [{{path: {root}}}]")
    assert error.id == "prepare-timestamps"
    assert "in 5 of 5 episodes" in error.what and "0.0300 s apart" in error.what
    assert f"- path: {root}\n    decide: {{timestamps: restamp}}" in error.do
    made = plan(load(f"sources:\n  - path: {root}\n    decide: {{timestamps: restamp}}\n"))
    assert "timestamps replaced by frame_index / fps; they were off by up to 0.030 s" in made.text()


def test_half_the_tolerance_is_no_reason_to_ask(load, deliveries, tmp_path: Path) -> None:
    root = deliveries.write_delivery(tmp_path / "clock", deliveries.Delivery(clock_start_s=5e-5))
    plan(load(f"sources: [{{path: {root}}}]"))


def test_a_camera_without_files_asks_for_a_decision(load, pair: Path, deliveries) -> None:
    deliveries.edit_info(
        pair / "a", lambda info: info["features"].update(ghost=info["features"]["observation.images.head"])
    )
    error = refusal(load, f"sources: [{{path: {pair}/a}}]")
    assert (
        error.id == "prepare-camera-missing" and "declares camera 'ghost', but no file holds it" in error.what
    )
    assert "decide: {missing_cameras: drop}" in error.do
    made = plan(load(f"sources:\n  - path: {pair}/a\n    decide: {{missing_cameras: drop}}\n"))
    assert "ghost" not in made.selection.features and "dropped: ghost: no video file holds it" in made.text()
    # A manifest that does not ask for it needs no decision.
    plan(load(f"sources: [{{path: {pair}/a}}]\ncameras: {{observation.images.head: {{}}}}\n"))


def test_a_camera_that_lacks_one_episode_names_it(load, pair: Path) -> None:
    (pair / "a/videos/chunk-001/observation.images.head/episode_000003.mp4").unlink()
    error = refusal(load, f"sources:\n  - path: {pair}/a\n    decide: {{missing_cameras: drop}}\n")
    assert error.id == "prepare-clips-missing" and "1 of 5 episodes: [3]" in error.what
    assert "exclude_episodes: [3]" in error.do


def test_a_task_index_without_text(load, pair: Path, deliveries) -> None:
    (pair / "a/meta/tasks.jsonl").write_text('{"task_index": 0, "task": "only"}\n')
    error = refusal(load, f"sources: [{{path: {pair}/a}}]")
    assert error.id == "rows-task-unknown" and "uses task_index 1" in error.what


def test_shuffled_rows(load, pair: Path, deliveries) -> None:
    deliveries.edit_rows(pair / "a", 0, lambda table: table.take([0, 2, 1, 3, 4, 5, 6]))
    text = f"sources:\n  - path: {pair}/a\n    decide: {{timestamps: restamp}}\n"
    error = refusal(load, text)
    assert error.id == "prepare-frame-order" and "from 0 to 2 at row 1" in error.what


def test_expectations_are_counted_after_planning(load, pair: Path, tmp_path: Path) -> None:
    text = BY_FIELD.format(pair) + "expect: {episodes: 9, frames: 47, widths: {action: 5, extra: 2}}\n"
    with pytest.raises(StackError) as caught:
        prepare(load(text), out=tmp_path / "out", jobs=1)
    error = caught.value
    assert (error.id, error.exit) == ("prepare-expectation", Exit.NOT_GOOD)
    assert "episodes: 9 expected, 8 planned" in error.what and "frames" not in error.what
    assert "widths.action: 5 expected, 4 planned" in error.what
    assert "widths.extra: 2 expected, none planned" in error.what
    assert not (tmp_path / "out").exists()


def test_an_existing_target_is_refused_before_work(load, pair: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("keep")
    with pytest.raises(StackError) as caught:
        prepare(load(BY_FIELD.format(pair)), out=tmp_path / "out")
    assert caught.value.id == "target-exists" and "--replace" in caught.value.do


def test_all_problems_are_told_at_once(load, pair: Path, deliveries) -> None:
    deliveries.edit_info(pair / "b", lambda info: info.update(robot_type="g1", fps=20))
    error = refusal(load, BY_FIELD.format(pair))
    assert "fps differs" in error.what and "also[prepare-robot-type-differs]" in error.what


def test_two_sources_of_one_name(load, pair: Path) -> None:
    error = refusal(load, f"sources: [{{path: {pair}/a}}, {{path: {pair}/b, name: a}}]")
    assert error.id == "prepare-source-names"


def test_a_field_that_stands_elsewhere_than_the_manifest_pins(load, pair: Path) -> None:
    """In a the joints stand at [0, 6), in b at [2, 8): pinned, the layouts cannot be mixed by mistake."""
    text = BY_FIELD.format(pair).replace("field: joint/position}", "field: joint/position, at: [0, 6]}")
    error = refusal(load, text)
    assert error.id == "prepare-field-moved" and "stands at [2, 8] in source 'b', not at [0, 6]" in error.what
    assert plan(load(text.replace(f", {{path: {pair}/b}}", ""))).selection.episodes


def pasted(error: StackError) -> str:
    """The lines of a refusal that go into the manifest."""
    block = error.do.split("in the manifest:\n", 1)[1]
    assert block.count("sources:") == 1
    return block


def test_all_decisions_come_as_one_block_that_can_be_pasted(load, deliveries, tmp_path: Path) -> None:
    """Two questions of one source, one of another, with a path that YAML would not take as it is."""
    odd = deliveries.write_delivery(tmp_path / "odd: #1 抓", deliveries.Delivery(clock_start_s=0.03))
    head = "observation.images.head"
    deliveries.edit_info(odd, lambda info: info["features"].update(ghost=info["features"][head]))
    gappy = deliveries.write_delivery(tmp_path / "gappy", deliveries.Delivery(number=1, clock_start_s=0.03))
    for episode in (2, 3):
        (gappy / f"videos/chunk-00{episode // 3}/{head}/episode_00000{episode}.mp4").unlink()
    text = f"sources: [{{path: '{odd}'}}, {{path: {gappy}, exclude_episodes: [0]}}]\n"
    error = refusal(load, text.replace(f", {{path: {gappy}, exclude_episodes: [0]}}", ""))
    assert "decide: {missing_cameras: drop, timestamps: restamp}" in pasted(error)
    assert len(plan(load(pasted(error))).selection.episodes) == 5
    error = refusal(load, text)
    block = pasted(error)
    assert block.count("decide:") == 2 and 'exclude_episodes: [0, "2-3"]' in block
    made = plan(load(block))
    assert [len(source.episodes) for source in made.sources] == [5, 2]


def test_what_several_episodes_suffer_is_one_list(load, pair: Path, deliveries) -> None:
    def spoil(table: pa.Table) -> pa.Table:
        state = table.column("action").to_pylist()
        state[1][0] = float("nan")
        at = table.column_names.index("action")
        return table.set_column(at, "action", pa.array(state, pa.list_(pa.float32())))

    for episode in (1, 2, 4):
        deliveries.edit_rows(pair / "a", episode, spoil)
    error = refusal(load, f"sources: [{{path: {pair}/a}}]")
    assert error.what.count("prepare-not-finite") == 2
    assert 'exclude_episodes: ["1-2", 4]' in pasted(error) and error.do.count("exclude the episode") == 1
    assert len(plan(load(pasted(error))).selection.episodes) == 2


def test_a_name_for_two_things_or_for_none(load, pair: Path) -> None:
    """A camera of a feature's name would hide it; a name with a path in it would lead out of the folder."""
    head = "observation.images.head"
    error = refusal(load, f"sources: [{{path: {pair}/a}}]\nfeatures: {{{head}: [{{from: action}}]}}\n")
    assert error.id == "prepare-name-twice" and head in error.what
    feature = "features: {c: [{from: action}]}\n"
    for text in (
        f"{feature}cameras: {{c: {{from: {head}}}}}\n",
        f"cameras: {{a/b: {{from: {head}}}}}\n",
        f"cameras: {{../../../away: {{from: {head}}}}}\n",
        f"cameras: {{..: {{from: {head}}}}}\n",
        f'cameras: {{"a\\0b": {{from: {head}}}}}\n',
        'features: {".": [{from: action}]}\n',
    ):
        with pytest.raises(StackError) as caught:
            load(f"sources: [{{path: {pair}/a}}]\n{text}")
        assert caught.value.exit == Exit.BAD_REQUEST and ":" in caught.value.where


@pytest.mark.parametrize("text", ['""', '"  "'])
def test_a_task_without_words(load, pair: Path, text: str) -> None:
    error = refusal(load, BY_FIELD.format(pair) + f"tasks: {{fold the shirt: {text}}}\n")
    assert error.id == "manifest-invalid" and "'fold the shirt' would become an empty text" in error.what
