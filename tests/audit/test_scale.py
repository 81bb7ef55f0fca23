"""Scale under lerobot's QUANTILES normalisation, prompts, and the slice that is offered."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from stack.audit import AuditReport, PolicyNeeds, audit
from stack.audit.checks.episodes import padded_share
from stack.audit.checks.policy import discretise
from stack.audit.exact import normalise
from stack.manifests import load_dataset_manifest


@pytest.fixture(scope="module")
def of_delivery(deliveries: Path) -> AuditReport:
    return audit(deliveries / "demo_task", policy=PolicyNeeds(action_horizon=10))


def rows_of(root: Path, name: str) -> list[np.ndarray]:
    files = sorted((root / "data").rglob("*.parquet"))
    return [np.array(pq.read_table(f).column(name).to_pylist(), np.float32) for f in files]


def test_channels_are_named_with_what_they_map_to(deliveries: Path, of_delivery: AuditReport) -> None:
    """Against the rows, by the formula written out with numpy."""
    episodes = rows_of(deliveries / "demo_task", "action")
    pooled = np.concatenate(episodes).astype(np.float64)
    q01, q99 = np.percentile(pooled, [1, 99], axis=0)
    y = np.abs(2 * (pooled - q01) / np.where(q99 == q01, 1e-8, q99 - q01) - 1)
    right = y.max(axis=0)
    (fault,) = [f for f in of_delivery.of("channel-extreme-scale") if f.where.feature == "action"]
    assert fault.severity == "error"
    told = fault.data["channels"]
    assert {int(name.rsplit("[", 1)[1][:-1]) for name in told} == set(np.flatnonzero(right > 30)) == {34, 35}
    for name, largest in told.items():
        assert name.startswith("robot_velocity_")
        assert largest == pytest.approx(right[int(name.rsplit("[", 1)[1][:-1])], rel=1e-3)


def test_the_loss_of_the_worst_chunk_is_what_brute_force_gives(
    deliveries: Path, of_delivery: AuditReport
) -> None:
    horizon = 10
    episodes = rows_of(deliveries / "demo_task", "action")
    pooled = np.concatenate(episodes).astype(np.float64)
    q01, q99 = np.percentile(pooled, [1, 99], axis=0)
    worst = np.zeros(36)
    for rows in episodes:
        y = 2 * (rows - q01) / np.where(q99 == q01, 1e-8, q99 - q01) - 1
        for frame in range(len(rows)):
            chunk = y[np.minimum(np.arange(frame, frame + horizon), len(rows) - 1)]
            worst = np.maximum(worst, (chunk**2).sum(axis=0) / (horizon * 36))
    for channel in of_delivery.channels:
        if channel.feature == "action":
            assert channel.chunk_loss == pytest.approx(worst[channel.index], rel=2e-3), channel.name


def test_the_wide_state_is_refused_with_the_channels_beyond_scale(of_delivery: AuditReport) -> None:
    (fault,) = of_delivery.of("state-too-wide")
    assert fault.data["width"] == 163 and fault.data["limit"] == 32
    currents = [name for name in fault.data["worst"] if name.startswith("joint_current_")]
    assert currents and all(fault.data["worst"][name] > 200 for name in currents)
    assert all(name in fault.message for name in currents)


def test_the_offered_slice_prepares_and_passes(
    deliveries: Path, of_delivery: AuditReport, tmp_path: Path
) -> None:
    """An engineer pastes what the report offers, and the next audit is clean."""
    from stack.prepare import prepare

    shutil.copytree(deliveries, tmp_path / "deliveries")
    offered = of_delivery.of("action-too-wide")[0].mend.split("\n", 1)[1]
    manifest = tmp_path / "dataset.yaml"
    manifest.write_text(
        "schema: stack/dataset/1\nname: mended\nsources:\n"
        "  - {path: deliveries/demo_task, exclude_episodes: [7]}\n  - {path: deliveries/demo_task-1}\n"
        + offered
    )
    prepared = prepare(load_dataset_manifest(manifest), out=tmp_path / "out", jobs=1)
    report = audit(prepared.out, policy=PolicyNeeds(action_horizon=10), deep=True)
    assert report.faults == (), report.faults
    assert report.facts.widths["observation.state"] == report.facts.widths["action"] == 16


def test_without_a_field_table_positions_are_offered(deliveries: Path, tmp_path: Path) -> None:
    root = Path(shutil.copytree(deliveries / "demo_task-1", tmp_path / "no-table"))
    info = json.loads((root / "meta/info.json").read_text())
    for feature in ("observation.state", "action"):
        info["features"][feature].pop("field_descriptions")
    (root / "meta/info.json").write_text(json.dumps(info))
    mend = audit(root, policy=PolicyNeeds()).of("state-too-wide")[0].mend
    assert "- {from: observation.state, at: [28, 42]}" in mend
    assert "- {from: observation.state, at: [0, 2]}" in mend
    assert "- {from: action, at: [16, 30]}" in mend


def test_a_safe_dataset_has_no_channel_beyond_the_limits(good: dict[str, Path]) -> None:
    report = audit(good["v3.0"], policy=PolicyNeeds())
    assert {channel.source for channel in report.channels} == {"stats.json"}
    assert all(1 <= channel.largest < 3 for channel in report.channels)


def test_stored_quantiles_are_what_counts(good: dict[str, Path], tmp_path: Path) -> None:
    """Training reads stats.json, so narrow quantiles there are what explodes."""
    root = Path(shutil.copytree(good["v3.0"], tmp_path / "narrow"))
    stats = json.loads((root / "meta/stats.json").read_text())
    stats["action"]["q01"][0], stats["action"]["q99"][0] = -0.001, 0.001
    (root / "meta/stats.json").write_text(json.dumps(stats))
    report = audit(root, policy=PolicyNeeds())
    (fault,) = report.of("channel-extreme-scale")
    assert fault.severity == "error" and fault.where.channel == "joint_0 [0]"
    assert fault.data["channels"]["joint_0 [0]"] == pytest.approx(1000, rel=0.1)
    assert report.of("stats-quantiles-wrong")


@pytest.mark.lerobot
def test_the_formula_is_lerobots(tmp_path: Path) -> None:
    pytest.importorskip("lerobot")
    import torch
    from lerobot.configs.types import FeatureType, NormalizationMode, PolicyFeature
    from lerobot.processor.normalize_processor import NormalizerProcessorStep

    rng = np.random.default_rng(3)
    values = (rng.normal(size=(50, 5)) * [1, 1e-6, 3000, 1, 1]).astype(np.float32)
    values[:, 3] = 0.25
    q01, q99 = np.percentile(values.astype(np.float64), [1, 99], axis=0)
    q01[4] = q99[4] = 0.0  # exactly 0: the epsilon takes its place
    step = NormalizerProcessorStep(
        features={"action": PolicyFeature(FeatureType.ACTION, (5,))},
        norm_map={FeatureType.ACTION: NormalizationMode.QUANTILES},
        stats={"action": {"q01": q01, "q99": q99}},
    )
    theirs = step._apply_transform(torch.from_numpy(values), "action", FeatureType.ACTION).numpy()
    np.testing.assert_allclose(normalise(values, q01, q99), theirs, rtol=1e-6)


def test_bins_are_those_of_the_prompt() -> None:
    """256 bins over [-1, 1]: counted by hand, not with digitize."""
    for y in (-5.0, -1.0001, -1.0, -0.9999, 0.0, 0.4, 0.9999, 1.0, 812.0):
        edges = [-1 + 2 * k / 256 for k in range(256)]
        by_hand = sum(edge <= y for edge in edges) - 1
        assert discretise(np.array([y], np.float32))[0] == by_hand


@pytest.mark.parametrize("lengths", [[1], [3, 60], [49, 50, 51], [200, 7]])
def test_padded_share_by_brute_force(lengths: list[int]) -> None:
    horizon = 50
    padded = sum(t + k >= n for n in lengths for t in range(n) for k in range(horizon))
    assert padded_share(lengths, horizon) == pytest.approx(padded / (sum(lengths) * horizon))


def test_prompts_are_counted_where_a_tokenizer_is_given(
    copy_good: Callable[[str], Path], tmp_path: Path
) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    # One token a character, so that the right count is the length of the prompt.
    letters = tokenizers.Tokenizer(tokenizers.models.WordLevel({"?": 0}, unk_token="?"))
    letters.pre_tokenizer = tokenizers.pre_tokenizers.Split("", "isolated")
    letters.save(str(tmp_path / "tokenizer.json"))
    root = copy_good("v3.0")
    needs = PolicyNeeds(tokenizer=tmp_path, tokenizer_max_length=100)
    (fault,) = audit(root, policy=needs).of("prompt-too-long")
    assert fault.severity == "error" and fault.count == 2
    # "Task: pick up the cup, State: " and ";\nAction: ", 32 numbers of 1 to 3 digits and 31 spaces.
    fixed = len("Task: pick up the cup, State: ") + len(";\nAction: ")
    assert fixed + 26 * 3 + 31 + 6 <= fault.data["tokens"] <= fixed + 32 * 3 + 31
    assert "counted" in fault.message
    assert not audit(root, policy=PolicyNeeds(tokenizer=tmp_path, tokenizer_max_length=fixed + 130)).of(
        "prompt-too-long"
    )
