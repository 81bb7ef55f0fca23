"""What a run asks of its manifests before any stage begins."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from stack.errors import BadRequest
from stack.manifests import load_run_manifest
from stack.reproduce.provenance import collect
from stack.reproduce.stages import open_context


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
