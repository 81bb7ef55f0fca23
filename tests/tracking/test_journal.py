"""Writing a journal: a full disk, a cut line, what is added after the end."""

from __future__ import annotations

import json
import resource
from pathlib import Path

import pytest

from stack.tracking import Journal
from stack.tracking.journal import JOURNAL, read_journal
from stack.tracking.replay import replay


class SmallDisk:
    """Lets files of this process grow to `size_bytes` and no further, as a full disk does."""

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes

    def __enter__(self) -> None:
        self.before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (self.size_bytes, self.before[1]))

    def __exit__(self, *error: object) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, self.before)


def test_a_full_disk_stops_nothing_and_every_line_follows_once(tmp_path: Path) -> None:
    journal = Journal(tmp_path, name="r", experiment="stack/train")
    with SmallDisk(1000):
        for step in range(40):
            journal.metrics({"train/loss": float(step)}, step=step)
        assert (tmp_path / JOURNAL).stat().st_size == 1000, "the disk was full in the middle of a line"
        assert "wait in memory" in str(journal.problem)
    journal.metrics({"train/loss": 40.0}, step=40)
    journal.end("FINISHED")
    assert journal.problem is None
    lines = (tmp_path / JOURNAL).read_bytes().splitlines()
    steps = [r["step"] for r in map(json.loads, lines) if r["kind"] == "metrics"]
    assert steps == list(range(41))


def test_what_does_not_fit_into_memory_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stack.tracking.journal.WAITING_BYTES", 2000)
    journal = Journal(tmp_path, name="r", experiment="stack/train")
    with SmallDisk(1000):
        for step in range(100):
            journal.metrics({"train/loss": float(step)}, step=step)
        journal.end("FAILED")
        journal.close()
    assert [r["kind"] for r in read_journal(tmp_path / JOURNAL)].count("end") == 0
    again = Journal(tmp_path, name="r", experiment="stack/train")
    with SmallDisk(10):
        for step in range(100):
            again.metrics({"train/loss": float(step)}, step=step)
    again.end("FINISHED")
    records = read_journal(tmp_path / JOURNAL)
    (gap,) = [r for r in records if r.get("event") == "journal-gap"]
    begin = next(n for n, r in enumerate(records) if r["kind"] == "attempt")
    steps = [r["step"] for r in records[begin:] if r["kind"] == "metrics"]
    assert steps == list(range(len(steps))) and gap["lines"] == 100 - len(steps)
    assert [r["status"] for r in records if r["kind"] == "end"] == ["FINISHED"]


def test_a_line_that_a_kill_has_cut_does_not_swallow_the_next(tmp_path: Path) -> None:
    first = Journal(tmp_path, name="r", experiment="stack/train")
    first.metrics({"train/loss": 1.0}, step=1)
    first.close()
    with (tmp_path / JOURNAL).open("ab") as file:
        file.write(b'{"t": 1, "kind": "metr')
    second = Journal(tmp_path, name="r", experiment="stack/train")
    second.end("FINISHED")
    kinds = [record["kind"] for record in read_journal(tmp_path / JOURNAL)]
    assert kinds == ["run", "metrics", "attempt", "end"] and second.is_continued


def test_what_is_added_after_the_end_is_no_new_attempt(tmp_path: Path) -> None:
    assert Journal.extend(tmp_path) is None
    journal = Journal(tmp_path, name="r", experiment="stack/data")
    journal.end("FINISHED")
    journal.close()
    more = Journal.extend(tmp_path)
    assert more is not None and more.run_id == journal.run_id
    more.tags({"stack.audit": "0 errors"})
    more.close()
    read = replay((tmp_path / JOURNAL).read_bytes(), where="here")
    assert (read.attempts, read.status, read.tags["stack.audit"]) == (1, "FINISHED", "0 errors")


def test_work_that_began_before_its_journal_has_its_whole_duration(tmp_path: Path) -> None:
    journal = Journal(tmp_path, name="point", experiment="stack/sweep", started_unix_s=1_700_000_000.5)
    journal.end("FINISHED")
    read = replay((tmp_path / JOURNAL).read_bytes(), where="here")
    assert read.start_ms == 1_700_000_000_500 and (read.end_ms or 0) > read.start_ms


def test_a_closed_journal_takes_no_other_file_for_its_own(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "run", name="r", experiment="stack/train")
    journal.close()
    with (tmp_path / "other").open("w") as other:
        journal.metrics({"train/loss": 1.0}, step=1)
        journal.close()
        other.write("mine")
    assert (tmp_path / "other").read_text() == "mine"
