"""The table as people read it and as a spreadsheet does, the charts, and what is on the cards before."""

from __future__ import annotations

import csv
import io
import xml.etree.ElementTree as ET
from pathlib import Path

from stack.devices.smi import Card, CardProcess
from stack.devices.witness import Use
from stack.sweep import Point, SweepResult
from stack.sweep.advice import Advice
from stack.sweep.before import in_words
from stack.sweep.memory_model import MemoryModel
from stack.sweep.pictures import PictureCost
from stack.sweep.result import Found
from stack.sweep.table import as_csv, charts
from stack.train.preflight import Leftover

GB = 10**9
POINTS = (
    Point(
        1, 2, "ok", 0.529, 3.7, 0.02, int(38.4 * GB), "", 40 * GB, 39 * GB, 61 * GB, None, 42 * GB, "npu-smi",
        310.0,
    ),
    Point(
        1, 4, "ok", 0.705, 5.6, 0.02, int(47.5 * GB), "", 49 * GB, 48 * GB, 61 * GB, 50 * GB, 51 * GB,
        "npu-smi", 330.0,
    ),
    Point(1, 8, "error", message="the process ended by signal 11 (SIGSEGV): it said nothing"),
    Point(1, 16, "oom", message="OutOfMemoryError: NPU out of memory", peak_memory_bytes=int(65.3 * GB)),
)  # fmt: skip
FOUND = Found(1, 4, 8, False, 4, 0.08, MemoryModel(30 * GB, 4.5 * GB, 2, 0.1 * GB), 4)
RESULT = SweepResult(
    POINTS,
    (FOUND,),
    (Advice(1, 4, 8, 32, 5.64, True),),
    PictureCost(0.02, 0.012, 0.004, 0.002, 224, 2, 5_000_000, 1_000_000, {"head": "1280x800 av1"}),
    ("before any point: card 3 (910B3): 3.6 of 68.7 GB in use",),
)


def test_the_storys_table() -> None:
    lines = RESULT.table().splitlines()
    assert lines[0].split("  ")[0] == "devices" and lines[0].endswith("result")
    assert lines[1].split()[:5] == ["1", "2", "2", "0.529", "3.7"]
    assert "38.40 GB" in lines[1] and lines[1].endswith("ok") and "310 W" in lines[1]
    assert "50.00 GB" in lines[2] and "+4.2%" in lines[2]  # predicted 50 of measured 48
    assert lines[3].endswith("crash") and lines[4].endswith("out of memory") and "65.30 GB" in lines[4]
    assert len({line.index("result") for line in lines[:1]}) == 1
    below = "\n".join(lines[5:])
    assert "batch 4 leaves 8% of the memory free, not proven: nothing between it and 8" in below
    assert "batch_per_device 4, accumulation 8: at most 5.640 s/step, 5.7 samples/s (measured)" in below
    assert "80% is the pictures' size" in below and "would save 14.0 ms of it (70%)" in below


def test_columns_that_nobody_filled_are_left_out() -> None:
    plain = SweepResult((Point(1, 4, "ok", 0.5, 8.0, None, GB),)).table()
    assert "power" not in plain and "predicted" not in plain and "reserved" not in plain


def test_csv_has_every_figure() -> None:
    rows = list(csv.DictReader(io.StringIO(as_csv(RESULT))))
    assert [(row["batch"], row["status"]) for row in rows] == [
        ("2", "ok"), ("4", "ok"), ("8", "error"), ("16", "oom"),
    ]  # fmt: skip
    assert float(rows[1]["data_frac"]) == 0.02 / 0.705
    assert int(rows[1]["predicted_bytes"]) == 50 * GB and rows[0]["predicted_bytes"] == ""
    assert rows[0]["device_source"] == "npu-smi" and rows[2]["message"].startswith("the process ended")


def test_charts_show_every_point() -> None:
    drawn = charts(RESULT)
    assert sorted(drawn) == ["sweep-memory.svg", "sweep-model-d1.svg", "sweep-speed.svg"]
    for text in drawn.values():
        ET.fromstring(text)
    for batch in (2, 4, 8, 16):
        assert f"batch {batch}" in drawn["sweep-speed.svg"]
    assert "crash" in drawn["sweep-speed.svg"] and "out of memory at 65.3 GB" in drawn["sweep-memory.svg"]
    assert "memory model" in drawn["sweep-model-d1.svg"] and "margin of 8%" in drawn["sweep-model-d1.svg"]


def test_the_result_survives_a_file(tmp_path: Path) -> None:
    import json

    (tmp_path / "result.json").write_text(json.dumps(RESULT.to_json()))
    assert SweepResult.read(tmp_path) == RESULT


def test_what_others_hold_is_named_before_any_point() -> None:
    mine = Card(
        "5", "910B3", 45 * GB, 64 * GB, health="Warning", processes=(CardProcess(4242, "python3", 41 * GB),)
    )
    words = in_words(
        Use((Card("3", "910B3", 3 * GB, 64 * GB, health="OK"), mine)), [Leftover(99, Path("/old"), True)]
    )
    assert words[0] == "before any point: card 3 (910B3): 3.0 of 64.0 GB in use"
    assert words[1] == "before any point: card 5 (910B3): 45.0 of 64.0 GB in use, health Warning"
    assert "python3 (process 4242, 41.0 GB)" in words[2] and words[2].startswith(
        "warning: others hold memory"
    )
    assert "process 99 in /old has lost its launcher" in words[3]
    (unseen,) = in_words(Use((), "npu-smi is not installed here"), [])
    assert "cannot be seen: npu-smi is not installed here" in unseen
