"""The page: whole without outside references, safe with hostile names, right in its figures, bounded."""

from __future__ import annotations

import base64
import html.parser
import io
import json
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import av
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stack.audit import AuditReport, PolicyNeeds, audit, plots
from stack.audit import pictures as audit_pictures
from stack.audit.html import render
from stack.audit.html_text import coded, esc
from stack.audit.plots import nice_ticks, normalised, signed_log
from stack.demo.identity import Identity, read_identity
from stack.faults import Fault, Place

VOID = {"meta", "br", "img", "input"}
HAND = "observation.images.hand"


class Page(html.parser.HTMLParser):
    """What a browser would make of it: elements with attributes, texts by element, nothing left open."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.text = ""
        self.by_heading: dict[str, str] = {}
        self._heading = ""
        self.feed(source)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in VOID:
            self.open.append(tag)
        if tag in ("h2", "h3"):
            self._heading = ""

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] in ("style", "script"):
            return
        self.text += data
        if self.open and self.open[-1] in ("h2", "h3"):
            self._heading += data
        self.by_heading[self._heading] = self.by_heading.get(self._heading, "") + data

    def of(self, tag: str, kind: str | None = None) -> list[dict[str, str]]:
        return [a for t, a in self.elements if t == tag and kind in (None, a.get("class"))]


@pytest.fixture(scope="module")
def demo(deliveries: Path) -> tuple[AuditReport, Path]:
    root = deliveries / "demo_task"
    return audit(root, policy=PolicyNeeds(action_horizon=10)), root


@pytest.fixture(scope="module")
def demo_page(demo: tuple[AuditReport, Path]) -> tuple[str, Page]:
    source = render(*demo)
    return source, Page(source)


def test_one_file_without_outside_references(demo_page: tuple[str, Page]) -> None:
    source, page = demo_page
    for tag, attributes in page.elements:
        for name in ("src", "href", "xlink:href", "action", "data", "srcset", "style"):
            value = attributes.get(name, "")
            assert not value or value.startswith(("data:image/jpeg;base64,", "width: ")), (tag, name, value)
        assert not any(name.startswith("on") for name in attributes), (tag, attributes)
    assert {t for t, _ in page.elements} & {"link", "iframe", "object", "embed", "base", "form"} == set()
    assert "http" not in re.sub(r"base64,[A-Za-z0-9+/=]+", "", source)
    assert len(page.of("script")) == 1 and "url(" not in source and "@import" not in source


def test_the_first_screen_says_verdict_costs_and_steps(demo_page: tuple[str, Page]) -> None:
    _, page = demo_page
    order = ["Not ready to train on for pi05", "What it would have cost", "What to do next", "What was found"]
    places = [page.text.index(text) for text in order]
    assert places == sorted(places)
    steps = page.by_heading["What to do next"]
    assert "Leave out 1 episode of 12 (7)" in steps and "exclude_episodes: [7]" in steps
    assert "Audit again" in steps
    assert "every weight NaN" in page.by_heading["What it would have cost"]


def test_every_error_and_warning_is_in_a_step(
    demo: tuple[AuditReport, Path], demo_page: tuple[str, Page], real_datasets: Path
) -> None:
    reports = [(demo[0], demo_page[1])]
    for folder in sorted(real_datasets.iterdir()):
        if folder.is_dir():
            report = audit(folder, policy=PolicyNeeds())
            reports.append((report, Page(render(report))))
    for report, page in reports:
        steps = page.by_heading["What to do next"]
        for fault in report.faults:
            assert fault.severity == "note" or fault.code in steps, (report.facts.name, fault.code)


def test_leaving_out_an_episode_is_not_said_to_mend_the_metadata(copy_good: Callable[[str], Path]) -> None:
    root = copy_good("v2.1")
    (root / f"videos/chunk-000/{HAND}/episode_000002.mp4").write_bytes(b"")

    def first_step() -> str:
        (step,) = re.findall(r"<li>(Leave out 1 episode of 4 \(2\).*?)</li>", render(audit(root)), re.S)
        return str(step)

    assert "file-empty" in first_step()
    (root / "meta/episodes_stats.jsonl").write_bytes(b"")
    assert "Mends" in first_step() and "file-empty" not in first_step()


def test_what_did_not_run_is_said(demo: tuple[AuditReport, Path], demo_page: tuple[str, Page]) -> None:
    said = demo_page[1].by_heading["What was not checked"]
    assert demo[0].not_run
    for item in demo[0].not_run:
        assert f"{item.title}: {item.why}" in said


def test_the_table_holds_every_fault_with_its_severity(
    demo: tuple[AuditReport, Path], demo_page: tuple[str, Page]
) -> None:
    rows = [a["data-severity"] for a in demo_page[1].of("tr") if "data-severity" in a]
    assert rows == [fault.severity for fault in demo[0].faults]
    for fault in demo[0].faults:
        assert fault.code in demo_page[1].text and fault.message in demo_page[1].text


def test_plots_show_the_figures(demo: tuple[AuditReport, Path], demo_page: tuple[str, Page]) -> None:
    report, page = demo[0], demo_page[1]
    assert len(page.of("rect", "band")) == 2
    bars = [a for c in ("bar", "faint", "bar-warning", "bar-error") for a in page.of("rect", c)]
    assert len(bars) >= len(report.channels) == 199
    wide = {c.index for c in report.channels if c.feature == "action" and c.largest > 30}
    assert len(page.of("rect", "bar-error")) == len(wide) > 0
    assert [len(page.of("rect", f"ep-{c}")) for c in ("use", "look", "drop")] == [11, 0, 1]
    for episode, count in report.measures.lengths:
        assert f"episode {episode}: {count} frames" in page.text
    heights = {
        c: float(page.of("rect", f"ep-{c}")[0]["height"]) for c in ("use", "drop")
    }  # the first used one is episode 0
    lengths = dict(report.measures.lengths)
    assert heights["drop"] / heights["use"] == pytest.approx(lengths[7] / lengths[0], abs=0.01)
    for tag, attributes in page.elements:
        if tag in ("rect", "line", "text"):
            numbers = [attributes.get(n, "0") for n in ("x", "y", "width", "height", "x1", "y1", "x2", "y2")]
            assert all(np.isfinite(float(number)) and -1 <= float(number) < 3000 for number in numbers)


def test_normalised_ends_are_those_of_the_exact_formula(demo: tuple[AuditReport, Path]) -> None:
    for channel in demo[0].channels:
        if not channel.is_constant and channel.q99 - channel.q01 > 1e-3:
            largest = max(abs(end) for end in normalised(channel))
            assert largest == pytest.approx(channel.largest, rel=1e-3)


def test_scales() -> None:
    assert signed_log(-9.0) == -1.0 and signed_log(0.0) == 0.0 and signed_log(999.0) == pytest.approx(3.0)
    assert nice_ticks(10.0) == [0, 2.5, 5, 7.5, 10] or nice_ticks(10.0) == [0, 5, 10]
    assert nice_ticks(0.0) == [0.0] and nice_ticks(float("nan")) == [0.0]
    for top in (0.003, 1.0, 7.3, 300.0, 681.0):
        ticks = nice_ticks(top)
        assert 2 <= len(ticks) <= 6 and ticks[-1] <= top * (1 + 1e-9)


def jpegs(page: Page) -> list[tuple[str, np.ndarray]]:
    found = []
    for attributes in page.of("img"):
        content = base64.b64decode(attributes["src"].partition("base64,")[2])
        with av.open(io.BytesIO(content), format="mjpeg") as container:
            found.append((attributes["alt"], next(container.decode(video=0)).to_ndarray(format="rgb24")))
    return found


def test_pictures_are_the_frames_that_they_are_called(demo_page: tuple[str, Page]) -> None:
    """The demo paints into each picture which one it is; small pictures are shown as they are."""
    cameras = ["observation.images.top_head", "observation.images.hand_left", "observation.images.hand_right"]
    shown = jpegs(demo_page[1])
    assert any("episode 7" in said for said, _ in shown)
    for said, picture in shown:
        camera, episode, frame = re.fullmatch(r"(\S+), episode (\d+), frame (\d+)", said).groups()
        assert read_identity(picture) == Identity(0, cameras.index(camera), int(episode), int(frame)), said


def test_pictures_of_joined_files_are_the_clips_own(
    copy_good: Callable[[str], Path], encode_video: Callable[..., None]
) -> None:
    root = copy_good("v3.0")
    shades = [np.full((32, 48, 3), 60 + 3 * n, np.uint8) for n in range(56)]
    shades += [np.full((32, 48, 3), (200, 30, 30 + n), np.uint8) for n in range(64 + 64 + 80)]
    for n, picture in enumerate(shades):
        picture[:, : 1 + n % 40] = 255  # no picture is of one colour, or like its neighbour
    encode_video(root / f"videos/{HAND}/chunk-000/file-000.mp4", shades)
    report = audit(root)
    fault = Fault("video-frozen", "warning", "m", "c", "d", Place("f", 1, 4, HAND))
    (strip,), left_out = audit_pictures.strips(replace(report, faults=(fault,)), root)
    assert left_out == 0 and [p.frame for p in strip.pictures] == [2, 4, 14]
    border = Fault("clip-picture-wrong", "error", "m", "c", "d", Place("f", 1, 0, HAND))
    (at_border,), _ = audit_pictures.strips(replace(report, faults=(border,)), root)
    assert [p.frame for p in at_border.pictures] == [-1, 0, 1, 2]  # the first is the clip's before
    for picture in (*strip.pictures, *at_border.pictures):
        with av.open(io.BytesIO(picture.jpeg or b""), format="mjpeg") as container:
            shown = next(container.decode(video=0)).to_ndarray(format="rgb24")
        wanted = shades[56 + picture.frame]
        assert np.abs(shown.astype(int) - wanted).mean() < 8


def test_a_picture_that_cannot_be_decoded_is_said_and_not_shown(deliveries: Path, tmp_path: Path) -> None:
    root = tmp_path / "delivery"
    shutil.copytree(deliveries / "demo_task", root)
    report = audit(root, policy=PolicyNeeds(action_horizon=10))
    for file in (root / "videos").rglob("*.mp4"):
        file.write_bytes(b"no video")
    page = Page(render(report, root))
    assert page.of("img") == [] and page.of("figcaption")


@pytest.mark.usefixtures("in_this_process")
def test_the_size_is_bounded_and_what_is_left_out_is_said(
    demo: tuple[AuditReport, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    report, root = demo
    places = [Place(f"x{n}", n % 12, n, "action") for n in range(40)]
    faults = [Fault("rows-not-finite", "error", f"m{n}", "c", "d", p) for n, p in enumerate(places)]
    many = replace(report, faults=tuple(faults))
    found, left_out = audit_pictures.strips(many, root)
    assert (len(found), left_out) == (audit_pictures.MOST, 4)
    source = render(many, root)
    assert "4 places more are left out" in source and len(source) < 2_000_000
    monkeypatch.setattr(audit_pictures, "MOST_BYTES", 4000)
    few, left_out = audit_pictures.strips(many, root)
    assert 1 <= len(few) < 10 and left_out == 40 - len(few)
    long = replace(report, faults=(replace(faults[0], message="x" * 100_000),))
    assert len(render(long)) < len(render(replace(report, faults=(faults[0],)))) + 10_000


EVIL = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "'-alert(1)-'",
    "</svg></title></style><b>",
    "a\u202egnp.exe\x00\x1b[31m\u2028",
    "{{7*7}}${7*7}`x`",
)


def test_hostile_names_and_texts_are_shown_as_they_are(copy_good: Callable[[str], Path]) -> None:
    """In channel names, feature names, tasks, the robot's type: wherever a delivery can write."""
    root = copy_good("v2.1")
    info = json.loads((root / "meta/info.json").read_text())
    info["robot_type"] = EVIL[0]
    for feature in ("observation.state", "action"):
        info["features"][feature]["names"] = list(EVIL)
    info["features"][EVIL[1]] = {"dtype": "float32", "shape": [1], "names": [EVIL[0]]}
    info["features"]["action"]["field_descriptions"] = {EVIL[3] + "/a/b": {"indices": [0, 1, 2]}}
    info["data_path"] = EVIL[0]
    (root / "meta/info.json").write_text(json.dumps(info))
    lines = [{"task_index": i, "task": text} for i, text in enumerate(EVIL[:2])]
    (root / "meta/tasks.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    file = root / "data/chunk-000/episode_000001.parquet"
    table = pq.read_table(file)
    values = table["action"].to_pylist()
    values[3] = [float("nan"), 900.0, -900.0, 5.0, 700.0, 9.0]
    field = table.schema.field("action")
    at = table.column_names.index("action")
    pq.write_table(table.set_column(at, field, pa.array(values, field.type)), file)
    report = audit(root, policy=PolicyNeeds(tokenizer_max_length=20))
    source = render(report, root)
    page = Page(source)
    assert len(page.of("script")) == 1 and not page.of("b", "x")
    assert not [a for _, a in page.elements if any(name.startswith("on") for name in a)]
    assert all(a["src"].startswith("data:image/jpeg") for a in page.of("img"))
    assert EVIL[0] in page.text and EVIL[1] in page.text
    assert not set("\u202e\x00\x1b\u2028") & set(source)
    assert "\\u202e" in page.text and "\\u0000" in page.text


def test_escaping() -> None:
    assert esc("<a href=\"x\" b='y'>&") == "&lt;a href=&quot;x&quot; b=&#x27;y&#x27;&gt;&amp;"
    assert esc("把杯子放下\n\t") == "把杯子放下\n\t"
    assert coded("run `a <b>` now") == "run <code>a &lt;b&gt;</code> now"
    assert coded("an odd ` one") == "an odd ` one"


def test_a_clock_that_is_off_is_drawn(real_datasets: Path) -> None:
    root = real_datasets / "cr5_tcp_v21"
    if not root.is_dir():
        pytest.skip("cr5_tcp_v21 is not there")
    report = audit(root)
    page = Page(render(report))
    assert len(page.of("polyline")) == 3
    # Worked out here from the rows of the episode that is off most.
    worst = report.measures.clock_curves[0]
    table = pq.read_table(root / f"data/chunk-000/episode_{worst.episode:06d}.parquet")
    off = np.array(table["timestamp"].to_pylist()) * 10 - np.arange(len(table))
    assert worst.worst_frames == pytest.approx(np.abs(off).max(), abs=1e-3)
    assert dict(zip(worst.frames, worst.off_frames, strict=True))[40] == pytest.approx(off[40], abs=1e-3)


def test_key_frame_distances_are_those_of_the_packets(real_datasets: Path) -> None:
    root = real_datasets / "gr00t_picknplace_v20"
    if not root.is_dir():
        pytest.skip("gr00t_picknplace_v20 is not there")
    report = audit(root)
    (own,) = [d for d in report.measures.key_distances.values() if d]
    wanted = []
    for file in sorted((root / "videos").rglob("*.mp4")):
        with av.open(str(file)) as container:
            keys = sorted(
                round(float(p.pts * p.time_base) * 20)
                for p in container.demux(video=0)
                if p.is_keyframe and p.size
            )
            count = container.streams.video[0].frames
        wanted += np.diff([*keys, count]).tolist()
    assert list(own) == wanted


def test_degenerate_reports_still_make_a_page(tmp_path: Path) -> None:
    empty = Page(render(audit(tmp_path, policy=PolicyNeeds()), tmp_path))
    assert "Not ready to train on" in empty.text and empty.of("svg") == []


def test_many_episodes_stay_readable(demo: tuple[AuditReport, Path]) -> None:
    from stack.audit.decisions import Decision, Reason

    report = demo[0]
    decisions = tuple(Decision(e, "drop", (Reason(f"kind-{e}", "x" * 300),)) for e in range(681))
    measures = replace(report.measures, lengths=tuple((e, 400 + e) for e in range(681)))
    source = render(replace(report, decisions=decisions, measures=measures))
    page = Page(source)
    assert len(page.of("rect", "ep-drop")) == 681 and len(source) < 700_000
    assert "481 more are left out here" in page.text
    assert "better ask for a new delivery" in page.by_heading["What to do next"]
    told = page.by_heading["Decision on each episode"]
    assert "kind-199" in told and "kind-200" not in told


def test_many_episodes_with_the_same_faults_share_a_row(demo: tuple[AuditReport, Path]) -> None:
    from stack.audit.decisions import Decision, Reason

    def of(episode: int, code: str) -> Decision:
        return Decision(episode, "drop", (Reason(code, f"message {episode}"),))

    alike = [of(e, "rows-not-finite") for e in (*range(3, 12), 14)]
    few = [of(e, "index-gaps") for e in range(20, 28)]
    told = Page(render(replace(demo[0], decisions=(*alike, *few)))).by_heading["Decision on each episode"]
    assert "3-11, 14" in told
    assert "message 3" in told and "message 4" not in told and "the other 9 have" in told
    assert all(f"message {e}" in told for e in range(20, 28))


@pytest.mark.skipif(shutil.which("chromium") is None, reason="chromium is not installed")
def test_a_browser_filters_the_table_and_asks_for_nothing_outside(
    demo: tuple[AuditReport, Path], tmp_path: Path
) -> None:
    """The page types into its own filter; the DOM that Chromium then prints says what is left."""
    probe = """<script>
    window.addEventListener("load", function () {
      var search = document.querySelector("input[type=search]");
      search.value = "stats-count"; search.dispatchEvent(new Event("input"));
      var left = Array.prototype.filter.call(document.querySelectorAll("#faults tbody tr"),
        function (row) { return !row.hidden; }).length;
      var asked = performance.getEntriesByType("resource").filter(
        function (entry) { return entry.name.indexOf("data:") !== 0; }).length;
      document.title = "left " + left + " asked " + asked;
    });</script></body>"""
    file = tmp_path / "page.html"
    file.write_text(render(*demo).replace("</body>", probe), encoding="utf-8")
    command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"]
    command += ["--disable-background-networking", "--disable-component-update", "--disable-sync"]
    command += [f"--user-data-dir={tmp_path / 'profile'}", "--virtual-time-budget=5000", "--dump-dom"]
    done = subprocess.run([*command, file.as_uri()], capture_output=True, timeout=120, text=True)
    wanted = sum(f.code == "stats-count-zero" for f in demo[0].faults)
    assert f"<title>left {wanted} asked 0</title>" in done.stdout, done.stderr[-2000:]


def test_bars_of_very_many_episodes_stand_for_several() -> None:
    """Each episode is in one bar; the worst decision colours it, and a short one shows as low."""
    lengths = [(episode, 300) for episode in range(20_000)]
    lengths[7_013] = (7_013, 4)
    svg = plots.episode_lengths(lengths, {7_013: "drop", 7_014: "look"}, 50)
    bars = re.findall(r'<rect class="ep-(\w+)".*?height="([\d.]+)"><title>(.*?)</title>', svg)
    assert len(bars) == plots.BARS_MOST and len(svg) < 400_000
    ranges = [tuple(map(int, re.findall(r"episodes (\d+) to (\d+)", said)[0])) for _, _, said in bars]
    assert [e for first, last in ranges for e in range(first, last + 1)] == list(range(20_000))
    ((_, height, said),) = [bar for bar in bars if bar[0] == "drop"]
    assert said == "episodes 7000 to 7019: 4 to 300 frames, drop 1, look 1, use 18"
    assert float(height) < min(float(height) for choice, height, _ in bars if choice == "use") / 10
    few = plots.episode_lengths(lengths[:1000], {}, None)
    assert few.count("<title>episode ") == 1000

    off = [(episode, 0.0) for episode in range(20_000)]
    off[12_345] = (12_345, 3.5)
    svg = plots.clock_by_episode(off, 0.003)
    assert "episode 12345: 3.5 frames, the worst of episodes 12340 to 12359" in svg
    assert svg.count("bar-error") == 1 and svg.count("<rect") == plots.BARS_MOST
