"""Sabotage proves the judge: each wrong value must land in its own gate, and a gate left out is no pass."""

from typing import Any

import pytest

from stack.manifests.run import Expect
from stack.reproduce.provenance import collect
from stack.reproduce.report import render_html, render_text
from stack.reproduce.verdict import GATES, Evidence, judge

WEIGHTS = "a" * 64
EXPECT = {
    "audit_errors": 0,
    "data": {"episodes": 19, "fps": 30, "widths": {"action": 16}},
    "machine": {"device": "npu", "count": 8, "model": "910B3", "line": "production"},
    "load": {"filled_frac": 1.0},
    "first_steps": [{"step": 10, "loss": {"min": 1, "max": 2}}],
    "curve": [{"step": 50, "loss": {"min": 0.5, "max": 1}}],
    "result": {"last_to_first_fifth": {"max": 0.75}, "nonfinite": 0},
    "speed": {"step_s": {"max": 1}, "peak_memory_gb": {"max": 4}},
    "sweep": [{"devices": 1, "ok": [2], "oom": [64]}],
    "reference": {"content_digest": "c", "first_losses": [1.5, 1.25], "weights_sha256": WEIGHTS},
}


def good() -> dict[str, Any]:
    return {
        "provenance": {"lock": "l", "installed_lock": "l", "dirty": False, "line": "production"},
        "mirror": {"files": 5, "verified": 5},
        "prepare": {
            "episodes": 19, "frames": 900, "fps": 30.0, "cameras": 3, "widths": {"action": 16},
            "content_digest": "c", "sources": [{"name": "a", "digest": "d" * 64}],
        },
        "audit": {"errors": 0},
        "sweep": {
            "points": [
                {"devices": 1, "batch": 2, "status": "ok"},
                {"devices": 1, "batch": 64, "status": "oom"},
            ]
        },
        "train": {
            "outcome": "finished", "device": {"kind": "npu", "name": "Ascend910B3"}, "world": 8,
            "weights": {"filled_frac": 1.0}, "golden": {"ok": True}, "stats_proven": True,
            "outside_connections": [], "windows": [[10, 1.5], [50, 0.7]], "first_losses": [1.5, 1.25, 1.1],
            "nonfinite": 0, "last_to_first_fifth": 0.5, "final_loss": 0.6, "step_s": 0.8,
            "samples_per_s": 38.0, "peak_memory_bytes": 3e9, "checkpoints": [{"step": 50, "sha256": WEIGHTS}],
        },
    }  # fmt: skip


def verdict(facts: dict[str, Any], expect: dict[str, Any] = EXPECT) -> Any:
    return judge("r", Expect.model_validate(expect), Evidence(**facts))


def test_all_equal_to_the_reference_is_identical() -> None:
    assert verdict(good()).kind == "identical"


def test_uncommitted_changes_are_never_identical() -> None:
    facts = good()
    facts["provenance"]["dirty"] = True
    assert verdict(facts).kind == "within-band"


def test_inside_the_bands_but_not_equal_is_within_band() -> None:
    facts = good()
    facts["train"]["first_losses"] = [1.5, 1.26]
    result = verdict(facts)
    assert (result.kind, result.good, result.tag) == ("within-band", True, "within-band")


@pytest.mark.parametrize(
    ("gate", "room", "key", "value"),
    [
        ("tree", "provenance", "installed_lock", "another"),
        ("inputs", "mirror", "verified", 4),
        ("machine", "train", "device", {"kind": "cpu", "name": "Xeon"}),
        ("machine", "train", "device", {"kind": "npu", "name": "Ascend910B4"}),
        ("machine", "train", "world", 4),
        ("machine", "provenance", "line", "current"),
        ("data", "prepare", "episodes", 20),
        ("data", "prepare", "widths", {"action": 36}),
        ("data", "audit", "errors", 1),
        ("load", "train", "weights", {"filled_frac": 0.99}),
        ("load", "train", "golden", {"ok": False}),
        ("load", "train", "stats_proven", False),
        ("load", "train", "outside_connections", ["1.2.3.4:443"]),
        ("first-steps", "train", "windows", [[10, 2.5], [50, 0.7]]),
        ("first-steps", "train", "windows", [[10, float("nan")], [50, 0.7]]),
        ("curve", "train", "windows", [[10, 1.5], [50, 0.4]]),
        ("result", "train", "nonfinite", 1),
        ("result", "train", "last_to_first_fifth", 0.8),
        ("result", "train", "outcome", "exploded"),
        ("speed", "train", "step_s", 1.1),
        ("speed", "train", "peak_memory_bytes", 5e9),
        ("speed", "sweep", "points", [{"devices": 1, "batch": 2, "status": "ok"},
                                      {"devices": 1, "batch": 64, "status": "ok"}]),
    ],
)  # fmt: skip
def test_each_sabotage_lands_in_its_gate(gate: str, room: str, key: str, value: Any) -> None:
    facts = good()
    facts[room][key] = value
    result = verdict(facts)
    assert (result.kind, result.gate, result.good) == ("different", gate, False)
    assert result.headline == f"different at gate {GATES.index(gate) + 1} ({gate})"


@pytest.mark.parametrize("room", ["mirror", "prepare", "audit", "train", "sweep"])
def test_a_stage_that_did_not_run_is_never_a_pass(room: str) -> None:
    facts = good()
    facts[room] = None
    assert verdict(facts).kind == "cannot-judge"


@pytest.mark.parametrize("section", ["machine", "load", "first_steps", "curve", "result"])
def test_an_expectation_left_out_is_never_a_pass(section: str) -> None:
    expect = {key: value for key, value in EXPECT.items() if key != section}
    result = verdict(good(), expect)
    assert result.kind == "cannot-judge"
    assert result.gate == section.replace("_", "-")


def test_a_failed_gate_outranks_one_that_was_not_judged() -> None:
    facts = good()
    facts["audit"]["errors"], facts["train"] = 2, None
    assert verdict(facts).headline == "different at gate 4 (data)"


def test_the_reports_show_expected_and_got_of_the_failed_row() -> None:
    facts = good()
    facts["prepare"]["episodes"] = 20
    result = verdict(facts)
    text = render_text(result)
    line = next(line for line in text.splitlines() if " episodes " in line)
    assert "19" in line and "20" in line and "FAIL" in line
    assert text.endswith("verdict of r: different at gate 4 (data)")
    page = render_html(result, collect(), {})
    assert "different at gate 4 (data)" in page and "http" not in page
