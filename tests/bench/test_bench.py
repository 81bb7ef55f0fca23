"""The bench's own parts: inputs that readers take, costs as they are, a table that says what holds."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))  # bench is no part of the installed package

from bench.cases import BY_DEFAULT, PARTS, Bench
from bench.inputs import CAMERAS, CLIPS, Size, delivery, rows_only
from bench.measure import Cost, Failed, fresh, measure, median, tree_bytes
from bench.table import END_MARK, START_MARK, Line, between_marks, render
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
    work = (
        "import time; b = bytearray(150 << 20); t = time.process_time()\n"
        "while time.process_time() - t < 0.4: pass"
    )
    child = f"import subprocess as s, sys; s.run([sys.executable, '-c', {work!r}])"
    idle = measure([sys.executable, "-c", "import time; time.sleep(0.5)"])
    busy = measure([sys.executable, "-c", child])
    both = idle + busy
    assert idle.wall_s >= 0.5 > idle.cpu_s
    assert busy.cpu_s >= 0.4
    assert 150 < busy.peak_mib < 200
    assert both.wall_s == idle.wall_s + busy.wall_s and both.peak_mib == busy.peak_mib


def test_what_the_bench_itself_holds_is_not_counted() -> None:
    """A run that makes its inputs first must not give their memory for that of the command."""
    held = np.ones(300 << 17)  # 300 MiB
    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    assert resident > 300 and held[-1] == 1
    assert measure([sys.executable, "-c", "pass"]).peak_mib < 50


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


def test_camera_statistics_are_those_a_recorder_stores(made: Path) -> None:
    """By lerobot's rule, here over all pictures of so short a clip, against PyAV and numpy."""
    import av

    lines = (made / "meta" / "episodes_stats.jsonl").read_text().splitlines()
    stored = json.loads(lines[1])["stats"][CAMERAS[1]]
    file = made / "videos" / "chunk-000" / CAMERAS[1] / "episode_000001.mp4"
    with av.open(str(file)) as container:
        pictures = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
    pixels = np.stack(pictures).reshape(-1, 3) / 255
    assert set(stored) == {"min", "max", "mean", "std", "count"}
    assert stored["count"] == [9]
    for name in ("min", "max", "mean", "std"):
        meant = getattr(pixels, name)(axis=0).reshape(3, 1, 1)
        np.testing.assert_allclose(stored[name], meant, rtol=0, atol=1e-12)


def test_rows_that_repeat_are_small(tmp_path: Path) -> None:
    file = rows_only(tmp_path, 5000, {"action": 4}, group=2000, steps=16)
    values = np.array(pq.read_table(file)["action"].to_pylist())
    assert values.shape == (5000, 4)
    assert (values[0:16] == values[0]).all() and (values[16] != values[0]).any()
    assert file.stat().st_size < 5000 * 4


def test_the_middle_of_several_runs() -> None:
    costs = iter([Cost(3, 1, 10), Cost(1, 5, 30), Cost(2, 9, 20)])
    assert median(lambda: next(costs), 3) == Cost(2, 9, 30)


def test_the_table_goes_between_the_marks() -> None:
    text = f"a\n{START_MARK}\nold\n{END_MARK}\nb\n"
    assert between_marks(text, "new\n") == f"a\n{START_MARK}\nnew\n{END_MARK}\nb\n"
    for wrong in ("a\n", f"{END_MARK} {START_MARK}", f"{text}{text}"):
        with pytest.raises(ValueError, match="no place"):
            between_marks(wrong, "new")


def test_the_readme_shows_the_table_of_the_docs() -> None:
    root = Path(__file__).parents[2]
    readme = (root / "README.md").read_text()
    shown = readme.split(START_MARK)[1].split(END_MARK)[0].strip()
    page = root / "docs" / "bench.md"
    if not page.is_file():
        assert shown == "", "the README shows a table that docs/bench.md does not have"
        pytest.skip("docs/bench.md has not been written yet: make bench")
    assert shown and page.read_text().endswith(f"\n{shown}\n")


def test_what_runs_by_default() -> None:
    assert set(PARTS) - set(BY_DEFAULT) == {"large", "audit-deep", "audit-peers"}


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
