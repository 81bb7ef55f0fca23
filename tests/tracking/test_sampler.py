"""The sampler of host, npu and cuda, over tools that are stand-ins here; no device was there to run them."""

from __future__ import annotations

import os
import stat
import time
from pathlib import Path
from typing import Any

import pytest

from stack.tracking import Journal
from stack.tracking.journal import read_journal
from stack.tracking.sampler import Sampler, cann_version, driver_version, read_cuda, read_npu

# Drawn after the layout that the driver's own source prints; the values are made up.
TABLE_910B = """
+------------------------------------------------------------------------------------------------+
| npu-smi 25.2.0                   Version: 25.2.0                                               |
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
| 3       0                 | 4242          | python3                  | 3100                    |
+===========================+===============+====================================================+
"""
TABLE_A3 = """
| NPU   Name                | Health        | Power(W)    Temp(C)           Hugepages-Usage(page)           |
| Chip  Phy-ID              | Bus-Id        | AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)                   |
+===========================+===============+===============================================================+
| 0     Ascend910           | OK            | 180.4       36                0    / 0                        |
| 0     0                   | 0000:9D:00.0  | 0           0    / 0          3120 / 65536                    |
+------------------------------------------------------------------------------------------------------------+
| 0     Ascend910           | OK            | -           35                0    / 0                        |
| 1     1                   | 0000:9F:00.0  | 12          0    / 0          2880 / 65536                    |
"""


def test_every_chip_of_the_npu_table_is_read_and_processes_are_none() -> None:
    assert read_npu(TABLE_910B) == {
        "npu/3/power_w": 91.2, "npu/3/temp_c": 44.0, "npu/3/aicore_frac": 0.37,
        "npu/3/hbm_used_bytes": 3412 * 1024**2, "npu/3/hbm_frac": 3412 / 65536,
        "npu/5/power_w": 102.0, "npu/5/temp_c": 51.0, "npu/5/aicore_frac": 1.0,
        "npu/5/hbm_used_bytes": 65000 * 1024**2, "npu/5/hbm_frac": 65000 / 65536,
    }  # fmt: skip


def test_a_second_chip_of_a_card_has_a_name_of_its_own_and_no_power() -> None:
    read = read_npu(TABLE_A3)
    assert read["npu/0/power_w"] == 180.4 and read["npu/0-1/temp_c"] == 35.0
    assert "npu/0-1/power_w" not in read
    assert read["npu/0-1/aicore_frac"] == 0.12


# The third column, as seen in the field or read in the driver's source: 24.1.1 and 25.2 print 52 characters,
# the source of 2026-07 prints 53, 26.0.rc2 prints 70 (vllm-project/vllm-ascend, issues 2534, 10504 and 12980;
# 1Panel-dev/1Panel, issue 9472). From five digits on, a value touches its slash.
LAYOUTS = {
    "24.1.1": (52, "{power:<12}{temp:<18}0    / 0", "{core:<12}0    / 0          {used:<5}/ {total}"),
    "2026-07": (53, "{power:<12}{temp:<18}0     / 0", "{core:<12}0    / 0          {used:<6}/ {total}"),
    "26.0.rc2": (70, "{power:<21}{temp:<24}0    / 0", "{core:<21}0    / 0                {used:<5}/ {total}"),
}
CHIPS = {  # card, chip: power, temperature, load of the cores, used and total HBM in MB
    (0, 0): ("162.6", "34", 0, 3419, 65536),
    (0, 1): ("-", "35", 7, 26838, 32768),
    (13, 0): ("88.25", "30", 100, 65536, 65536),
}


def drawn(version: str, *, is_a3: bool) -> str:
    width, upper, lower = LAYOUTS[version]
    rule = "+" + "=" * 27 + "+" + "=" * 15 + "+" + "=" * width + "+"
    lines = [rule, f"| npu-smi {version}  Version: {version}".ljust(len(rule) - 1) + "|", rule]
    head = "Chip  Phy-ID" if is_a3 else "Chip"
    lines += [f"| {'NPU   Name':<26}| {'Health':<14}| {'Power(W)    Temp(C)':<{width - 1}}|"]
    lines += [f"| {head:<26}| {'Bus-Id':<14}| {'AICore(%)   Memory-Usage(MB)':<{width - 1}}|", rule]
    for phy, ((card, chip), (power, temp, core, used, total)) in enumerate(CHIPS.items()):
        first, second = f"{card:<6}Ascend910", f"{chip:<6}{phy if is_a3 else ''}"
        values = {"power": power, "temp": temp, "core": core, "used": used, "total": total}
        lines += [f"| {first:<26}| {'OK':<14}| {upper.format(**values):<{width - 1}}|"]
        lines += [f"| {second:<26}| {'0000:9D:00.0':<14}| {lower.format(**values):<{width - 1}}|"]
        lines += ["+" + "-" * (len(rule) - 2) + "+" if (card, chip) == (0, 0) else rule]
    lines += [
        "| NPU     Chip              | Process id    | Process name             | Process memory(MB)      |"
    ]
    lines += [
        "| 0       0                 | 1333928       |                          | 37709                   |"
    ]
    lines += ["| No running processes found in NPU 13".ljust(len(rule) - 1) + "|", rule]
    return "\n".join([*lines, "WARNING: the driver's installation is not complete"])


@pytest.mark.parametrize("version", LAYOUTS)
@pytest.mark.parametrize("is_a3", [False, True])
def test_tables_of_every_known_width_give_the_same_values(version: str, is_a3: bool) -> None:
    expected = {}
    for (card, chip), (power, temp, core, used, total) in CHIPS.items():
        at = f"npu/{card}" if chip == 0 else f"npu/{card}-{chip}"
        expected |= {f"{at}/temp_c": float(temp), f"{at}/aicore_frac": core / 100}
        expected |= {f"{at}/hbm_used_bytes": used * 1024**2, f"{at}/hbm_frac": used / total}
        expected |= {} if power == "-" else {f"{at}/power_w": float(power)}
    assert read_npu(drawn(version, is_a3=is_a3)) == expected


def test_the_toolkits_version_is_read_from_the_file_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ASCEND_HOME_PATH", raising=False)
    monkeypatch.setenv("ASCEND_TOOLKIT_HOME", str(tmp_path))
    assert cann_version() is None
    (tmp_path / "aarch64-linux").mkdir()
    text = "package_name=Ascend-cann-toolkit\nversion=9.1.0\ninnerversion=V100R001\narch=aarch64\n"
    (tmp_path / "aarch64-linux" / "ascend_toolkit_install.info").write_text(text)
    assert cann_version() == "9.1.0"
    monkeypatch.delenv("ASCEND_TOOLKIT_HOME")
    assert cann_version() is None


@pytest.mark.parametrize("text", ["", "dcmi module initialize failed. ret is -8005", "| a | b |", "|||||"])
def test_what_is_no_table_gives_nothing(text: str) -> None:
    assert read_npu(text) == {} and read_cuda(text) == {}


def test_nvidia_values_and_what_a_device_does_not_know() -> None:
    read = read_cuda("0, 97, 40536, 81559, 612.34, 61\n1, 0, 4, 81559, [N/A], 30\n")
    assert read["cuda/0/util_frac"] == pytest.approx(0.97)
    assert read["cuda/0/memory_used_bytes"] == 40536 * 1024**2
    assert read["cuda/0/memory_frac"] == 40536 / 81559
    assert read["cuda/0/power_w"] == 612.34 and "cuda/1/power_w" not in read
    assert read["cuda/1/temp_c"] == 30.0


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def tool(folder: Path, name: str, script: str) -> None:
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def poll_for(sampler: Sampler, clock: Clock, seconds: int) -> None:
    for _ in range(seconds):
        clock.now += 1
        sampler.poll()
        deadline = time.monotonic() + 20
        while sampler._tool is not None and sampler._tool[0].poll() is None and time.monotonic() < deadline:
            time.sleep(0.005)


def metrics(folder: Path) -> list[dict[str, Any]]:
    return [record for record in read_journal(folder / "journal.jsonl") if record["kind"] == "metrics"]


def test_samples_become_one_line_a_minute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [f"0, {share}, {used}, 1000, 100, 40" for share, used in ((10, 100), (30, 700), (20, 400))]
    counter = tmp_path / "count"
    counter.write_text("0")
    tool(
        tmp_path / "bin",
        "nvidia-smi",
        f"n=$(cat {counter}); echo $((n+1)) > {counter}\ncase $((n%3)) in\n"
        + "\n".join(f"{number}) echo '{row}';;" for number, row in enumerate(rows))
        + "\nesac",
    )
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    clock = Clock()
    journal = Journal(tmp_path / "run", name="r", experiment="stack/train")
    sampler = Sampler(journal, "cuda", tmp_path, clock=clock)
    poll_for(sampler, clock, 121)
    first, second = metrics(tmp_path / "run")
    assert (first["step"], second["step"]) == (60, 120)
    assert set(first["metrics"]) >= {"host/cpu_frac", "host/memory_used_bytes", "host/load_1min"}
    assert first["metrics"]["cuda/0/util_frac"] == pytest.approx(0.2), "a mean"
    assert first["metrics"]["cuda/0/memory_used_bytes"] == 700 * 1024**2, "the largest"
    assert 0 <= first["metrics"]["host/cpu_frac"] <= 1
    clock.now += 5
    sampler.close()
    assert metrics(tmp_path / "run")[-1]["step"] == 126
    sampler.close()
    assert len(metrics(tmp_path / "run")) == 3


@pytest.mark.parametrize(
    ("script", "said"),
    [
        (None, "cannot be run: No such file"),
        ("echo dcmi module initialize failed. ret is -8005; exit 187", "ended with 187 and said: dcmi"),
        ("sleep 100", "did not answer within 20 s"),
    ],
)
def test_a_tool_that_is_no_help_is_told_once_and_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str | None, said: str
) -> None:
    if script is not None:
        tool(tmp_path / "bin", "npu-smi", script)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    clock = Clock()
    journal = Journal(tmp_path / "run", name="r", experiment="stack/train")
    sampler = Sampler(journal, "npu", tmp_path, clock=clock)
    for _ in range(70):
        clock.now += 1
        sampler.poll()
        if script and "sleep" not in script:
            time.sleep(0.02)
    sampler.close()
    events = [r["message"] for r in read_journal(tmp_path / "run" / "journal.jsonl") if r["kind"] == "event"]
    assert len(events) == 1 and said in events[0]
    sampled = metrics(tmp_path / "run")[0]["metrics"]
    assert "host/memory_used_bytes" in sampled, "the host is sampled all the same"


def test_drivers_are_read_where_they_leave_their_version(tmp_path: Path) -> None:
    npu, cuda = tmp_path / "usr/local/Ascend/driver", tmp_path / "proc/driver/nvidia"
    for folder in (npu, cuda):
        folder.mkdir(parents=True)
    (npu / "version.info").write_text("Version=25.2.0\nascendhal_version=7.35.23\n")
    (cuda / "version").write_text(
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build\nGCC version: 12\n"
    )
    assert driver_version("npu", tmp_path) == "25.2.0"
    assert driver_version("cuda", tmp_path) == "570.86.15"
    assert driver_version("cpu", tmp_path) is None
    assert driver_version("npu", tmp_path / "nowhere") is None
