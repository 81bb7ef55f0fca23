"""An audit that ends in time, and a report whose form is known."""

from __future__ import annotations

import contextlib
import copy
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from stack.audit import PolicyNeeds, audit, audit_several
from stack.audit.deadline import TimeUp, deadline
from stack.audit.kinds import OPENPI
from stack.audit.schema import report_schema, several_schema
from stack.errors import WorkFailed
from stack.files import canonical_json

KINDS: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
}
KNOWN = {
    "$schema", "title", "type", "properties", "required", "additionalProperties", "items", "enum", "const",
    "anyOf", "minimum",
}  # fmt: skip


def violations(value: Any, schema: dict[str, Any], at: str = "$") -> Iterator[str]:
    """A checker of the part of JSON Schema that the report's schema uses; an unknown word is refused."""
    assert set(schema) <= KNOWN, set(schema) - KNOWN
    if "const" in schema and value != schema["const"]:
        yield f"{at}: {value!r} is not {schema['const']!r}"
    if "enum" in schema and value not in schema["enum"]:
        yield f"{at}: {value!r} is none of {schema['enum']}"
    if "anyOf" in schema and all(list(violations(value, one, at)) for one in schema["anyOf"]):
        yield f"{at}: {value!r} fits none"
    kind = schema.get("type")
    if kind and (not isinstance(value, KINDS[kind]) or (isinstance(value, bool) and kind != "boolean")):
        yield f"{at}: {value!r} is no {kind}"
        return
    if "minimum" in schema and value < schema["minimum"]:
        yield f"{at}: {value} is too small"
    if kind == "object":
        properties, more = schema.get("properties", {}), schema.get("additionalProperties", {})
        yield from (f"{at}: {name} is absent" for name in schema.get("required", []) if name not in value)
        for name, item in value.items():
            if name in properties:
                yield from violations(item, properties[name], f"{at}.{name}")
            elif more is False:
                yield f"{at}: {name} is unknown"
            else:
                yield from violations(item, more, f"{at}.{name}")
    if kind == "array":
        for number, item in enumerate(value):
            yield from violations(item, schema.get("items", {}), f"{at}[{number}]")


def test_the_schema_page_is_up_to_date(checkout: Path) -> None:
    assert (checkout / "docs/audit.schema.json").read_text(encoding="utf-8") == canonical_json(
        report_schema()
    )


def test_the_schema_page_of_several_is_up_to_date(checkout: Path) -> None:
    page = (checkout / "docs/audit_several.schema.json").read_text(encoding="utf-8")
    assert page == canonical_json(several_schema())


def test_reports_of_several_fit_their_schema(good: dict[str, Path], deliveries: Path) -> None:
    for roots in (list(good.values()), sorted(deliveries.iterdir())):
        several = audit_several(roots, policy=PolicyNeeds())
        assert several.faults
        report = json.loads(json.dumps(several.to_json(), allow_nan=False))
        assert list(violations(report, several_schema())) == []
        for spoil in (
            lambda r: r["between"][0]["data"].update(merge="perhaps"),
            lambda r: next(iter(r["datasets"].values())).pop("facts"),
            lambda r: r.pop("between"),
        ):
            spoilt = copy.deepcopy(report)
            spoil(spoilt)
            assert list(violations(spoilt, several_schema())), spoil


def test_reports_fit_the_schema(good: dict[str, Path], deliveries: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    roots = [*good.values(), *sorted(deliveries.iterdir()), tmp_path / "empty"]
    for root in roots:
        for policy in (None, PolicyNeeds(tokenizer=Path("nowhere")), OPENPI):
            report = json.loads(json.dumps(audit(root, policy=policy).to_json(), allow_nan=False))
            assert list(violations(report, report_schema())) == []


def test_the_schema_refuses_what_is_no_report(good: dict[str, Path]) -> None:
    report = audit(good["v2.1"], policy=PolicyNeeds()).to_json()
    report = json.loads(json.dumps(report))
    for spoil in (
        lambda r: r.pop("verdict"),
        lambda r: r.update(extra=1),
        lambda r: r["faults"][0].update(severity="fatal"),
        lambda r: r["faults"][0]["where"].update(line=3),
        lambda r: r["counts"].update(error=-1),
        lambda r: r["channels"][0].update(q01="a lot"),
        lambda r: r.update(schema="stack/audit/0"),
    ):
        spoilt = copy.deepcopy(report)
        spoil(spoilt)
        assert list(violations(spoilt, report_schema())), spoil


@pytest.mark.usefixtures("in_this_process")
def test_a_bound_gives_a_partial_report(good: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(_: object) -> None:
        while True:
            time.sleep(0.01)

    monkeypatch.setattr("stack.audit.evidence.probe_videos", slow)
    started = time.monotonic()
    report = audit(good["v3.0"], policy=PolicyNeeds(), max_seconds=0.7)
    assert time.monotonic() - started < 5
    assert not report.ok
    (fault,) = report.of("unchecked-time-up")
    unchecked = {item.name for item in report.not_run if "time was up" in item.why}
    assert "files-open" in unchecked  # the one that was interrupted
    assert {"video-lengths", "stats-true"} <= unchecked
    assert unchecked == set(fault.data["checks"])
    assert list(violations(json.loads(json.dumps(report.to_json())), report_schema())) == []
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_a_bound_that_is_not_reached_changes_nothing(good: dict[str, Path]) -> None:
    bounded, free = (audit(good["v3.0"], policy=PolicyNeeds(), max_seconds=s) for s in (500.0, None))
    assert bounded.faults == free.faults == ()
    assert [ran.name for ran in bounded.ran] == [ran.name for ran in free.ran]


@pytest.mark.usefixtures("in_this_process")
def test_a_reader_that_dies_is_told_by_file(copy_good: Callable[[str], Path], monkeypatch: Any) -> None:
    """A worker that is killed while it reads a video takes no report along."""

    def killed(*_: Any) -> Iterator[Any]:
        raise WorkFailed("worker-died", "a worker process was killed")
        yield

    monkeypatch.setattr("stack.audit.clips._probe_all", killed)
    report = audit(copy_good("v3.0"))
    assert not report.ok
    assert not report.of("unchecked-check")
    (fault,) = report.of("file-unreadable")
    assert (fault.count, "a worker process was killed" in fault.message) == (3, True)
    (unchecked,) = report.of("unchecked-video")
    assert unchecked.count == 3


def test_what_would_wait_for_ever_when_opened_is_not_opened(copy_good: Callable[[str], Path]) -> None:
    """Pipes in the place of metadata, rows and a video."""
    root = copy_good("v2.1")
    names = {
        "meta/tasks.jsonl",
        "data/chunk-000/episode_000001.parquet",
        "videos/chunk-000/observation.images.hand/episode_000002.mp4",
    }
    for name in names:
        (root / name).unlink()
        os.mkfifo(root / name)
    report = audit(root, policy=PolicyNeeds(), deep=True)
    (fault,) = report.of("file-unreadable")
    assert {place.file for place in fault.places} == names
    assert "a pipe" in fault.message
    assert not report.of("unchecked-check")
    assert {d.episode for d in report.decisions if d.choice == "drop"} == {1, 2}


@pytest.mark.skipif(shutil.which("setpriv") is None, reason="setpriv (util-linux) is not there")
def test_what_may_not_be_listed_is_not_called_missing(
    copy_good: Callable[[str], Path], tmp_path: Path
) -> None:
    """Also as root, who may read all: without the right to override permissions."""
    root = copy_good("v2.1")
    camera = "observation.images.hand"
    (root / f"videos/chunk-000/{camera}").chmod(0)
    less = "-dac_override,-dac_read_search"
    rights = ["setpriv", "--bounding-set", less, "--inh-caps", less] if os.geteuid() == 0 else []
    try:
        done = subprocess.run(
            [*rights, sys.executable, "-m", "stack", "audit", str(root), "--json", str(tmp_path / "r.json")],
            capture_output=True,
            text=True,
            timeout=120,
        )
    finally:
        (root / f"videos/chunk-000/{camera}").chmod(0o755)
    assert done.returncode == 1 and "Traceback" not in done.stderr, done.stderr
    faults = {f["code"]: f for f in json.loads((tmp_path / "r.json").read_text())["faults"]}
    assert faults["file-unreadable"]["where"]["file"] == f"videos/chunk-000/{camera}"
    assert "Permission denied" in faults["file-unreadable"]["message"]
    assert "could not be listed" in faults["camera-without-files"]["message"]


def test_a_name_that_is_not_utf8_is_written_all_the_same(good: dict[str, Path], tmp_path: Path) -> None:
    root = Path(os.fsdecode(os.fsencode(tmp_path) + b"/delivery\xff"))
    shutil.copytree(good["v2.1"], root)
    wanted = {name: tmp_path / f"report.{name}" for name in ("json", "html", "yaml")}
    options = {"json": "--json", "html": "--html", "yaml": "--decisions"}
    done = subprocess.run(
        [sys.executable, "-m", "stack", "audit", str(root)]
        + [part for name, file in wanted.items() for part in (options[name], str(file))],
        capture_output=True,
        timeout=120,
    )
    # The reader of parquet takes no such path: its rows are told to be unchecked, and nothing is called good.
    assert done.returncode == 1 and b"Traceback" not in done.stderr, done.stderr
    report = json.loads(wanted["json"].read_text())
    assert report["facts"]["name"] == root.name
    assert {"file-unreadable", "unchecked-rows"} <= {fault["code"] for fault in report["faults"]}
    assert all(b"delivery\\udcff" in file.read_bytes() for file in wanted.values())


@pytest.mark.usefixtures("in_this_process")
def test_what_was_found_before_is_kept(good: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(*_: object) -> None:
        time.sleep(60)

    monkeypatch.setattr("stack.audit.checks.stats.exact_stats", slow)
    report = audit(good["v3.0"] / "..", max_seconds=500)
    assert report.of("info-missing")
    report = audit(good["v3.0"], max_seconds=6)
    assert report.facts.frames in (0, 264)
    assert {"video-lengths", "totals"} <= {ran.name for ran in report.ran}
    assert "stats-true" in {item.name for item in report.not_run}


def test_the_deadline_passes_through_handlers_of_ordinary_errors() -> None:
    with pytest.raises(TimeUp), deadline(0.05):
        while True:
            with contextlib.suppress(Exception):
                time.sleep(0.01)


def test_the_command_says_what_is_unchecked(good: dict[str, Path]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "stack", "audit", str(good["v2.1"]), "--max-seconds", "0.001"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1
    assert "unchecked-time-up" in done.stdout
    assert "Traceback" not in done.stderr
