import json
from pathlib import Path

import pytest

from stack.errors import BadRequest
from stack.reproduce.hashing import HashCache, code_digest
from stack.reproduce.stage import Outcome, Stage, finished, run


@pytest.fixture
def cache(tmp_path: Path) -> HashCache:
    return HashCache(tmp_path / "hashes.json")


def make(
    tmp_path: Path, calls: list[bool], *, inputs: int = 1, good: bool = True, resumable: bool = False
) -> Stage:
    def work(out: Path, resume: bool) -> Outcome:
        calls.append(resume)
        (out / "result.txt").write_text(f"made from {inputs}")
        return Outcome({"inputs": inputs}, good=good, message="" if good else "it is bad")

    return Stage("s", tmp_path / "s", {"a": inputs}, work, resumable=resumable)


def test_nothing_is_done_twice(tmp_path: Path, cache: HashCache) -> None:
    calls: list[bool] = []
    first = run(make(tmp_path, calls), cache)
    second = run(make(tmp_path, calls), cache)
    assert (first.reused, second.reused, len(calls)) == (False, True, 1)
    assert second.facts == {"inputs": 1}


def test_other_inputs_are_other_work(tmp_path: Path, cache: HashCache) -> None:
    calls: list[bool] = []
    run(make(tmp_path, calls), cache)
    result = run(make(tmp_path, calls, inputs=2), cache)
    assert not result.reused and (tmp_path / "s" / "result.txt").read_text() == "made from 2"


def test_a_changed_or_missing_output_is_made_again(tmp_path: Path, cache: HashCache) -> None:
    calls: list[bool] = []
    run(make(tmp_path, calls), cache)
    (tmp_path / "s" / "result.txt").write_text("tampered")
    assert not run(make(tmp_path, calls), cache).reused
    (tmp_path / "s" / "result.txt").unlink()
    assert not run(make(tmp_path, calls), cache).reused
    assert len(calls) == 3


def test_hidden_bookkeeping_does_not_make_a_stage_stale(tmp_path: Path, cache: HashCache) -> None:
    calls: list[bool] = []
    run(make(tmp_path, calls), cache)
    (tmp_path / "s" / ".shipped.json").write_text("{}")
    assert run(make(tmp_path, calls), cache).reused


def test_folders_elsewhere_belong_to_the_output(tmp_path: Path, cache: HashCache) -> None:
    elsewhere = tmp_path / "elsewhere"

    def work(out: Path, _resume: bool) -> Outcome:
        elsewhere.mkdir(exist_ok=True)
        (elsewhere / "f").write_text("right")
        return Outcome({})

    stage = Stage("s", tmp_path / "s", {}, work, also_makes=(elsewhere,))
    assert not run(stage, cache).reused
    assert run(stage, cache).reused
    (elsewhere / "f").write_text("wrong")
    assert not run(stage, cache).reused


def test_a_failing_stage_leaves_nothing_and_the_earlier_record_is_gone(
    tmp_path: Path, cache: HashCache
) -> None:
    def work(out: Path, _resume: bool) -> Outcome:
        (out / "half").write_text("")
        raise BadRequest("x", "no")

    stage = Stage("s", tmp_path / "s", {}, work)
    with pytest.raises(BadRequest):
        run(stage, cache)
    assert not stage.folder.exists() and not stage.record_file.exists()
    assert finished(stage, cache) is None


def test_a_judgement_is_kept_but_failed_long_work_is_tried_again(tmp_path: Path, cache: HashCache) -> None:
    calls: list[bool] = []
    run(make(tmp_path, calls, good=False), cache)
    again = run(make(tmp_path, calls, good=False), cache)
    assert again.reused and not again.good and again.message == "it is bad"
    calls.clear()
    long = tmp_path / "long"
    run(make(long, calls, good=False, resumable=True), cache)
    assert not run(make(long, calls, good=False, resumable=True), cache).reused


def test_killed_long_work_goes_on_only_with_the_same_inputs(tmp_path: Path, cache: HashCache) -> None:
    seen: list[tuple[bool, bool]] = []

    def stage(inputs: int, *, is_killed: bool) -> Stage:
        def work(out: Path, resume: bool) -> Outcome:
            seen.append((resume, (out / "checkpoint").exists()))
            (out / "checkpoint").write_text("")
            if is_killed:
                raise KeyboardInterrupt
            return Outcome({})

        return Stage("s", tmp_path / "s", {"a": inputs}, work, resumable=True)

    with pytest.raises(KeyboardInterrupt):
        run(stage(1, is_killed=True), cache)
    with pytest.raises(KeyboardInterrupt):
        run(stage(1, is_killed=True), cache)
    run(stage(2, is_killed=False), cache)
    assert seen == [(False, False), (True, True), (False, False)]


def test_forcing_runs_it_again(tmp_path: Path, cache: HashCache) -> None:
    calls: list[bool] = []
    run(make(tmp_path, calls), cache)
    assert not run(make(tmp_path, calls), cache, force=True).reused


def test_a_broken_record_counts_as_none(tmp_path: Path, cache: HashCache) -> None:
    calls: list[bool] = []
    stage = make(tmp_path, calls)
    run(stage, cache)
    stage.record_file.write_text("{")
    assert not run(stage, cache).reused


def test_hashes_are_remembered_and_renewed(tmp_path: Path) -> None:
    file = tmp_path / "f"
    file.write_text("one")
    cache = HashCache(tmp_path / "hashes.json")
    first = cache.file(file)
    cache.save()
    assert json.loads((tmp_path / "hashes.json").read_text())[str(file)][-1] == first
    file.write_text("two")
    assert HashCache(tmp_path / "hashes.json").file(file) != first


def test_the_code_digest_follows_the_rooms_named(checkout: Path) -> None:
    assert code_digest("audit") == code_digest("audit")
    assert code_digest("audit") != code_digest("prepare")
