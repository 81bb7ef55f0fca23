"""The audit's own checks on what `stack prepare` wrote: of its form always, of its values with --audit."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

from stack.audit.catalogue import load_checks
from stack.audit.output import JUST_PROVEN, audit_output
from stack.cli import cli
from stack.files import read_json, write_json

EPISODE_TABLE = "meta/episodes/chunk-000/file-000.parquet"


def prepared(root: Path, more: str = "", *, flags: tuple[str, ...] = ("--audit",)) -> tuple[Result, Path]:
    manifest, out = root.parent / "m.yaml", root.parent / "out"
    manifest.write_text(f"schema: stack/dataset/1\nname: t\nsources: [{{path: {root.name}}}]\n{more}")
    return CliRunner().invoke(cli, ["prepare", str(manifest), "--out", str(out), *flags]), out


def test_what_is_left_out_is_known_by_name() -> None:
    assert set(JUST_PROVEN) < {check.name for check in load_checks()}


@pytest.mark.parametrize("version", ["v2.1", "v3.0"])
def test_a_good_output_is_said_to_be_good(version: str, copy_good: Callable[[str], Path]) -> None:
    done, out = prepared(copy_good(version))
    assert done.exit_code == 0, done.output
    assert "audit of out: ready to train on: no errors, 0 warnings, 0 notes" in done.output.splitlines()
    why = {item.name: item.why for item in audit_output(out).not_run}
    assert why.items() >= JUST_PROVEN.items()


FORM = {
    "info-whole",
    "totals",
    "files-there",
    "episode-lengths",
    "episode-ranges",
    "index-columns",
    "clip-times",
}


@pytest.mark.parametrize("version", ["v2.1", "v3.0"])
def test_without_being_asked_the_form_is_judged(version: str, copy_good: Callable[[str], Path]) -> None:
    done, out = prepared(copy_good(version), flags=())
    assert done.exit_code == 0, done.output
    said = [line for line in done.output.splitlines() if line.startswith("audit of out: ")]
    assert said == [
        "audit of out: its form has no errors, 0 warnings, 0 notes; its values and videos are for"
        " `stack audit`, or for --audit here"
    ]
    form, whole = audit_output(out, values=False), audit_output(out)
    ran = {check.name for check in form.ran}
    assert ran >= FORM
    # What it left out is told, and is run where values are asked for.
    left = {item.name for item in form.not_run if item.why == "values and videos were left unread"}
    assert left >= {"values-finite", "stats-true", "quantiles-true", "video-lengths", "files-open"}
    assert ran | left == {check.name for check in whole.ran}


def test_the_form_is_judged_without_reading_values_or_videos(
    copy_good: Callable[[str], Path], monkeypatch: Any
) -> None:
    """Memory would grow with the frames."""
    from stack.audit import evidence, rows_load

    read: set[str] = set()
    batches = rows_load._batches

    def watched(parquet: pq.ParquetFile, columns: list[str], **more: Any) -> Any:
        read.update(columns)
        return batches(parquet, columns, **more)

    _, out = prepared(copy_good("v2.1"), flags=())
    monkeypatch.setattr(rows_load, "_batches", watched)
    monkeypatch.setattr(evidence, "probe_videos", lambda _: pytest.fail("a video was read"))
    audit_output(out, values=False)
    assert read == {"timestamp", "frame_index", "episode_index", "index", "task_index"}


def test_each_part_of_a_split_is_judged(copy_good: Callable[[str], Path]) -> None:
    done, _ = prepared(copy_good("v2.1"), "split: {one: ['0-2'], two: rest}\n")
    assert done.exit_code == 0, done.output
    said = [line.split(":")[0] for line in done.output.splitlines() if line.startswith("audit of")]
    assert said == ["audit of one", "audit of two"]


def _wrong_stats(root: Path) -> None:
    """Of all rows: a wrong mean. Nothing else of `prepare` would see it."""
    stats = read_json(root / "meta/stats.json")
    stats["action"]["mean"][2] += 0.5
    write_json(root / "meta/stats.json", stats)


def _wrong_episode_stats(root: Path) -> None:
    table = pq.ParquetFile(root / EPISODE_TABLE).read()
    at = table.column_names.index("stats/action/max")
    values = table.column(at).to_pylist()
    values[1][0] += 1
    pq.write_table(table.set_column(at, "stats/action/max", [values]), root / EPISODE_TABLE)


def _wrong_end(root: Path) -> None:
    table = pq.ParquetFile(root / EPISODE_TABLE).read()
    name = next(n for n in table.column_names if n.endswith("hand/to_timestamp"))
    values = table.column(name).to_pylist()
    values[2] += 0.1
    at = table.column_names.index(name)
    pq.write_table(table.set_column(at, name, [values]), root / EPISODE_TABLE)


@pytest.mark.parametrize(
    ("code", "spoil", "flags"),
    [
        ("stats-differ", _wrong_stats, ("--audit",)),
        ("stats-differ", _wrong_episode_stats, ("--audit",)),
        ("clip-times-wrong", _wrong_end, ("--audit",)),
        ("clip-times-wrong", _wrong_end, ()),
    ],
)
def test_a_writer_that_errs_is_found_out(
    code: str,
    spoil: Callable[[Path], None],
    flags: tuple[str, ...],
    copy_good: Callable[[str], Path],
    monkeypatch: Any,
) -> None:
    """A fault of the writer's own, behind its own checks."""
    from stack.prepare import run

    before = run.write_provenance

    def provenance(root: Path, *rest: Any) -> None:
        spoil(root)
        before(root, *rest)

    monkeypatch.setattr(run, "write_provenance", provenance)
    done, out = prepared(copy_good("v2.1"), flags=flags)
    assert done.exit_code == 1, done.output
    assert any(line.startswith(f"  {code}: ") for line in done.output.splitlines()), done.output
    assert (out / "meta/info.json").is_file()


WAYS = {
    "link": ["prepare", "{m}", "--out", "{out}", "--videos", "link"],
    "transcode": ["prepare", "{m}", "--out", "{out}", "--videos", "transcode", "--set", "transcode.size=32"],
    "convert to v2.1": ["convert", "{v3}", "{out}", "--to", "v2.1"],
    "merge": ["merge", "{v2}", "{v3}", "{out}"],
    "drop": ["drop", "{v3}", "{out}", "--episodes", "1"],
    "drop, v2.1": ["drop", "{v2}", "{out}", "--episodes", "0,3", "--to", "v2.1"],
}


@pytest.mark.parametrize("way", WAYS)
def test_whatever_is_written_has_no_errors(way: str, good: dict[str, Path], tmp_path: Path) -> None:
    manifest, out = tmp_path / "m.yaml", tmp_path / "out"
    manifest.write_text(f"schema: stack/dataset/1\nname: t\nsources: [{{path: {good['v2.1']}}}]\n")
    named = {"m": manifest, "out": out, "v2": good["v2.1"], "v3": good["v3.0"]}
    more = ["--allow-outside"] if way in ("link", "transcode") else []
    done = CliRunner().invoke(cli, [word.format(**named) for word in WAYS[way]] + more)
    assert done.exit_code == 0, done.output
    report = audit_output(out)
    assert report.counts["error"] == 0, report.faults
    assert report.facts.episodes == {"merge": 8, "drop": 3, "drop, v2.1": 2}.get(way, 4)
    # A v2.1 dataset is told to be one; nothing else is wrong with it.
    unsaid = {"format-needs-conversion", "stats-quantiles-missing"} if "v2.1" in way else set()
    assert {fault.code for fault in report.faults} <= unsaid, report.faults


def test_a_task_without_text_is_told_at_once(copy_good: Callable[[str], Path]) -> None:
    """Nothing that prepare itself would refuse; a policy would be trained on an empty prompt."""
    root = copy_good("v2.1")
    tasks = root / "meta/tasks.jsonl"
    first, *rest = [json.loads(line) for line in tasks.read_text().splitlines()]
    was, first["task"] = first["task"], ""
    tasks.write_text("".join(json.dumps(line) + "\n" for line in (first, *rest)))
    episodes = root / "meta/episodes.jsonl"
    lines = [json.loads(line) for line in episodes.read_text().splitlines()]
    for line in lines:
        line["tasks"] = ["" if task == was else task for task in line["tasks"]]
    episodes.write_text("".join(json.dumps(line) + "\n" for line in lines))
    done, out = prepared(root, flags=())
    assert done.exit_code == 1, done.output
    assert any(line.startswith("  task-empty: ") for line in done.output.splitlines()), done.output
    assert (out / "meta/info.json").is_file()
