"""The record that a preparation leaves beside its dataset."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stack.errors import StackError
from stack.files import sha256_file, tree_files
from stack.prepare.record import prepare_recorded, record_folder
from stack.tracking.journal import read_journal
from stack.tracking.replay import replay

MANIFEST = """
sources:
  - {path: A, exclude_episodes: [1]}
"""


def said(out: Path) -> Any:
    return replay((record_folder(out) / "journal.jsonl").read_bytes(), where="here")


def test_sources_counts_and_digest_are_recorded_beside_the_dataset(
    two: Path, load: Any, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    loaded = load(MANIFEST.replace("A", str(two / "a")))
    prepared = prepare_recorded(loaded, out=out, parent="chain", jobs=1)
    assert not list(out.rglob("journal.jsonl")), "a dataset holds no book-keeping"
    run = said(out)
    episodes = (two / "a/meta/episodes.jsonl").read_text().splitlines()
    lengths = [json.loads(line)["length"] for line in episodes]
    finals = {point.key: point.value for point in run.points}
    assert finals["final_episodes"] == len(lengths) - 1
    assert finals["final_frames"] == sum(lengths) - lengths[1]
    assert finals["final_episodes_left_out"] == 1
    assert run.tags["stack.dataset_digest"] == prepared.content_digest
    assert (run.status, run.parent, run.tags["stack.outcome"]) == ("FINISHED", "chain", "ok")
    (source,) = run.datasets
    assert (source.name, source.context, json.loads(source.profile)["episodes"]) == (
        "a",
        "source",
        len(lengths),
    )
    told = json.loads((record_folder(out) / "provenance/dataset.json").read_text())
    assert told == json.loads((out / "meta/provenance.json").read_text())
    assert all((record_folder(out) / path).is_file() for path, _ in run.artifacts)


def test_a_refused_request_leaves_the_record_of_the_dataset_as_it_is(
    two: Path, load: Any, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    loaded = load(MANIFEST.replace("A", str(two / "a")))
    prepare_recorded(loaded, out=out, jobs=1)
    before = {path: sha256_file(path) for path in tree_files(record_folder(out))}
    with pytest.raises(StackError, match="exists already"):
        prepare_recorded(loaded, out=out, jobs=1)
    assert {path: sha256_file(path) for path in tree_files(record_folder(out))} == before
    prepare_recorded(loaded, out=out, jobs=1, replace=True)
    assert said(out).attempts == 2


def test_a_preparation_that_fails_or_is_interrupted_says_so(
    two: Path, load: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = load(MANIFEST.replace("A", str(two / "a")))

    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("stack.prepare.run.write_v30", interrupt)
    with pytest.raises(KeyboardInterrupt):
        prepare_recorded(loaded, out=tmp_path / "out", jobs=1)
    records = read_journal(record_folder(tmp_path / "out") / "journal.jsonl")
    assert [r["status"] for r in records if r["kind"] == "end"] == ["KILLED"]


def test_a_record_that_cannot_be_written_hinders_nothing(two: Path, load: Any, tmp_path: Path) -> None:
    out, said = tmp_path / "out", list[str]()
    record_folder(out).write_text("a file in its place")
    loaded = load(MANIFEST.replace("A", str(two / "a")))
    prepared = prepare_recorded(loaded, out=out, jobs=1, log=said.append)
    assert prepared.episodes > 0 and (out / "meta/info.json").is_file()
    assert any("the record of this preparation is not whole" in line for line in said)
