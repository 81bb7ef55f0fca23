"""Reading a journal, without a server: names, liveness, lines that are wrong."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from stack.errors import BadRequest
from stack.tracking import names
from stack.tracking.journal import Journal
from stack.tracking.liveness import QUIET_S, lives, started_ticks, this_process
from stack.tracking.replay import clean_key, replay

HEAD = {"t": 1000, "kind": "run", "run_id": "a1", "name": "n", "experiment": "stack/train", "parent": None}


def journal(*records: object) -> bytes:
    return b"".join(json.dumps(record).encode() + b"\n" for record in ({**HEAD, "tags": {}}, *records))


def test_every_cleaned_name_is_one_that_mlflow_takes() -> None:
    from mlflow.utils.validation import _validate_metric_name, _validate_param_name, _validate_tag_name

    rng = random.Random(7)
    alphabet = "aZ9_-. :/\\[]#%\u4efb\u52a1\n\t~"
    keys = ["", "/", ".", "..", "../..", "a/../b", "/a/", "x" * 400, "a//b", "train/loss"]
    keys += ["".join(rng.choices(alphabet, k=rng.randint(1, 12))) for _ in range(3000)]
    for key in keys:
        said: list[str] = []
        cleaned = clean_key(key, said.append)
        _validate_metric_name(cleaned)
        _validate_param_name(cleaned)
        _validate_tag_name(cleaned)
        assert len(cleaned) <= 250
        assert bool(said) == (cleaned != key), key
    assert clean_key("train/loss", said.append) == "train/loss"
    assert clean_key("x" * 300 + "a", said.append) != clean_key("x" * 300 + "b", said.append)


def test_wrong_lines_are_counted_and_the_others_read() -> None:
    content = journal(
        {"t": 1001, "kind": "metrics", "step": 1, "metrics": {"train/loss": 1.0}},
        {"t": 1002, "kind": "metrics", "step": "x", "metrics": {"train/loss": 1.0}},
        {"t": 1003, "kind": "params"},
        {"t": "now", "kind": "tags", "tags": {}},
        [1, 2],
        {"t": 1004, "kind": "hologram"},
        {"t": 1005, "kind": "end", "status": "FINISHED"},
    )
    result = replay(content + b"\x00\xff garbage\n", where="here")
    assert [(point.key, point.step) for point in result.points] == [("train/loss", 1)]
    assert result.unreadable_lines == 5
    assert result.status == "FINISHED"
    assert any("hologram" in note for note in result.notes)
    assert any("5 unreadable" in note for note in result.notes)
    assert replay(journal(), where="here").unreadable_lines == 0


def test_points_before_the_offset_are_left_out_and_nothing_else_is() -> None:
    content = journal(
        {"t": 1001, "kind": "params", "params": {"a": "1"}},
        {"t": 1002, "kind": "metrics", "step": 1, "metrics": {"m": 1.0}},
        {"t": 1003, "kind": "metrics", "step": 2, "metrics": {"m": 2.0}},
    )
    lines = content.split(b"\n")
    offset = sum(len(line) + 1 for line in lines[:3])
    part = replay(content, where="here", points_from=offset)
    assert [point.step for point in part.points] == [2]
    assert part.params == {"a": "1"}
    assert part.whole_bytes == len(content)


@pytest.mark.parametrize("run_id", ["x' OR '1'='1", "", "a b", "x" * 65, 7])
def test_a_run_id_that_could_alter_a_search_is_refused(run_id: object) -> None:
    with pytest.raises(BadRequest, match="names its run"):
        replay(json.dumps({**HEAD, "run_id": run_id}).encode() + b"\n", where="here")


def test_only_the_very_process_that_wrote_is_taken_for_alive() -> None:
    now_ms, long_ago_ms = int(time.time() * 1000), int((time.time() - QUIET_S - 5) * 1000)
    this = this_process()
    assert lives(this, last_written_ms=long_ago_ms), "a quiet process is alive"
    assert not lives({**this, "started": this["started"] - 1}, last_written_ms=now_ms), "a pid used again"
    assert not lives({**this, "pid": 2**22 + 1}, last_written_ms=now_ms)
    # Another machine's or container's pid says nothing; then the journal's age decides.
    assert lives({**this, "place": "elsewhere", "pid": 1}, last_written_ms=now_ms)
    assert not lives({**this, "place": "elsewhere"}, last_written_ms=long_ago_ms)


def test_a_zombie_does_not_live() -> None:
    child = subprocess.Popen([sys.executable, "-c", "pass"])
    deadline = time.monotonic() + 20
    while started_ticks(child.pid) is not None and time.monotonic() < deadline:
        time.sleep(0.02)
    assert Path(f"/proc/{child.pid}").exists(), "not waited for yet"
    assert started_ticks(child.pid) is None
    child.wait()
    assert started_ticks(os.getpid()) is not None


def test_a_journal_that_is_continued_keeps_its_run(tmp_path: Path) -> None:
    first = Journal(tmp_path, name="a", experiment=names.TRAIN)
    first.end("FAILED")
    first.close()
    second = Journal(tmp_path, name="other", experiment=names.SWEEP)
    result = replay((tmp_path / "journal.jsonl").read_bytes(), where="here")
    assert second.run_id == first.run_id == result.run_id
    assert (result.name, result.attempts, result.status) == ("a", 2, "RUNNING")


def test_a_parameter_that_changes_back_says_so() -> None:
    content = journal(*({"t": 2, "kind": "params", "params": {"lr": value}} for value in ("1", "2", "1")))
    result = replay(content, where="here")
    assert result.params == {"lr": "1"}
    assert result.tags["param-changed.lr"] == "1 -> 1 (attempt 1)"


def test_what_an_attempt_before_said_is_not_sent_while_this_one_may_say_otherwise(tmp_path: Path) -> None:
    """A training says its settings in two parts, the second when its child has built the policy."""
    first = Journal(tmp_path, name="a", experiment=names.TRAIN)
    first.params({"train.lora.rank": 16, "model.trained": 100})
    first.end("FAILED")
    second = Journal(tmp_path, name="a", experiment=names.TRAIN)
    second.params({"train.lora.rank": 32})

    def said() -> dict[str, str]:
        return replay((tmp_path / "journal.jsonl").read_bytes(), where="here").params

    assert said() == {"train.lora.rank": "32"}
    second.params({"model.trained": 200})
    assert said() == {"train.lora.rank": "32", "model.trained": "200"}
    third = Journal(tmp_path, name="a", experiment=names.TRAIN)
    third.end("FAILED")
    assert said() == {"train.lora.rank": "32", "model.trained": "200"}


ODD = [None, True, -1, 0, 1e30, 10**400, 1e-320, "", "x", "1", [], [1], {}, {"a": None}, "\u0000", "x" * 9000]


def test_whatever_stands_in_a_line_is_read_or_passed_over(tmp_path: Path) -> None:
    """By a replay, whose values a server must be able to store, and by a report."""
    from stack.tracking.record_read import read_run
    from stack.tracking.report import report_page

    whole = [
        {**HEAD, "tags": {"stack.device": "cpu"}, "process": this_process(), "description": "d"},
        {"t": 1001, "kind": "params", "params": {"lr": 0.1}},
        {"t": 1002, "kind": "metrics", "step": 1, "metrics": {"train/loss": 1.0, "final_loss": 2.0}},
        {"t": 1003, "kind": "dataset", "name": "d", "digest": "0", "source": "s", "context": "c",
         "profile": {}},
        {"t": 1004, "kind": "model", "name": "m", "roles": ["best"], "step": 1, "path": "p", "bytes": 1,
         "sha256": "0", "proof": {"loss": 1}},
        {"t": 1005, "kind": "artifact", "path": "a.html", "to": ""},
        {"t": 1006, "kind": "event", "event": "nonfinite", "metric": "m", "value": "nan", "step": 1},
        {"t": 1007, "kind": "attempt", "pid": 1, "process": this_process(), "tags": {}},
        {"t": 1008, "kind": "resume", "step": 1},
        {"t": 1009, "kind": "end", "status": "FINISHED"},
    ]  # fmt: skip
    rng = random.Random(11)
    for case in range(400):
        lines = [dict(line) for line in whole]
        for _ in range(rng.randint(1, 3)):
            line = rng.choice(lines[1:])
            key = rng.choice(sorted(line))
            if rng.random() < 0.2:
                del line[key]
            elif isinstance(line[key], dict) and line[key] and rng.random() < 0.5:
                line[key] = {name: rng.choice(ODD) for name in line[key]}
            else:
                line[key] = rng.choice(ODD)
        content = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
        said = replay(content, where="here")
        for point in [*said.points, *said.tail]:
            assert abs(point.step) < 2**63 and 0 <= point.t_ms < 2**53 and abs(point.value) < float("inf")
        folder = tmp_path / str(case)
        folder.mkdir()
        (folder / "journal.jsonl").write_bytes(content)
        assert said.name in report_page(read_run(folder))
