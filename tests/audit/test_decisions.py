"""What is decided on each episode, and that a faulty delivery is mended by what the report offers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from bench.audit_plants import PLANTS
from stack.audit import AuditReport, PolicyNeeds, audit
from stack.audit.decisions import Decision, choose, fragment, in_ranges
from stack.audit.text import render
from stack.cli import cli
from stack.errors import StackError
from stack.faults import Fault, Place
from stack.manifests import load_dataset_manifest
from stack.prepare import prepare

HEAD, HAND = "observation.images.head", "observation.images.hand"
LENGTHS = (56, 64, 64, 80)


def choices(report: AuditReport) -> dict[int, str]:
    return {decision.episode: decision.choice for decision in report.decisions}


def codes(report: AuditReport, episode: int) -> set[str]:
    (decision,) = [d for d in report.decisions if d.episode == episode]
    return {reason.code for reason in decision.reasons}


def data(root: Path, episode: int) -> Path:
    return root / f"data/chunk-000/episode_{episode:06d}.parquet"


def video(root: Path, camera: str, episode: int) -> Path:
    return root / f"videos/chunk-000/{camera}/episode_{episode:06d}.mp4"


def change(file: Path, name: str, of: Callable[[list], None]) -> None:
    table = pq.read_table(file)
    values = table.column(name).to_pylist()
    of(values)
    field = table.schema.field(name)
    pq.write_table(
        table.set_column(table.column_names.index(name), field, pa.array(values, field.type)), file
    )


def lost_reading(values: list) -> None:
    values[5][2] = float("nan")


def test_good_episodes_are_used(good: dict[str, Path]) -> None:
    for root in good.values():
        report = audit(root, policy=PolicyNeeds(), deep=True)
        assert report.decisions == tuple(Decision(episode, "use") for episode in range(4))


def test_of_the_demo_only_the_aborted_take_is_dropped(deliveries: Path) -> None:
    report = audit(deliveries / "demo_task", policy=PolicyNeeds(action_horizon=10), deep=True)
    assert choices(report) == {e: "drop" if e == 7 else "use" for e in range(12)}
    assert codes(report, 7) == {"rows-not-finite"}
    other = audit(deliveries / "demo_task-1", policy=PolicyNeeds(action_horizon=10), deep=True)
    assert set(choices(other).values()) == {"use"}
    text = render(report)
    assert "episodes: use 11, look 0, drop 1 of 12 episodes" in text
    assert "drop 7: rows-not-finite" in text and "exclude_episodes: [7]" in text


def test_every_place_counts_not_only_the_folded_first_ones(copy_good: Callable[[str], Path]) -> None:
    root = copy_good("v2.1")
    for episode in range(4):
        change(data(root, episode), "observation.state", lost_reading)
        change(data(root, episode), "action", lost_reading)
    assert set(choices(audit(root)).values()) == {"drop"}


@pytest.mark.parametrize(
    ("damage", "code"),
    [
        (lambda root: video(root, HAND, 2).unlink(), "video-missing"),
        (lambda root: data(root, 2).write_bytes(data(root, 2).read_bytes()[:500]), "file-truncated"),
        (lambda root: video(root, HEAD, 2).write_bytes(b""), "file-empty"),
        (lambda root: change(data(root, 2), "action", lost_reading), "rows-not-finite"),
    ],
)
def test_what_only_another_copy_mends_is_dropped(
    damage: Callable[[Path], None], code: str, copy_good: Callable[[str], Path]
) -> None:
    root = copy_good("v2.1")
    damage(root)
    report = audit(root)
    assert choices(report) == {0: "use", 1: "use", 2: "drop", 3: "use"}
    assert code in codes(report, 2)


def test_a_joined_file_of_the_wrong_length_is_looked_at(
    copy_good: Callable[[str], Path], encode_video: Callable[..., None]
) -> None:
    """It does not say which of its episodes lost a frame."""
    root = copy_good("v3.0")
    pictures = [np.full((48, 64, 3), 40 + n, np.uint8) for n in range(LENGTHS[0] + LENGTHS[1] - 1)]
    encode_video(root / f"videos/{HEAD}/chunk-000/file-000.mp4", pictures)
    assert choices(audit(root)) == {0: "look", 1: "look", 2: "use", 3: "use"}


def test_what_prepare_writes_anew_says_nothing_against_an_episode(copy_good: Callable[[str], Path]) -> None:
    root = copy_good("v2.1")
    change(data(root, 1), "timestamp", lambda v: v.__setitem__(slice(None), [t + 0.05 for t in v]))
    change(data(root, 1), "index", lambda v: v.__setitem__(slice(None), [i + 7 for i in v]))
    change(data(root, 2), "frame_index", lambda v: v.__setitem__(slice(None), [i + 1 for i in v]))
    report = audit(root)
    assert {f.code for f in report.faults if f.severity == "error"} >= {"timestamps-off", "index-gaps"}
    assert set(choices(report).values()) == {"use"}
    manifest = root.parent / "m.yaml"
    manifest.write_text(fragment([(report, root)], manifest))
    assert prepare(load_dataset_manifest(manifest), out=root.parent / "out").episodes == 4


def test_what_prepare_refuses_is_dropped(copy_good: Callable[[str], Path]) -> None:
    """A jump may be a lost row, a file that cannot be read has none: the offered manifest leaves both out."""
    root = copy_good("v2.1")
    change(data(root, 1), "frame_index", lambda v: v.__setitem__(3, 99))
    change(data(root, 2), "episode_index", lambda v: v.__setitem__(3, 3))
    content = data(root, 0).read_bytes()
    data(root, 0).write_bytes(content[: len(content) // 2])
    report = audit(root)
    assert choices(report) == {0: "drop", 1: "drop", 2: "drop", 3: "use"}
    manifest = root.parent / "m.yaml"
    manifest.write_text(fragment([(report, root)], manifest))
    assert prepare(load_dataset_manifest(manifest), out=root.parent / "out").episodes == 1


@pytest.mark.parametrize("damage", ["cut", "gone"])
def test_a_lost_row_file_of_several_episodes(damage: str, copy_good: Callable[[str], Path]) -> None:
    """v3.0: what the file held is left out, and the rest is prepared."""
    root = copy_good("v3.0")
    file = root / "data/chunk-000/file-000.parquet"
    content = file.read_bytes()
    file.unlink() if damage == "gone" else file.write_bytes(content[: len(content) // 2])
    report = audit(root)
    assert choices(report) == {0: "drop", 1: "drop", 2: "use", 3: "use"}
    manifest = root.parent / "m.yaml"
    manifest.write_text(fragment([(report, root)], manifest))
    assert prepare(load_dataset_manifest(manifest), out=root.parent / "out").episodes == 2


def test_odd_widths_drop_few_episodes_but_not_most() -> None:
    def of(episodes: list[int]) -> list[str]:
        faults = [Fault("width-differs", "error", "m", "c", "m", Place(None, e)) for e in episodes]
        return [decision.choice for decision in choose(range(4), {}, faults)]

    assert of([1]) == ["use", "drop", "use", "use"]
    assert of([0, 1, 2]) == ["use"] * 4


def test_ranges_are_read_back_by_the_manifest(tmp_path: Path) -> None:
    assert in_ranges([9, 3, 7, 8]) == '3, "7-9"'
    assert in_ranges([1, 2, 5]) == "1, 2, 5"
    own = [0, 1, 2, 4, 10, 11, 12, 13, 40]
    lines = ["schema: stack/dataset/1", "name: x", "sources:", "  - path: y"]
    lines.append(f"    exclude_episodes: [{in_ranges(own)}]")
    (tmp_path / "m.yaml").write_text("\n".join(lines))
    (source,) = load_dataset_manifest(tmp_path / "m.yaml").manifest.sources
    assert list(source.exclude_episodes) == own


def test_hostile_names_stay_in_their_comment(copy_good: Callable[[str], Path], tmp_path: Path) -> None:
    root = copy_good("v2.1")
    info = json.loads((root / "meta/info.json").read_text())
    evil = 'x\nname: stolen\u2028sources: []\r#"'
    info["features"]["action"]["names"][2] = evil
    info["features"]["action"]["names"][0] = evil
    (root / "meta/info.json").write_text(json.dumps(info))
    for episode in range(4):
        change(data(root, episode), "action", lost_reading)
    change(data(root, 3), "action", lambda v: v[10].__setitem__(1, 5000.0))
    report = audit(root, policy=PolicyNeeds())
    assert report.slice
    out = tmp_path / "m.yaml"
    out.write_text(fragment([(report, root)], out), encoding="utf-8")
    manifest = load_dataset_manifest(out, allow_outside=True).manifest
    assert manifest.name == root.name
    assert set(manifest.features or {}) == {"observation.state", "action"}
    assert [s.at for s in (manifest.features or {})["action"]] == [(0, 1), (2, 6)]


def very_faulty(root: Path, encode: Callable[..., None]) -> None:
    """Three broken takes and a sound one, and all the faults that a manifest can mend."""
    change(data(root, 0), "action", lost_reading)
    video(root, HAND, 1).unlink()
    encode(video(root, HEAD, 2), [np.full((48, 64, 3), 40 + n, np.uint8) for n in range(LENGTHS[2] - 3)])
    change(data(root, 3), "timestamp", lambda v: v.__setitem__(slice(None), [1.02 * t + 0.04 for t in v]))
    change(data(root, 3), "index", lambda v: v.__setitem__(slice(None), [i + 7 for i in v]))
    file = root / "meta/info.json"
    info = json.loads(file.read_text())
    info.update(total_frames=9999, total_episodes=77, splits={"train": "0:100"})
    camera = {"dtype": "video", "shape": [48, 64, 3], "names": ["height", "width", "channels"]}
    info["features"]["observation.images.phantom"] = camera
    info["features"][HAND]["info"]["video.codec"] = "av1"
    for feature in info["features"].values():
        feature["fps"] = 10
    file.write_text(json.dumps(info))
    stats = root / "meta/episodes_stats.jsonl"
    lines = [json.loads(line) for line in stats.read_text().splitlines()]
    for line in lines:
        line["stats"][HAND].update(count=[0])
        line["stats"]["observation.state"]["min"] = [line["stats"]["observation.state"]["min"]]
        line["stats"]["observation.state"]["max"][1] += 3
    stats.write_text("".join(json.dumps(line) + "\n" for line in lines))
    for episode in range(4):
        table = pq.read_table(data(root, episode))
        wide = [
            [*row, 4000.0 if (episode, n) == (3, 9) else 0.001 * n]
            for n, row in enumerate(table["action"].to_pylist())
        ]
        if episode == 0:
            wide[5][2] = float("nan")
        array = pa.array(wide, pa.list_(pa.float32(), 7))
        table = table.set_column(table.column_names.index("action"), "action", array)
        pq.write_table(table, data(root, episode))
    info["features"]["action"].update(shape=[7], names=[*info["features"]["action"]["names"], "current"])
    file.write_text(json.dumps(info))


def test_a_faulty_delivery_is_mended_by_what_the_report_offers(
    copy_good: Callable[[str], Path], encode_video: Callable[..., None], tmp_path: Path
) -> None:
    """As a customer's engineer would: audit, take the manifest as it is, prepare, audit again."""
    root = copy_good("v2.1")
    very_faulty(root, encode_video)
    said, page, out = tmp_path / "mend.yaml", tmp_path / "page.html", tmp_path / "mended"
    run = CliRunner().invoke
    first = run(
        cli, ["audit", str(root), "--for", "pi05", "--deep", "--decisions", str(said), "--html", str(page)]
    )
    assert first.exit_code == 1, first.output
    found = {
        line.split()[0] for line in first.output.splitlines() if line.startswith("  ") and line[2:3] != " "
    }
    assert found >= {
        "rows-not-finite", "video-missing", "video-length-differs", "timestamps-off", "index-gaps",
        "totals-lie", "splits-lie", "camera-without-files", "video-codec-differs", "feature-fps-entry",
        "stats-count-zero", "stats-nested", "stats-differ", "channel-extreme-scale",
    }  # fmt: skip
    manifest = load_dataset_manifest(said).manifest
    assert list(manifest.sources[0].exclude_episodes) == [0, 1, 2]
    prepared = run(cli, ["prepare", str(said), "--out", str(out)])
    assert prepared.exit_code == 0, prepared.output
    again = audit(out, policy=PolicyNeeds(), deep=True)
    assert again.ok and again.counts == {"error": 0, "warning": 0, "note": 0}, again.faults
    assert (again.facts.episodes, again.facts.frames) == (1, LENGTHS[3])
    assert again.facts.widths["action"] == 6
    assert f"exclude_episodes: [{in_ranges([0, 1, 2])}]".replace('"', "&quot;") in page.read_text()


def test_the_demo_is_mended_by_what_the_report_offers(deliveries: Path, tmp_path: Path) -> None:
    """Both deliveries at once, as they come."""
    said, out = tmp_path / "mend.yaml", tmp_path / "mended"
    roots = [str(deliveries / name) for name in ("demo_task", "demo_task-1")]
    first = CliRunner().invoke(
        cli, ["audit", *roots, "--for", "pi05", "--action-horizon", "10", "--decisions", str(said)]
    )
    assert first.exit_code == 1, first.output
    prepared = CliRunner().invoke(cli, ["prepare", str(said), "--out", str(out), "--allow-outside"])
    assert prepared.exit_code == 0, prepared.output
    again = audit(out, policy=PolicyNeeds(action_horizon=10))
    assert again.counts == {"error": 0, "warning": 0, "note": 0}, again.faults
    assert again.facts.episodes == 19


@pytest.mark.parametrize(("code", "number"), [("video-not-mp4", 1), ("path-leaves-folder", 2)])
def test_what_no_manifest_mends_is_refused_in_words_or_mended(
    code: str, number: int, copy_good: Callable[[str], Path]
) -> None:
    """A text in place of a video, and a template that asks for a name of a terabyte: never a traceback."""
    plant = PLANTS[code][number]
    root = copy_good(plant.version)
    plant.damage(root)
    report, manifest, out = audit(root), root.parent / "m.yaml", root.parent / "out"
    assert report.of(code)
    manifest.write_text(fragment([(report, root)], manifest))
    try:
        prepare(load_dataset_manifest(manifest), out=out, jobs=1)
    except StackError as error:
        assert error.what and not out.exists()
    else:
        assert audit(out).ok
