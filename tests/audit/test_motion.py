"""Episodes that stand still, sensors that stopped, units that change: told, and not taken for pauses."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bench.audit_good import LENGTHS
from bench.audit_plants import STATE, data
from stack.audit.evidence import Evidence
from stack.audit.report import AuditReport
from stack.audit.run import judge
from stack.faults import Place

Change = Callable[[np.ndarray], np.ndarray]
NEW = {
    "episode-still", "state-held", "rows-repeated", "episode-units-differ", "state-is-action",
    "names-exchanged",
}  # fmt: skip


def edited(root: Path, episode: int, **changes: Change) -> None:
    """`state` and `action` of an episode, (L, 6), by functions of them."""
    file = root / data(episode)
    table = pq.read_table(file)
    for name, change in changes.items():
        column = STATE if name == "state" else name
        values = change(np.array(table.column(column).to_pylist(), np.float32)).astype(np.float32)
        array = pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), values.shape[1])
        table = table.set_column(table.column_names.index(column), column, array)
    pq.write_table(table, file)


def told(root: Path) -> dict[str, set[int | None]]:
    """Code -> episodes, of the codes that are tested here."""
    report: AuditReport = judge(Evidence(root))
    return {f.code: {place.episode for place in f.places} for f in report.faults if f.code in NEW}


def held(start: int, stop: int) -> Change:
    def change(values: np.ndarray) -> np.ndarray:
        values[start:stop] = values[start]
        return values

    return change


def test_a_still_episode_is_told_by_vector(copy_good: Callable[[str], Path]) -> None:
    root = copy_good("v2.1")
    edited(root, 1, state=held(0, LENGTHS[1]))
    assert told(root) == {"episode-still": {1}}
    edited(root, 1, action=held(0, LENGTHS[1]))
    assert told(root) == {"episode-still": {1}}


def test_where_most_stand_still_it_is_no_matter_of_an_episode(copy_good: Callable[[str], Path]) -> None:
    root = copy_good("v2.1")
    for episode in (0, 1, 2):
        edited(root, episode, action=held(0, LENGTHS[episode]))
    assert told(root) == {}


@pytest.mark.parametrize(("frames", "is_told"), [(9, False), (10, True), (30, True)])
def test_a_state_that_is_held_for_a_second(
    frames: int, is_told: bool, copy_good: Callable[[str], Path]
) -> None:
    """10 frames a second."""
    root = copy_good("v2.1")
    edited(root, 3, state=held(20, 20 + frames))
    assert told(root) == ({"state-held": {3}} if is_told else {})


def test_a_robot_that_waits_is_not_accused(copy_good: Callable[[str], Path]) -> None:
    """State and action both stand; then only the gripper is told to move."""
    root = copy_good("v2.1")
    edited(root, 0, state=held(10, 40), action=held(10, 40))

    def gripper_only(values: np.ndarray) -> np.ndarray:
        values[20:50, :5] = values[20, :5]
        return values

    edited(root, 3, state=held(20, 50), action=gripper_only)
    assert told(root) == {}


def test_rows_read_at_half_the_rate(copy_good: Callable[[str], Path]) -> None:
    root = copy_good("v2.1")
    twice: Change = lambda values: np.repeat(values[::2], 2, axis=0)[: len(values)]  # noqa: E731
    edited(root, 2, state=twice)
    assert told(root) == {}  # its actions are new in each row
    edited(root, 2, action=twice)
    assert told(root) == {"rows-repeated": {2}}
    (fault,) = judge(Evidence(root)).of("rows-repeated")
    assert "32 of 64 rows" in fault.message and "about 4.92 a second are new" in fault.message


def test_what_most_episodes_have_is_told_once(copy_good: Callable[[str], Path]) -> None:
    root = copy_good("v2.1")
    twice: Change = lambda values: np.repeat(values[::2], 2, axis=0)[: len(values)]  # noqa: E731
    for episode in range(3):
        edited(root, episode, state=twice, action=twice)
    for episode in (0, 1, 3):
        edited(root, episode, state=held(16, 40))
    report = judge(Evidence(root))
    for code, count in (("rows-repeated", 3), ("state-held", 3)):
        (fault,) = report.of(code)
        assert fault.message.startswith(f"in {count} of 4 episodes; the worst: ")
        assert fault.where == Place(feature=STATE)
    assert {decision.choice for decision in report.decisions} == {"use"}


@pytest.mark.parametrize("factor", [57.29578, 1 / 57.29578, 1000.0])
@pytest.mark.parametrize("name", ["state", "action"])
def test_an_episode_in_other_units(factor: float, name: str, copy_good: Callable[[str], Path]) -> None:
    root = copy_good("v2.1")
    edited(root, 1, **{name: lambda values: values * factor})
    assert told(root) == {"episode-units-differ": {1}}
    (fault,) = judge(Evidence(root)).of("episode-units-differ")
    assert ("degrees" in fault.message) == (factor != 1000.0)
    assert fault.data["factor"] == pytest.approx(factor, rel=0.25)


def test_less_motion_is_no_other_unit(copy_good: Callable[[str], Path]) -> None:
    """Around the same pose; and with each channel calmed by another factor around 0."""
    root = copy_good("v2.1")
    edited(root, 1, state=lambda values: 0.5 + values / 50, action=lambda values: 0.5 + values / 50)
    calm = np.array([12, 40, 150, 600, 2000, 15], np.float32)
    edited(root, 2, action=lambda values: values / calm)
    assert told(root) == {}


def test_two_of_four_in_other_units_are_told_as_a_matter_of_all(copy_good: Callable[[str], Path]) -> None:
    root = copy_good("v2.1")
    for episode in (0, 3):
        edited(root, episode, state=np.degrees)
    assert told(root) == {"episode-units-differ": {0, 1, 2, 3}}


def test_an_action_that_is_the_next_state_is_no_copy(copy_good: Callable[[str], Path]) -> None:
    root = copy_good("v2.1")
    for episode in range(4):
        action = np.array(pq.read_table(root / data(episode)).column("action").to_pylist(), np.float32)
        edited(root, episode, state=lambda _, a=action: np.concatenate([a[:1], a[:-1]]))
    assert told(root) == {}
    for episode in range(4):
        action = np.array(pq.read_table(root / data(episode)).column("action").to_pylist(), np.float32)
        edited(root, episode, state=lambda _, a=action: a)
    assert told(root) == {"state-is-action": {None}}
