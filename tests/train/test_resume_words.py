"""A training that is stopped says how it is gone on with, and a resume finds what was written before."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

CODE = """
import stack.train
import stack.cli.runs as runs
from pathlib import Path
from types import SimpleNamespace
from stack.train import TrainResult

def stopped(*_arguments, out, resume, **_named):
    (out / "checkpoints").mkdir(parents=True, exist_ok=True)
    print("OUT", out, resume)
    return TrainResult("stopped", "stopped after step 3 of 9, saved; go on with --resume", steps=3)

stack.train.train = stopped
manifests = SimpleNamespace(manifest=None)
context = SimpleNamespace(folder=Path("w"), mirror=Path("m"), models=manifests, record_provenance=print)
runs._open_run = lambda *_arguments: (None, context)
from stack.cli import main
main()
"""


def call(cwd: Path, *arguments: str) -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, "-c", CODE, "train", *arguments], cwd=cwd, capture_output=True, text=True
    )
    (out,) = [line for line in done.stdout.splitlines() if line.startswith("OUT ")]
    return done.returncode, out, done.stderr.splitlines()[-1]


def test_the_command_to_go_on_with(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text("")
    code, out, said = call(tmp_path, "run.yaml", "--set", "train.seed=3", "--out", "my out")
    assert (code, out) == (130, "OUT my out False")
    assert said == "interrupted; go on with: stack train run.yaml --set train.seed=3 --out 'my out' --resume"


def test_a_resume_without_a_folder_takes_the_newest(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text("")
    code, out, said = call(tmp_path, "run.yaml")
    first = out.split()[1]
    assert (code, out) == (130, f"OUT {first} False") and first.startswith("w/train-2")
    assert said == f"interrupted; go on with: stack train run.yaml --resume --out {first}"
    (tmp_path / "w" / "train-20200101-000000").mkdir()
    (tmp_path / "w" / "train").mkdir()  # a stage's, which `stack reproduce` looks after
    _, out, said = call(tmp_path, "run.yaml", "--resume")
    assert out == f"OUT {first} True"
    assert said == "interrupted; go on with: stack train run.yaml --resume"
