"""The door: what it takes, what it never does, and what its reports say."""

from __future__ import annotations

import html.parser
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import stack.audit.html
import stack.audit.text
from stack.audit import AuditReport, PolicyNeeds, audit
from stack.audit.catalogue import load_checks, load_kinds, markdown
from stack.errors import BadRequest
from stack.files import tree_digest


def test_a_folder_that_is_not_there_is_a_bad_request(tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match="no such folder"):
        audit(tmp_path / "nothing")


def test_an_empty_folder_is_judged_not_ready(tmp_path: Path) -> None:
    report = audit(tmp_path, policy=PolicyNeeds())
    assert not report.ok
    assert report.of("info-missing")
    assert not report.of("unchecked-check")


@pytest.mark.usefixtures("in_this_process")
def test_a_check_that_breaks_off_is_told_and_the_others_still_run(
    copy_good: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    root = copy_good("v3.0")
    file = root / "data/chunk-000/file-000.parquet"
    table = pq.read_table(file)
    late = pa.array([t + 0.02 for t in table.column("timestamp").to_pylist()], pa.float32())
    at = table.column_names.index("timestamp")
    pq.write_table(table.set_column(at, "timestamp", late), file)

    def explode(*_: object) -> None:
        raise RuntimeError("planted")

    monkeypatch.setattr("stack.audit.checks.time._pattern", explode)
    report = audit(root)
    faults = report.of("unchecked-check")
    assert [fault.severity for fault in faults] == ["error"]
    assert "planted" in faults[0].message
    assert not report.ok
    broken = {item.name for item in report.not_run if "planted" in item.why}
    assert "timestamps" in broken
    assert {"totals", "stats-true", "video-lengths"} <= {ran.name for ran in report.ran}


@pytest.mark.usefixtures("in_this_process")
def test_even_reading_that_breaks_off_gives_a_report(
    good: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def explode(*_: object) -> None:
        raise MemoryError("planted")

    monkeypatch.setattr("stack.audit.evidence.load_rows", explode)
    report = audit(good["v2.1"], policy=PolicyNeeds())
    assert not report.ok
    assert all("planted" in fault.message for fault in report.of("unchecked-check"))
    assert report.of("format-needs-conversion")


def test_what_was_not_asked_for_is_listed_as_not_run(good: dict[str, Path]) -> None:
    report = audit(good["v3.0"])
    wanting = {item.name for item in report.not_run}
    assert wanting == {check.name for check in load_checks() if check.needs}
    assert {ran.name for ran in report.ran} | wanting == {check.name for check in load_checks()}


@pytest.mark.parametrize("version", ["v2.1", "v3.0"])
def test_nothing_is_written(version: str, copy_good: Callable[[str], Path]) -> None:
    root = copy_good(version)
    before = tree_digest(root)
    audit(root, policy=PolicyNeeds(), deep=True)
    assert tree_digest(root) == before


def test_neither_torch_nor_lerobot_is_imported(good: dict[str, Path]) -> None:
    program = (
        "import sys; from pathlib import Path; from stack.audit import audit, PolicyNeeds;"
        "report = audit(Path(sys.argv[1]), policy=PolicyNeeds(), deep=True);"
        "heavy = {'torch', 'lerobot', 'transformers', 'mlflow'} & set(sys.modules);"
        "sys.exit(3 if heavy else 0 if report.ok else 1)"
    )
    done = subprocess.run([sys.executable, "-c", program, str(good["v3.0"])], capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr.decode()


def test_linked_folders_are_followed_and_loops_end(good: dict[str, Path], tmp_path: Path) -> None:
    root = tmp_path / "linked"
    root.mkdir()
    for part in ("meta", "data", "videos"):
        (root / part).symlink_to(good["v3.0"] / part)
    assert {(f.code, f.severity) for f in audit(root).faults} == {("path-leaves-folder", "note")}
    (root / "loop").symlink_to(tmp_path)
    report = audit(root)
    assert report.facts.frames == 264
    assert {fault.code for fault in report.faults} <= {"left-over-file", "path-leaves-folder"}


def test_facts_are_counted(good: dict[str, Path], copy_good: Callable[[str], Path]) -> None:
    root = copy_good("v2.1")
    info = json.loads((root / "meta/info.json").read_text())
    (root / "meta/info.json").write_text(json.dumps({**info, "total_frames": 9999, "total_episodes": 77}))
    facts = audit(root).facts
    assert (facts.episodes, facts.frames, facts.shortest, facts.longest) == (4, 264, 56, 80)
    assert facts.tasks == ("pick up the cup", "把杯子放下")
    assert [(camera.name, camera.files, camera.frames) for camera in facts.cameras] == [
        ("observation.images.head", 4, 264),
        ("observation.images.hand", 4, 264),
    ]


def test_the_catalogue_page_is_up_to_date(checkout: Path) -> None:
    assert (checkout / "docs/faults.md").read_text(encoding="utf-8") == markdown()


def test_the_catalogue_is_written_for_people() -> None:
    for kind in load_kinds().values():
        assert re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)+", kind.code)
        for text in (kind.title, kind.consequence, kind.mend):
            assert text.strip() == text and len(text) > 10 and not text.endswith("."), kind.code


@pytest.fixture(scope="module")
def of_delivery(deliveries: Path) -> AuditReport:
    return audit(deliveries / "demo_task", policy=PolicyNeeds())


def test_the_text_report_ends_with_the_verdict(of_delivery: AuditReport) -> None:
    text = stack.audit.text.render(of_delivery)
    assert text.endswith(f"verdict: {of_delivery.verdict()}\n")
    assert text.count("features:\n") == 1  # the slice is shown once, not with each fault that it mends
    for fault in of_delivery.faults:
        assert f"  {fault.code}" in text
    assert text.index("ERRORS") < text.index("WARNINGS") < text.index("NOTES")


class _Page(html.parser.HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.outside: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.outside += [f"{tag} {name}" for name, _ in attrs if name in ("src", "href")]
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_html_report_is_one_whole_page_without_outside_references(of_delivery: AuditReport) -> None:
    source = stack.audit.html.render(of_delivery)
    page = _Page()
    page.feed(source)
    assert page.open == []
    assert page.outside == [] and page.tags.count("script") == 1 and "url(" not in source
    assert page.text.index("Not ready to train on") < page.text.index("What was found")
    for fault in of_delivery.faults:
        assert fault.code in page.text and fault.message in page.text
    assert "robot_velocity_turn [35]" in page.text and "joint_current_left_arm_joint_6 [75]" in page.text


def test_texts_of_the_dataset_cannot_break_the_page(copy_good: Callable[[str], Path]) -> None:
    root = copy_good("v2.1")
    evil = "<script>alert(1)</script>"
    lines = [{"task_index": 0, "task": evil}, {"task_index": 1, "task": "把杯子放下"}]
    (root / "meta/tasks.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    source = stack.audit.html.render(audit(root, policy=PolicyNeeds(tokenizer_max_length=20)))
    assert "<script>alert" not in source
    assert "&lt;script&gt;alert(1)" in source


def test_json_is_strict_and_complete(copy_good: Callable[[str], Path], of_delivery: AuditReport) -> None:
    root = copy_good("v3.0")
    stats = json.loads((root / "meta/stats.json").read_text())
    stats["action"]["q01"][0] = float("nan")
    (root / "meta/stats.json").write_text(json.dumps(stats))
    for report in (audit(root, policy=PolicyNeeds()), of_delivery):
        back = json.loads(json.dumps(report.to_json(), allow_nan=False))
        assert back["schema"] == "stack/audit/1"
        assert back["ok"] is report.ok is False
        assert [f["code"] for f in back["faults"]] == [f.code for f in report.faults]
        assert back["counts"] == {s: sum(f.severity == s for f in report.faults) for s in back["counts"]}
        assert len(back["channels"]) == len(report.channels) > 0


def _mutate(root: Path, rng: np.random.Generator) -> str:
    """One random flip, cut or JSON change somewhere in the folder."""
    files = sorted(p for p in root.rglob("*") if p.is_file())
    file = files[int(rng.integers(len(files)))]
    content = bytearray(file.read_bytes())
    how = int(rng.integers(4))
    if how == 0:
        content = content[: int(rng.integers(len(content)))]
    elif how == 1 or file.suffix not in (".json", ".jsonl"):
        for _ in range(int(rng.integers(1, 9))):
            content[int(rng.integers(len(content)))] = int(rng.integers(256))
    else:
        # Replace one number or text by something of another kind.
        found = list(re.finditer(rb"-?\d+(\.\d+)?|\"[^\"]*\"", bytes(content)))
        hit = found[int(rng.integers(len(found)))]
        other = [b"null", b"-1", b"1e999", b"[]", b"{}", b'"x"', b"true", b"99999999999999999999"]
        content[hit.start() : hit.end()] = other[int(rng.integers(len(other)))]
    file.write_bytes(content)
    return file.relative_to(root).as_posix()


@pytest.mark.parametrize("version", ["v2.1", "v3.0"])
def test_random_damage_never_breaks_the_audit(version: str, good: dict[str, Path], tmp_path: Path) -> None:
    import shutil

    rng = np.random.default_rng(5)
    for number in range(60):
        root = tmp_path / f"{number}"
        shutil.copytree(good[version], root)
        name = _mutate(root, rng)
        report = audit(root, policy=PolicyNeeds())
        assert not report.of("unchecked-check"), (number, name, report.of("unchecked-check"))
        json.dumps(report.to_json(), allow_nan=False)
        stack.audit.text.render(report)
        stack.audit.html.render(report)
        if report.facts.frames != 264:
            assert not report.ok, (number, name)
        shutil.rmtree(root)
