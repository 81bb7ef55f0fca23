from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stack.dataset.digest import content_digest
from stack.dataset.model import ClipRef, Dataset
from stack.dataset.read import read_dataset
from stack.dataset.selection import select_all
from stack.dataset.video import clip_digest
from stack.dataset.write import write_v30
from stack.dataset.write_plan import Caps, plan_files


@pytest.fixture(scope="module")
def digest(delivery: Path) -> str:
    return content_digest(read_dataset(delivery))


@pytest.fixture
def copy(delivery: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(delivery, tmp_path / "copy"))


@pytest.mark.parametrize("caps", [Caps(), Caps(0.0015, 0.004, 2), Caps(0.0001, 0.0001, 3)])
@pytest.mark.parametrize("videos", ["join", "link"])
def test_packing_does_not_count(delivery: Path, digest: str, tmp_path: Path, caps: Caps, videos) -> None:
    selection = select_all(read_dataset(delivery))
    plan = plan_files(selection, caps=caps, videos=videos)
    write_v30(selection, tmp_path / "out", plan=plan, videos=videos, jobs=1)
    assert content_digest(read_dataset(tmp_path / "out")) == digest


def test_compression_and_row_groups_do_not_count(copy: Path, digest: str, deliveries) -> None:
    for file in (copy / "data").glob("*/*.parquet"):
        pq.write_table(pq.read_table(file), file, compression="zstd", row_group_size=2)
    assert content_digest(read_dataset(copy)) == digest


def test_jobs_do_not_count(delivery: Path, digest: str) -> None:
    assert content_digest(read_dataset(delivery), jobs=2) == digest


@pytest.mark.parametrize("videos", ["join", "link"])
def test_the_writer_tells_the_digests_of_the_clips_as_written(
    delivery: Path, digest: str, tmp_path: Path, videos
) -> None:
    told: list[dict[ClipRef, str]] = []

    def finish(read: Dataset, _: object, clips: Mapping[ClipRef, str]) -> None:
        told.append({ClipRef(c.file.relative_to(read.root), c.start, c.count): d for c, d in clips.items()})

    out = tmp_path / "out"
    write_v30(select_all(read_dataset(delivery)), out, videos=videos, jobs=1, finish=finish)
    written = read_dataset(out)
    clips = [clip for episode in written.episodes for clip in episode.clips.values()]
    known = {ClipRef(out / clip.file, clip.start, clip.count): own for clip, own in told[0].items()}
    assert known == {clip: clip_digest(clip) for clip in clips}
    assert content_digest(written, clips=known) == digest
    # Each stands for its own frames only: what is told of others counts for nothing.
    others = {ClipRef(clip.file, clip.start + 1, clip.count): "0" * 64 for clip in clips}
    assert content_digest(written, clips=others) == digest
    assert content_digest(written, clips={**known, clips[0]: "0" * 64}) != digest


def test_one_value_counts(copy: Path, digest: str, deliveries) -> None:
    def nudge(table: pa.Table) -> pa.Table:
        rows = table.column("action").to_pylist()
        rows[2][1] += 1 / 256
        at = table.column_names.index("action")
        return table.set_column(at, "action", pa.array(rows, pa.list_(pa.float32())))

    deliveries.edit_rows(copy, 3, nudge)
    assert content_digest(read_dataset(copy)) != digest


def test_swapped_clips_count(copy: Path, deliveries) -> None:
    # Episodes of one length, so that the swap is a mistake that no count shows.
    root = deliveries.write_delivery(copy.parent / "equal", deliveries.Delivery(lengths=(6, 6)))
    before = content_digest(read_dataset(root))
    folder = root / "videos/chunk-000/observation.images.head"
    a, b = folder / "episode_000000.mp4", folder / "episode_000001.mp4"
    a.rename(folder / "x")
    b.rename(a)
    (folder / "x").rename(b)
    assert content_digest(read_dataset(root)) != before


def test_one_task_text_counts(copy: Path, digest: str) -> None:
    file = copy / "meta/tasks.jsonl"
    file.write_text(file.read_text().replace("fold the shirt", "fold the shirts"))
    assert content_digest(read_dataset(copy)) != digest


def test_task_numbers_do_not_count(copy: Path, digest: str, deliveries) -> None:
    def renumber(table: pa.Table) -> pa.Table:
        at = table.column_names.index("task_index")
        return table.set_column(at, "task_index", pa.array([t + 5 for t in table.column(at).to_pylist()]))

    for episode in range(5):
        deliveries.edit_rows(copy, episode, renumber)
    lines = [json.loads(line) for line in (copy / "meta/tasks.jsonl").read_text().splitlines()]
    lines = [{**line, "task_index": line["task_index"] + 5} for line in lines]
    (copy / "meta/tasks.jsonl").write_text("\n".join(json.dumps(line) for line in lines))
    assert content_digest(read_dataset(copy)) == digest


def test_fps_counts(copy: Path, digest: str, deliveries) -> None:
    deliveries.edit_info(copy, lambda info: info.update(fps=20))
    assert content_digest(read_dataset(copy)) != digest
