"""Deliveries nobody thought of: odd encodings, names, sizes and headers get the right words, and an end."""

from __future__ import annotations

import json
import time
import unicodedata
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import av
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import stack.audit.html
import stack.audit.text
from bench.audit_plants import (
    HAND,
    HEAD,
    INFO,
    TASKS,
    data,
    in_json,
    in_lines,
    in_text,
    over_two_files,
    turned,
    video,
)
from stack.audit import AuditReport, PolicyNeeds, audit
from stack.audit.folding import FEATURES_MOST
from stack.audit.mend import mend
from stack.audit.pictures import Picture, strips
from stack.audit.tracks import VideoTracks, video_tracks

Copy = Callable[[str], Path]


def said(report: AuditReport, code: str) -> str:
    (fault,) = report.of(code)
    return fault.message


def has_ended_well(report: AuditReport) -> None:
    """No check broke off, and what was found can be shown in every form."""
    assert not report.of("unchecked-check"), report.of("unchecked-check")
    json.dumps(report.to_json(), allow_nan=False)
    stack.audit.text.render(report)
    stack.audit.html.render(report)


@pytest.mark.parametrize(
    ("encode", "word"),
    [
        (lambda text: b"\xef\xbb\xbf" + text.encode(), "BOM"),
        (lambda text: text.encode("utf-16"), "decode"),
        (lambda text: b"[" * 100_000, "nested"),
        (
            lambda text: text.replace('"names": null', '"names": ' + "[" * 900 + "]" * 900, 1).encode(),
            "nested",
        ),
    ],
    ids=["byte order mark", "utf-16", "brackets", "nested names"],
)
def test_an_info_json_that_no_loader_takes(
    encode: Callable[[str], bytes], word: str, copy_good: Copy
) -> None:
    root = copy_good("v2.1")
    (root / INFO).write_bytes(encode((root / INFO).read_text()))
    report = audit(root, policy=PolicyNeeds())
    assert word in said(report, "info-not-json")
    has_ended_well(report)


def test_of_a_doubled_key_both_values_are_shown(copy_good: Copy) -> None:
    root = copy_good("v2.1")
    in_text(INFO, '"fps": 10,', '"fps": 30, "fps": 10,')(root)
    report = audit(root)
    assert "'fps' stands 2 times: 30, 10" in said(report, "meta-json-doubtful")
    assert report.facts.fps == json.loads((root / INFO).read_text())["fps"] == 10


def test_nan_among_statistics_is_told_once(copy_good: Copy) -> None:
    root = copy_good("v3.0")
    in_json("meta/stats.json", lambda s: s["action"]["q01"].__setitem__(0, float("nan")))(root)
    report = audit(root)
    assert report.of("stats-not-finite") and not report.of("meta-json-doubtful")


def test_a_name_in_another_unicode_form_or_case_is_pointed_out(copy_good: Copy) -> None:
    """macOS unpacks an accented name in two characters; Windows takes .PARQUET for .parquet."""
    root = copy_good("v2.1")
    name = "observation.images.caméra"
    in_json(INFO, lambda info: info["features"].update({name: info["features"].pop(HEAD)}))(root)
    there = root / "videos/chunk-000" / unicodedata.normalize("NFD", name)
    (root / "videos/chunk-000" / HEAD).rename(there)
    (root / data(1)).rename((root / data(1)).with_suffix(".PARQUET"))
    report = audit(root)
    assert "came\\u0301ra/episode_000000.mp4' is there" in said(report, "camera-without-files")
    assert "episode_000001.PARQUET' is there" in said(report, "file-missing")


def test_a_dataset_one_folder_below_is_pointed_out(good: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "inner").symlink_to(good["v2.1"])
    assert "audit inner, not the folder above" in said(audit(tmp_path), "info-missing")


def test_an_archive_of_windows_is_pointed_out(good: dict[str, Path], tmp_path: Path) -> None:
    for file in sorted(p for p in good["v2.1"].rglob("*") if p.is_file()):
        (tmp_path / str(file.relative_to(good["v2.1"])).replace("/", "\\")).symlink_to(file)
    assert "backslashes" in said(audit(tmp_path), "info-missing")


def test_very_many_features_with_one_fault_are_few_entries(copy_good: Copy) -> None:
    root, many = copy_good("v2.1"), 1000
    table = pq.read_table(root / data(0))
    for number in range(many):
        table = table.append_column(f"x{number:04}", table.column("timestamp"))
    pq.write_table(table, root / data(0))
    report = audit(root)
    found = report.of("column-unknown")
    assert len(found) == FEATURES_MOST and sum(fault.count for fault in found) == many
    whole = found[-1]
    assert f"{many - FEATURES_MOST + 1} features more have the same: x0029, x0030" in whole.message
    assert whole.data["features"] == [f"x{number:04}" for number in range(FEATURES_MOST - 1, many)]
    has_ended_well(report)


def test_texts_of_a_megabyte_do_not_swell_the_report(copy_good: Copy) -> None:
    root, text = copy_good("v2.1"), "抓取 the red cube, " * 60_000
    in_lines(TASKS, lambda lines: lines[0].update(task=text))(root)
    report = audit(root, policy=PolicyNeeds())
    assert report.of("prompt-too-long") and report.of("task-differs")
    assert max(len(fault.message) for fault in report.faults) <= 2100
    assert len(stack.audit.html.render(report)) < 500_000
    assert len(stack.audit.text.render(report)) < 50_000


def test_a_camera_name_of_many_scripts_is_shown_and_used(copy_good: Copy) -> None:
    root, name = copy_good("v2.1"), "observation.images.头部 עברית <b>&\"' {x} %s"
    in_json(INFO, lambda info: info["features"].update({name: info["features"].pop(HAND)}))(root)
    (root / "videos/chunk-000" / HAND).rename(root / "videos/chunk-000" / name)
    in_lines(
        "meta/episodes_stats.jsonl",
        lambda lines: [line["stats"].update({name: line["stats"].pop(HAND)}) for line in lines],
    )(root)
    report = audit(root, policy=PolicyNeeds(), deep=True)
    assert report.ok, report.faults
    assert {camera.name for camera in report.facts.cameras} == {HEAD, name}
    has_ended_well(report)


@pytest.mark.parametrize(
    ("matrix", "turn"),
    [
        ((0, 1, -1, 0), "turned clockwise by 90 degrees"),
        ((-1, 0, 0, -1), "turned clockwise by 180 degrees"),
        ((0, -1, 1, 0), "turned clockwise by 270 degrees"),
        ((-1, 0, 0, 1), "mirrored"),
        ((1, 0, 0, 1), None),
    ],
)
def test_the_matrix_of_a_track_is_read_as_ffmpeg_reads_it(
    matrix: tuple[int, int, int, int], turn: str | None, copy_good: Copy
) -> None:
    root = copy_good("v2.1")
    turned(1, matrix=matrix)(root)
    assert video_tracks(root / video(HAND, 1)) == VideoTracks(1, turn)
    with av.open(str(root / video(HAND, 1))) as container:
        # FFmpeg's angle runs the other way round, from -180 to 180 (libavutil/display.h).
        angle = next(container.decode(video=0)).rotation % 360
    expected = {"mirrored": 0 if matrix[3] > 0 else 180, None: 0}
    assert angle in (expected[turn], 180) if turn in expected else f"by {360 - angle} degrees" in str(turn)


@pytest.mark.usefixtures("in_this_process")
def test_a_picture_far_behind_its_key_frame_is_given_up(
    copy_good: Copy, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = copy_good("v2.1")
    table = pq.read_table(root / data(1))
    rows = np.array(table.column("action").to_pylist(), np.float32)
    rows[40, 2] = np.nan
    array = pa.FixedSizeListArray.from_arrays(pa.array(rows.reshape(-1)), rows.shape[1])
    pq.write_table(table.set_column(table.column_names.index("action"), "action", array), root / data(1))
    report = audit(root)

    def slow(*_: Any) -> Iterator[Any]:
        time.sleep(60)
        yield

    monkeypatch.setattr("stack.dataset.video.decode", slow)
    monkeypatch.setattr("stack.audit.pictures.ONE_S", 0.3)
    started = time.monotonic()
    (strip,), left_out = strips(report, root)
    assert time.monotonic() - started < 10 and left_out == 0
    (picture,) = strip.pictures
    assert isinstance(picture, Picture) and picture.jpeg is None and "key frame" in picture.why


def test_every_short_episode_is_named_and_none_stops_the_training(good: dict[str, Path]) -> None:
    """Of 56, 64, 64 and 80 frames."""
    report = audit(good["v3.0"], policy=PolicyNeeds(action_horizon=65))
    assert [decision.choice for decision in report.decisions] == ["look", "look", "look", "use"]
    page = stack.audit.html.render(report)
    assert "episodes &quot;0-2&quot;, and use or exclude them" in page
    assert "Then train on it" in page and "Audit again" not in page


def test_where_nothing_would_be_left_a_new_delivery_is_asked_for(copy_good: Copy) -> None:
    root = copy_good("v2.1")
    for episode in range(4):
        (root / data(episode)).write_bytes(b"")
    assert "nothing would be left, better ask for a new delivery" in stack.audit.html.render(audit(root))


def test_an_episode_in_two_files_is_mended_as_its_entry_says(copy_good: Copy, tmp_path: Path) -> None:
    root = copy_good("v3.0")
    over_two_files(root)
    assert not audit(root).of("timestamps-off")  # frames go on counting in the second file
    first, second = (root / f"data/chunk-000/file-{n:03d}.parquet" for n in range(2))
    pq.write_table(pa.concat_tables([pq.read_table(first), pq.read_table(second)]), first)
    second.unlink()
    done = mend(root, tmp_path / "mended")
    assert done.ok and not audit(tmp_path / "mended").of("episode-over-files")
