"""The mistake of the story must be refused at the audit, and stopped by the guard where it is forced."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytest.importorskip("lerobot")
pytestmark = [pytest.mark.lerobot, pytest.mark.e2e]
RUN = "manifests/runs/demo-unsliced.yaml"


def test_the_audit_refuses_it_and_teaches(house: Any) -> None:
    call = house.stack("reproduce", RUN, "--no-track")
    assert call.code == 1
    text = call.err + call.out
    assert "different at gate 4 (data)" in call.out
    for word in (
        "state-too-wide",
        "action-too-wide",
        "channel-extreme-scale",
        "robot_velocity",
        "joint_current",
    ):
        assert word in text, word
    assert "{from: action, field: joint/position}" in text
    assert not (house.work / "runs" / "demo-unsliced" / "train").exists()


def test_forced_it_is_stopped_by_the_guard_which_names_the_channels(house: Any) -> None:
    call = house.stack("reproduce", RUN, "--force-stage", "train", "--no-track")
    assert call.code == 4, call.err[-3000:]
    assert "robot_velocity" in call.err
    result = json.loads((house.work / "runs" / "demo-unsliced" / "train" / "result.json").read_text())
    assert result["outcome"] == "exploded"
    channels = {culprit["channel"] for culprit in result["culprits"]}
    assert any("robot_velocity" in channel for channel in channels)
    verdict = json.loads((house.work / "runs" / "demo-unsliced" / "verdict.json").read_text())
    assert verdict["good"] is False
