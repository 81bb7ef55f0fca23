"""Datasets against one another: each difference planted in a copy, and two alike that have none."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stack.audit import audit_several
from stack.errors import BadRequest
from stack.faults import Fault

STATE, HAND = "observation.state", "observation.images.hand"
INFO = "meta/info.json"
Change = Callable[[Path], None]
# Each take is another one in the second dataset, so that nothing but the planted difference is left.
OTHER_TAKE = 1.1


def in_info(change: Callable[[Any], None]) -> Change:
    def damage(root: Path) -> None:
        info = json.loads((root / INFO).read_text())
        change(info)
        (root / INFO).write_text(json.dumps(info))

    return damage


def scaled(feature: str, channels: range, factor: float) -> Change:
    def damage(root: Path) -> None:
        for file in sorted(root.glob("data/*/*.parquet")):
            table = pq.read_table(file)
            rows = table.column(feature).to_pylist()
            for row in rows:
                for c in channels:
                    row[c] *= factor
            array = pa.array(rows, table.schema.field(feature).type)
            pq.write_table(table.set_column(table.column_names.index(feature), feature, array), file)

    return damage


def renamed(names: list[str]) -> Change:
    return in_info(lambda info: info["features"]["action"].update(names=names))


def with_task(text: str) -> Change:
    def damage(root: Path) -> None:
        for name in ("tasks", "episodes"):
            file = root / f"meta/{name}.jsonl"
            file.write_text(file.read_text().replace("pick up the cup", text))

    return damage


def float64_actions(root: Path) -> None:
    for file in sorted(root.glob("data/*/*.parquet")):
        table = pq.read_table(file)
        array = pa.array(table.column("action").to_pylist(), pa.list_(pa.float64()))
        pq.write_table(table.set_column(table.column_names.index("action"), "action", array), file)


def narrower(root: Path) -> None:
    in_info(
        lambda info: info["features"]["action"].update(
            shape=[5], names=info["features"]["action"]["names"][:5]
        )
    )(root)
    for file in sorted(root.glob("data/*/*.parquet")):
        table = pq.read_table(file)
        rows = [row[:5] for row in table.column("action").to_pylist()]
        array = pa.array(rows, pa.list_(pa.float32()))
        pq.write_table(table.set_column(table.column_names.index("action"), "action", array), file)


PLANTS: dict[str, tuple[Change, str, str, str | None]] = {
    # code -> damage of the second dataset, severity, who may settle it, feature
    "between-fps-differs": (in_info(lambda i: i.update(fps=12)), "error", "refuses", "fps"),
    "between-robot-type-differs": (
        in_info(lambda i: i.update(robot_type="a2d")), "warning", "with a manifest line", "robot_type",
    ),
    "between-feature-missing": (
        in_info(lambda i: i["features"].pop(HAND)), "error", "with a manifest line", HAND,
    ),
    "between-width-differs": (narrower, "error", "with a manifest line", "action"),
    "between-channel-order-differs": (
        renamed(["joint_1", "joint_0", "joint_2", "joint_3", "joint_4", "gripper"]),
        "error", "with a manifest line", "action",
    ),
    "between-names-differ": (
        renamed(["joint_0", "joint_1", "joint_2", "joint_3", "wrist", "gripper"]),
        "warning", "with a manifest line", "action",
    ),
    "between-dtype-differs": (float64_actions, "note", "settles", "action"),
    "between-entry-differs": (
        in_info(lambda i: i["features"]["action"].update(fps=10)), "note", "settles", "action",
    ),
    "between-task-nearly-equal": (
        with_task("Pick up the cup."), "warning", "with a manifest line", None,
    ),
    "between-units-differ": (
        scaled(STATE, range(6), 57.29578), "error", "refuses", STATE,
    ),
}  # fmt: skip


@pytest.fixture
def two(good: dict[str, Path], tmp_path: Path) -> tuple[Path, Path]:
    a = Path(shutil.copytree(good["v2.1"], tmp_path / "first"))
    b = Path(shutil.copytree(good["v2.1"], tmp_path / "second"))
    scaled(STATE, range(6), OTHER_TAKE)(b)
    return a, b


def between(*roots: Path) -> tuple[Fault, ...]:
    return audit_several(roots).faults


def test_two_of_a_kind_differ_in_nothing(two: tuple[Path, Path]) -> None:
    assert between(*two) == ()


@pytest.mark.parametrize("code", PLANTS)
def test_each_difference_is_found_and_no_other(code: str, two: tuple[Path, Path]) -> None:
    damage, severity, merge, feature = PLANTS[code]
    damage(two[1])
    faults = between(*two)
    assert [f.code for f in faults] == [code], faults
    (fault,) = faults
    assert (fault.severity, fault.data["merge"], fault.where.feature) == (severity, merge, feature)


def test_videos_of_two_sizes(two: tuple[Path, Path], encode_video: Callable[..., None]) -> None:
    import numpy as np

    file = two[1] / f"videos/chunk-000/{HAND}/episode_000001.mp4"
    encode_video(file, [np.full((48, 64, 3), 3 * n, np.uint8) for n in range(64)])
    (fault,) = between(*two)
    assert (fault.code, fault.severity, fault.where.feature) == ("between-video-differs", "error", HAND)
    assert "48x32" in fault.message
    assert "64x48 yuv420p in second (episode 1)" in fault.message


def test_videos_of_two_codecs_are_no_obstacle(two: tuple[Path, Path]) -> None:
    import av

    file = two[1] / f"videos/chunk-000/{HAND}/episode_000001.mp4"
    with av.open(str(file), "w") as container:
        stream = container.add_stream("mpeg4", rate=30)
        stream.width, stream.height, stream.pix_fmt = 48, 32, "yuv420p"
        for _ in range(64):
            container.mux(stream.encode(av.VideoFrame(48, 32, "yuv420p")))
        container.mux(stream.encode(None))
    (fault,) = between(*two)
    assert (fault.code, fault.severity, fault.data["merge"]) == ("between-video-differs", "note", "settles")
    assert "mpeg4" in fault.message and "h264" in fault.message


def test_the_same_take_in_both(two: tuple[Path, Path]) -> None:
    table = pq.read_table(two[0] / "data/chunk-000/episode_000001.parquet")
    other = two[1] / "data/chunk-000/episode_000002.parquet"  # of the same length
    mine = pq.read_table(other)
    for name in (STATE, "action"):
        mine = mine.set_column(mine.column_names.index(name), name, table.column(name))
    pq.write_table(mine, other)
    (fault,) = between(*two)
    assert (fault.code, fault.where.file, fault.where.episode) == ("between-episode-duplicate", "second", 2)
    assert fault.data["of"] == ["first", 1]


@pytest.mark.parametrize("first", [0, 16])
def test_the_same_take_rounded_and_cut(two: tuple[Path, Path], first: int) -> None:
    """A copy that went through text with four decimals, without its first frames."""
    table = pq.read_table(two[0] / "data/chunk-000/episode_000003.parquet").slice(first, 64)
    other = two[1] / "data/chunk-000/episode_000002.parquet"
    mine = pq.read_table(other)
    for name in (STATE, "action"):
        rows = [[round(v, 4) for v in row] for row in table.column(name).to_pylist()]
        array = pa.array(rows, mine.schema.field(name).type)
        mine = mine.set_column(mine.column_names.index(name), name, array)
    pq.write_table(mine, other)
    (fault,) = between(*two)
    assert (fault.code, fault.where.file, fault.where.episode) == ("between-episode-duplicate", "second", 2)
    assert (fault.data["of"], fault.data["lag_frames"], fault.data["frames"]) == (["first", 3], first, 64)


def test_degrees_are_named(two: tuple[Path, Path]) -> None:
    scaled(STATE, range(6), 57.29578)(two[1])
    (fault,) = between(*two)
    assert "second seems to count in degrees" in fault.message
    assert fault.data["factor"] == pytest.approx(57.3 * OTHER_TAKE, rel=0.1)
    assert len(fault.data["channels"]) == 6


def test_one_channel_far_apart_is_a_warning(two: tuple[Path, Path]) -> None:
    scaled("action", range(5, 6), 0.02)(two[1])
    (fault,) = between(*two)
    assert (fault.code, fault.severity) == ("between-units-differ", "warning")
    assert fault.data["channels"] == ["gripper"]


def test_a_joint_that_rests_is_no_other_unit(two: tuple[Path, Path]) -> None:
    """Small motion around a large value: spread 1000 times smaller, magnitude the same."""
    for file in sorted(two[1].glob("data/*/*.parquet")):
        table = pq.read_table(file)
        rows = table.column("action").to_pylist()
        for row in rows:
            row[2] = 0.9 + row[2] * 1e-3
        array = pa.array(rows, table.schema.field("action").type)
        pq.write_table(table.set_column(table.column_names.index("action"), "action", array), file)
    assert between(*two) == ()


def test_versions_of_the_same_recording(good: dict[str, Path]) -> None:
    faults = between(good["v2.1"], good["v3.0"])
    assert {f.code for f in faults} == {"between-version-differs", "between-episode-duplicate"}
    (duplicate,) = [f for f in faults if f.code == "between-episode-duplicate"]
    assert duplicate.count == 4


def test_the_demos_deliveries_differ_as_planted(deliveries: Path) -> None:
    faults = between(*sorted(deliveries.iterdir()))
    entries = [f for f in faults if f.code == "between-entry-differs" and f.data["key"] == "fps"]
    assert entries
    assert all(f.data["merge"] == "settles" for f in entries)
    assert "between-units-differ" not in {f.code for f in faults}


def test_one_dataset_twice_is_refused(good: dict[str, Path]) -> None:
    with pytest.raises(BadRequest, match="two different folders"):
        audit_several([good["v2.1"], good["v2.1"]])


def test_the_command_compares(two: tuple[Path, Path], tmp_path: Path) -> None:
    in_info(lambda i: i.update(fps=12))(two[1])
    out = tmp_path / "report.json"
    done = subprocess.run(
        [sys.executable, "-m", "stack", "audit", *map(str, two), "--json", str(out)],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 1
    assert "between-fps-differs" in done.stdout
    assert "no merge may settle it" in done.stdout
    report = json.loads(out.read_text())
    assert set(report["datasets"]) == {"first", "second"}
    assert [fault["code"] for fault in report["between"]] == ["between-fps-differs"]
