"""Pictures in rows and features of several dimensions: read, written, measured, and read by lerobot."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path
from typing import Any

import av
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stack.dataset.digest import content_digest
from stack.dataset.pictures import decode_picture, episode_pictures
from stack.dataset.read import read_dataset
from stack.dataset.rows import column_array
from stack.dataset.selection import select_all
from stack.dataset.write import write_v30
from stack.dataset.write_plan import Caps, plan_files
from stack.errors import StackError

CAMERA = "observation.images.cam"
LENGTHS = (4, 3, 5)


def png(picture: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    with av.open(buffer, "w", format="image2pipe") as container:
        stream = container.add_stream("png", rate=1)
        stream.height, stream.width = picture.shape[:2]
        stream.pix_fmt = "rgb24"
        container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        container.mux(stream.encode())
    return buffer.getvalue()


def scene(episode: int, frame: int) -> np.ndarray:
    noise = np.random.default_rng(episode * 100 + frame)
    return noise.integers(0, 256, size=(20, 30, 3), dtype=np.uint8)


def pose(episode: int, frame: int) -> list[list[float]]:
    return [[episode + row / 4 + column / 16 + frame * 8 for column in range(4)] for row in range(3)]


def cube(episode: int, frame: int) -> list[list[list[int]]]:
    return [[[episode, frame], [a, 7]] for a in range(2)]


def write_set(root: Path, *, bare: bool) -> Path:
    """v2.1 with a picture column, a (3, 4) pose and a (2, 2, 2) cube."""
    (root / "meta").mkdir(parents=True)
    (root / "data/chunk-000").mkdir(parents=True)
    first = 0
    for episode, length in enumerate(LENGTHS):
        cells = [png(scene(episode, f)) for f in range(length)]
        shown = cells if bare else [{"bytes": c, "path": f"frame_{n:06d}.png"} for n, c in enumerate(cells)]
        kind = pa.binary() if bare else pa.struct([("bytes", pa.binary()), ("path", pa.string())])
        columns = {
            CAMERA: pa.array(shown, kind),
            "observation.pose": pa.array([pose(episode, f) for f in range(length)]),
            "cube": pa.array([cube(episode, f) for f in range(length)]),
            "action": pa.array([[float(f), float(episode)] for f in range(length)], pa.list_(pa.float32())),
            "timestamp": pa.array([f / 10 for f in range(length)], pa.float32()),
            "frame_index": pa.array(range(length), pa.int64()),
            "episode_index": pa.array([episode] * length, pa.int64()),
            "index": pa.array(range(first, first + length), pa.int64()),
            "task_index": pa.array([0] * length, pa.int64()),
        }
        first += length
        pq.write_table(pa.table(columns), root / f"data/chunk-000/episode_{episode:06d}.parquet")
    features: dict[str, Any] = {
        CAMERA: {"dtype": "image", "shape": [3, 20, 30], "names": ["channels", "height", "width"]},
        "observation.pose": {"dtype": "float32", "shape": [3, 4], "names": None},
        "cube": {"dtype": "int64", "shape": [2, 2, 2], "names": None},
        "action": {"dtype": "float32", "shape": [2], "names": ["a", "b"]},
        "timestamp": {"dtype": "float32", "shape": [1], "names": None},
    }
    for name in ("frame_index", "episode_index", "index", "task_index"):
        features[name] = {"dtype": "int64", "shape": [1], "names": None}
    info = {"codebase_version": "v2.1", "robot_type": "toy", "fps": 10, "features": features}
    (root / "meta/info.json").write_text(json.dumps(info))
    entries = [{"episode_index": e, "tasks": ["look"], "length": n} for e, n in enumerate(LENGTHS)]
    (root / "meta/episodes.jsonl").write_text("".join(json.dumps(e) + "\n" for e in entries))
    (root / "meta/tasks.jsonl").write_text('{"task_index": 0, "task": "look"}\n')
    (root / "meta/episodes_stats.jsonl").write_text('{"episode_index": 0, "stats": {}}\n')
    return root


@pytest.fixture(scope="module", params=["bare", "struct"])
def pictured(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_set(tmp_path_factory.mktemp("pictured") / request.param, bare=request.param == "bare")


@pytest.fixture(scope="module")
def written(pictured: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Caps so small that each data file holds one or two episodes."""
    out = tmp_path_factory.mktemp("written") / "out"
    selection = select_all(read_dataset(pictured))
    write_v30(selection, out, plan=plan_files(selection, caps=Caps(data_mb=0.02)), jobs=1)
    return out


def test_cells_are_kept_byte_by_byte_in_lerobot_s_form(pictured: Path, written: Path) -> None:
    files = sorted((written / "data").glob("*/*.parquet"))
    assert len(files) >= 2
    cells = [c for file in files for c in pq.read_table(file).column(CAMERA).to_pylist()]
    meant = [png(scene(e, f)) for e, n in enumerate(LENGTHS) for f in range(n)]
    assert [cell["bytes"] for cell in cells] == meant
    schema = pq.read_schema(files[0])
    assert schema.field(CAMERA).type == pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    described = json.loads(schema.metadata[b"huggingface"])["info"]["features"]
    assert described[CAMERA] == {"_type": "Image"}
    assert described["observation.pose"] == {"shape": [3, 4], "dtype": "float32", "_type": "Array2D"}
    assert described["cube"]["_type"] == "Array3D"
    info = json.loads((written / "meta/info.json").read_text())
    assert info["features"][CAMERA]["shape"] == [20, 30, 3] and info["video_path"] is None


def test_content_does_not_depend_on_form(pictured: Path, written: Path) -> None:
    assert read_dataset(written).notes == ()
    assert content_digest(read_dataset(written)) == content_digest(read_dataset(pictured))


def test_one_other_picture_is_another_content(pictured: Path, tmp_path: Path) -> None:
    root = Path(shutil.copytree(pictured, tmp_path / "copy"))
    file = root / "data/chunk-000/episode_000001.parquet"
    table = pq.read_table(file)
    cells = table.column(CAMERA).to_pylist()
    at = table.column_names.index(CAMERA)
    other = [cells[1], cells[0], *cells[2:]]
    pq.write_table(table.set_column(at, CAMERA, pa.array(other, table.column(CAMERA).type)), file)
    assert content_digest(read_dataset(root)) != content_digest(read_dataset(pictured))


def test_camera_statistics_are_those_of_the_pixels(written: Path) -> None:
    pixels = np.concatenate([scene(e, f).reshape(-1, 3) for e, n in enumerate(LENGTHS) for f in range(n)])
    stats = json.loads((written / "meta/stats.json").read_text())[CAMERA]
    assert stats["count"] == [12]
    for key, meant in (
        ("mean", pixels.mean(axis=0) / 255),
        ("std", pixels.std(axis=0) / 255),
        ("q01", np.percentile(pixels, 1, axis=0) / 255),
        ("max", pixels.max(axis=0) / 255),
    ):
        np.testing.assert_allclose(np.array(stats[key]), meant.reshape(3, 1, 1), rtol=1e-9)


def test_statistics_of_several_dimensions_keep_their_shape(written: Path) -> None:
    rows = np.array([pose(e, f) for e, n in enumerate(LENGTHS) for f in range(n)])
    stats = json.loads((written / "meta/stats.json").read_text())["observation.pose"]
    np.testing.assert_allclose(stats["mean"], rows.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(stats["q99"], np.percentile(rows, 99, axis=0), rtol=1e-12)
    entry = pq.read_table(next((written / "meta/episodes").glob("*/*.parquet"))).to_pylist()[0]
    np.testing.assert_allclose(entry["stats/observation.pose/max"], rows[:4].max(axis=0))


def test_what_is_no_picture_is_refused(pictured: Path, tmp_path: Path) -> None:
    root = Path(shutil.copytree(pictured, tmp_path / "copy"))
    file = root / "data/chunk-000/episode_000001.parquet"
    table = pq.read_table(file)
    at = table.column_names.index(CAMERA)
    kind = table.column(CAMERA).type

    def plant(cells: list[Any], kind: pa.DataType = kind) -> StackError:
        pq.write_table(table.set_column(at, CAMERA, pa.array(cells, kind)), file)
        with pytest.raises(StackError) as caught:
            write_v30(select_all(read_dataset(root)), tmp_path / "out", jobs=1)
        assert not (tmp_path / "out").exists()
        return caught.value

    cells = table.column(CAMERA).to_pylist()
    assert plant([cells[0], None, cells[2]]).id == "rows-picture-missing"
    assert plant([1.0, 2.0, 3.0], pa.float64()).id == "rows-not-pictures"
    text = b"hello" if kind == pa.binary() else {"bytes": b"hello", "path": None}
    error = plant([cells[0], text, cells[2]])
    assert error.id == "picture-not-known" and "frame 1" in error.where
    half = cells[1][:60] if kind == pa.binary() else {"bytes": cells[1]["bytes"][:60], "path": None}
    assert plant([cells[0], half, cells[2]]).id == "picture-not-decodable"


def test_the_real_recording_with_bare_bytes(real_datasets: Path, tmp_path: Path) -> None:
    dataset = read_dataset(real_datasets / "ioai_v21_image")
    write_v30(select_all(dataset), tmp_path / "out", jobs=1)
    cells = episode_pictures(dataset.episodes[1], dataset.features[CAMERA])
    assert decode_picture(cells[2], "").reshape(-1, 3).tolist()[0] == [0, 100, 255]
    rows = pq.read_table(next((tmp_path / "out/data").glob("*/*.parquet"))).column(CAMERA).to_pylist()
    assert [row["bytes"] for row in rows[3:]] == list(cells)


@pytest.fixture
def lerobot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """lerobot's dataset class, its caches below tmp_path."""
    for name, folder in (("HF_HOME", "hf"), ("HF_DATASETS_CACHE", "hf/datasets"), ("HF_LEROBOT_HOME", "lr")):
        monkeypatch.setenv(name, str(tmp_path / folder))
    pytest.importorskip("lerobot")
    import datasets
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "hf/datasets")
    return LeRobotDataset


@pytest.mark.lerobot
def test_lerobot_reads_pictures_and_arrays(written: Path, lerobot: Any) -> None:
    dataset = lerobot("local/pictured", root=written)
    assert len(dataset) == 12
    places = [(e, f) for e, n in enumerate(LENGTHS) for f in range(n)]
    for index, (episode, frame) in enumerate(places):
        item = dataset[index]
        shown = (item[CAMERA].numpy().transpose(1, 2, 0) * 255).round().astype(np.uint8)
        np.testing.assert_array_equal(shown, scene(episode, frame))
        assert item["observation.pose"].tolist() == pose(episode, frame)
        assert item["cube"].tolist() == cube(episode, frame)


@pytest.mark.lerobot
def test_what_lerobot_records_without_videos(lerobot: Any, tmp_path: Path) -> None:
    """In one process with `datasets`, whose own Arrow types are known to pyarrow then."""
    features = {
        CAMERA: {"dtype": "image", "shape": (20, 30, 3), "names": ["height", "width", "channels"]},
        "observation.pose": {"dtype": "float32", "shape": (3, 4), "names": None},
        "action": {"dtype": "float32", "shape": (2,), "names": ["a", "b"]},
    }
    root = tmp_path / "recorded"
    made = lerobot.create("local/recorded", 10, features, root=root, robot_type="toy", use_videos=False)
    for episode, length in enumerate(LENGTHS):
        for frame in range(length):
            made.add_frame(
                {
                    CAMERA: scene(episode, frame),
                    "observation.pose": np.array(pose(episode, frame), dtype=np.float32),
                    "action": np.array([frame, episode], dtype=np.float32),
                    "task": f"task {episode % 2}",
                }
            )
        made.save_episode()
    if hasattr(made, "finalize"):
        made.finalize()
    dataset = read_dataset(root)
    assert [e.length for e in dataset.episodes] == list(LENGTHS)
    for episode in dataset.episodes:
        cells = episode_pictures(episode, dataset.features[CAMERA])
        for frame, cell in enumerate(cells):
            np.testing.assert_array_equal(decode_picture(cell, ""), scene(episode.index, frame))
        got = column_array(episode, dataset.features["observation.pose"])
        assert got.tolist() == [pose(episode.index, f) for f in range(episode.length)]
    write_v30(select_all(dataset), tmp_path / "out", jobs=1)
    assert content_digest(read_dataset(tmp_path / "out")) == content_digest(dataset)
