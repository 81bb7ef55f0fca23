"""What a run asks of its manifests before any stage begins."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from stack.errors import BadRequest
from stack.manifests import load_run_manifest
from stack.reproduce.provenance import collect
from stack.reproduce.stages import make_stage, open_context


@pytest.fixture
def house(tmp_path: Path, checkout: Path) -> Path:
    shutil.copytree(checkout / "manifests", tmp_path / "manifests")
    return tmp_path


def refusal(house: Path) -> BadRequest:
    loaded = load_run_manifest(house / "manifests" / "runs" / "demo-cpu.yaml")
    with pytest.raises(BadRequest) as caught:
        open_context(loaded, house / "work", collect(), print)
    assert not (house / "work").exists()
    return caught.value


def test_a_dataset_that_is_split_is_no_input_of_one_training(house: Path) -> None:
    file = house / "manifests" / "datasets" / "demo.yaml"
    file.write_text(file.read_text() + "split: {train: 0.9, val: rest}\n")
    assert refusal(house).id == "run-dataset-split"


def test_a_model_that_is_not_listed_is_named_with_those_that_are(house: Path) -> None:
    file = house / "manifests" / "runs" / "demo-cpu.yaml"
    file.write_text(file.read_text().replace("weights: toy-pi05", "weights: pi05-toy"))
    error = refusal(house)
    assert error.id == "run-unknown-model" and "toy-pi05" in error.what


@pytest.mark.parametrize(
    "taken", ["task_5867/meta/info.json", "deliveries/task_5867/meta/info.json", "notes.txt"]
)
def test_a_folder_that_is_no_demo_is_never_replaced(house: Path, taken: str) -> None:
    file = house / "work" / "demo" / taken
    file.parent.mkdir(parents=True)
    file.write_text("a customer's")
    loaded = load_run_manifest(house / "manifests" / "runs" / "demo-cpu.yaml")
    context = open_context(loaded, house / "work", collect(), print)
    with pytest.raises(BadRequest) as caught:
        make_stage("demo", context)
    assert caught.value.id == "run-demo-folder-taken" and file.read_text() == "a customer's"


def test_an_earlier_demo_may_be_replaced(house: Path) -> None:
    for name in ("deliveries/demo_task", "deliveries/demo_task-1", "models/toy-pi05"):
        (house / "work" / "demo" / name).mkdir(parents=True)
    loaded = load_run_manifest(house / "manifests" / "runs" / "demo-cpu.yaml")
    assert make_stage("demo", open_context(loaded, house / "work", collect(), print)).folder.is_dir()
