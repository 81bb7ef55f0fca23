"""As the customer's engineer: a delivery with many faults, the HTML report alone, and a clean audit after.

Nothing of the audit is asked here but its page. The manifest is cut out of the page, and so is every line of
"What to do next"; what no manifest line mends is done by hand as its step says.
"""

from __future__ import annotations

import html
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from stack.audit import PolicyNeeds, audit
from stack.cli import cli

HEAD, LEFT, RIGHT = (f"observation.images.{name}" for name in ("top_head", "hand_left", "hand_right"))
HORIZON = 10


def data(root: Path, episode: int) -> Path:
    return root / f"data/chunk-000/episode_{episode:06d}.parquet"


def video(root: Path, camera: str, episode: int) -> Path:
    return root / f"videos/chunk-000/{camera}/episode_{episode:06d}.mp4"


def in_column(file: Path, name: str, change: Callable[[list[Any]], list[Any]]) -> None:
    table = pq.read_table(file)
    field = table.schema.field(name)
    array = pa.array(change(table.column(name).to_pylist()), field.type)
    pq.write_table(table.set_column(table.column_names.index(name), field, array), file)


def in_lines(file: Path, change: Callable[[list[Any]], None]) -> None:
    lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    change(lines)
    file.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


def spoil(root: Path) -> set[str]:
    """Faults on top of those that the demo's delivery has; gives the codes that the report must name."""
    in_metadata(root)
    video(root, RIGHT, 1).unlink()
    content = data(root, 2).read_bytes()
    data(root, 2).write_bytes(content[: len(content) * 9 // 10])
    data(root, 3).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n")
    shutil.copy(video(root, HEAD, 4), video(root, HEAD, 5))  # another take's pictures, of another length
    in_column(data(root, 6), "timestamp", lambda v: [1.05 * t + 0.04 for t in v])
    in_column(data(root, 8), "index", lambda v: [i + 7 for i in v])
    in_column(data(root, 10), "frame_index", lambda v: [*v[:5], 99, *v[6:]])
    return {
        "rows-not-finite", "list-typed-scalar", "stats-count-zero", "stats-shape-mismatch", "state-too-wide",
        "action-too-wide", "extra-policy-feature", "channel-extreme-scale", "format-needs-conversion",
        "video-missing", "file-truncated", "lfs-pointer", "video-length-differs", "timestamps-off",
        "clock-drift", "index-gaps", "totals-lie", "splits-lie", "camera-without-files",
        "video-codec-differs", "video-size-differs", "feature-fps-entry", "stats-nested", "stats-differ",
        "task-empty", "episode-length-differs", "left-over-file", "pickle-file",
    }  # fmt: skip


def in_metadata(root: Path) -> None:
    file = root / "meta/info.json"
    info = json.loads(file.read_text())
    info.update(total_frames=9999, total_episodes=77, splits={"train": "0:100"})
    entry = {"dtype": "video", "shape": [96, 160, 3], "names": ["height", "width", "channels"]}
    info["features"]["observation.images.phantom"] = entry
    info["features"][LEFT]["info"]["video.codec"] = "av1"
    info["features"][LEFT]["shape"] = [480, 640, 3]
    info["features"]["action"]["fps"] = 30
    file.write_text(json.dumps(info))

    def stats(lines: list[Any]) -> None:
        for stat in ("min", "max"):
            lines[0]["stats"]["action"][stat] = [lines[0]["stats"]["action"][stat]]
        lines[8]["stats"]["observation.state"]["max"][0] += 3

    in_lines(root / "meta/episodes_stats.jsonl", stats)
    in_lines(root / "meta/tasks.jsonl", lambda lines: lines[0].update(task=" "))
    in_lines(root / "meta/episodes.jsonl", lambda lines: lines[9].update(length=lines[9]["length"] + 1))
    (root / "data/.DS_Store").write_bytes(b"x")
    (root / "meta/stats.pkl").write_bytes(b"\x80\x04N.")


def audited(root: Path, page: Path) -> str:
    command = ["audit", str(root), "--for", "pi05", "--action-horizon", str(HORIZON), "--html", str(page)]
    done = CliRunner().invoke(cli, [*command, "--deep"])
    assert done.exit_code in (0, 1), done.output
    return page.read_text(encoding="utf-8")


def section(page: str, heading: str) -> str:
    """What stands under a heading, until the next one."""
    start = page.index(f">{heading}</h")
    stop = re.search(r"<h[23]", page[start:])
    return page[start : start + stop.start()] if stop else page[start:]


def named(page: str) -> set[str]:
    return set(re.findall(r"<p><code>([a-z0-9-]+)</code>", section(page, "What was found")))


def steps(page: str) -> list[str]:
    """The numbered steps, without markup."""
    found = re.findall(r"<li>(.*?)</li>", section(page, "What to do next"), re.S)
    return [html.unescape(re.sub(r"<[^>]+>", "", step)) for step in found]


def offered(page: str, root: Path) -> str:
    """The manifest that the page offers, with the one thing it asks to be filled in."""
    (text,) = re.findall(r"<pre[^>]*>(.*?)</pre>", section(page, "The manifest that mends it"), re.S)
    return html.unescape(text).replace(f"PATH/TO/{root.name}", root.name)


@pytest.fixture
def delivery(deliveries: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(deliveries / "demo_task", tmp_path / "delivery"))


def test_every_entry_can_be_mended_from_the_page_alone(delivery: Path, tmp_path: Path) -> None:
    wanted = spoil(delivery)
    page = audited(delivery, tmp_path / "report.html")
    found = named(page)
    assert wanted <= found, wanted - found
    told = " ".join(steps(page))
    # Each error and warning is in one of the steps.
    serious = set(re.findall(r'<tr data-severity="(?:error|warning)">.*?<code>([a-z0-9-]+)</code>', page))
    assert {code for code in serious if code not in told} == set()

    manifest = tmp_path / "offered.yaml"
    manifest.write_text(offered(page, delivery), encoding="utf-8")
    by_hand(delivery, steps(page), manifest)
    prepared = CliRunner().invoke(cli, ["prepare", str(manifest), "--out", str(tmp_path / "out")])
    assert prepared.exit_code == 0, prepared.output

    again = audit(tmp_path / "out", policy=PolicyNeeds(action_horizon=HORIZON), deep=True)
    assert again.counts == {"error": 0, "warning": 0, "note": 0}, again.faults
    assert named_nothing(audited(tmp_path / "out", tmp_path / "again.html"))
    assert again.facts.episodes == 12 - len(DROPPED)
    assert again.facts.tasks == ("抓取红色方块",)  # the only text that the episodes list


DROPPED = {1, 2, 3, 5, 7, 10}  # no video, cut rows, never fetched, another take's video, NaN, a jump


def by_hand(delivery: Path, told: list[str], manifest: Path) -> None:
    """What the steps say beyond the manifest's lines: a task's text, a file to delete."""
    (empty,) = [step for step in told if "task-empty" in step]
    (line,) = re.findall(r"tasks: \{.*?\}", empty)
    with manifest.open("a", encoding="utf-8") as text:
        text.write(line + "\n")
    (pickle,) = [step for step in told if "pickle-file" in step]
    (file,) = re.findall(r"^Delete it.* At (\S+)\.", pickle)
    (delivery / file).unlink()


def named_nothing(page: str) -> bool:
    return "Nothing." in section(page, "What was found")
