"""What npu-smi and nvidia-smi say, read from samples of their output; no device was there to print them.

The three tables have the widths of three driver generations: third column of 52, 53 and about 70 characters.
"""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from stack.devices import smi
from stack.devices.smi import (
    CardProcess,
    ask,
    explain,
    in_logic_order,
    read_gpus,
    read_npu_map,
    read_npu_table,
)

MIB = 1 << 20
OLD = """
+------------------------------------------------------------------------------------------------+
| npu-smi 23.0.6                   Version: 23.0.6                                               |
+---------------------------+---------------+----------------------------------------------------+
| NPU   Name                | Health        | Power(W)    Temp(C)           Hugepages-Usage(page)|
| Chip                      | Bus-Id        | AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)        |
+===========================+===============+====================================================+
| 3     910B3               | OK            | 91.2        44                0    / 0             |
| 0                         | 0000:41:00.0  | 37          0    / 0          3412 / 65536         |
+===========================+===============+====================================================+
| 5     910B3               | Warning       | 102.0       51                0    / 0             |
| 0                         | 0000:42:00.0  | 100         0    / 0          65000/ 65536         |
+===========================+===============+====================================================+
+---------------------------+---------------+----------------------------------------------------+
| NPU     Chip              | Process id    | Process name             | Process memory(MB)      |
+===========================+===============+====================================================+
| No running processes found in NPU 3                                                            |
+===========================+===============+====================================================+
| 5       0                 | 4242          | python3                  | 61500                   |
+===========================+===============+====================================================+
"""
NEW = """
| npu-smi 26.1.0                   Version: 26.1.0                                                |
| NPU   Name                | Health        | Power(W)    Temp(C)           Hugepages-Usage(page) |
| Chip                      | Bus-Id        | AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)         |
+===========================+===============+=====================================================+
| 3     910B3               | OK            | 91.2        44                0     / 0             |
| 0                         | 0000:41:00.0  | 0           0    / 0          3412  / 65536         |
+===========================+===============+=====================================================+
| NPU     Chip              | Process id    | Process name             | Process memory(MB)       |
| 3       0                 | 4242          | python3                  | 41200                    |
+===========================+===============+=====================================================+
"""
WIDE = """
| NPU   Name                | Health        | Power(W)    Temp(C)           Hugepages-Usage(page)                  |
| Chip  Phy-ID              | Bus-Id        | AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)                          |
+===========================+===============+======================================================================+
| 0     Ascend910           | OK            | 180.4       36                0    / 0                               |
| 0     0                   | 0000:9D:00.0  | 0           0    / 0          3120 / 65536                           |
+-------------------------------------------------------------------------------------------------------------------+
| 0     Ascend910           | OK            | -           35                0    / 0                               |
| 1     1                   | 0000:9F:00.0  | 12          0    / 0          2880 / 65536                           |
+===========================+===============+======================================================================+
| NPU     Chip              | Process id    | Process id in container  | Process name       | Process memory(MB)   |
| 0       1                 | 777           | 12                       | python3.10         | 900                  |
"""  # noqa: E501
MAP = """
    NPU ID                         Chip ID                        Chip Logic ID                  Chip Name
    3                              0                              1                              Ascend 910B3
    3                              1                              -                              Mcu
    5                              0                              0                              Ascend 910B3
"""
BOARD = """
\tNPU ID                         : 3
\tSoftware Version               : 25.2.0
\tFirmware Version               : 7.7.0.6.236
\tCompatibility                  : OK
\tPCIe Bus Info                  : 0000:41:00.0
\tChip Count                     : 1
"""
USAGES = """
\tNPU ID                         : 3
\tChip Count                     : 1

\tDDR Capacity(MB)               : 0
\tHBM Capacity(MB)               : 65536
\tHBM Usage Rate(%)              : 5
\tAicore Usage Rate(%)           : 0
\tChip ID                        : 0
"""


def facts(card: smi.Card) -> tuple[object, ...]:
    return (
        card.id,
        card.name,
        card.health,
        card.used_bytes // MIB,
        card.total_bytes // MIB,
        card.power_w,
        card.temp_c,
    )


def test_each_width_of_the_table() -> None:
    old = read_npu_table(OLD)
    assert [facts(card) for card in old] == [
        ("3", "910B3", "OK", 3412, 65536, 91.2, 44.0),
        ("5", "910B3", "Warning", 65000, 65536, 102.0, 51.0),
    ]
    assert [card.processes for card in old] == [(), (CardProcess(4242, "python3", 61500 * MIB),)]
    (new,) = read_npu_table(NEW)
    assert facts(new) == ("3", "910B3", "OK", 3412, 65536, 91.2, 44.0)
    assert new.processes == (CardProcess(4242, "python3", 41200 * MIB),)
    first, second = read_npu_table(WIDE)
    assert facts(first) == ("0", "Ascend910", "OK", 3120, 65536, 180.4, 36.0)
    assert facts(second) == ("0-1", "Ascend910", "OK", 2880, 65536, None, 35.0)
    assert (first.processes, second.processes) == ((), (CardProcess(777, "python3.10", 900 * MIB),))


@pytest.mark.parametrize("text", ["", "dcmi module initialize failed. ret is -8005", "|||\n| a | b | c |\n"])
def test_what_is_no_table_has_no_cards(text: str) -> None:
    assert read_npu_table(text) == () and read_gpus(text, text) == ()


def test_the_runtimes_order_is_not_the_slots() -> None:
    numbers = read_npu_map(MAP)
    assert numbers == {"3": 1, "5": 0}
    assert [card.id for card in in_logic_order(read_npu_table(OLD), numbers)] == ["5", "3"]
    assert [card.id for card in in_logic_order(read_npu_table(OLD), {"3": 0})] == ["3", "5"]


def test_key_value_views() -> None:
    (board,) = smi.read_views(BOARD)
    assert (board["Compatibility"], board["Software Version"]) == ("OK", "25.2.0")
    assert board["PCIe Bus Info"] == "0000:41:00.0"
    (usages,) = smi.read_views(USAGES)
    assert (usages["HBM Capacity(MB)"], usages["HBM Usage Rate(%)"]) == ("65536", "5")
    two = smi.read_views(USAGES + USAGES.replace(": 3", ": 5"))
    assert [block["NPU ID"] for block in two] == ["3", "5"]


@pytest.mark.parametrize(
    ("code", "negative"),
    [(187, -8005), (172, -8020), (193, -8255), (215, -9001), (211, -9005), (208, -9008), (217, -9255)],
)
def test_exit_codes_are_the_negative_ones_cut(code: int, negative: int) -> None:
    assert code == negative & 0xFF
    said = explain("npu-smi", code, "first\ndcmi module initialize failed\n")
    assert said is not None and str(negative) in said and said.endswith("dcmi module initialize failed")
    other = explain("nvidia-smi", code, "")
    assert other is not None and str(negative) not in other


def test_success_is_no_problem() -> None:
    assert explain("npu-smi", 0, "anything") is None


def test_nvidia() -> None:
    cards = read_gpus(
        "0, GPU-aa, NVIDIA H200, 12000, 143771, 250.31, 44\n1, GPU-bb, NVIDIA H200, 3, 143771, [N/A], 30\n",
        "GPU-aa, 31337, python, 11000\nGPU-aa, 99, other, [N/A]\n",
    )
    assert [(c.id, c.used_bytes, c.power_w) for c in cards] == [
        ("0", 12000 * MIB, 250.31),
        ("1", 3 * MIB, None),
    ]
    assert cards[0].processes == (CardProcess(31337, "python", 11000 * MIB), CardProcess(99, "other", 0))


def test_a_tool_that_is_there_and_one_that_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "not installed" in str(ask(("npu-smi-of-nobody",)).problem)
    (tmp_path / "table.txt").write_text(OLD)
    (tmp_path / "map.txt").write_text(MAP)
    tool = tmp_path / "npu-smi"
    tool.write_text(
        f'#!/bin/sh\n[ "$2" = -m ] && exec cat {tmp_path}/map.txt\nexec cat {tmp_path}/table.txt\n'
    )
    tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    found, problem = smi.cards("npu")
    assert problem is None and [card.id for card in found] == ["5", "3"]
    tool.write_text("#!/bin/sh\necho 'dcmi module initialize failed. ret is -8005'; exit 187\n")
    found, problem = smi.cards("npu")
    assert found == () and "held by another container" in str(problem) and "-8005" in str(problem)
