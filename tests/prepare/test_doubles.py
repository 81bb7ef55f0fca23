"""float64 features: kept as they are where nobody says otherwise, and no detail lost without a word."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from stack.cli import cli
from stack.errors import StackError
from stack.prepare import plan

LENGTHS = (5, 4)
SINCE_1970_S = 1.7e9
CLOCK, STAMP, ANGLE = "observation.clock", "stamp", "observation.angle"
COLUMNS = (CLOCK, STAMP, ANGLE)


def doubles(episode: int, length: int) -> dict[str, list[Any]]:
    """Two clocks, of which float32 would make one value, and angles that it only rounds."""
    seconds = SINCE_1970_S + 10 * episode + np.arange(length) / 10
    return {
        CLOCK: [[second, second + 0.003] for second in seconds],
        STAMP: seconds.tolist(),
        ANGLE: [[0.1 * episode + frame / 3] for frame in range(length)],
    }


@pytest.fixture
def source(deliveries: ModuleType, tmp_path: Path) -> Path:
    """v2.1, all declared float64."""
    root: Path = deliveries.write_delivery(
        tmp_path / "source", deliveries.Delivery(lengths=LENGTHS, cameras=())
    )

    def add(table: pa.Table, columns: dict[str, list[Any]]) -> pa.Table:
        for name, values in columns.items():
            kind = pa.float64() if name == STAMP else pa.list_(pa.float64())
            table = table.append_column(name, pa.array(values, kind))
        return table

    for episode, length in enumerate(LENGTHS):
        columns = doubles(episode, length)
        deliveries.edit_rows(root, episode, lambda table, columns=columns: add(table, columns))
    entries = {CLOCK: [2], STAMP: [1], ANGLE: [1]}
    told = {name: {"dtype": "float64", "shape": shape, "names": None} for name, shape in entries.items()}
    deliveries.edit_info(root, lambda info: info["features"].update(told))
    return root


def stack(*words: object) -> str:
    result = CliRunner().invoke(cli, [str(word) for word in words])
    assert result.exit_code == 0, result.output
    return result.output


def held(root: Path, episodes: tuple[int, ...] = (0, 1)) -> None:
    """Every kept double is there, bit by bit."""
    rows = [pq.read_table(file) for file in sorted(root.glob("data/*/*.parquet"))]
    table = pa.concat_tables(rows).to_pydict()
    for name in COLUMNS:
        meant = [value for episode in episodes for value in doubles(episode, LENGTHS[episode])[name]]
        got = [value if isinstance(value, list) or name == STAMP else [value] for value in table[name]]
        assert got == meant, name
    info = json.loads((root / "meta/info.json").read_text())
    assert {info["features"][name]["dtype"] for name in COLUMNS} == {"float64"}


@pytest.mark.parametrize("version", ["v3.0", "v2.1"])
def test_converting_changes_no_value(source: Path, tmp_path: Path, version: str) -> None:
    out = tmp_path / "out"
    stack("convert", source, out, "--to", version, "--jobs", 1)
    held(out)


def test_dropping_and_merging_change_no_value(source: Path, tmp_path: Path) -> None:
    stack("drop", source, tmp_path / "less", "--episodes", "0", "--jobs", 1)
    held(tmp_path / "less", (1,))
    stack("merge", source, tmp_path / "less", tmp_path / "both", "--jobs", 1)
    held(tmp_path / "both", (0, 1, 1))


def test_merging_with_a_narrower_one_keeps_the_wider(
    source: Path, deliveries: ModuleType, tmp_path: Path
) -> None:
    stack("convert", source, tmp_path / "narrow", "--to", "v2.1", "--jobs", 1)
    for episode, length in enumerate(LENGTHS):
        values = pa.array(doubles(episode, length)[CLOCK], pa.list_(pa.float32()))
        deliveries.edit_rows(
            tmp_path / "narrow",
            episode,
            lambda t, values=values: t.set_column(t.column_names.index(CLOCK), CLOCK, values),
        )
    deliveries.edit_info(tmp_path / "narrow", lambda info: info["features"][CLOCK].update(dtype="float32"))
    stack("merge", tmp_path / "narrow", source, tmp_path / "both", "--jobs", 1)
    rows = pq.read_table(next((tmp_path / "both").glob("data/*/*.parquet")))[CLOCK].to_pylist()
    wide = [value for episode in (0, 1) for value in doubles(episode, LENGTHS[episode])[CLOCK]]
    assert rows == np.array(wide, np.float32).astype(np.float64).tolist() + wide


def test_statistics_are_those_of_the_declared_dtype(source: Path, tmp_path: Path) -> None:
    stack("stats", source, "--json", tmp_path / "s.json", "--jobs", 1)
    told = json.loads((tmp_path / "s.json").read_text())
    clock = np.concatenate([doubles(n, length)[CLOCK] for n, length in enumerate(LENGTHS)])
    np.testing.assert_allclose(told[CLOCK]["std"], clock.std(axis=0), rtol=1e-9)
    np.testing.assert_array_equal(told[CLOCK]["q50"], np.percentile(clock, 50, axis=0))


def test_a_manifest_is_told_what_float32_loses(source: Path, load: Any) -> None:
    """Clocks by name, with the line that keeps them; not the angles, which are only rounded."""
    text = f"sources: [{{path: {source}}}]\n"
    notes = [note for note in plan(load(text)).notes if "float32" in note]
    assert len(notes) == 1 and "features.observation" not in notes[0]
    assert f"source: {CLOCK} loses detail as float32 in episodes 0-1" in notes[0]
    assert f"cast: {{{CLOCK}: float64}} keeps it" in notes[0]
    kept = plan(load(f"{text}cast: {{{CLOCK}: float64}}\n"))
    assert not [note for note in kept.notes if "float32" in note]
    asked = plan(load(f"{text}cast: {{{CLOCK}: float32}}\n"))
    assert not [note for note in asked.notes if "float32" in note], "who asks for it knows"


@pytest.mark.parametrize("kind", ["int64", "string"])
def test_what_differs_in_kind_is_still_asked(
    source: Path, deliveries: ModuleType, tmp_path: Path, kind: str
) -> None:
    """Fractions beside whole numbers or texts: keeping float64 must not settle it in passing."""
    stack("convert", source, tmp_path / "other", "--to", "v2.1", "--jobs", 1)
    for episode, length in enumerate(LENGTHS):
        values = pa.array(range(length)) if kind == "int64" else pa.array(["a"] * length)
        deliveries.edit_rows(
            tmp_path / "other",
            episode,
            lambda t, values=values: t.set_column(t.column_names.index(STAMP), STAMP, values),
        )
    deliveries.edit_info(tmp_path / "other", lambda info: info["features"][STAMP].update(dtype=kind))
    words = ["merge", str(source), str(tmp_path / "other"), str(tmp_path / "out"), "--jobs", "1"]
    error = CliRunner().invoke(cli, words).exception
    assert isinstance(error, StackError) and error.id == "prepare-dtype-differs" and STAMP in error.what
    assert not (tmp_path / "out").exists()


def test_channels_that_are_not_taken_need_no_note(source: Path, deliveries: ModuleType, load: Any) -> None:
    """A clock beside angles in one vector: the note is for whoever keeps the clock, with its own number."""
    for episode, length in enumerate(LENGTHS):
        clock = doubles(episode, length)[STAMP]
        values = pa.array([[n / 3, n / 7, second] for n, second in enumerate(clock)], pa.list_(pa.float64()))
        deliveries.edit_rows(
            source,
            episode,
            lambda t, values=values: t.set_column(t.column_names.index(ANGLE), ANGLE, values),
        )
    deliveries.edit_info(source, lambda info: info["features"][ANGLE].update(shape=[3]))
    text = f"sources: [{{path: {source}}}]\nfeatures: {{kept: [{{from: {ANGLE}, at: [START, STOP]}}]}}\n"
    without = plan(load(text.replace("START", "0").replace("STOP", "2")))
    assert not [note for note in without.notes if "float32" in note]
    (note,) = [n for n in plan(load(text.replace("START", "1").replace("STOP", "3"))).notes if "float32" in n]
    assert f"channel 2 of '{ANGLE}'" in note and "cast: {kept: float64}" in note


def test_whole_numbers_that_float32_merges_are_told_too(
    source: Path, deliveries: ModuleType, load: Any
) -> None:
    """Nanoseconds stored as integers under a declared float32."""
    for episode, length in enumerate(LENGTHS):
        values = pa.array([[1_700_000_000_000_000_000 + 10**8 * n] for n in range(length)])
        deliveries.edit_rows(
            source,
            episode,
            lambda t, values=values: t.set_column(t.column_names.index(ANGLE), ANGLE, values),
        )
    deliveries.edit_info(source, lambda info: info["features"][ANGLE].update(dtype="float32"))
    notes = plan(load(f"sources: [{{path: {source}}}]\n")).notes
    assert [note for note in notes if f"{ANGLE} loses detail as float32" in note]


@pytest.mark.parametrize("value", [1e300, -1e155])
def test_doubles_too_large_to_be_squared_are_refused_by_name(
    source: Path, load: Any, deliveries: ModuleType, tmp_path: Path, value: float
) -> None:
    """With and without the cast that keeps them, by `stack stats` too, and without a warning of numpy's."""

    def plant(table: pa.Table) -> pa.Table:
        column = table.column_names.index(ANGLE)
        values = table.column(column).to_pylist()
        values[2] = [value]
        return table.set_column(column, ANGLE, pa.array(values, pa.list_(pa.float64())))

    deliveries.edit_rows(source, 1, plant)
    for cast in ("", f"cast: {{{ANGLE}: float64}}\n"):
        with pytest.raises(StackError) as caught:
            plan(load(f"sources: [{{path: {source}}}]\n{cast}"))
        assert (
            caught.value.exit == 2 and f"{ANGLE} holds {value:g} at episode 1, frame 2" in caught.value.what
        )
        assert "cast:" not in caught.value.do and "exclude_episodes: [1]" in caught.value.do
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = CliRunner().invoke(cli, ["stats", str(source), "--jobs", "1"])
    assert isinstance(result.exception, StackError) and result.exception.id == "stats-not-finite"
    assert "beyond 1e+150" in result.exception.what


def test_what_float32_cannot_hold_is_said_to_be_infinite_as_float32(
    source: Path, deliveries: ModuleType
) -> None:
    deliveries.edit_info(source, lambda info: info["features"][STAMP].update(dtype="float32"))

    def plant(table: pa.Table) -> pa.Table:
        column = table.column_names.index(STAMP)
        return table.set_column(column, STAMP, pa.array([1e300] * table.num_rows, pa.float64()))

    deliveries.edit_rows(source, 0, plant)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = CliRunner().invoke(cli, ["stats", str(source), "--jobs", "1"])
    assert isinstance(result.exception, StackError) and "infinite as float32, the" in result.exception.what
