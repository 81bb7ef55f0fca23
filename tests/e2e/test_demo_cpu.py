"""`make reproduce`: from two faulty deliveries to a verdict, every part real."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("lerobot")
pytestmark = [pytest.mark.lerobot, pytest.mark.e2e]


def read(path: Path) -> Any:
    return json.loads(path.read_text())


def test_the_run_ends_with_a_verdict_within_band(first: Any, house: Any) -> None:
    assert first.code == 0, first.err[-4000:] + first.out[-4000:]
    assert "verdict of demo-cpu: within band" in first.out
    verdict = read(house.work / "runs" / "demo-cpu" / "verdict.json")
    assert verdict["good"] is True
    assert {row["gate"] for row in verdict["rows"]} == {
        "tree", "inputs", "machine", "data", "load", "first-steps", "curve", "result", "speed",
    }  # fmt: skip
    assert all(row["ok"] for row in verdict["rows"])
    assert "within band" in (house.work / "runs" / "demo-cpu" / "verdict.html").read_text()


def test_the_loss_falls_as_the_manifest_asks(first: Any, house: Any) -> None:
    result = read(house.work / "runs" / "demo-cpu" / "train" / "result.json")
    windows = [loss for _, loss in result["windows"]]
    fifth = len(windows) // 5
    assert sum(windows[-fifth:]) / sum(windows[:fifth]) < 0.75
    assert result["steps"] >= 200 and result["nonfinite"] == 0


def test_the_sweep_has_three_that_fit_and_one_that_ran_out_of_memory(first: Any, house: Any) -> None:
    points = read(house.work / "runs" / "demo-cpu" / "sweep" / "result.json")["points"]
    assert [point["status"] for point in points] == ["ok", "ok", "ok", "oom"]
    for point in points[:3]:
        assert point["step_s"] > 0 and point["samples_per_s"] > 0 and point["peak_memory_bytes"] > 1e8


def test_a_second_call_does_nothing_and_says_so(first: Any, house: Any) -> None:
    before = {p: p.stat().st_mtime_ns for p in (house.work / "runs").rglob("*") if p.is_file()}
    again = house.stack("reproduce", "manifests/runs/demo-cpu.yaml")
    assert again.code == 0
    assert "nothing to do: every stage is up to date" in again.out
    after = {p: p.stat().st_mtime_ns for p in (house.work / "runs").rglob("*") if p.is_file()}
    assert after == before


def test_the_prepared_dataset_is_read_by_lerobot_with_the_right_frames(
    first: Any, house: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every row of every camera: the identity painted into the picture is the one that the row claims."""
    import numpy as np

    monkeypatch.setenv("HF_HOME", str(tmp_path))
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    from stack.demo.faults import CAMERA_KEYS
    from stack.demo.identity import read_identity

    root = house.work / "runs" / "demo-cpu" / "prepare"
    dataset = LeRobotDataset("local/demo", root=root, video_backend="pyav")
    episodes = read(root / "meta" / "provenance.json")["episodes"]
    cameras = sorted(dataset.meta.video_keys)
    assert len(cameras) == 3
    for item in (dataset[i] for i in range(len(dataset))):
        source = episodes[int(item["episode_index"])]
        for camera in cameras:
            picture = (item[camera].permute(1, 2, 0).numpy() * 255).round().astype(np.uint8)
            identity = read_identity(picture)
            assert identity is not None
            assert (identity.episode, identity.frame) == (source["source_episode"], int(item["frame_index"]))
            assert CAMERA_KEYS[identity.camera] == camera
            assert ("demo_task", "demo_task-1")[identity.delivery] == source["source"]


def test_everything_stands_in_mlflow(first: Any, house: Any) -> None:
    os.environ["MLFLOW_DISABLE_TELEMETRY"] = "1"
    from mlflow.tracking import MlflowClient

    from stack.tracking.server import Server

    with Server.start(house.work / "tracking") as server:
        client = MlflowClient(tracking_uri=server.uri)
        experiment = client.get_experiment_by_name("stack/reproduce")
        runs = client.search_runs([experiment.experiment_id])
        by_name = {run.info.run_name: run for run in runs}
        top = by_name["demo-cpu"]
        assert top.data.tags["stack.verdict"] == "within-band"
        assert top.info.status == "FINISHED"
        digest = read(house.work / "runs" / "demo-cpu" / "prepare" / "meta" / "provenance.json")[
            "content_digest"
        ]
        assert [d.dataset.digest for d in top.inputs.dataset_inputs] == [digest[:32]]
        assert {"verdict.html", "verdict.json", "audit.html"} <= {
            artifact.path for artifact in client.list_artifacts(top.info.run_id)
        }
        children = [run for run in runs if run.data.tags.get("mlflow.parentRunId") == top.info.run_id]
        kinds = {run.data.tags["stack.kind"] for run in children}
        assert kinds == {"data", "sweep", "train"}
        data = next(run for run in children if run.data.tags["stack.kind"] == "data")
        assert data.data.metrics["final_frames"] == sum(
            episode["frames"]
            for episode in read(house.work / "runs/demo-cpu/prepare/meta/provenance.json")["episodes"]
        )
        assert "audit.html" in {artifact.path for artifact in client.list_artifacts(data.info.run_id)}
        assert {artifact.path for artifact in client.list_artifacts(top.info.run_id, "figures")} == {
            "figures/loss.svg",
            "figures/normalised-ranges.svg",
            "figures/sweep-memory.svg",
            "figures/sweep-speed.svg",
        }
        last = client.get_model_version_by_alias("demo-cpu", "last")
        assert last.tags["stack.verdict"] == "within-band"
        checkpoint = house.work / "runs/demo-cpu/train" / last.tags["stack.path"]
        assert (checkpoint / "pretrained_model" / "model.safetensors").is_file()
        train = next(run for run in children if run.data.tags["stack.kind"] == "train")
        curve = client.get_metric_history(train.info.run_id, "train/loss")
        result = read(house.work / "runs" / "demo-cpu" / "train" / "result.json")
        assert [(m.step, m.value) for m in curve] == [(s, pytest.approx(v)) for s, v in result["windows"]]
        assert {"perf/samples_per_s"} <= set(train.data.metrics)
        sweep = next(run for run in children if run.data.tags["stack.kind"] == "sweep")
        points = [run for run in runs if run.data.tags.get("mlflow.parentRunId") == sweep.info.run_id]
        assert sorted(run.data.tags["stack.outcome"] for run in points) == ["ok", "ok", "ok", "oom"]


def test_a_changed_learning_rate_trains_again_and_only_that(first: Any, house: Any) -> None:
    call = house.stack(
        "reproduce", "manifests/runs/demo-cpu.yaml", "--dry-run", "--set", "train.learning_rate=1e-3"
    )
    assert call.code == 0 and "learning rate 0.001" in call.out
