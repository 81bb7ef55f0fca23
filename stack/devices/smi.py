"""What the vendors' tools say of the cards: memory as the driver counts it, health, power, processes.

`npu-smi` has no machine-readable output. Its table has had three widths so far; rows are therefore told by
what stands in them, never by columns. Layouts and exit codes are those of the tool's own source; nothing here
was run on a device. `nvidia-smi`: `--help-query-gpu`.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

LIMIT_S = 20.0
MIB = 1 << 20
NPU_TABLE = ("npu-smi", "info")
NPU_MAP = ("npu-smi", "info", "-m")
GPU_FIELDS = ("index", "uuid", "name", "memory.used", "memory.total", "power.draw", "temperature.gpu")
GPU_TABLE = ("nvidia-smi", f"--query-gpu={','.join(GPU_FIELDS)}", "--format=csv,noheader,nounits")
GPU_PROCESSES = (
    "nvidia-smi",
    "--query-compute-apps=gpu_uuid,pid,process_name,used_memory",
    "--format=csv,noheader,nounits",
)
# Negative codes of the driver's interface, cut to eight bits by the shell: -8005 is 187.
NPU_EXITS: Mapping[int, str] = {
    187: "the driver's interface does not start (-8005): the device is held by another container, or its "
    "nodes and driver folders are not mounted here",
    172: "the device is used elsewhere (-8020)",
    193: "the driver does not support this query (-8255)",
    215: "the tool does not know these arguments (-9001)",
    211: "an inner error of the tool (-9005)",
    208: "there is no such device (-9008)",
    217: "the tool does not support this query (-9255)",
    127: "npu-smi is not found; it stands in /usr/local/bin or /usr/local/sbin",
}


@dataclass(frozen=True)
class CardProcess:
    """A process on a card; its id is the host's, which a container may not see."""

    pid: int
    name: str
    used_bytes: int


@dataclass(frozen=True)
class Card:
    """One chip.

    Attributes:
        id: as the tool numbers it, `NPU` or `NPU-chip`; needs not start at 0.
        uuid: nvidia's; empty for an npu.
        health: the tool's word, `OK` when well; None: not told.
        used_bytes: held by all processes and the system together.
    """

    id: str
    name: str
    used_bytes: int
    total_bytes: int
    uuid: str = ""
    health: str | None = None
    power_w: float | None = None
    temp_c: float | None = None
    processes: tuple[CardProcess, ...] = ()


@dataclass(frozen=True)
class Answer:
    """What a tool said; `problem` is None when it exited with 0."""

    text: str
    problem: str | None = None


def ask(command: Sequence[str]) -> Answer:
    """Run a vendor's tool; never raises."""
    try:
        done = subprocess.run(
            [*command],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=LIMIT_S,
        )
    except FileNotFoundError:
        return Answer("", f"{command[0]} is not installed here")
    except OSError as error:
        return Answer("", f"{command[0]} cannot be run: {error.strerror}")
    except subprocess.TimeoutExpired:
        return Answer("", f"{command[0]} did not answer within {LIMIT_S:g} s")
    return Answer(done.stdout, explain(command[0], done.returncode, done.stdout + done.stderr))


def explain(tool: str, code: int, text: str) -> str | None:
    """An exit code in words, with the tool's own last line; None for 0."""
    if code == 0:
        return None
    words = [line.strip() for line in text.splitlines() if line.strip()]
    said = f": {words[-1][:200]}" if words else ""
    known = NPU_EXITS.get(code) if tool == "npu-smi" else None
    return f"{tool} exits with {code}{f', {known}' if known else ''}{said}"


def cards(kind: str) -> tuple[tuple[Card, ...], str | None]:
    """All cards of a kind on this host in the runtime's order, and why there are none."""
    if kind == "npu":
        table = ask(NPU_TABLE)
        found = read_npu_table(table.text) if table.problem is None else ()
        problem = table.problem or (None if found else "npu-smi shows no chip")
        return in_logic_order(found, read_npu_map(ask(NPU_MAP).text) if found else {}), problem
    if kind == "cuda":
        table = ask(GPU_TABLE)
        found = read_gpus(table.text, ask(GPU_PROCESSES).text) if table.problem is None else ()
        return found, table.problem or (None if found else "nvidia-smi shows no card")
    return (), None


def read_npu_table(text: str) -> tuple[Card, ...]:
    """The chips of `npu-smi info`, with the processes of its second table.

    A chip has two rows: number and name, health, power and temperature; then chip, bus, and memory pairs of
    which the last is that of the HBM. The second chip of a card shows `-` for its power.
    """
    found: dict[str, Card] = {}
    upper: list[str] | None = None
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        if len(cells) in (4, 5, 6) and (process := _process(cells)) is not None:
            at, entry = process
            if at in found:
                found[at] = replace(found[at], processes=(*found[at].processes, entry))
        elif len(cells) != 3:
            upper = None
        elif re.match(r"[0-9A-Fa-f]{4}:", cells[1]):
            if upper is not None and (chip := _chip(upper, cells)) is not None:
                found[chip.id] = chip
            upper = None
        else:
            upper = cells if re.fullmatch(r"\d+\s+\S*[A-Za-z]\S*", cells[0]) else None
    return tuple(found.values())


def read_npu_map(text: str) -> dict[str, int]:
    """`npu-smi info -m`: the runtime's number of each chip, by the id that the table has for it."""
    found = {}
    for line in text.splitlines():
        cells = line.split()
        if len(cells) >= 4 and cells[0].isdigit() and cells[1].isdigit() and cells[2].isdigit():
            found[_id(cells[0], cells[1])] = int(cells[2])
    return found


def read_views(text: str) -> list[dict[str, str]]:
    """A key/value view of npu-smi (`info -l`, `info -t board|usages|memory|health`), one dict a block.

    A key that comes again begins the next block.
    """
    blocks: list[dict[str, str]] = [{}]
    for line in text.splitlines():
        key, colon, value = line.partition(" : ")
        key = key.strip()
        if not colon or not key:
            continue
        if key in blocks[-1]:
            blocks.append({})
        blocks[-1][key] = value.strip()
    return [block for block in blocks if block]


def in_logic_order(found: Sequence[Card], numbers: Mapping[str, int]) -> tuple[Card, ...]:
    """Cards by the runtime's number; as the table has them where the tool does not tell."""
    if {card.id for card in found} <= numbers.keys():
        return tuple(sorted(found, key=lambda card: numbers[card.id]))
    return tuple(found)


def read_gpus(table: str, processes: str) -> tuple[Card, ...]:
    """nvidia-smi's answers to `GPU_TABLE` and `GPU_PROCESSES`."""
    running: dict[str, list[CardProcess]] = {}
    for line in processes.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) == 4 and cells[1].isdigit():
            used = int(cells[3]) * MIB if cells[3].isdigit() else 0
            running.setdefault(cells[0], []).append(CardProcess(int(cells[1]), cells[2], used))
    found = []
    for line in table.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) != len(GPU_FIELDS) or not (cells[3].isdigit() and cells[4].isdigit()):
            continue
        found.append(
            Card(
                id=cells[0],
                uuid=cells[1],
                name=cells[2],
                used_bytes=int(cells[3]) * MIB,
                total_bytes=int(cells[4]) * MIB,
                power_w=_float(cells[5]),
                temp_c=_float(cells[6]),
                processes=tuple(running.get(cells[1], ())),
            )
        )
    return tuple(found)


def _chip(upper: list[str], lower: list[str]) -> Card | None:
    pairs = re.findall(r"(\d+)\s*/\s*(\d+)", lower[2])
    if not pairs or int(pairs[-1][1]) == 0:
        return None
    number, name = upper[0].split(None, 1)
    power, temperature = [*upper[2].split(), "-", "-"][:2]
    used, total = (int(value) * MIB for value in pairs[-1])
    return Card(
        id=_id(number, (re.findall(r"\d+", lower[0]) or ["0"])[0]),
        name=name,
        used_bytes=used,
        total_bytes=total,
        health=upper[1] or None,
        power_w=_float(power),
        temp_c=_float(temperature),
    )


def _process(cells: list[str]) -> tuple[str, CardProcess] | None:
    """A row of the process table: `NPU chip | pid | name | MB`; newer builds put more columns between."""
    place = re.fullmatch(r"(\d+)\s+(\d+)", cells[0])
    if place is None or not cells[1].isdigit():
        return None
    numbers = [cell for cell in cells[2:] if cell.isdigit()]
    names = [cell for cell in cells[2:] if cell and not cell.isdigit()]
    used = int(numbers[-1]) * MIB if numbers else 0
    return _id(place[1], place[2]), CardProcess(int(cells[1]), names[0] if names else "?", used)


def _id(number: str, chip: str) -> str:
    return number if chip == "0" else f"{number}-{chip}"


def _float(text: str) -> float | None:
    return float(text) if re.fullmatch(r"-?\d+(\.\d+)?", text) else None
