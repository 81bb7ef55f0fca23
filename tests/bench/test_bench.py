"""The bench's own parts: inputs that readers take, costs as they are, a table that says what holds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))  # bench is no part of the installed package

from bench.__main__ import Bench
from bench.inputs import CAMERAS, CLIPS, Size, delivery
from bench.measure import Failed, fresh, measure, tree_bytes
from bench.table import Line, render
from stack.audit import audit
from stack.dataset.read import read_dataset

SMALL = Size((12, 9, 12), 48, 32, state=5, action=3, seed=4)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("bench")
    return delivery(root / "inputs" / "small", root / "clips", SMALL)


def test_inputs_are_sound_deliveries(made: Path) -> None:
    dataset = read_dataset(made)
    assert dataset.version == "v2.1"
    assert not dataset.notes
    assert [episode.length for episode in dataset.episodes] == [12, 9, 12]
    assert set(dataset.cameras) == set(CAMERAS)
    assert not [fault for fault in audit(made).faults if fault.severity == "error"]


def test_inputs_are_kept_and_not_made_twice(made: Path) -> None:
    before = {file: file.stat().st_mtime_ns for file in made.rglob("*") if file.is_file()}
    delivery(made, made.parents[1] / "clips", SMALL)
    assert {file: file.stat().st_mtime_ns for file in made.rglob("*") if file.is_file()} == before
    clips = list((made.parents[1] / "clips").glob("*.mp4"))
    assert 0 < len(clips) <= CLIPS * len(CAMERAS)
    assert len({file.stat().st_ino for file in made.rglob("*.mp4")}) == len(clips)


def test_what_a_stopped_run_left_is_made_again(made: Path, tmp_path: Path) -> None:
    half = delivery(tmp_path / "half", made.parents[1] / "clips", SMALL)
    (half / "made-from.json").unlink()
    (half / "meta" / "info.json").unlink()
    assert read_dataset(delivery(half, made.parents[1] / "clips", SMALL)).frames == 33


def test_the_same_seed_gives_the_same_rows(made: Path, tmp_path: Path) -> None:
    again = delivery(tmp_path / "again", made.parents[1] / "clips", SMALL)
    for file in made.rglob("*.parquet"):
        assert file.read_bytes() == (again / file.relative_to(made)).read_bytes()


def test_a_childs_time_and_memory_are_counted() -> None:
    """Asked of a small process, as `python -m bench` is one: a child's peak begins with its parent's."""
    work = (
        "import time; b = bytearray(150 << 20); t = time.process_time()\n"
        "while time.process_time() - t < 0.4: pass"
    )
    asked = (
        "import json, sys\n"
        "from bench.measure import measure\n"
        "idle = measure([sys.executable, '-c', 'import time; time.sleep(0.5)'])\n"
        f"child = 'import subprocess as s, sys; s.run([sys.executable, \"-c\", ' + repr({work!r}) + '])'\n"
        "busy = measure([sys.executable, '-c', child])\n"
        "both = idle + busy\n"
        "print(json.dumps([[c.wall_s, c.cpu_s, c.peak_mib] for c in (idle, busy, both)]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", asked],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
        check=True,
    )
    (idle_wall, idle_cpu, _), (busy_wall, busy_cpu, busy_peak), both = json.loads(done.stdout)
    assert idle_wall >= 0.5 > idle_cpu
    assert busy_cpu >= 0.4
    assert 150 < busy_peak < 400
    assert both[0] == idle_wall + busy_wall and both[2] == busy_peak


def test_a_command_that_fails_is_an_error_with_its_words() -> None:
    with pytest.raises(Failed, match=r"exited with 3[\s\S]*no such thing"):
        measure([sys.executable, "-c", "import sys; print('no such thing'); sys.exit(3)"])
    with pytest.raises(Failed):
        measure(["/no/such/program"])


def test_what_is_measured_is_the_real_command(made: Path) -> None:
    scratch = made.parents[1]
    bench = Bench(scratch, None)
    cost = bench.prepare([made], "whole")
    assert cost.cpu_s > 0
    assert [e.length for e in read_dataset(bench.out("whole")).episodes] == [12, 9, 12]
    bench.prepare([made], "less", lines="    exclude_episodes: [1]\n", videos="link")
    assert [e.length for e in read_dataset(bench.out("less")).episodes] == [12, 12]
    assert tree_bytes(bench.out("whole")) > 0
    assert not fresh(bench.out("less")).exists()


def test_the_table_says_what_holds() -> None:
    lines = [
        Line("a", "1 s", "2 s", "under 3 s", True),
        Line("b", "9 s", "2 s", "under 3 s", False),
        Line("c", "9 s", "2 s", "under 3 s", False, is_busy=True),
        Line("d", "9 s", "", "10x", None),
    ]
    rows = render(lines).splitlines()
    assert len(rows) == 6
    assert len({len(row) for row in rows}) == 1
    ends = [row.split("|")[-2].strip() for row in rows[2:]]
    assert ends == ["holds", "**missed**", "not judged: busy", "not measured"]


def test_help_needs_no_inputs() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "bench", "--help"],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
        env={**os.environ},
        check=True,
    )
    assert "--only" in done.stdout
    assert "Example: python -m bench" in done.stdout
