"""What the vendor's tool says of the cards, as the doctor reports it."""

from __future__ import annotations

from stack.devices.doctor import Needs, _cards, examine
from stack.devices.smi import Card, CardProcess
from stack.devices.witness import Use

GB = 10**9


def test_a_sick_card_and_a_busy_one_are_named() -> None:
    well = Card("3", "910B3", 3 * GB, 64 * GB, health="OK")
    sick = Card("5", "910B3", 3 * GB, 64 * GB, health="Alarm")
    busy = Card(
        "6-1", "910B3", 45 * GB, 64 * GB, health="OK", processes=(CardProcess(42, "python3", 41 * GB),)
    )
    faults = _cards(Use((well, sick, busy)))
    assert [(f.code, f.severity) for f in faults] == [
        ("doctor-card-unhealthy", "error"),
        ("doctor-card-in-use", "warning"),
    ]
    assert "card 5 (910B3) has health Alarm" in faults[0].message and "-i 5`" in faults[0].mend
    assert "python3 (process 42, 41.0 GB)" in faults[1].message


def test_what_cannot_be_seen_is_said() -> None:
    (fault,) = _cards(Use((), "npu-smi is not installed here"))
    assert (fault.code, fault.severity) == ("doctor-unseen-cards", "warning")
    assert "npu-smi is not installed here" in fault.message


def test_a_cpu_has_no_cards() -> None:
    codes = [fault.code for fault in examine(Needs("cpu")).faults]
    assert not [code for code in codes if "card" in code]
