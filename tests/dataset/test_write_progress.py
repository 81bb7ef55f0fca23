"""What a person sees while writing goes on, and what is known of the size before it begins."""

from __future__ import annotations

from collections import namedtuple
from pathlib import Path

import pytest

from stack.dataset import write_size
from stack.dataset.progress import Progress, byte_count, duration
from stack.dataset.read import read_dataset
from stack.dataset.selection import select_all
from stack.dataset.write import write_v30
from stack.dataset.write_plan import Caps, plan_files
from stack.dataset.write_size import output_size, refuse_small_disk
from stack.errors import StackError


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_progress_tells_rate_and_time_left_now_and_then() -> None:
    lines: list[str] = []
    clock = Clock()
    progress = Progress(lines.append, "video files", items=10, total=1000, unit="frames", clock=clock)
    for _ in range(8):
        clock.now_s += 2
        progress.step(100)
    # Lines at 6 s and 12 s: 300 frames in 6 s are 50 a second, so that 700 take 14 s more.
    assert lines == [
        "video files: 3 of 10, 300 frames of 1,000 frames, 50 frames/s, about 14 s left",
        "video files: 6 of 10, 600 frames of 1,000 frames, 50 frames/s, about 8 s left",
    ]
    progress.step(100)
    progress.step(100)
    progress.end()
    assert lines[-1] == "video files: 10, 1,000 frames in 16.0 s" and len(lines) == 3


def test_what_an_earlier_call_did_does_not_flatter_the_rate() -> None:
    lines: list[str] = []
    clock = Clock()
    progress = Progress(lines.append, "files", items=10, total=10e9, unit="bytes", clock=clock)
    for _ in range(6):
        progress.step(1e9, is_reused=True)
    clock.now_s += 10
    progress.step(1e9)
    assert lines == ["files: 7 of 10, 7 GB of 10 GB, 100 MB/s, about 30 s left"]
    for _ in range(3):
        progress.step(1e9)
    progress.end()
    assert lines[-1].endswith("10 GB in 10.0 s, 6 of them finished by an earlier call")


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1 kB"), (4_212, "4.21 kB"), (38_400_000, "38.4 MB"), (2e12, "2 TB")],
)
def test_byte_counts(size_bytes: float, text: str) -> None:
    assert byte_count(size_bytes) == text


@pytest.mark.parametrize(("seconds", "text"), [(33.2, "33 s"), (250, "4 min 10 s"), (7500, "2 h 5 min")])
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def size_of(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


@pytest.mark.parametrize("caps", [Caps(), Caps(0.0015, 0.004, 2)])
def test_the_size_that_is_told_is_the_size_that_comes(delivery: Path, tmp_path: Path, caps: Caps) -> None:
    selection = select_all(read_dataset(delivery))
    plan = plan_files(selection, caps=caps)
    told = output_size(selection, plan, videos="join")
    write_v30(selection, tmp_path / "out", plan=plan, jobs=1)
    assert told.data_files == len(list((tmp_path / "out/data").rglob("*.parquet")))
    assert told.video_files == len(list((tmp_path / "out/videos").rglob("*.mp4")))
    # 31 rows: state 8 and action 4 float32, ts int64, timestamp float32, four int64 numbers.
    assert told.rows_bytes == 31 * (8 * 4 + 4 * 4 + 8 + 4 + 4 * 8)
    assert told.video_bytes == size_of(delivery / "videos")
    # Joined files have one header each instead of one an episode.
    assert 0.5 * told.video_bytes < size_of(tmp_path / "out/videos") < 1.1 * told.video_bytes


def test_links_take_no_room_and_encoding_is_not_foretold(delivery: Path) -> None:
    selection = select_all(read_dataset(delivery))
    plan = plan_files(selection, videos="link")
    linked = output_size(selection, plan, videos="link")
    assert (linked.video_bytes, linked.linked_bytes) == (0, size_of(delivery / "videos"))
    assert "10 video files" in linked.text() and "linked, not copied" in linked.text()
    encoded = output_size(selection, plan, videos="transcode")
    assert encoded.video_bytes is None and "encoding decides" in encoded.text()


def test_a_disk_with_less_room_than_the_videos_take(
    delivery: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    selection = select_all(read_dataset(delivery))
    size = output_size(selection, plan_files(selection), videos="join")
    assert size.video_bytes is not None
    usage = namedtuple("usage", "total used free")
    for free, fits in ((size.video_bytes, True), (size.video_bytes - 1, False)):
        monkeypatch.setattr(write_size.shutil, "disk_usage", lambda _, free=free: usage(0, 0, free))
        if fits:
            refuse_small_disk(size, tmp_path / "deep" / "out")
            continue
        with pytest.raises(StackError) as caught:
            refuse_small_disk(size, tmp_path / "deep" / "out")
        assert caught.value.id == "disk-too-small" and caught.value.where == str(tmp_path)
