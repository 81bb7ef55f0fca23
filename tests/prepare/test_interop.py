"""Give and take with lerobot's own tools, of both lines: no episode is lost, and theirs read what is ours."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow.parquet as pq
import pytest

from stack.dataset.digest import content_digest
from stack.dataset.read import read_dataset
from stack.dataset.write_plan import Caps
from stack.manifests import load_dataset_manifest
from stack.prepare import prepare

pytestmark = pytest.mark.lerobot

SCRIPT = Path(__file__).with_name("lerobot_makes.py")
SMALL = Caps(data_mb=0.0012, video_mb=0.006, files_per_chunk=2)
LINES = ("production", "current")
MADE = {
    "production": ("recorded", "resumed", "converted"),
    "current": ("recorded", "resumed", "converted", "merged", "twice"),
}


@pytest.fixture(scope="session")
def makes() -> ModuleType:
    """The script's constants, without running it."""
    pytest.importorskip("lerobot")
    spec = importlib.util.spec_from_file_location("lerobot_makes", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def python_of(line: str, checkout: Path) -> str:
    """The interpreter of a line: this one, the checkout's other environment, or what the environment says."""
    find = "import importlib.metadata as m; print(m.version('lerobot'))"
    places = [sys.executable, os.environ.get(f"STACK_{line.upper()}_PYTHON", "")]
    places += [str(checkout / name / "bin" / "python") for name in (".venv", ".venv-current")]
    for place in places:
        if place and Path(place).is_file():
            found = subprocess.run([place, "-c", find], capture_output=True, text=True).stdout.strip()
            if found and found.startswith("0.4.") == (line == "production"):
                return place
    pytest.skip(f"no Python with the {line} line's lerobot; set STACK_{line.upper()}_PYTHON, or make setup")


@pytest.fixture(scope="session")
def run(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    cache = tmp_path_factory.mktemp("caches")

    def start(line: str, *arguments: str) -> str:
        caches = {name: str(cache / name) for name in ("HF_HOME", "HF_DATASETS_CACHE", "HF_LEROBOT_HOME")}
        command = [python_of(line, checkout), str(SCRIPT), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **caches})
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout

    return start


@pytest.fixture(scope="session")
def made(run: Any, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A folder of datasets made by one line's tools; made when first asked for."""
    folders: dict[str, Path] = {}

    def make(line: str) -> Path:
        if line not in folders:
            folder = tmp_path_factory.mktemp(line)
            run(line, "make", str(folder))
            folders[line] = folder
        return folders[line]

    return make


def episodes_of(makes: ModuleType, name: str) -> list[tuple[int, int, int]]:
    """(delivery number, episode there, frames) of each episode that a tool was given."""
    if name == "merged":
        return episodes_of(makes, "resumed") + episodes_of(makes, "second")
    if name == "twice":
        return [e for part in ("second", "recorded", "resumed") for e in episodes_of(makes, part)]
    lengths = makes.LENGTHS[name] + (makes.MORE if name == "resumed" else ())
    return [(makes.NUMBERS[name], episode, length) for episode, length in enumerate(lengths)]


def frames_of(makes: ModuleType, episodes: Sequence[tuple[int, int, int]]) -> list[list[Any]]:
    """What a reader must give, frame by frame."""
    frames: list[list[Any]] = []
    for output, (number, episode, length) in enumerate(episodes):
        for frame in range(length):
            shown = [makes.G.identity(number, camera, episode, frame) for camera in range(2)]
            state = [makes.G.value(number, episode, frame, c) for c in range(makes.STATE)]
            action = [makes.G.value(number, episode, frame, 100 + c) for c in range(makes.ACTION)]
            task = makes.TASKS[episode % 2]
            frames.append([output, frame, len(frames), task, *shown, state, action])
    return frames


@dataclass(frozen=True)
class Given:
    """A prepared dataset, what its episodes must be, and what lerobot's reader says of it."""

    root: Path
    episodes: list[tuple[int, int, int]]
    answer: dict[str, Any]


# Output -> what it is merged from: (line, what its tools made), or an output above it.
WORK: dict[str, list[tuple[str, str] | str]] = {
    **{f"{line}-{name}": [(line, name)] for line, names in MADE.items() for name in names},
    "pair-of-current": [("current", "resumed"), ("current", "converted")],
    "pair-of-production": [("production", "resumed"), ("production", "converted")],
    "first": [("current", "merged"), ("current", "converted")],
    "second": ["first", ("production", "recorded"), ("production", "converted")],
    "third": ["second", "first", ("current", "twice")],
    "at-once": [
        ("current", "merged"),
        ("current", "converted"),
        ("production", "recorded"),
        ("production", "converted"),
    ],
}
# Who reads what: the old line each kind of its own, the new line all kinds at once, and each the other's.
READS = {
    "production": [*(n for n in WORK if n.startswith("production-")), "pair-of-current"],
    "current": ["current-resumed", "pair-of-production", "third"],
}


@pytest.fixture(scope="session")
def merged(made: Any, makes: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Prepare one output of WORK; gives its folder and its episodes."""
    folder = tmp_path_factory.mktemp("interop")
    done: dict[str, tuple[Path, list[tuple[int, int, int]]]] = {}

    def prepare_one(name: str) -> tuple[Path, list[tuple[int, int, int]]]:
        if name in done:
            return done[name]
        sources, episodes = [], []
        for part in WORK[name]:
            root, own = (
                prepare_one(part)
                if isinstance(part, str)
                else (made(part[0]) / part[1], episodes_of(makes, part[1]))
            )
            sources.append({"path": str(root), "name": f"s{len(sources)}"})
            episodes += own
        text = {"schema": "stack/dataset/1", "name": name, "sources": sources}
        file = folder / f"{name}.yaml"
        file.write_text(json.dumps(text))
        prepare(load_dataset_manifest(file, allow_outside=True), out=folder / name, jobs=1, caps=SMALL)
        done[name] = folder / name, episodes
        return done[name]

    return prepare_one


@pytest.fixture(scope="session")
def answers(merged: Any, run: Any) -> Callable[[str], dict[str, Given]]:
    """What one line's reader says of all that it is to read: one process, one slow import."""
    known: dict[str, dict[str, Given]] = {}

    def ask(line: str) -> dict[str, Given]:
        if line not in known:
            prepared = {name: merged(name) for name in READS[line]}
            told = json.loads(run(line, "read", *(str(root) for root, _ in prepared.values())))
            known[line] = {n: Given(root, episodes, told[n]) for n, (root, episodes) in prepared.items()}
        return known[line]

    return ask


@pytest.mark.parametrize(("line", "name"), [(line, name) for line in LINES for name in READS[line]])
def test_no_episode_of_lerobot_s_own_datasets_is_lost(line: str, name: str, makes, answers) -> None:
    """Recorded, resumed, merged, merged twice, converted, of either line, prepared, and merged again: every
    frame of every camera as lerobot's reader gives it, an episode filter, and chunks of actions.
    """
    given = answers(line)[name]
    frames, episodes, answer = frames_of(makes, given.episodes), given.episodes, given.answer
    assert answer["lerobot"].startswith("0.4.") == (line == "production")
    assert answer["episodes"] == len(episodes)
    assert answer["frames"] == frames
    if line == "current":
        chosen = (0, len(episodes) // 2)
        assert answer["filtered"] == [frame for frame in frames if frame[0] in chosen]
    for index, (output, frame, *_) in list(enumerate(frames))[:: makes.EVERY]:
        number, episode, length = episodes[output]
        at = [min(frame + step, length - 1) for step in range(3)]
        actions = [makes.G.value(number, episode, f, 100) for f in at]
        assert answer["chunks"][str(index)] == [actions, [frame + step >= length for step in range(3)]]
    assert len(answer["chunks"]) == -(-len(frames) // makes.EVERY)


def test_the_converter_s_wrong_file_numbers_are_seen_through(made, makes) -> None:
    """What is tested above is there: lerobot 0.4 names another file than the one that holds the rows."""
    root = made("production") / "converted"
    table = pq.read_table(next((root / "meta/episodes").glob("*/*.parquet"))).to_pylist()
    wrong = 0
    for row in table:
        file = root / f"data/chunk-{row['data/chunk_index']:03d}/file-{row['data/file_index']:03d}.parquet"
        wrong += (
            not file.is_file() or row["episode_index"] not in pq.read_table(file)["episode_index"].to_pylist()
        )
    assert wrong and len(list((root / "data").glob("*/*.parquet"))) > 2
    lengths = [episode.length for episode in read_dataset(root).episodes]
    assert lengths == list(makes.LENGTHS["converted"])


def test_the_merger_s_wrong_episode_table_is_seen_through(made, makes) -> None:
    """lerobot 0.6 merges a resumed recording into a table that names files that are not there."""
    root = made("current") / "merged"
    (table,) = (root / "meta/episodes").glob("*/*.parquet")
    assert max(pq.read_table(table)["meta/episodes/file_index"].to_pylist()) > 0
    assert len(read_dataset(root).episodes) == len(episodes_of(makes, "merged"))


def test_merging_step_by_step_is_merging_at_once(merged) -> None:
    """lerobot refuses these pairs: a key `fps` of features comes with converting and goes with merging."""
    assert content_digest(read_dataset(merged("second")[0])) == content_digest(
        read_dataset(merged("at-once")[0])
    )
