"""The door: a child process that trains, its result, its journal, its end by a signal."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest

from stack.errors import BadRequest, Exit, StackError
from stack.files import read_json
from stack.tracking.journal import read_journal
from stack.train import TrainResult, lines, train
from stack.train.child import Ended, run_child
from stack.train.launch import _read_result
from stack.train.result import fifths

STEPS = {"steps": 10, "log_every": 2}


@pytest.fixture(scope="module")
def finished(
    toys: Any, world: Any, tmp_path_factory: pytest.TempPathFactory
) -> tuple[TrainResult, Path, list[str]]:
    out = tmp_path_factory.mktemp("finished") / "out"
    said: list[str] = []
    result = train(
        toys.run_manifest(train=STEPS),
        dataset=world.dataset,
        mirror=world.mirror,
        models=world.models,
        out=out,
        parent="0123456789abcdef",
        log=said.append,
    )
    return result, out, said


@pytest.mark.lerobot
def test_the_result_says_everything(finished: Any, toys: Any, world: Any, tmp_path: Path) -> None:
    result, out, said = finished
    assert (result.outcome, result.exit, result.steps, result.world) == ("finished", Exit.OK, 10, 1)
    assert [step for step, _ in result.windows] == [2, 4, 6, 8, 10]
    assert result.windows[0][1] == pytest.approx(sum(result.first_losses[:2]) / 2)
    assert result.first_fifth == pytest.approx(sum(result.first_losses[:2]) / 2)
    assert result.last_fifth == result.final_loss == pytest.approx(sum(result.first_losses[8:]) / 2)
    assert result.last_to_first_fifth == pytest.approx(result.last_fifth / result.first_fifth)
    assert result.samples_per_s == pytest.approx(4 / result.step_s)
    assert 0 <= result.data_wait_s < result.step_s
    assert 200e6 < result.peak_memory_bytes < 4e9
    assert result.weights["filled_frac"] == 1.0 and result.golden == {"ok": True, "checked": 1}
    assert result.stats_proven and result.outside_connections == () and result.nonfinite == 0
    assert result.line == lines.detect_line() and "torch" in result.versions
    assert [c["step"] for c in result.checkpoints] == [10]
    assert (out / result.checkpoints[0]["path"] / "pretrained_model" / "model.safetensors").is_file()
    assert TrainResult.read(out) == result
    assert sum("s/step" in line for line in said) == 5
    # The child computes what this process does: the same numbers, bit for bit.
    _, here = toys.run_here(toys.make_job(world, tmp_path, train=STEPS))
    assert tuple(here.losses) == result.first_losses


@pytest.mark.lerobot
def test_the_journal_tells_the_run(finished: Any, world: Any) -> None:
    result, out, _ = finished
    records = read_journal(out / "journal.jsonl")
    assert records[0]["parent"] == "0123456789abcdef" and records[0]["experiment"] == "stack/train"
    params = {k: v for r in records if r["kind"] == "params" for k, v in r["params"].items()}
    assert 60 <= len(params) <= 80
    # lerobot's presets, as its configuration of pi0.5 has them.
    assert (params["optimizer.type"], params["optimizer.betas"]) == ("AdamW", "0.9 0.95")
    assert (params["optimizer.weight_decay"], params["optimizer.grad_clip_norm"]) == ("0.01", "1.0")
    assert (params["normalisation.state"], params["normalisation.action"]) == ("QUANTILES", "QUANTILES")
    assert float(params["schedule.decay_lr"]) == pytest.approx(0.1 * 0.003)
    assert params["model.trained"] == params["model.parameters"] == str(result.parameters)
    assert params["version.torch"] == result.versions["torch"] and params["data.frames_trained"] == "120"
    mirrored = world.mirror / params["policy.weights"] / "model.safetensors"
    assert hashlib.sha256(mirrored.read_bytes()).hexdigest().startswith(params["weights.sha256"])
    assert len(params["weights.sha256"]) == len(params["tokenizer.sha256"]) == 12
    assert (params["train.learning_rate"], params["policy.action_horizon"], params["toy.width"]) == (
        "0.003",
        "10",
        "64",
    )
    losses = {r["step"]: r["metrics"]["train/loss"] for r in records if "train/loss" in r.get("metrics", {})}
    assert losses == dict(result.windows)
    metrics = {key for r in records for key in r.get("metrics", {})}
    assert metrics >= {"train/lr", "train/grad_norm", "perf/step_s", "perf/samples_per_s", "perf/data_wait_s"}
    assert metrics >= {"mem/peak_bytes", "final_loss", "final_peak_memory_bytes", "final_last_to_first_fifth"}
    data = next(r for r in records if r["kind"] == "dataset")
    assert (data["profile"]["frames"], data["profile"]["cameras"], data["profile"]["action_width"]) == (
        120,
        2,
        16,
    )
    assert len(data["digest"]) == 64 and data["context"] == "training"
    tags = {k: v for r in records if r["kind"] == "tags" for k, v in r["tags"].items()}
    assert tags["stack.outcome"] == "ok" and tags["stack.weights_filled_frac"] == "1.0"
    artifacts = [r["path"] for r in records if r["kind"] == "artifact"]
    figures = ["figures/normalised-ranges.svg", "figures/loss.svg"]
    assert sorted(artifacts) == sorted(["run.json", "result.json", *figures])
    assert all((out / name).is_file() for name in artifacts)
    assert records[-1]["kind"] == "end" and records[-1]["status"] == "FINISHED"


@pytest.mark.lerobot
def test_a_folder_with_a_training_is_not_overwritten(finished: Any, toys: Any, world: Any) -> None:
    _, out, _ = finished
    before = read_json(out / "result.json")
    with pytest.raises(BadRequest, match="checkpoints of a training already"):
        train(
            toys.run_manifest(train=STEPS),
            dataset=world.dataset,
            mirror=world.mirror,
            models=world.models,
            out=out,
        )
    assert read_json(out / "result.json") == before


@pytest.mark.lerobot
def test_an_error_of_the_child_is_the_parents(toys: Any, world: Any, tmp_path: Path) -> None:
    with pytest.raises(StackError, match=r"action_in_proj\.weight") as caught:
        train(
            toys.run_manifest(policy={"max_action_dim": 40}),
            dataset=world.dataset,
            mirror=world.mirror,
            models=world.models,
            out=tmp_path,
            log=lambda _: None,
        )
    assert (caught.value.id, caught.value.exit) == ("weights-do-not-fit", Exit.BAD_REQUEST)
    records = read_journal(tmp_path / "journal.jsonl")
    assert records[-1]["status"] == "FAILED"
    assert any(r.get("event") == "error" and r["id"] == "weights-do-not-fit" for r in records)


@pytest.mark.lerobot
def test_a_signal_saves_and_stops(toys: Any, world: Any, tmp_path: Path) -> None:
    """SIGTERM to the parent: the child ends its step, saves, and the result says how to see it."""
    out = tmp_path / "out"
    run = toys.run_manifest(train={"steps": 5000, "log_every": 1, "save_every": 5000})
    (tmp_path / "run.json").write_text(json.dumps(run.manifest.model_dump(mode="json", by_alias=True)))
    (tmp_path / "models.json").write_text(world.models.model_dump_json(by_alias=True))
    code = f"""
    import json
    from pathlib import Path
    from stack.manifests import Loaded, ModelsManifest, RunManifest
    from stack.train import train
    folder = Path({str(tmp_path)!r})
    run = Loaded(RunManifest.model_validate_json((folder / "run.json").read_text()), folder / "run.yaml")
    models = ModelsManifest.model_validate_json((folder / "models.json").read_text())
    places = dict(dataset=Path({str(world.dataset)!r}), mirror=Path({str(world.mirror)!r}))
    result = train(run, **places, models=models, out=folder / "out", log=lambda _: None)
    raise SystemExit(int(result.exit))
    """
    parent = subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)])
    try:
        _wait_for(
            lambda: (out / "events.jsonl").exists() and "window" in (out / "events.jsonl").read_text(), parent
        )
        parent.send_signal(signal.SIGTERM)
        assert parent.wait(60) == Exit.INTERRUPTED
    finally:
        parent.kill()
    result = TrainResult.read(out)
    assert result.outcome == "stopped" and 1 <= result.steps < 5000
    assert [c["step"] for c in result.checkpoints] == [result.steps]
    assert read_journal(out / "journal.jsonl")[-1]["status"] == "KILLED"
    assert not (out / ".hf-home").exists()


@pytest.mark.lerobot
def test_two_ranks_and_a_way_out_that_is_closed(
    toys: Any, world: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two processes by torch's launcher; in each, a planted library tries to call home.

    One frame is held out: the second rank has none to evaluate, and nobody waits for it.
    """
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("one core")
    planted = """
    import os, sys, threading, time
    def call_home():
        import socket
        while "lerobot" not in sys.modules:
            time.sleep(0.01)
        try:
            socket.create_connection(("192.0.2.1", 443), timeout=5)
        except OSError:
            pass
    if "RANK" in os.environ:
        threading.Thread(target=call_home, daemon=True).start()
    """
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(textwrap.dedent(planted))
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path / 'site'}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    settings = {"holdout": {"episodes": [4], "every": 5, "frames": 1}, "batch_per_device": 2, "steps": 5}
    result = train(
        toys.run_manifest(device={"count": 2}, train={**STEPS, **settings, "workers": 0}),
        dataset=world.dataset,
        mirror=world.mirror,
        models=world.models,
        out=tmp_path / "out",
        log=lambda _: None,
    )
    assert (result.outcome, result.world, result.steps) == ("finished", 2, 5), result.message
    assert [(found["step"], found["frames"]) for found in result.evaluations] == [(5, 1)]
    states = sorted(
        p.name for p in (tmp_path / "out" / "checkpoints" / "last" / "training_state").glob("rng-*")
    )
    assert states == ["rng-0.pt", "rng-1.pt"]
    assert result.outside_connections == ("socket.getaddrinfo 192.0.2.1",) * 2


def test_the_door_needs_no_torch() -> None:
    code = (
        "import sys, stack.train, stack.sweep\n"
        "print([m for m in ('torch', 'lerobot', 'transformers', 'numpy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("ended", "outcome", "said"),
    [
        (Ended(-9, False, False, 1.0, "step 3\n", 1), "oom", "the kernel ended 1 process(es) for it"),
        (Ended(-9, False, False, 1.0, "x\n", 0), "killed", "ended no process for memory meanwhile"),
        (Ended(-9, False, False, 1.0, "x\n"), "killed", "does not tell whether memory ran out"),
        (
            Ended(1, False, False, 1.0, "x\nRuntimeError: NPU out of memory. Tried to allocate 2 GiB\n"),
            "oom",
            "2 GiB",
        ),
        (Ended(-11, False, False, 1.0, "Segmentation fault\n"), "crashed", "signal 11"),
        (Ended(1, False, False, 1.0, ""), "crashed", "it said nothing"),
        (Ended(-15, False, True, 1.0, ""), "stopped", "before its first step"),
    ],
)
def test_a_child_that_left_no_result(tmp_path: Path, ended: Ended, outcome: str, said: str) -> None:
    import types

    from stack.train.hosts import Hosts
    from stack.train.meeting import Meeting

    run = types.SimpleNamespace(device=types.SimpleNamespace(count=1))
    result = _read_result(  # type: ignore[arg-type]
        types.SimpleNamespace(out=tmp_path, run=run), ended, Meeting(Hosts(), print)
    )
    assert result.outcome == outcome and said in result.message
    assert TrainResult.read(tmp_path) == result


def test_children_end_as_they_end(tmp_path: Path) -> None:
    def run(code: str, timeout_s: float | None = None) -> Ended:
        command = [sys.executable, "-c", textwrap.dedent(code)]
        return run_child(command, env=dict(os.environ), output=tmp_path / "out.log", timeout_s=timeout_s)

    ended = run("print('last words'); raise SystemExit(4)")
    assert (ended.returncode, ended.is_timeout, ended.tail.strip()) == (4, False, "last words")
    assert run("import os; os.kill(os.getpid(), 9)").returncode == -9
    started = time.monotonic()
    ended = run("import time; time.sleep(60)", timeout_s=0.3)
    assert ended.is_timeout and ended.returncode == -signal.SIGTERM and time.monotonic() - started < 10


def test_a_childs_own_children_end_with_it(tmp_path: Path) -> None:
    code = """
    import subprocess, sys, time
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    print(child.pid, flush=True); time.sleep(60)
    """
    ended = run_child(
        [sys.executable, "-c", textwrap.dedent(code)],
        env=dict(os.environ),
        output=tmp_path / "log",
        timeout_s=2,
    )
    grandchild = int(ended.tail.split()[0])
    _wait_for(lambda: not _is_alive(grandchild))


def test_fifths() -> None:
    assert fifths([9.0, 1.0, 1.0, 1.0, 3.0]) == (9.0, 3.0)
    assert fifths([4.0, 2.0] + [0.0] * 8 + [1.0, 5.0]) == (3.0, 3.0)
    assert fifths([1.0] * 4) is None


def _is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except OSError:
        return False


def _wait_for(what: Any, process: subprocess.Popen[bytes] | None = None) -> None:
    deadline = time.monotonic() + 90
    while not what():
        assert time.monotonic() < deadline, "waited 90 s"
        assert process is None or process.poll() is None, "it ended before its time"
        time.sleep(0.05)
