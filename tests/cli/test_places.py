"""Where commands stand and write: the current folder, a folder that is gone, nowhere to write a traceback."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from stack.cli import _leave_with_a_bug
from stack.demo.deliveries import write_deliveries


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("demo") / "deliveries"
    write_deliveries(root)
    return root / "demo_task"


def stack(*words: str | Path, at: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "stack", *map(str, words)]
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    return subprocess.run(command, cwd=at, env=env, capture_output=True, text=True)


@pytest.mark.parametrize("name", [".", "./", "", "../here"])
def test_the_current_folder_is_written_where_it_is_empty(source: Path, tmp_path: Path, name: str) -> None:
    here = tmp_path / "here"
    here.mkdir()
    decided = "decide: {timestamps: restamp, missing_cameras: drop}"
    asked = "schema: stack/dataset/1\nname: m\n"
    asked += f"sources: [{{path: source, keep_episodes: [0], {decided}}}]\n"
    shutil.copytree(source, tmp_path / "source")
    (tmp_path / "m.yaml").write_text(asked)
    done = stack("prepare", "../m.yaml", "--out", name, "--jobs", "1", at=here)
    assert (here / "meta/info.json").is_file(), done.stderr
    assert (tmp_path / "here.record").is_dir()
    again = stack("prepare", "../m.yaml", "--out", name, "--jobs", "1", at=here)
    assert again.returncode == 2 and "error[target-exists]" in again.stderr


def test_a_folder_that_is_gone_is_told(tmp_path: Path) -> None:
    (gone := tmp_path / "gone").mkdir()
    code = "import os; os.rmdir(os.getcwd()); from stack.cli import main; main()"
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    words = [sys.executable, "-c", code, "stats", "somewhere"]
    done = subprocess.run(words, cwd=gone, env=env, capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr.startswith("error[folder-is-gone]"), done.stderr


def test_a_bug_is_told_where_no_file_can_be_written(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise FileNotFoundError(2, "No usable temporary directory found")

    monkeypatch.setattr(tempfile, "NamedTemporaryFile", refuse)
    with pytest.raises(SystemExit) as left:
        _leave_with_a_bug(ValueError("out of range"))
    told = capsys.readouterr().err
    assert left.value.code == 70 and "ValueError: out of range" in told and "no file can be written" in told
