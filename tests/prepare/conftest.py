from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from stack.manifests import DatasetManifest, Loaded, load_dataset_manifest

MODULE = "small_deliveries"


def _generator() -> ModuleType:
    """Test folders are no packages: a module that several of them use is loaded by its path."""
    if MODULE not in sys.modules:
        spec = importlib.util.spec_from_file_location(
            MODULE, Path(__file__).parents[1] / "dataset" / "deliveries.py"
        )
        assert spec is not None and spec.loader is not None
        sys.modules[MODULE] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[MODULE])
    return sys.modules[MODULE]


@pytest.fixture(scope="session")
def deliveries() -> ModuleType:
    """The generator of small deliveries."""
    return _generator()


@pytest.fixture(scope="session")
def two(tmp_path_factory: pytest.TempPathFactory, deliveries: ModuleType) -> Path:
    """Two v2.1 deliveries of the same robot that differ in form only; tests must not change them.

    `a`: 5 episodes, field table, names as a list of lists. `b`: 3 episodes, other channel order, doubles,
    `fps` entries in features, another video time base, scalars not in lists.
    """
    root = tmp_path_factory.mktemp("two")
    names = [f"j{i}" for i in range(6)] + ["left", "right"]
    fields = {"state/joint/position": [0, 1, 2, 3, 4, 5], "state/effector/position": [6, 7]}
    deliveries.write_delivery(root / "a", deliveries.Delivery(names=[names], fields=fields))
    moved = {"state/joint/position": [2, 3, 4, 5, 6, 7], "state/effector/position": [0, 1]}
    deliveries.write_delivery(
        root / "b",
        deliveries.Delivery(
            number=1,
            lengths=(3, 8, 5),
            tasks=("把毛巾放进盒子", "fold the shirt "),
            task_of=(1, 0),
            names=[*names[6:], *names[:6]],
            fields=moved,
            double=True,
            feature_fps=True,
            timescale=90000,
            listed=(),
        ),
    )
    return root


@pytest.fixture
def load(tmp_path: Path) -> Any:
    """Write a manifest text below tmp_path and load it; paths in it may be absolute."""

    def write(text: str) -> Loaded[DatasetManifest]:
        file = tmp_path / "dataset.yaml"
        file.write_text("schema: stack/dataset/1\nname: test\n" + text, encoding="utf-8")
        return load_dataset_manifest(file, allow_outside=True)

    return write


MERGED = """
sources:
  - {path: A, exclude_episodes: [1]}
  - {path: B}
features:
  observation.state:
    - {from: observation.state, field: joint/position}
    - {from: observation.state, field: effector/position}
  action: [{from: action, at: [1, 3], names: [lift, grip]}]
cameras:
  observation.images.head: {}
  observation.images.wrist: {from: observation.images.hand}
tasks:
  "fold the shirt ": fold the shirt
expect: {episodes: 7, frames: 42, fps: 10, cameras: 2, widths: {observation.state: 8, action: 2}}
"""


@pytest.fixture(scope="session")
def merged_manifest(two: Path) -> Loaded[DatasetManifest]:
    file = two / "merged.yaml"
    text = MERGED.replace("path: A", "path: a").replace("path: B", "path: b")
    file.write_text("schema: stack/dataset/1\nname: merged\n" + text, encoding="utf-8")
    return load_dataset_manifest(file)


@pytest.fixture(scope="session")
def merged_episodes() -> list[tuple[int, int, int, str]]:
    """(delivery number, its episode, frames, task) of each episode of `merged`, in order."""
    return [
        (0, 0, 7, "fold the shirt"),
        (0, 2, 9, "fold the shirt"),
        (0, 3, 4, "把毛巾放进盒子"),
        (0, 4, 6, "fold the shirt"),
        (1, 0, 3, "fold the shirt"),
        (1, 1, 8, "把毛巾放进盒子"),
        (1, 2, 5, "fold the shirt"),
    ]


@pytest.fixture(scope="session")
def merged(tmp_path_factory: pytest.TempPathFactory, merged_manifest: Loaded[DatasetManifest]) -> Path:
    """The two deliveries merged, one episode dropped, sliced; caps so small that files roll."""
    from stack.dataset.write_plan import Caps
    from stack.prepare import prepare

    out = tmp_path_factory.mktemp("merged") / "out"
    # A row is 92 bytes and an episode at most 9 rows: two or three episodes a data file.
    prepare(merged_manifest, out=out, jobs=1, caps=Caps(data_mb=0.0015, video_mb=0.004, files_per_chunk=2))
    return out
