"""The stage that prepares the data goes on after a kill with the files that it had finished."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from stack.files import tree_digest

STAGE = """
import sys, time
from pathlib import Path
from typing import Any, cast
from stack.manifests import load_dataset_manifest
from stack.reproduce.hashing import HashCache
from stack.reproduce.stage import run
from stack.reproduce.stages import Context, make_stage

work, stop_at = Path(sys.argv[1]), sys.argv[2]

def log(line):
    print(line, flush=True)
    if stop_at and line.startswith(stop_at):
        print("stopped", flush=True)
        time.sleep(120)

nothing = cast(Any, None)
loaded = load_dataset_manifest(work / "dataset.yaml")
context = Context(nothing, loaded, nothing, work, work / "run", nothing, HashCache(work / "hashes.json"), log)
result = run(make_stage("prepare", context), context.cache)
print("reused" if result.reused else "done", result.facts["episodes"], result.facts["content_digest"])
"""


def deliveries() -> ModuleType:
    name = "small_deliveries"
    if name not in sys.modules:
        file = Path(__file__).parents[1] / "dataset" / "deliveries.py"
        spec = importlib.util.spec_from_file_location(name, file)
        assert spec is not None and spec.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


@pytest.fixture
def work(tmp_path: Path) -> Path:
    made = deliveries()
    made.write_delivery(tmp_path / "a", made.Delivery(cameras=(("observation.images.head", 32, 32),)))
    (tmp_path / "dataset.yaml").write_text("schema: stack/dataset/1\nname: test\nsources: [{path: a}]\n")
    return tmp_path


def stage(work: Path, *, stop_at: str = "") -> list[str]:
    """The stage's lines; with `stop_at`, it is killed -9 at that line."""
    command = [sys.executable, "-c", STAGE, str(work), stop_at]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            lines.append(line.rstrip("\n"))
            if line == "stopped\n":
                process.kill()
        assert process.wait() == (-9 if stop_at else 0)
    return lines


def test_a_killed_preparation_goes_on(work: Path) -> None:
    before = tree_digest(work / "a")
    stage(work, stop_at="video files")
    (partial,) = [p for p in (work / "run").glob(".prepare.partial-*") if p.is_dir()]
    made = {p.relative_to(partial): p.stat().st_ino for p in partial.rglob("*.mp4")}
    made |= {p.relative_to(partial): p.stat().st_ino for p in partial.glob("data/**/*.parquet")}
    assert len(made) == 2 and not (work / "run/prepare").exists()
    lines = stage(work)
    assert sum(line.endswith("finished by an earlier call") for line in lines) == 2
    assert {name: (work / "run/prepare" / name).stat().st_ino for name in made} == made
    assert sorted(p.name for p in (work / "run").iterdir()) == [
        "prepare",
        "prepare.record",
        "prepare.stage.json",
    ]
    assert lines[-1].startswith("done 5 ")
    assert stage(work)[-1] == lines[-1].replace("done", "reused")
    assert tree_digest(work / "a") == before
