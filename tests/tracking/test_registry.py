"""Checkpoints as model versions: by reference, once, with their proof; the files stay where they are."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

import pytest

from stack.tracking import Journal, ship
from stack.tracking import names as tracked


def training(folder: Path, model: str, *, parent: str | None = None) -> Journal:
    journal = Journal(folder, name="night", experiment=tracked.TRAIN, parent=parent)
    journal.tags({"stack.dataset_digest": "d" * 64, "stack.outcome": "ok"})
    for step, roles, loss in ((200, ["best"], 0.25), (300, ["last"], 0.5)):
        journal.model(
            name=model, roles=roles, step=step, path=f"checkpoints/{step:06d}", size_bytes=1000 + step,
            sha256=f"{step:064d}", loss=loss, golden=True,
        )  # fmt: skip
    journal.end("FINISHED")
    return journal


@pytest.fixture
def model() -> str:
    return f"night-{uuid.uuid4().hex[:6]}"


def versions(store: Any, model: str) -> dict[int, Any]:
    return {int(v.tags["stack.step"]): v for v in store.client.search_model_versions(f"name = '{model}'")}


def test_best_and_last_are_registered_once_with_their_proof(store: Any, tmp_path: Path, model: str) -> None:
    journal = training(tmp_path / "run", model)
    ship(tmp_path, store.uri)
    ship(tmp_path, store.uri)
    (tmp_path / "run" / ".shipped.json").unlink()
    ship(tmp_path, store.uri)
    run = store.run(journal.run_id)
    found = versions(store, model)
    assert len(store.client.search_model_versions(f"name = '{model}'")) == 2
    assert {step: version.run_id for step, version in found.items()} == dict.fromkeys(found, run.info.run_id)
    tags = found[200].tags
    assert (tags["stack.path"], tags["stack.bytes"]) == ("checkpoints/000200", "1200")
    assert (tags["stack.loss"], tags["stack.golden"]) == ("0.25", "True")
    assert tags["stack.dataset_digest"] == "d" * 64 and tags["stack.checkpoint"].startswith(f"{200:064d} ")
    best = store.client.get_model_version_by_alias(model, "best")
    last = store.client.get_model_version_by_alias(model, "last")
    assert (best.version, last.version) == (found[200].version, found[300].version)
    reference = json.loads(store.artifact(run.info.run_id, "checkpoints/000300/checkpoint.json"))
    assert (reference["path"], reference["checkpoint"].split()[0]) == ("checkpoints/000300", f"{300:064d}")
    assert [path for path in store.files(run.info.run_id) if path.startswith("checkpoints")] == [
        "checkpoints/000200/checkpoint.json", "checkpoints/000300/checkpoint.json",
    ]  # fmt: skip


def test_the_verdict_of_the_chain_follows(store: Any, tmp_path: Path, model: str) -> None:
    top = Journal(tmp_path, name="chain", experiment=tracked.REPRODUCE)
    inner = training(tmp_path / "train", model, parent=top.run_id)
    ship(tmp_path, store.uri)
    assert "stack.verdict" not in versions(store, model)[300].tags
    top.tags({"stack.verdict": "within-band"})
    top.end("FINISHED")
    ship(tmp_path, store.uri)
    assert versions(store, model)[300].tags["stack.verdict"] == "within-band"
    assert store.run(inner.run_id).data.tags["stack.verdict"] == "within-band"


def test_aliases_go_on_to_a_newer_run_and_not_back(store: Any, tmp_path: Path, model: str) -> None:
    training(tmp_path / "one" / "run", model)
    ship(tmp_path / "one", store.uri)
    newer = training(tmp_path / "two" / "run", model)
    ship(tmp_path / "two", store.uri)
    ship(tmp_path / "one", store.uri)
    last = store.client.get_model_version_by_alias(model, "last")
    assert last.run_id == store.run(newer.run_id).info.run_id
