"""A sweep that is interrupted says how it is gone on with, exactly as it was asked for."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

CODE = """
import sys
import stack.sweep
import stack.cli.runs as runs
from pathlib import Path
from types import SimpleNamespace

def interrupted(*_arguments, **_named):
    raise stack.sweep.door.Interrupted

stack.sweep.sweep = interrupted
manifests = SimpleNamespace(manifest=None)
context = SimpleNamespace(folder=Path("w"), mirror=Path("m"), models=manifests, record_provenance=print)
runs._open_run = lambda *_arguments: (None, context)
from stack.cli import main
main()
"""


def test_the_command_to_go_on_with(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text("")
    arguments = ["sweep", "run.yaml", "--set", "train.seed=3", "--out", "sw"]
    done = subprocess.run(
        [sys.executable, "-c", CODE, *arguments], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 130, done.stderr
    (line,) = [line for line in done.stderr.splitlines() if line]
    assert line == "interrupted; go on with: stack sweep run.yaml --set train.seed=3 --out sw --resume"
    unnamed = subprocess.run(
        [sys.executable, "-c", CODE, "sweep", "run.yaml"], cwd=tmp_path, capture_output=True, text=True
    )
    assert "stack sweep run.yaml --resume --out w/sweep-" in unnamed.stderr
