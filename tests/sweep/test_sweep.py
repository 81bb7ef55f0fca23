"""Points in processes of their own: one that fits, one that really runs out of memory, and the others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stack.errors import BadRequest, Exit
from stack.sweep import Point, SweepResult, sweep
from stack.sweep.judge import judge
from stack.tracking.journal import read_journal, read_run_id
from stack.train.child import Ended

LIMITED = {"devices": 1, "batches": [64, 2], "memory_limit_mb": 250}


def measure(
    toys: Any, world: Any, out: Path, sweep_section: dict[str, Any], **changes: Any
) -> tuple[Any, list[str]]:
    said: list[str] = []
    result = sweep(
        toys.run_manifest(sweep=sweep_section, **changes),
        dataset=world.dataset,
        mirror=world.mirror,
        models=world.models,
        out=out,
        log=said.append,
    )
    return result, said


@pytest.fixture(scope="module")
def swept(
    toys: Any, world: Any, tmp_path_factory: pytest.TempPathFactory
) -> tuple[SweepResult, Path, list[str]]:
    out = tmp_path_factory.mktemp("sweep") / "out"
    groups = [LIMITED, {"devices": 4096, "batches": [1]}]
    result, said = measure(toys, world, out, {"groups": groups, "warmup_steps": 1, "timed_steps": 3})
    return result, out, said


@pytest.mark.lerobot
def test_out_of_memory_is_real_and_does_not_touch_the_next_point(swept: Any) -> None:
    result, out, _ = swept
    big, small, absent = result.points
    assert (big.status, big.step_s) == ("oom", None)
    assert "allocate" in big.message
    assert (small.status, small.message) == ("ok", "")
    assert small.step_s is not None and small.samples_per_s == pytest.approx(2 / small.step_s)
    assert 0 < small.data_wait_s < small.step_s
    # The limit held: neither went further than it beyond the loaded policy, and the large one got further.
    assert small.peak_memory_bytes < big.peak_memory_bytes < small.peak_memory_bytes + 250e6
    assert absent.status == "unavailable" and "4096 cpu devices are asked for" in absent.message
    assert result.largest_ok == {1: 2, 4096: None}
    assert result.exit == Exit.OK
    assert SweepResult.read(out) == result


@pytest.mark.lerobot
def test_the_table(swept: Any) -> None:
    result, _, said = swept
    lines = said[-1].splitlines()
    assert [line.split()[:3] for line in lines[1:4]] == [
        ["1", "64", "64"],
        ["1", "2", "2"],
        ["4096", "1", "4096"],
    ]
    assert lines[1].endswith("out of memory") and lines[2].endswith("ok") and lines[3].endswith("unavailable")
    assert f"{result.points[1].step_s:.3f}" in lines[2] and "GB" in lines[2]
    assert "largest batch that fits on 1 device(s): 2" in said[-1]


@pytest.mark.lerobot
def test_a_parent_journal_and_one_for_each_point(swept: Any) -> None:
    _, out, _ = swept
    parent = read_journal(out / "journal.jsonl")
    assert parent[0]["experiment"] == "stack/sweep" and parent[-1]["status"] == "FINISHED"
    params = {k: v for r in parent if r["kind"] == "params" for k, v in r["params"].items()}
    assert params["largest_ok.1_devices"] == "2"
    ends = {}
    for folder in ("d1-b64", "d1-b2", "d4096-b1"):
        records = read_journal(out / "points" / folder / "journal.jsonl")
        assert records[0]["parent"] == read_run_id(out / "journal.jsonl")
        ends[folder] = (records[0]["tags"]["stack.outcome"], records[-1]["status"])
    assert ends == {
        "d1-b64": ("oom", "FAILED"),
        "d1-b2": ("ok", "FINISHED"),
        "d4096-b1": ("unavailable", "FAILED"),
    }
    metrics = [
        r["metrics"] for r in read_journal(out / "points/d1-b2/journal.jsonl") if r["kind"] == "metrics"
    ]
    assert metrics[0].keys() >= {"final_step_s", "final_samples_per_s", "final_peak_memory_bytes"}
    # One point ran, so it is the fastest, and the sweep's own row shows it.
    shown = {k: v for r in parent if r["kind"] == "metrics" for k, v in r["metrics"].items()}
    assert shown["final_samples_per_s"] == metrics[0]["final_samples_per_s"]
    assert (params["devices"], params["batch"]) == ("1", "2")


@pytest.mark.lerobot
def test_an_error_is_not_out_of_memory(toys: Any, world: Any, tmp_path: Path) -> None:
    groups = {"groups": [{"devices": 1, "batches": [2]}]}
    result, _ = measure(toys, world, tmp_path, groups, policy={"max_action_dim": 8})
    assert [(p.status, p.message.split(":")[0]) for p in result.points] == [("error", "policy-too-narrow")]
    assert result.exit == Exit.WORK_FAILED and result.largest_ok == {1: None}
    assert read_journal(tmp_path / "journal.jsonl")[-1]["status"] == "FAILED"


@pytest.mark.lerobot
def test_a_point_that_takes_too_long(toys: Any, world: Any, tmp_path: Path) -> None:
    groups = {"groups": [{"devices": 1, "batches": [2]}], "timeout_s": 0.5}
    result, _ = measure(toys, world, tmp_path, groups)
    assert [(p.status, p.message) for p in result.points] == [
        ("timeout", "not done after 0.5 s; no step(s) were done")
    ]


@pytest.mark.parametrize(
    ("ended", "status"),
    [
        (Ended(-9, False, False, 1.0, "", kernel_kills=1), "oom"),
        (Ended(-9, False, False, 1.0, "", kernel_kills=0), "error"),
        (
            Ended(-6, False, False, 1.0, "terminate called after throwing an instance of 'std::bad_alloc'"),
            "oom",
        ),
        (Ended(1, False, False, 1.0, "RuntimeError: NPU out of memory. Tried to allocate 2.00 GiB"), "oom"),
        (Ended(-11, False, False, 1.0, ""), "error"),
        (Ended(1, False, False, 1.0, "ImportError: no"), "error"),
    ],
)
def test_children_that_left_no_word(tmp_path: Path, ended: Ended, status: str) -> None:
    """The kernel ends a process that took too much with signal 9, and nothing else is left."""
    point = judge(tmp_path, Point(1, 8, "error"), ended, 60.0)
    assert (point.status, point.batch) == (status, 8) and point.message


def test_manifests_that_cannot_be_swept(tmp_path: Path) -> None:
    from stack.manifests import Loaded, ModelsManifest, RunManifest

    raw = {
        "schema": "stack/run/1",
        "name": "x",
        "purpose": "x",
        "dataset": "d",
        "models": "m",
        "mirror": "m",
        "policy": {
            "type": "pi05",
            "weights": "w",
            "tokenizer": "t",
            "action_horizon": 10,
            "dtype": "float32",
        },
        "device": {"kind": "cpu"},
        "train": {"steps": 2, "batch_per_device": 1, "global_batch": 1, "save_every": 2},
        "expect": {},
    }
    models = ModelsManifest.model_validate(
        {
            "schema": "stack/models/1",
            "models": {
                "w": {"kind": "weights", "origin": {"demo": "w"}, "licence": "x", "files": [{"path": "a"}]}
            },
        }
    )

    def run(section: Any) -> None:
        loaded = Loaded(RunManifest.model_validate({**raw, "sweep": section}), tmp_path / "run.yaml")
        sweep(
            loaded, dataset=tmp_path, mirror=tmp_path, models=models, out=tmp_path / "out", log=lambda _: None
        )

    with pytest.raises(BadRequest, match="no 'sweep:'"):
        run(None)
    doubled = [{"devices": 1, "batches": [2, 4]}, {"devices": 1, "batches": [4]}]
    with pytest.raises(BadRequest, match=r"batch 4 on 1 device\(s\) is named twice"):
        run({"groups": doubled})
    assert not (tmp_path / "out").exists()


def test_result_as_json_is_whole(tmp_path: Path) -> None:
    result = SweepResult((Point(1, 4, "ok", 0.5, 8.0, 0.1, 7, ""), Point(8, 4, "oom", message="no")))
    raw = json.loads(json.dumps(result.to_json()))
    assert raw["points"][1]["global_batch"] == 32 and raw["largest_ok"] == {"1": 4, "8": None}
