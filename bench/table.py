"""What was measured, as a table."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path


@dataclass(frozen=True)
class Line:
    """One bar: what was done, what it took, what it is measured against, and whether it holds."""

    work: str
    took: str
    against: str
    bar: str
    holds: bool | None  # None: there was nothing to measure against
    is_busy: bool = False  # other work took the cores meanwhile

    def cells(self) -> tuple[str, ...]:
        verdict = {True: "holds", False: "**missed**", None: "not measured"}[self.holds]
        if self.holds is False and self.is_busy:
            verdict = "not judged: busy"
        return self.work, self.took, self.against, self.bar, verdict


def is_busy() -> bool:
    """Whether more waits for the cores than one run of ours can: a missed bar then says nothing."""
    return os.getloadavg()[0] > 2 * len(os.sched_getaffinity(0))


HEAD = ("work", "took", "against, in the same run", "bar", "")


def render(lines: Sequence[Line]) -> str:
    """A Markdown table with columns of one width."""
    rows = [HEAD, *(line.cells() for line in lines)]
    widths = [max(len(row[n]) for row in rows) for n in range(len(HEAD))]
    shown = [_row(row, widths) for row in rows]
    shown.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(shown) + "\n"


def _row(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "| " + " | ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)) + " |"


START_MARK, END_MARK = "<!-- bench: begin -->", "<!-- bench: end -->"


def between_marks(text: str, table: str) -> str:
    """A file's text with this table between its marks.

    Raises:
        ValueError: the marks are not there, once each and in order.
    """
    before, start, rest = text.partition(START_MARK)
    _, end, after = rest.partition(END_MARK)
    if not start or not end or START_MARK in after or END_MARK in after:
        raise ValueError(f"there is no place between {START_MARK} and {END_MARK}")
    return f"{before}{START_MARK}\n{table}{END_MARK}{after}"


def machine() -> str:
    """Processor, cores this process may use, memory, Python, and how busy the machine was."""
    model = next(
        (
            line.split(":", 1)[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.machine(),
    )
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    cores = len(os.sched_getaffinity(0))
    return (
        f"{model}, {cores} cores, {memory_gib:.0f} GiB, Python {platform.python_version()}, "
        f"load average at the end {os.getloadavg()[1]:.1f}, {date.today().isoformat()}"
    )
