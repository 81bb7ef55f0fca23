"""Deliveries and places that are odd and right: nothing is lost, nothing is changed, nothing is touched."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import av
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stack.dataset.digest import content_digest
from stack.dataset.read import read_dataset
from stack.errors import StackError
from stack.prepare import Prepared, prepare
from stack.prepare.direct import request, run

HEAD = "observation.images.head"


@pytest.fixture
def make(tmp_path: Path, deliveries: Any) -> Any:
    """A delivery of two short episodes and one small camera, below tmp_path/sources."""

    def write(name: str, **wanted: Any) -> Path:
        known = {"cameras": ((HEAD, 32, 32),), "lengths": (3, 2), **wanted}
        (tmp_path / "sources").mkdir(exist_ok=True)
        return deliveries.write_delivery(tmp_path / "sources" / name, deliveries.Delivery(**known))

    return write


def join(sources: list[Path], out: Path, *, version: str = "v3.0", videos: str = "join") -> Prepared:
    loaded = request(sources, out, version=version)
    return run(loaded, out=out, videos=videos, jobs=1, replace=False, log=lambda _: None)


def rows(out: Path) -> pa.Table:
    return pa.concat_tables(pq.read_table(file) for file in sorted((out / "data").glob("*/*.parquet")))


def state(root: Path) -> list[tuple[str, int, bytes]]:
    """Names, times and bytes of all files and folders."""
    found = [root, *sorted(root.rglob("*"))]
    return [(str(p), p.lstat().st_mtime_ns, p.read_bytes() if p.is_file() else b"") for p in found]


# Places


LOCALE = """
import os, sys
from pathlib import Path
from stack.prepare.direct import request, run
os.umask(0o077)
os.chdir(os.path.dirname(os.fsencode(sys.argv[1])))
source, out = Path(os.path.basename(sys.argv[1])), Path("deep/er") / os.path.basename(sys.argv[2])
run(request([source], out), out=out, videos="join", jobs=1, replace=False, log=lambda _: None)
"""


def test_odd_names_relative_paths_no_locale_and_a_strict_umask(make, tmp_path: Path) -> None:
    source = make("a b#ü 抓: x'\"", tasks=("naïve", "抓取方块 \u2028"))
    before = state(source)
    plain = {**os.environ, "LC_ALL": "C"}
    out = source.parent / "deep/er/out 抓 '\"#"
    done = subprocess.run(
        [sys.executable, "-c", LOCALE, source, out], env=plain, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    written = read_dataset(out)
    assert [e.tasks for e in written.episodes] == [("naïve",), ("抓取方块 \u2028",)]
    assert content_digest(written) == content_digest(read_dataset(source))
    assert state(source) == before


@pytest.mark.parametrize("kind", ["the source", "inside", "inside by a link", "a linked chunk", "around"])
def test_a_target_that_touches_a_source_leaves_it_as_it_is(make, tmp_path: Path, kind: str) -> None:
    """Not even a lock or an empty folder is put there."""
    source = make("a")
    chunk = tmp_path / "elsewhere" / "chunk"
    chunk.parent.mkdir()
    shutil.move(source / "data/chunk-000", chunk)
    (source / "data/chunk-000").symlink_to(chunk)
    (tmp_path / "link").symlink_to(source)
    out = {
        "the source": source,
        "inside": source / "new" / "deep" / "out",
        "inside by a link": tmp_path / "link" / "new" / "out",
        "a linked chunk": chunk / "new" / "out",
        "around": tmp_path / "sources",
    }[kind]
    before = state(tmp_path)
    with pytest.raises(StackError) as caught:
        loaded = request([source], out)
        run(loaded, out=out, videos="join", jobs=1, replace=kind == "the source", log=lambda _: None)
    assert caught.value.id in ("target-in-source", "target-exists")
    assert state(tmp_path) == before


def test_links_that_lead_nowhere_or_in_a_circle(make, tmp_path: Path) -> None:
    source = make("a")
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    with pytest.raises(StackError) as caught:
        join([source], tmp_path / "circle")
    assert caught.value.id == "target-link-circle"
    (tmp_path / "nowhere").symlink_to(tmp_path / "later")
    join([source], tmp_path / "nowhere")
    assert (tmp_path / "nowhere").is_symlink() and (tmp_path / "later/meta/info.json").is_file()


def test_names_in_another_encoding(make, tmp_path: Path) -> None:
    """GBK, as archives from elsewhere leave it: a dataset of such a name is refused, a left-over is not."""
    source = make("a")
    odd = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xb0\xa1"))
    for sources, out in (([source], odd / "out"), ([odd], tmp_path / "out")):
        if sources == [odd]:
            shutil.copytree(source, odd)
        with pytest.raises(StackError) as caught:
            join(sources, out)
        assert caught.value.id == "path-not-utf8" and "\\xb0\\xa1" in str(caught.value)
        str(caught.value).encode()
        shutil.rmtree(odd, ignore_errors=True)
    for folder in ("data/chunk-000", "meta", "videos"):
        Path(os.fsdecode(os.fsencode(source / folder) + b"/\xb0\xa1.txt")).write_text("left over")
    done = join([source], tmp_path / "out")
    "".join(done.notes).encode()
    assert done.episodes == 2


def test_linking_to_another_file_system_copies(make, tmp_path: Path) -> None:
    other = Path("/dev/shm")
    if not os.access(other, os.W_OK) or other.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("no second file system at /dev/shm")
    source, out = make("a"), other / f"stack-test-{os.getpid()}"
    try:
        join([source], out / "out", videos="link")
        clips = sorted((out / "out/videos").rglob("*.mp4"))
        given = sorted((source / "videos").rglob("*.mp4"))
        assert [c.read_bytes() for c in clips] == [g.read_bytes() for g in given]
        assert all(c.stat().st_nlink == 1 for c in clips)
    finally:
        shutil.rmtree(out, ignore_errors=True)


# Tasks


def test_the_same_tasks_in_another_order_stay_with_their_episodes(make, tmp_path: Path) -> None:
    """And texts that only look alike stay apart."""
    a = make("a", tasks=("x", "y", "x "), task_of=(0, 2))
    b = make("b", number=1, tasks=("", "y", "x"), task_of=(2, 0))
    join([a, b], tmp_path / "out")
    written = read_dataset(tmp_path / "out")
    assert [e.tasks for e in written.episodes] == [("x",), ("x ",), ("x",), ("",)]
    assert dict(written.tasks) == {0: "x", 1: "x ", 2: ""}
    assert rows(tmp_path / "out").column("task_index").to_pylist() == [0, 0, 0, 1, 1, 0, 0, 0, 2, 2]


def test_texts_that_lines_and_quotes_could_break(make, tmp_path: Path) -> None:
    texts = ('a\nb\t"q" \\ \u2028 \x85 end', "  y\r\n ")
    source = make("a", tasks=texts)
    join([source], tmp_path / "v21", version="v2.1")
    join([tmp_path / "v21"], tmp_path / "v30")
    assert tuple(read_dataset(tmp_path / "v30").tasks.values()) == texts


def test_of_very_many_tasks_only_the_used_ones_are_written(make, tmp_path: Path) -> None:
    source = make("a", tasks=tuple(f"task {n}" for n in range(20_000)), task_of=(19_999, 3))
    join([source], tmp_path / "out")
    assert dict(read_dataset(tmp_path / "out").tasks) == {0: "task 19999", 1: "task 3"}


# Episodes and time


@pytest.mark.parametrize("fps", [1, 120])
def test_one_frame_episodes_at_slow_and_fast_rates(make, tmp_path: Path, fps: int) -> None:
    source = make("a", lengths=(1, 1, 2), fps=fps)
    join([source], tmp_path / "v30")
    join([tmp_path / "v30"], tmp_path / "v21", version="v2.1")
    join([tmp_path / "v21"], tmp_path / "back")
    digests = {content_digest(read_dataset(root)) for root in (source, tmp_path / "v30", tmp_path / "back")}
    assert len(digests) == 1
    times = rows(tmp_path / "back").column("timestamp").to_pylist()
    assert times == [0.0, 0.0, 0.0, float(np.float32(1 / fps))]
    (video,) = (tmp_path / "back/videos").rglob("*.mp4")
    told = json.loads((tmp_path / "back/meta/info.json").read_text())
    assert told["fps"] == fps and told["features"][HEAD]["info"]["video.fps"] == fps and video.stat().st_size


def test_a_rate_that_is_no_whole_number(make, tmp_path: Path, deliveries: Any) -> None:
    source = make("a", lengths=(60, 40), fps=30)
    deliveries.edit_info(source, lambda info: info.update(fps=29.97))
    with pytest.raises(StackError) as caught:
        join([source], tmp_path / "out")
    assert caught.value.id == "prepare-timestamps"
    loaded = request([source], tmp_path / "out", version="v3.0", decide=["timestamps=restamp"])
    run(loaded, out=tmp_path / "out", videos="join", jobs=1, replace=False, log=lambda _: None)
    out = tmp_path / "out"
    assert json.loads((out / "meta/info.json").read_text())["fps"] == 29.97
    meant = np.concatenate([np.arange(n) / 29.97 for n in (60, 40)]).astype(np.float32)
    np.testing.assert_array_equal(rows(out).column("timestamp").to_numpy(), meant)
    episodes = pq.read_table(out / "meta/episodes/chunk-000/file-000.parquet")
    assert episodes.column(f"videos/{HEAD}/from_timestamp").to_pylist() == [0.0, 60 / 29.97]


@pytest.mark.parametrize("choice", ["exclude_episodes: [1]", "keep_episodes: [0]"])
@pytest.mark.parametrize("fault", ["two places", "two files", "cut off"])
def test_what_is_wrong_with_an_episode_that_is_left_out_hinders_nothing(
    make, load, tmp_path: Path, deliveries: Any, choice: str, fault: str
) -> None:
    source = make("a")
    if fault == "two places":
        join([source], tmp_path / "sources/v30")
        source = tmp_path / "sources/v30"
        file = source / "data/chunk-000/file-000.parquet"
        pq.write_table(pq.read_table(file).slice(4), file.with_name("file-001.parquet"))
        pq.write_table(pq.read_table(file).slice(0, 4), file)
    elif fault == "two files":
        file = source / "data/chunk-000/episode_000001.parquet"
        (source / "data/other").mkdir()
        shutil.copy(file, source / "data/other")
        file.rename(source / "data/episode_000001.parquet")
    else:
        file = source / "data/chunk-000/episode_000001.parquet"
        file.write_bytes(file.read_bytes()[:-20])
    with pytest.raises(StackError):
        prepare(load(f"sources: [{{path: {source}}}]"), out=tmp_path / "whole", jobs=1)
    out = tmp_path / "out"
    prepare(load(f"sources: [{{path: {source}, {choice}}}]"), out=out, jobs=1)
    (episode,) = read_dataset(out).episodes
    assert episode.length == 3
    with av.open(str(episode.clips[HEAD].file)) as container:
        said = [deliveries.read_identity(p.to_ndarray(format="rgb24")) for p in container.decode(video=0)]
    assert said == [deliveries.identity(0, 0, 0, frame) for frame in range(3)]


# Values


KINDS: dict[str, tuple[str, pa.DataType, Any]] = {
    "big": ("int64", pa.int64(), lambda n: 2**62 + 1 + n),
    "low": ("int8", pa.int8(), lambda n: -128 + n),
    "wide": ("uint64", pa.uint64(), lambda n: 2**63 - 9 + n),
    "flag": ("bool", pa.bool_(), lambda n: n % 2 == 0),
    "word": ("string", pa.string(), lambda n: f"抓 {n}" if n else ""),
    "double": ("float64", pa.float64(), lambda n: 0.1 + n),
}


def test_values_of_every_kind_stay_to_the_last_bit(make, tmp_path: Path, deliveries: Any) -> None:
    source = make("a")
    first = 0
    for episode, length in enumerate((3, 2)):

        def add(table: pa.Table, first: int = first) -> pa.Table:
            for name, (_, kind, value) in KINDS.items():
                table = table.append_column(
                    name, pa.array([value(first + n) for n in range(len(table))], kind)
                )
            pairs = [[2**62 + 1 + first + n, -n] for n in range(len(table))]
            return table.append_column("pair", pa.array(pairs, pa.list_(pa.int64())))

        deliveries.edit_rows(source, episode, add)
        first += length
    features = {name: {"dtype": kind[0], "shape": [1], "names": None} for name, kind in KINDS.items()}
    features["pair"] = {"dtype": "int64", "shape": [2], "names": None}
    deliveries.edit_info(source, lambda info: info["features"].update(features))
    join([source], tmp_path / "v21", version="v2.1")
    join([tmp_path / "v21", source], tmp_path / "out")
    got = rows(tmp_path / "out")
    for name, (_, kind, value) in KINDS.items():
        assert got.column(name).to_pylist() == [value(n) for n in range(5)] * 2, name
        assert got.schema.field(name).type == kind
    assert got.column("pair").to_pylist()[3] == [2**62 + 4, 0]
    stats = json.loads((tmp_path / "out/meta/stats.json").read_text())
    assert stats["big"]["max"] == [2**62 + 5] and "word" not in stats


def test_what_no_written_kind_can_hold_is_refused_with_the_value(
    make, tmp_path: Path, deliveries: Any
) -> None:
    for dtype, kind, value in (
        ("int32", pa.int64(), 2**40),
        ("int64", pa.float64(), 0.5),
        ("float32", pa.float64(), 1e300),
        ("bool", pa.int64(), 2),
    ):
        source = make(f"a-{dtype}-{value}")
        for episode in (0, 1):
            deliveries.edit_rows(
                source, episode, lambda t, v=value, k=kind: t.append_column("x", pa.array([v] * len(t), k))
            )
        entry = {"dtype": dtype, "shape": [1], "names": None}
        deliveries.edit_info(source, lambda info, e=entry: info["features"].update(x=e))
        with pytest.raises(StackError) as caught:
            join([source], tmp_path / "out")
        assert "x" in caught.value.what and dtype in caught.value.what
        # Leaving out every episode is no advice.
        assert "in the manifest" not in caught.value.do
        assert not (tmp_path / "out").exists()


def test_a_camera_that_one_source_lacks_is_left_out_with_the_reason(make, tmp_path: Path) -> None:
    a = make("a", cameras=((HEAD, 32, 32), ("observation.images.x", 32, 32)))
    done = join([a, make("b", number=1)], tmp_path / "out")
    assert done.cameras == (HEAD,)
    assert "dropped: observation.images.x: not in b" in done.plan.text()
