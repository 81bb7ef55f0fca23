"""A small dataset by lerobot's own recorder, toy weights and tokenizer, and run manifests over them."""

from __future__ import annotations

import os
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from stack.files import sha256_file
from stack.manifests import Loaded, ModelsManifest, RunManifest
from stack.manifests.run import ToyDims
from stack.train.job import Job, make_job

EPISODES, LENGTH, FPS, WIDTH = 5, 24, 10, 16
CAMERAS = {"observation.images.head": (48, 64), "observation.images.hand": (56, 56)}
STATE_NAMES = [f"joint_{i}" for i in range(14)] + ["grip_left", "grip_right"]
GOLDEN_TEXT = "Task: pick the red cube, State: 1 2 3;\nAction: "


@pytest.fixture(scope="session", autouse=True)
def offline_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    patch = pytest.MonkeyPatch()
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE"):
        patch.setenv(name, "1")
    patch.setenv("OMP_NUM_THREADS", "1")
    patch.setenv("TOKENIZERS_PARALLELISM", "false")
    patch.setenv("HF_HOME", str(tmp_path_factory.mktemp("hf-home")))
    yield
    patch.undo()


@pytest.fixture(scope="session")
def toys() -> Any:
    """Helpers of this file, for test modules: fixtures cannot be imported from a conftest."""
    return types.SimpleNamespace(
        record=record,
        state_at=state_at,
        models_manifest=models_manifest,
        make_job=make_test_job,
        run_here=run_here,
        run_manifest=run_manifest,
        World=World,
        STATE_NAMES=STATE_NAMES,
        EPISODES=EPISODES,
        LENGTH=LENGTH,
        WIDTH=WIDTH,
    )


@pytest.fixture(scope="session")
def torch_module() -> Any:
    torch = pytest.importorskip("torch")
    torch.set_num_threads(1)
    return torch


@dataclass(frozen=True)
class World:
    """Everything that a toy run reads."""

    dataset: Path
    mirror: Path
    models: ModelsManifest
    golden_ids: tuple[int, ...]


def state_at(episode: int, frame: int) -> Any:
    """The state that the recorder is given: smooth, different in every episode. float32 (WIDTH,)."""
    import numpy

    phase = frame / LENGTH * 6.28 + episode
    return numpy.sin(phase + numpy.arange(WIDTH) * 0.4).astype(numpy.float32)


def record(root: Path, *, action_of: Callable[[int, int], Any] = state_at) -> Path:
    """Record the small dataset with lerobot."""
    import numpy

    from stack.train import lines

    lines.modeling()
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    features: dict[str, Any] = {
        key: {"dtype": "video", "shape": (*size, 3), "names": ["height", "width", "channels"]}
        for key, size in CAMERAS.items()
    }
    for key in ("observation.state", "action"):
        features[key] = {"dtype": "float32", "shape": (WIDTH,), "names": STATE_NAMES}
    dataset = LeRobotDataset.create(
        f"local/{root.name}", fps=FPS, features=features, root=root, robot_type="toy"
    )
    for episode in range(EPISODES):
        for frame in range(LENGTH):
            pictures = {}
            for key, (height, width) in CAMERAS.items():
                picture = numpy.zeros((height, width, 3), dtype=numpy.uint8)
                column = int(frame / LENGTH * (width - 8))
                picture[8 * episode : 8 * episode + 8, column : column + 8] = 255
                pictures[key] = picture
            task = "pick the red cube" if episode % 2 else "放下方块"
            vectors = {"observation.state": state_at(episode, frame), "action": action_of(episode, frame)}
            dataset.add_frame({**pictures, **vectors, "task": task})
        dataset.save_episode()
    dataset.finalize()
    return root


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory, torch_module: Any) -> World:
    pytest.importorskip("lerobot")
    from transformers import AutoTokenizer

    from stack.demo.models import write_models

    folder = tmp_path_factory.mktemp("world")
    write_models(folder / "mirror")
    dataset = record(folder / "dataset")
    tokenizer = folder / "mirror" / "toy-tokenizer"
    ids = tuple(AutoTokenizer.from_pretrained(tokenizer)(GOLDEN_TEXT)["input_ids"])
    return World(dataset, folder / "mirror", models_manifest(folder / "mirror", ids), ids)


def models_manifest(mirror: Path, golden_ids: tuple[int, ...]) -> ModelsManifest:
    def files(name: str) -> list[dict[str, Any]]:
        return [
            {"path": file.name, "size": file.stat().st_size, "sha256": sha256_file(file)}
            for file in sorted((mirror / name).iterdir())
        ]

    return ModelsManifest.model_validate(
        {
            "schema": "stack/models/1",
            "models": {
                "toy-pi05": {
                    "kind": "weights",
                    "origin": {"demo": "toy-pi05"},
                    "licence": "Apache-2.0",
                    "files": files("toy-pi05"),
                },
                "toy-tokenizer": {
                    "kind": "tokenizer",
                    "origin": {"demo": "toy-tokenizer"},
                    "licence": "Apache-2.0",
                    "files": files("toy-tokenizer"),
                    "golden": [{"text": GOLDEN_TEXT, "ids": list(golden_ids)}],
                },
            },
        }
    )


def make_test_job(world: World, out: Path, *, is_resume: bool = False, **changes: Any) -> Job:
    out.mkdir(parents=True, exist_ok=True)
    run = run_manifest(**changes).manifest
    dataset = world.dataset
    return make_job(
        run, dataset=dataset, mirror=world.mirror, models=world.models, out=out, is_resume=is_resume
    )


def run_here(job: Job, should_stop: Callable[[], bool] = lambda: False) -> tuple[Any, Any]:
    """The child's work in this process: (Session, Run)."""
    from stack.devices import open_device
    from stack.train.loop import train_loop
    from stack.train.ranks import Ranks
    from stack.train.session import open_session

    session = open_session(job, open_device("cpu"), Ranks(), lambda _kind, **_details: None)
    return session, train_loop(session, lambda _kind, **_details: None, should_stop)


def run_manifest(**changes: Any) -> Loaded[RunManifest]:
    """A toy run; `changes` are merged section by section."""
    raw: dict[str, Any] = {
        "schema": "stack/run/1",
        "name": "toy",
        "purpose": "a test",
        "dataset": "dataset.yaml",
        "models": "models.yaml",
        "mirror": "mirror",
        "policy": {
            "type": "pi05",
            "weights": "toy-pi05",
            "tokenizer": "toy-tokenizer",
            "action_horizon": 10,
            "dtype": "float32",
            "image_size": 56,
            "tokenizer_max_length": 128,
            "toy": ToyDims().model_dump(),
        },
        "device": {"kind": "cpu"},
        "train": {
            "steps": 6,
            "batch_per_device": 4,
            "global_batch": 4,
            "learning_rate": 3e-3,
            "warmup_steps": 1,
            "workers": 0,
            "log_every": 2,
            "save_every": 100,
        },
        "expect": {},
    }
    for section, values in changes.items():
        raw[section] = {**raw[section], **values} if isinstance(raw.get(section), dict) else values
    return Loaded(RunManifest.model_validate(raw), Path(os.path.abspath("run.yaml")))
