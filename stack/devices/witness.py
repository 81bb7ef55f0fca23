"""A second opinion on memory: what the vendor's tool, or the kernel, sees of a process from outside.

A process counts what it allocated; the driver also counts contexts, collectives' buffers and other people's
processes. A watcher in the parent asks the tool once a second, and for a cpu the kernel ten times.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from stack.devices import smi
from stack.devices.cgroup import memory_limit_bytes
from stack.devices.device import Kind
from stack.devices.memory import host_bytes
from stack.devices.probe import cpu_name

TOOL_EVERY_S = 1.0
KERNEL_EVERY_S = 0.1
NAMED_BYTES = 1 << 30
"""On a host, other processes above this size are named; every host has hundreds of small ones."""
VISIBLE: Mapping[str, str] = {"npu": "ASCEND_RT_VISIBLE_DEVICES", "cuda": "CUDA_VISIBLE_DEVICES"}
SOURCES: Mapping[str, str] = {"npu": "npu-smi", "cuda": "nvidia-smi", "cpu": "process tree"}


@dataclass(frozen=True)
class Use:
    """The devices that a process would get, as they are just now.

    Attributes:
        cards: one a device, in the runtime's order; for a cpu the host.
        problem: why there are none.
    """

    cards: tuple[smi.Card, ...]
    problem: str | None = None


@dataclass(frozen=True)
class Witnessed:
    """What was seen while a process ran.

    Attributes:
        source: who counted.
        peak_bytes: the most that was held on one device, by everybody; for a cpu by the process and those
            it started together: each one's high-water mark, pages of files (libraries) counted once, other
            pages that they share by each.
        file_bytes: of that, pages of files: the kernel gives them back when memory is short, and a control
            group pays only for those that it read first.
        power_w: mean over the samples of all devices together; None: not told.
        samples: how often it was looked.
    """

    source: str
    peak_bytes: int | None
    power_w: float | None
    samples: int
    file_bytes: int = 0


def look(kind: Kind, count: int) -> Use:
    """The first `count` devices that this process may use; never raises."""
    if kind == "cpu":
        return Use((_host(),))
    found, problem = smi.cards(kind)
    return Use(visible(kind, found, os.environ)[:count], problem)


def visible(kind: str, found: tuple[smi.Card, ...], environment: Mapping[str, str]) -> tuple[smi.Card, ...]:
    """The cards that the runtime shows to a process, in its order: a list of numbers or of nvidia's ids."""
    chosen = environment.get(VISIBLE.get(kind, ""))
    if chosen is None:
        return found
    by_name = {str(number): card for number, card in enumerate(found)}
    by_name |= {card.uuid: card for card in found if card.uuid}
    names = [name.strip() for name in chosen.split(",")]
    # The runtimes stop at the first name that is not there.
    known = next((n for n, name in enumerate(names) if name not in by_name), len(names))
    return tuple(by_name[name] for name in names[:known])


class Witness:
    """Looks at devices from outside while a child runs: `with Witness(...) as w: ...; w.seen()`."""

    def __init__(self, kind: Kind, count: int) -> None:
        self._kind, self._count = kind, count
        self._pid: int | None = None
        self._peak: int | None = None
        self._file_bytes = 0
        self._powers: list[float] = []
        self._samples = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True, name="device-witness")

    def watch(self, pid: int) -> None:
        """Give the child's process id, and begin."""
        self._pid = pid
        self._thread.start()

    def restart(self) -> None:
        """Forget what was seen so far: the child has loaded, and what counts begins now."""
        self._peak, self._powers, self._samples = None, [], 0

    def __enter__(self) -> Witness:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def seen(self) -> Witnessed:
        power = sum(self._powers) / len(self._powers) if self._powers else None
        return Witnessed(SOURCES[self._kind], self._peak, power, self._samples, self._file_bytes)

    def _run(self) -> None:
        every = KERNEL_EVERY_S if self._kind == "cpu" else TOOL_EVERY_S
        while not self._stop.is_set():
            self._look()
            self._stop.wait(every)

    def _tree_bytes(self, pid: int) -> tuple[int, int]:
        """Of a process and all that descend from it: the sum, and what of it are pages of files."""
        own, files = 0, [0]
        for one in tree(pid):
            mark, file = _status_bytes(one, "VmHWM"), _status_bytes(one, "RssFile")
            if mark is not None and file is not None:
                own += mark - file
                files.append(file)
        return own + max(files), max(files)

    def _look(self) -> None:
        if self._kind == "cpu":
            assert self._pid is not None
            most, of_files = self._tree_bytes(self._pid)
        else:
            cards = look(self._kind, self._count).cards
            most, of_files = max((card.used_bytes for card in cards), default=0), 0
            powers = [card.power_w for card in cards if card.power_w is not None]
            if powers:
                self._powers.append(sum(powers))
        if most:
            self._samples += 1
        if most > (self._peak or 0):
            self._peak, self._file_bytes = most, of_files


def tree(pid: int) -> list[int]:
    """A process and all that descend from it, as far as they can be seen. Source: proc(5), `children`."""
    found, todo = [], [pid]
    while todo:
        one = todo.pop()
        found.append(one)
        try:
            for task in Path(f"/proc/{one}/task").iterdir():
                todo += [int(word) for word in (task / "children").read_text().split()]
        except OSError:
            continue
    return found


def _status_bytes(pid: int, field: str) -> int | None:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:")), None)


def _host() -> smi.Card:
    total = min(host_bytes(), memory_limit_bytes() or host_bytes())
    others = []
    own = {*tree(os.getpid())}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) in own:
            continue
        used = _status_bytes(int(entry.name), "VmRSS") or 0
        if used >= NAMED_BYTES:
            others.append(smi.CardProcess(int(entry.name), _name(entry), used))
    used = max(0, host_bytes() - host_bytes("MemAvailable"))
    return smi.Card("host", cpu_name(), used, total, processes=tuple(others))


def _name(entry: Path) -> str:
    try:
        return (entry / "comm").read_text().strip()
    except OSError:
        return "?"
