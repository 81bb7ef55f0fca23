"""`stack report`, from folders alone: read back as a page, with values that the journals' own lines give."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner

from stack.cli import cli
from stack.drawing import Bar, Line, Span, bar_chart, decades, line_chart, span_chart, ticks
from stack.errors import BadRequest
from stack.files import write_json
from stack.tracking import Journal
from stack.tracking import names as tracked
from stack.tracking.record_read import read_run
from stack.tracking.report import comparison_page, configuration, report_page


class Reader(HTMLParser):
    """The page's headings and table rows, in order, and whatever it would load from elsewhere."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.headings: list[str] = []
        self.loads: list[str] = []
        self._into: list[str] | None = None
        self.feed(page)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.loads += [value or "" for key, value in attributes if key in ("src", "href")]
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")
            self._into = self.rows[-1]
        elif tag in ("h1", "h2"):
            self.headings.append("")
            self._into = self.headings

    def handle_endtag(self, tag: str) -> None:
        if tag in ("td", "th", "h1", "h2"):
            self._into = None

    def handle_data(self, data: str) -> None:
        if self._into is not None:
            self._into[-1] += data


def training(
    folder: Path, *, rate: float, loss: float, parent: str | None = None, steps: int = 700
) -> Journal:
    journal = Journal(folder, name="night", experiment=tracked.TRAIN, parent=parent)
    journal.params({"train.learning_rate": rate, "train.steps": steps, "policy.dtype": "bfloat16"})
    journal.tags({"stack.dataset_digest": "d" * 64, "stack.git": f"{'a' * 40}"})
    write_json(
        folder / "run.json", {"train": {"learning_rate": rate, "seed": 1}, "policy": {"image": [1, 2]}}
    )
    for step in range(steps):
        journal.metrics({"train/loss": loss / (step + 1), "perf/step_s": 0.5}, step=step)
    journal.metrics({"final_loss": loss / steps, "final_peak_memory_bytes": 2.5e9}, step=steps)
    journal.tags({"stack.outcome": "ok"})
    journal.end("FINISHED")
    journal.close()
    return journal


def test_a_page_stands_alone_and_has_the_whole_curve(tmp_path: Path) -> None:
    training(tmp_path / "run", rate=0.1, loss=3.0)
    page = report_page(read_run(tmp_path / "run"))
    read = Reader(page)
    assert read.loads == [] and "<script" not in page
    assert read.headings[0] == "night: ok"
    assert ["train.learning_rate", "0.1"] in read.rows
    assert ["train: loss", "0.004286"] in read.rows
    assert ["train: peak_memory_bytes", "2.500 GB"] in read.rows
    (points,) = re.findall(r"points='([^']+)'[^>]*><title>train/loss: 3 to 0.004286<", page)
    assert len(points.split()) == 700, "a server gets 600 of these, the page all"


def test_differences_come_first_and_are_those_that_there_are(tmp_path: Path) -> None:
    training(tmp_path / "a", rate=0.1, loss=3.0)
    training(tmp_path / "b", rate=0.2, loss=6.0)
    a, b = read_run(tmp_path / "a"), read_run(tmp_path / "b")
    read = Reader(comparison_page(a, b))
    assert read.headings == ["What differs", "Configuration", "Curves", "Performance"]
    first = [row for row in read.rows if row[1:] == ["0.1", "0.2"]]
    assert first == [["train.learning_rate", "0.1", "0.2"]], "told once, whatever files say it"
    assert ["train: loss", "0.004286", "0.008571", "2"] in read.rows
    assert not any("dtype" in row[0] or "digest" in row[0] for row in read.rows)
    same = Reader(comparison_page(a, a))
    assert not any(row[0].startswith("train.") for row in same.rows)
    assert configuration(a)["policy.image"] == "[1, 2]"


def test_attempts_are_drawn_side_by_side_and_sweeps_by_point(tmp_path: Path) -> None:
    top = Journal(tmp_path, name="chain", experiment=tracked.REPRODUCE)
    folder = tmp_path / "train"
    first = Journal(folder, name="night", experiment=tracked.TRAIN, parent=top.run_id)
    for step in range(1, 9):
        first.metrics({"train/loss": 10.0 * step}, step=step)
    first.close()
    again = Journal(folder, name="night", experiment=tracked.TRAIN)
    again.resumed(5)
    for step in range(6, 9):
        again.metrics({"train/loss": 1000.0 * step}, step=step)
    again.end("FINISHED")
    sweep = Journal(tmp_path / "sweep", name="sweep", experiment=tracked.SWEEP, parent=top.run_id)
    for batch, speed in ((2, 5.0), (64, None)):
        point = Journal(
            tmp_path / "sweep" / str(batch), name=f"1 device(s), batch {batch}", experiment=tracked.SWEEP,
            parent=sweep.run_id, tags={"stack.outcome": "ok" if speed else "oom"},
        )  # fmt: skip
        point.metrics({"final_samples_per_s": speed} if speed else {}, step=0)
        point.end("FINISHED" if speed else "FAILED")
    sweep.end("FINISHED")
    top.end("FINISHED")
    run = read_run(tmp_path)
    (training_run,) = [one for one in run.all_below() if one.kind == "train"]
    assert [value for _, value in training_run.curves["train/loss"]] == [
        *(10.0 * step for step in range(1, 6)), *(1000.0 * step for step in range(6, 9)),
    ]  # fmt: skip
    page = report_page(run)
    names = [row[0] for row in Reader(page).rows]
    assert {"night (attempt 1)", "night (attempt 2)", "chain", "sweep"} <= set(names)
    assert "attempt 1: 10 to 80<" in page and "attempt 2: 10 to 8000<" in page
    assert ">oom<" in page and "batch 2: 5 samples/s" in page


def test_hostile_texts_stay_texts(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "run", name="<script>alert(1)</script>", experiment=tracked.TRAIN)
    journal.params({"<b>": "</td><img src=x>"})
    journal.event("error", what="<img src=x>")
    journal.metrics({"train/<i>": 1.0}, step=1)
    journal.metrics({"train/<i>": 2.0}, step=2)
    journal.end("FAILED")
    page = report_page(read_run(tmp_path / "run"))
    assert "<script" not in page and "<img" not in page and "<b>" not in page and "<i>" not in page


def test_what_is_no_single_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match="nothing to report"):
        read_run(tmp_path)
    training(tmp_path / "a", rate=1, loss=1)
    training(tmp_path / "b", rate=1, loss=1)
    with pytest.raises(BadRequest, match="2 runs lie side by side in this folder: a, b"):
        read_run(tmp_path)
    result = CliRunner().invoke(cli, ["report", str(tmp_path / "a"), str(tmp_path / "b")])
    assert isinstance(result.exception, BadRequest) and "2 folders are given" in str(result.exception)
    result = CliRunner().invoke(cli, ["report", "--compare", str(tmp_path / "a"), str(tmp_path / "b")])
    assert result.exit_code == 0 and (tmp_path / "a.comparison.html").is_file()


def test_charts_are_whole_xml_and_marks_stand_where_values_are() -> None:
    drawn = line_chart([Line("a & <b>", [(0, 0.0), (5, 10.0), (10, 5.0)])], title="t < u", x="step")
    root = ElementTree.fromstring(drawn)
    (line,) = root.iter("{http://www.w3.org/2000/svg}polyline")
    (x0, y0), (x1, y1), (x2, y2) = (map(float, p.split(",")) for p in line.attrib["points"].split())
    assert x1 - x0 == pytest.approx(x2 - x1, abs=0.11), "equal distances"
    assert y1 < y2 < y0 and (y0 - y1) == pytest.approx(2 * (y0 - y2), abs=0.3)
    spikes = [(float(step), 1000.0 if step == 4_321 else 1.0) for step in range(10_000)]
    thinned = ElementTree.fromstring(line_chart([Line("m", spikes)], title="", x=""))
    (line,) = thinned.iter("{http://www.w3.org/2000/svg}polyline")
    heights = [float(p.split(",")[1]) for p in line.attrib["points"].split()]
    assert len(heights) <= 1201 and min(heights) < 50, "a spike of one step is not lost"
    for text in (
        line_chart([], title="none", x="step"),
        line_chart([Line("one", [(1, 1)])], title="", x="", log=True),
        bar_chart([Bar("b<", 2.0), Bar("c", None, "oom")], title="bars"),
        bar_chart([], title="none"),
        span_chart([Span("s", -1, 1), Span("t", -50, 3, True)], title="spans", band=(-1, 1)),
        span_chart([], title="none", band=(-1, 1)),
    ):
        ElementTree.fromstring(text)


def test_ticks_are_round_and_inside() -> None:
    assert ticks(0, 10) == [0, 2, 4, 6, 8, 10]
    assert ticks(0.13, 0.61) == [0.2, 0.3, 0.4, 0.5, 0.6]
    assert ticks(3, 3) == [3]
    assert decades(0.02, 30) == pytest.approx([0.1, 1, 10])
