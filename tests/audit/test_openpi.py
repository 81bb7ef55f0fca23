"""Judged for openpi: what its loader needs, and its histogram against exact quantiles."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bench.audit_good import pictures_into_rows
from stack.audit import audit
from stack.audit.kinds import OPENPI
from stack.audit.openpi import chunk_weights, running_quantiles


def by_numpy(values: np.ndarray, batch: int) -> tuple[np.ndarray, np.ndarray]:
    """The same estimate, slowly, one channel at a time with numpy.histogram."""
    q01, q99 = [], []
    stop = len(values) - len(values) % batch
    batches = [values[start : start + batch] for start in range(0, stop, batch)]
    lows, highs = batches[0].min(0), batches[0].max(0)
    edges = [np.linspace(low - 1e-10, high + 1e-10, 5001) for low, high in zip(lows, highs, strict=True)]
    counts = [np.zeros(5000) for _ in edges]
    for rows in batches:
        if (rows.min(0) < lows).any() or (rows.max(0) > highs).any():
            lows, highs = np.minimum(lows, rows.min(0)), np.maximum(highs, rows.max(0))
            for c, (low, high) in enumerate(zip(lows, highs, strict=True)):
                grown = np.linspace(low, high, 5001)
                counts[c] = np.histogram(edges[c][:-1], bins=grown, weights=counts[c])[0]
                edges[c] = grown
        for c in range(values.shape[1]):
            counts[c] += np.histogram(rows[:, c], bins=edges[c])[0]
    for c, count in enumerate(counts):
        sums = np.cumsum(count)
        q01.append(edges[c][np.searchsorted(sums, 0.01 * stop)])
        q99.append(edges[c][np.searchsorted(sums, 0.99 * stop)])
    return np.array(q01), np.array(q99)


@pytest.mark.parametrize("batch", [32, 256])
def test_the_estimate_is_that_of_numpys_histograms(batch: int) -> None:
    rng = np.random.default_rng(0)
    walk = np.cumsum(rng.normal(size=(3000, 2)), axis=0)
    values = np.concatenate([rng.normal(size=(3000, 3)), walk, rng.integers(0, 2, (3000, 1))], axis=1)
    got, right = running_quantiles(values, batch=batch), by_numpy(values, batch)
    for one, other in zip(got, right, strict=True):
        # A value on an edge may fall to either side, which in a thin tail moves the edge to the next value:
        # compared is how many rows lie below.
        below = (values < one).sum(axis=0) - (values < other).sum(axis=0)
        assert (np.abs(below[:5]) <= 3).all()
        assert one[5] == pytest.approx(other[5], abs=2 / 5000)  # two values only: the edge itself


def test_the_published_weaknesses_are_reproduced() -> None:
    """Measured on openpi's own class: ascending evidence of issue 4's table."""
    rng = np.random.default_rng(1)
    values = rng.normal(size=(100_000, 1))
    values[50_000] = 1e6
    q01, q99 = running_quantiles(values)
    assert q01[0] == q99[0] == pytest.approx(values.min())
    rare = np.full((10_000, 1), 0.5)
    rare[::1000] = 0.6
    q01, q99 = running_quantiles(rare, batch=32)
    assert q01[0] == pytest.approx(0.5, abs=1e-4)
    assert q99[0] == pytest.approx(0.5, abs=1e-4)
    plain = rng.normal(size=(100_000, 1))
    q01, q99 = running_quantiles(plain)
    exact = np.quantile(plain, [0.01, 0.99])
    assert np.abs([q01[0] - exact[0], q99[0] - exact[1]]).max() < 1e-2


def test_chunk_weights_count_every_chunk() -> None:
    lengths, horizon = [7, 3, 1], 4
    counted = np.zeros(sum(lengths))
    first = 0
    for length in lengths:
        for frame in range(length):
            for step in range(horizon):
                counted[first + min(frame + step, length - 1)] += 1
        first += length
    assert (chunk_weights(lengths, horizon) == counted).all()


def codes(root: Path) -> dict[str, str]:
    return {f.code: f.severity for f in audit(root, policy=OPENPI).faults if f.code.startswith("openpi")}


@pytest.fixture
def at_home(good: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The good v2.1 dataset where openpi looks, and the tokenizer in its cache."""
    monkeypatch.setenv("HF_LEROBOT_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("OPENPI_DATA_HOME", str(tmp_path / "openpi"))
    tokenizer = tmp_path / "openpi/big_vision/paligemma_tokenizer.model"
    tokenizer.parent.mkdir(parents=True)
    tokenizer.write_bytes(b"x")
    import shutil

    return Path(shutil.copytree(good["v2.1"], tmp_path / "home/team/good"))


def test_good_data_at_its_place_has_only_the_note_on_decoding(at_home: Path) -> None:
    assert codes(at_home) == {"openpi-decodes-pictures": "note"}
    (fault,) = audit(at_home, policy=OPENPI).of("openpi-decodes-pictures")
    assert fault.data["pictures"] == 264 * 2
    report = audit(at_home, policy=OPENPI)
    # openpi reads v2.1 and computes its own quantiles.
    assert not report.of("format-needs-conversion")
    assert not report.of("stats-quantiles-missing")
    assert audit(at_home, policy=OPENPI).ok


def test_elsewhere_and_without_tokenizer(
    good: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENPI_DATA_HOME", str(tmp_path))
    assert {"openpi-place", "openpi-tokenizer"} <= set(codes(good["v2.1"]))


def test_v30_is_refused(good: dict[str, Path]) -> None:
    assert codes(good["v3.0"])["openpi-version"] == "error"


@pytest.mark.parametrize(
    "file",
    [
        "meta/tasks.jsonl",
        "meta/episodes_stats.jsonl",
        "data/chunk-000/episode_000002.parquet",
        "videos/chunk-000/observation.images.hand/episode_000001.mp4",
    ],
)
def test_a_missing_file_would_ask_the_hub(at_home: Path, file: str) -> None:
    (at_home / file).unlink()
    if file == "meta/episodes_stats.jsonl":
        info = json.loads((at_home / "meta/info.json").read_text())
        assert info["codebase_version"] == "v2.1"
    faults = audit(at_home, policy=OPENPI).of("openpi-asks-hub")
    assert file in {place.file for fault in faults for place in fault.places}


def test_a_column_and_frames_that_are_missing(at_home: Path) -> None:
    for file in sorted(at_home.glob("data/*/*.parquet")):
        pq.write_table(pq.read_table(file).drop_columns(["timestamp"]).slice(0, 20), file)
    found = codes(at_home)
    assert found["openpi-column-missing"] == "error"
    assert found["openpi-too-few-frames"] == "warning"


@pytest.mark.parametrize("entry", ["List", "Sequence", None])
def test_types_that_only_newer_readers_know(at_home: Path, entry: str | None) -> None:
    """`datasets` 4 describes vectors as List, at which 3.6 stops; without a description it infers them."""
    file = at_home / "data/chunk-000/episode_000001.parquet"
    table = pq.read_table(file)
    vector = {"feature": {"dtype": "float32", "_type": "Value"}, "length": 6, "_type": entry}
    metadata = {"huggingface": json.dumps({"info": {"features": {"action": vector}}})} if entry else None
    pq.write_table(table.replace_schema_metadata(metadata), file)
    found = audit(at_home, policy=OPENPI).of("openpi-schema")
    assert [fault.where.file for fault in found] == (
        ["data/chunk-000/episode_000001.parquet"] if entry == "List" else []
    )


def test_pictures_in_the_rows_need_their_description(at_home: Path) -> None:
    camera = "observation.images.hand"
    pictures_into_rows(at_home, camera)
    (fault,) = audit(at_home, policy=OPENPI).of("openpi-schema")
    assert fault.count == 4 and camera in fault.message
    for file in sorted(at_home.glob("data/*/*.parquet")):
        described = {"huggingface": json.dumps({"info": {"features": {camera: {"_type": "Image"}}}})}
        pq.write_table(pq.read_table(file).replace_schema_metadata(described), file)
    assert not audit(at_home, policy=OPENPI).of("openpi-schema")


@pytest.mark.parametrize(("value", "severity"), [(1e6, "error"), (3000.0, "warning")])
def test_one_far_value_collapses_the_histogram(
    at_home: Path, value: float, severity: str, change: Callable[[Path, float], None]
) -> None:
    change(at_home, value)
    (fault,) = [f for f in audit(at_home, policy=OPENPI).of("openpi-quantiles-collapse")]
    assert fault.severity == severity
    assert (fault.where.episode, fault.where.frame, fault.where.channel) == (2, 10, "joint_4 [4]")
    rows = np.concatenate(
        [np.array(pq.read_table(f).column("action").to_pylist()) for f in sorted(at_home.glob("data/*/*"))]
    )
    assert np.allclose(fault.data["exact"]["q99"], np.quantile(rows, 0.99, axis=0))


@pytest.fixture
def change() -> Callable[[Path, float], None]:
    def one_action(root: Path, value: float) -> None:
        file = root / "data/chunk-000/episode_000002.parquet"
        table = pq.read_table(file)
        actions = table.column("action").to_pylist()
        actions[10][4] = value
        at = table.column_names.index("action")
        array = pa.array(actions, table.schema.field("action").type)
        pq.write_table(table.set_column(at, "action", array), file)

    return one_action
