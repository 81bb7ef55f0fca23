from pathlib import Path

import pytest

from stack.errors import BadRequest
from stack.manifests import load_dataset_manifest, load_models_manifest, load_run_manifest
from stack.manifests.base import Band
from stack.manifests.dataset import expand_episodes

DATASET = """\
schema: stack/dataset/1
name: two
sources:
  - path: ../a
    exclude_episodes: [3, "7-9"]
features:
  action:
    - {from: action, field: joint/position}
"""


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    file = tmp_path / "manifests" / "two.yaml"
    file.parent.mkdir()
    file.write_text(DATASET)
    return file


@pytest.mark.parametrize("kind", ["datasets", "runs"])
def test_every_manifest_of_the_project_loads(checkout: Path, kind: str) -> None:
    load = load_dataset_manifest if kind == "datasets" else load_run_manifest
    files = sorted((checkout / "manifests" / kind).glob("*.yaml"))
    assert files
    for file in files:
        assert load(file).manifest.name == file.stem


def test_the_models_manifest_loads(checkout: Path) -> None:
    assert load_models_manifest(checkout / "manifests" / "models.yaml").manifest.models


def test_episode_ranges_are_expanded(dataset: Path) -> None:
    assert load_dataset_manifest(dataset).manifest.sources[0].exclude_episodes == (3, 7, 8, 9)
    assert expand_episodes("3,7-9") == (3, 7, 8, 9)


def test_an_unknown_key_names_its_place_and_the_nearest_known_one(dataset: Path) -> None:
    dataset.write_text(DATASET.replace("exclude_episodes", "exclude_episode"))
    with pytest.raises(BadRequest) as caught:
        load_dataset_manifest(dataset)
    assert caught.value.where == f"{dataset}:5:5"
    assert "did you mean 'exclude_episodes'" in caught.value.what


def test_all_problems_are_told_at_once(dataset: Path) -> None:
    dataset.write_text(DATASET.replace("name: two", "name: ''").replace("[3, ", "[3, 3, "))
    with pytest.raises(BadRequest) as caught:
        load_dataset_manifest(dataset)
    assert f"{dataset}:2:7" in str(caught.value) or f"{dataset}:2:1" in str(caught.value)
    assert "named twice: [3]" in str(caught.value)


def test_a_path_outside_the_root_needs_leave(dataset: Path) -> None:
    loaded = load_dataset_manifest(dataset)
    assert loaded.path("../a") == dataset.parent.parent / "a"
    with pytest.raises(BadRequest, match="leaves the manifest's root"):
        loaded.path("../../elsewhere")
    with pytest.raises(BadRequest, match="leaves the manifest's root"):
        loaded.path("/etc")
    allowed = load_dataset_manifest(dataset, allow_outside=True)
    assert allowed.path("/etc") == Path("/etc")


def test_overrides_reach_nested_values_and_are_checked_like_the_file(dataset: Path) -> None:
    loaded = load_dataset_manifest(dataset, overrides=("sources.0.path=../b", "expect.episodes=5"))
    assert loaded.manifest.sources[0].path == "../b"
    assert loaded.manifest.expect.episodes == 5
    with pytest.raises(BadRequest) as caught:
        load_dataset_manifest(dataset, overrides=("expect.episode=5",))
    assert caught.value.where == "--set expect.episode=5"
    with pytest.raises(BadRequest, match="cannot be reached"):
        load_dataset_manifest(dataset, overrides=("sources.4.path=x",))


def test_the_fingerprint_follows_meaning_not_layout(dataset: Path) -> None:
    before = load_dataset_manifest(dataset).fingerprint
    dataset.write_text("# a remark\n" + DATASET.replace('[3, "7-9"]', "[3, 7, 8, 9]"))
    assert load_dataset_manifest(dataset).fingerprint == before
    dataset.write_text(DATASET.replace("joint/position", "effector/position"))
    assert load_dataset_manifest(dataset).fingerprint != before


def test_a_global_batch_that_does_not_add_up_is_refused(checkout: Path) -> None:
    run = checkout / "manifests" / "runs" / "pi05-task5867-8x910b.yaml"
    with pytest.raises(BadRequest, match=r"4 x device\.count 8 x accumulation 1 = 32"):
        load_run_manifest(run, overrides=("train.global_batch=64",))


def test_the_field_project_is_stated_as_it_was_reported(checkout: Path) -> None:
    run = load_run_manifest(checkout / "manifests" / "runs" / "pi05-task5867-8x910b.yaml")
    manifest = run.manifest
    dataset = load_dataset_manifest(run.path(manifest.dataset)).manifest
    assert dataset.sources[0].exclude_episodes == (355,)
    assert (dataset.expect.episodes, dataset.expect.frames) == (681, 305425)
    positions = {name: [s.at for s in slices] for name, slices in (dataset.features or {}).items()}
    assert positions == {"observation.state": [(28, 42), (0, 2)], "action": [(16, 30), (0, 2)]}
    assert (manifest.train.batch_per_device, manifest.device.count, manifest.train.global_batch) == (4, 8, 32)
    assert (manifest.train.steps, manifest.policy.action_horizon, manifest.policy.dtype) == (
        30000,
        32,
        "bfloat16",
    )
    assert manifest.sweep is not None
    assert [(g.devices, g.batches) for g in manifest.sweep.groups] == [(1, (2, 4, 8, 16)), (8, (2, 4, 8))]
    bands = {point.step: point.loss for point in (*manifest.expect.first_steps, *manifest.expect.curve)}
    assert 1.473 in bands[160] and 0.03 in bands[7000] and 0.05 not in bands[7000]
    assert manifest.expect.speed is not None and manifest.expect.speed.step_s is not None
    assert 0.838 in manifest.expect.speed.step_s


def test_bands() -> None:
    band = Band(min=1, max=2)
    assert 1 in band and 2 in band and 2.1 not in band and float("nan") not in band
    assert float("nan") not in Band(max=1)
    with pytest.raises(ValueError, match="pass everything"):
        Band()
