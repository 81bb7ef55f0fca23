"""What the parent of a training writes into its journal, from events that are written here."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from stack.files import write_json
from stack.manifests import load_run_manifest
from stack.tracking.journal import read_journal
from stack.train.figures import ranges_figure
from stack.train.job import Job
from stack.train.record import Recorder, close_journal, open_journal, parameters
from stack.train.result import TrainResult

WINDOW = {
    "loss": 0.5, "lr": 1e-4, "grad_norm": 2.0, "step_s": 0.25, "samples_per_s": 16.0, "data_wait_s": 0.05,
    "data_wait_frac": 0.2, "peak_memory_bytes": 1_000_000,
}  # fmt: skip


@pytest.fixture
def loaded(checkout: Path) -> Any:
    return load_run_manifest(checkout / "manifests" / "runs" / "demo-cpu.yaml")


@pytest.fixture
def job(loaded: Any, tmp_path: Path) -> Job:
    dataset, out = tmp_path / "dataset", tmp_path / "out"
    width = {"dtype": "float32", "shape": [2]}
    camera = {"dtype": "video", "shape": [8, 8, 3]}
    info = {"total_episodes": 4, "total_frames": 200, "fps": 30}
    features = {"observation.state": width, "action": width, "observation.images.head": camera}
    write_json(dataset / "meta" / "info.json", {**info, "features": features})
    own = {"min": [-1.0, -5.0], "max": [1.0, 5.0], "q01": [-1.0, -0.1], "q99": [1.0, 0.1]}
    write_json(dataset / "meta" / "stats.json", {"observation.state": own, "action": own})
    write_json(out / "provenance" / "provenance.json", {
        "revision": "a" * 40, "dirty": True, "version": "1", "line": "production", "image": "site/stack:1",
    })  # fmt: skip
    (out / "provenance" / "lock-production.txt").write_text("torch==2.7.1\n")
    return Job(loaded.manifest, dataset, tmp_path, tmp_path, (), out)


def emit(job: Job, **event: Any) -> None:
    with job.events.open("a") as file:
        file.write(json.dumps({"t": 1, **event}) + "\n")


def of_kind(job: Job, kind: str) -> list[dict[str, Any]]:
    return [record for record in read_journal(job.out / "journal.jsonl") if record["kind"] == kind]


def test_a_resumed_training_says_after_which_step(loaded: Any, job: Job) -> None:
    first = open_journal(loaded, job, None)
    recorder = Recorder(job, first, lambda _: None)
    emit(job, kind="start", step=0, device="cpu")
    emit(job, kind="window", step=10, **WINDOW)
    recorder.poll()
    assert of_kind(job, "resume") == []
    first.close()
    second = open_journal(loaded, job, None)
    recorder = Recorder(job, second, lambda _: None)
    recorder.poll()
    emit(job, kind="start", step=10, device="cpu")
    recorder.poll()
    kinds = [record["kind"] for record in read_journal(job.out / "journal.jsonl")]
    assert kinds.count("metrics") == 1, "what the first attempt's events say is not told again"
    assert [r["step"] for r in of_kind(job, "resume")] == [10] and kinds.count("attempt") == 1


def test_events_become_metrics_under_the_names_of_the_plan(loaded: Any, job: Job) -> None:
    said: list[str] = []
    recorder = Recorder(job, open_journal(loaded, job, None), said.append)
    emit(job, kind="window", step=50, **WINDOW, text="no number", momentum=0.9)
    emit(job, kind="evaluation", step=50, loss=0.75, action_error={"left/joint 1": 0.5})
    emit(
        job, kind="checkpoint", step=50, path="checkpoints/000050", bytes=9, sha256="f" * 64, stopped_s=0.125
    )
    with job.events.open("a") as file:
        file.write('{"t": 1, "kind": "evalua')  # still being written
    recorder.poll()
    with job.events.open("a") as file:
        file.write('tion", "step": 60, "loss": 0.7, "action_error": {}}\n')
    recorder.poll()
    recorder.close()
    window, evaluated, stopped, later, *_ = (record["metrics"] for record in of_kind(job, "metrics"))
    assert window == {
        "train/loss": 0.5, "train/lr": 1e-4, "train/grad_norm": 2.0, "train/momentum": 0.9,
        "perf/step_s": 0.25, "perf/samples_per_s": 16.0, "perf/data_wait_s": 0.05, "perf/data_wait_frac": 0.2,
        "mem/peak_bytes": 1e6, "data/epochs": 50 * 4 / 200,
    }  # fmt: skip
    assert evaluated == {"eval/loss": 0.75, "eval/action_error/left_joint 1": 0.5}
    assert (stopped, later) == ({"perf/checkpoint_stop_s": 0.125}, {"eval/loss": 0.7})
    (checkpoint,) = (r for r in of_kind(job, "event") if r["event"] == "checkpoint")
    assert (checkpoint["step"], checkpoint["bytes"], checkpoint["sha256"]) == (50, 9, "f" * 64)
    assert any("loss 0.5000" in line for line in said)


def test_what_is_filtered_by_and_shown_stands_in_the_journal(
    loaded: Any, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = open_journal(loaded, job, "parent")
    head = of_kind(job, "run")[0]
    tags = {**head["tags"], **{k: v for r in of_kind(job, "tags") for k, v in r["tags"].items()}}
    assert head["parent"] == "parent" and journal.run_id == head["run_id"]
    assert (tags["stack.device"], tags["stack.weights"], tags["stack.dataset"]) == ("cpu", "toy-pi05", "demo")
    assert (tags["stack.image"], tags["stack.line"]) == ("site/stack:1", "production")
    assert tags["stack.git"] == f"{'a' * 40} dirty" and tags["stack.driver"] == "none"
    artifacts = {(r["path"], r["to"]) for r in of_kind(job, "artifact")}
    assert artifacts == {
        ("run.json", ""), ("figures/normalised-ranges.svg", "figures"),
        ("provenance/provenance.json", "provenance"), ("provenance/lock-production.txt", "provenance"),
    }  # fmt: skip
    (params,) = (record["params"] for record in of_kind(job, "params"))
    assert params["train.learning_rate"] == "0.003" and params["data.frames"] == "200"
    assert params["data.action_width"] == "2" and 40 <= len(params) <= 80
    assert not any("digest" in key for key in parameters(loaded.manifest, {"content_digest": "x", "n": 1}))


def test_far_channels_are_red_and_all_are_drawn(job: Job) -> None:
    figure = ranges_figure(job.dataset)
    titles = re.findall(r"fill='(#\w+)'><title>((?:state|action) \d): ([^\s<]+) to ([^\s<]+)<", figure)
    # 2 (v - q01) / (q99 - q01) - 1: -1 and 1 give themselves, -5 and 5 over [-0.1, 0.1] give -50 and 50.
    assert [(name, low, high) for _, name, low, high in titles] == [
        ("state 0", "-1", "1"), ("state 1", "-50", "50"), ("action 0", "-1", "1"), ("action 1", "-50", "50"),
    ]  # fmt: skip
    colours = [colour for colour, *_ in titles]
    assert colours[0] == colours[2] != colours[1] == colours[3]


def test_best_and_last_are_named_with_their_proof(loaded: Any, job: Job) -> None:
    checkpoints = tuple(
        {"step": step, "path": f"checkpoints/{step:06d}", "bytes": step, "sha256": f"{step:064d}"}
        for step in (100, 200, 300)
    )
    windows = ((90, 3.0), (100, 2.0), (200, 0.5), (300, 0.9))
    result = TrainResult(
        "finished", "", steps=300, windows=windows, checkpoints=checkpoints,
        golden={"ok": True, "checked": 1}, weights={"filled_frac": 1.0}, device={"kind": "cpu", "name": "x"},
    )  # fmt: skip
    close_journal(open_journal(loaded, job, None), result, job.out)
    models = of_kind(job, "model")
    assert [(m["step"], m["roles"], m["proof"]["loss"]) for m in models] == [
        (200, ["best"], 0.5), (300, ["last"], 0.9),
    ]  # fmt: skip
    assert models[0]["name"] == "demo-cpu" and models[0]["proof"]["golden"] is True
    assert (job.out / "figures" / "loss.svg").read_text().startswith("<svg")
    assert of_kind(job, "end")[0]["status"] == "FINISHED"
