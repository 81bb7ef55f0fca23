"""System metrics: host, npu and cuda, sampled beside a run into its journal.

MLflow's own monitors know no npu, and end for good at the first request that fails. This one asks the
vendor's tool in a process of its own and never waits for it: `poll` is called often, and does what is due.
The step of a sample is the attempt's age in seconds.

Sources: proc(5) for the host; `nvidia-smi --help-query-gpu`; for `npu-smi info`, whose table has no stable
widths, the columns between its bars as the driver's own source prints them (two rows a chip). The npu reader
was tested on samples of that table, not on a device.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

from stack.tracking.journal import Journal

SAMPLE_EVERY_S = 10.0
WRITE_EVERY_S = 60.0
TOOL_LIMIT_S = 20.0
MIB = 1 << 20
CUDA_FIELDS = ("index", "utilization.gpu", "memory.used", "memory.total", "power.draw", "temperature.gpu")
COMMANDS: Mapping[str, Sequence[str]] = {
    "npu": ("npu-smi", "info"),
    "cuda": ("nvidia-smi", f"--query-gpu={','.join(CUDA_FIELDS)}", "--format=csv,noheader,nounits"),
}
LARGEST = ("_bytes", "temp_c")
"""Names that end so are written as the largest of their samples, all others as the mean."""


class Sampler:
    """Samples every 10 s, writes every 60 s; costs the run nothing but a few file reads.

    Args:
        journal: gets the metrics `host/...`, `npu/...`, `cuda/...`.
        kind: `npu`, `cuda` or `cpu`; for a cpu the host is all there is.
        disk: the file system whose free space is watched.
    """

    def __init__(
        self, journal: Journal, kind: str, disk: Path, *, clock: Callable[[], float] = time.time
    ) -> None:
        self._journal, self._disk, self._clock = journal, disk, clock
        self._command = COMMANDS.get(kind)
        self._read = {"npu": read_npu, "cuda": read_cuda}.get(kind)
        self._started = self._written = clock()
        self._due = self._started
        self._cpu = _cpu_ticks()
        self._samples: dict[str, list[float]] = {}
        self._tool: tuple[subprocess.Popen[bytes], IO[bytes], float] | None = None
        self._is_tool_useless = self._command is None

    def poll(self) -> None:
        """Do what is due; returns at once."""
        now = self._clock()
        self._harvest(now)
        if now >= self._due:
            self._due = now + SAMPLE_EVERY_S
            self._take(self._host())
            self._ask(now)
        if now - self._written >= WRITE_EVERY_S:
            self.flush()

    def flush(self) -> None:
        """Write what was sampled since the last time."""
        self._written = self._clock()
        if self._samples:
            values = {
                key: max(own) if key.endswith(LARGEST) else sum(own) / len(own)
                for key, own in self._samples.items()
            }
            self._samples = {}
            self._journal.metrics(values, step=int(self._written - self._started))

    def close(self) -> None:
        """Write the rest and leave no process behind."""
        if self._tool is not None:
            self._end_tool()
        self.flush()

    def _take(self, values: Mapping[str, float]) -> None:
        for key, value in values.items():
            self._samples.setdefault(key, []).append(value)

    def _host(self) -> dict[str, float]:
        busy, total = _cpu_ticks()
        spent, (self._cpu) = (busy - self._cpu[0], total - self._cpu[1]), (busy, total)
        values = {"host/load_1min": os.getloadavg()[0]}
        if spent[1] > 0:
            values["host/cpu_frac"] = spent[0] / spent[1]
        with suppress(OSError, KeyError):
            memory = _meminfo()
            values["host/memory_used_bytes"] = float(memory["MemTotal"] - memory["MemAvailable"])
        with suppress(OSError):
            values["host/disk_free_gb"] = shutil.disk_usage(self._disk).free / 1e9
        return values

    def _ask(self, now: float) -> None:
        if self._is_tool_useless or self._tool is not None or self._command is None:
            return
        said = tempfile.TemporaryFile()  # noqa: SIM115
        try:
            child = subprocess.Popen(
                list(self._command), stdin=subprocess.DEVNULL, stdout=said, stderr=subprocess.STDOUT
            )
        except OSError as error:
            said.close()
            self._give_up(f"{self._command[0]} cannot be run: {error.strerror}")
            return
        self._tool = (child, said, now)

    def _harvest(self, now: float) -> None:
        if self._tool is None:
            return
        child, said, started = self._tool
        if child.poll() is None:
            if now - started > TOOL_LIMIT_S:
                self._end_tool()
                self._give_up(f"{self._command_name} did not answer within {TOOL_LIMIT_S:.0f} s")
            return
        said.seek(0)
        text = said.read().decode(errors="replace")
        self._end_tool()
        assert self._read is not None
        values = self._read(text)
        if not values:
            last = (text.strip().splitlines() or ["nothing"])[-1]
            self._give_up(f"{self._command_name} ended with {child.returncode} and said: {last[:200]}")
        self._take(values)

    @property
    def _command_name(self) -> str:
        return self._command[0] if self._command else ""

    def _give_up(self, why: str) -> None:
        self._is_tool_useless = True
        self._journal.event("sampler", message=f"no device is sampled: {why}")

    def _end_tool(self) -> None:
        assert self._tool is not None
        child, said, _ = self._tool
        self._tool = None
        if child.poll() is None:
            child.kill()
            with suppress(subprocess.TimeoutExpired):
                child.wait(1)
        said.close()


def read_npu(table: str) -> dict[str, float]:
    """Values of every chip in the table that `npu-smi info` prints; empty where there is none.

    Each chip has two rows: number and name, health, power, temperature; then chip, bus, AI core, memory pairs
    of which the last is that of the HBM. A second chip of a card shows `-` for its power.
    """
    values: dict[str, float] = {}
    first: tuple[str, list[str]] | None = None
    for line in table.splitlines():
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        if len(cells) != 3:
            first = None
            continue
        head = re.fullmatch(r"(\d+)\s+(\S*[A-Za-z]\S*)", cells[0])
        if head is not None and not re.match(r"[0-9A-Fa-f]{4}:", cells[1]):
            first = (head[1], cells)
        elif first is not None and re.match(r"[0-9A-Fa-f]{4}:", cells[1]):
            values |= _chip(first[0], first[1], cells)
            first = None
    return values


def _chip(number: str, upper: list[str], lower: list[str]) -> dict[str, float]:
    chip = (re.findall(r"\d+", lower[0]) or ["0"])[0]
    at = f"npu/{number}" if chip == "0" else f"npu/{number}-{chip}"
    power, temperature = [*upper[2].split(), "-", "-"][:2]
    core = lower[2].split()[:1]
    pairs = re.findall(r"(\d+)\s*/\s*(\d+)", lower[2])
    values = {f"{at}/power_w": power, f"{at}/temp_c": temperature}
    result = {key: float(value) for key, value in values.items() if _is_number(value)}
    if core and _is_number(core[0]):
        result[f"{at}/aicore_frac"] = float(core[0]) / 100
    if pairs and int(pairs[-1][1]) > 0:
        result[f"{at}/hbm_used_bytes"] = float(int(pairs[-1][0]) * MIB)
        result[f"{at}/hbm_frac"] = int(pairs[-1][0]) / int(pairs[-1][1])
    return result


def read_cuda(csv: str) -> dict[str, float]:
    """Values of every device in nvidia-smi's answer to `COMMANDS`; what it does not know is left out."""
    values: dict[str, float] = {}
    for line in csv.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) != len(CUDA_FIELDS) or not cells[0].isdigit():
            continue
        at = f"cuda/{cells[0]}"
        scaled = (
            ("util_frac", cells[1], 0.01),
            ("memory_used_bytes", cells[2], MIB),
            ("power_w", cells[4], 1),
            ("temp_c", cells[5], 1),
        )
        values |= {f"{at}/{name}": float(cell) * by for name, cell, by in scaled if _is_number(cell)}
        if _is_number(cells[2]) and _is_number(cells[3]) and float(cells[3]) > 0:
            values[f"{at}/memory_frac"] = float(cells[2]) / float(cells[3])
    return values


def driver_version(kind: str, root: Path = Path("/")) -> str | None:
    """The driver's version, from what it leaves on the host; None for a cpu, or where nothing is found."""
    places = {
        "npu": (root / "usr/local/Ascend/driver/version.info", r"^Version\s*=\s*(\S+)"),
        "cuda": (root / "proc/driver/nvidia/version", r"Kernel Module\s+(?:for \S+\s+)?(\d[\w.]*)"),
    }
    if kind not in places:
        return None
    path, pattern = places[kind]
    try:
        found = re.search(pattern, path.read_text(errors="replace"), re.MULTILINE)
    except OSError:
        return None
    return found[1] if found else None


def cann_version(toolkit: Path | None = None) -> str | None:
    """The version of CANN's toolkit, from the file beside it; None where no toolkit is set up.

    Args:
        toolkit: default: what CANN's `set_env.sh` says.
    """
    home = os.environ.get("ASCEND_TOOLKIT_HOME") or os.environ.get("ASCEND_HOME_PATH")
    if toolkit is None and not home:
        return None
    for path in sorted((toolkit or Path(str(home))).glob("*-linux/ascend_toolkit_install.info")):
        with suppress(OSError):
            if found := re.search(r"^version\s*=\s*(\S+)", path.read_text(errors="replace"), re.M | re.I):
                return found[1]
    return None


def _is_number(text: str) -> bool:
    return re.fullmatch(r"-?\d+(\.\d+)?", text) is not None


def _cpu_ticks() -> tuple[int, int]:
    """Busy and all clock ticks of all cores since boot; waiting for a disk is not busy."""
    try:
        fields = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    except (OSError, ValueError):
        return 0, 0
    return sum(fields) - fields[3] - fields[4], sum(fields)


def _meminfo() -> dict[str, int]:
    lines = (line.split() for line in Path("/proc/meminfo").read_text().splitlines())
    return {fields[0].rstrip(":"): int(fields[1]) * 1024 for fields in lines}
