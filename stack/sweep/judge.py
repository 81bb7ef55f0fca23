"""What a point came to, with the evidence: its ranks' own accounts, its exit, the kernel's count."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from stack.files import read_json
from stack.sweep.result import RESULT, Point, Status
from stack.train.child import Ended, last_line, signal_words
from stack.train.failure import Killed, killed_ranks

ACCOUNTS = "ranks"
STEPS = "steps.jsonl"
KILL, ABORT = 9, 6


@dataclass(frozen=True)
class Kills:
    """Processes that the kernel ended for memory while the point ran.

    Attributes:
        count: None: the kernel does not tell.
        is_own: counted in the point's own control group; otherwise on the whole host, where it may have
            been somebody else's.
    """

    count: int | None
    is_own: bool

    def words(self) -> str:
        where = "of this point" if self.is_own else "on this host"
        if self.count is None:
            return "the kernel does not tell whether memory ran out"
        return f"the kernel ended {self.count or 'no'} process(es) {where} for memory meanwhile"


def judge(folder: Path, blank: Point, ended: Ended, timeout_s: float, kills: Kills | None = None) -> Point:
    """The point's result. `blank` has its place; `kills`: None takes the host's count.

    Memory is the cause where a rank said so, where the kernel says so, or where the last words are an
    allocator's. A signal that somebody sent is a crash with that signal's name.
    """
    kills = kills or Kills(ended.kernel_kills, is_own=False)
    evidence: dict[str, Any] = {
        "exit": ended.how,
        "kernel_kills": kills.count,
        "kernel_kills_are_own": kills.is_own,
        "seconds": round(ended.seconds, 1),
        "steps": _steps(folder),
    }
    blank = replace(blank, evidence=evidence)
    if ended.is_timeout:
        return replace(
            blank, status="timeout", message=f"not done after {timeout_s:g} s{_progress(evidence)}"
        )
    if (folder / RESULT).exists():
        return _measured(folder, blank, ended)
    accounts = [read_json(file, what="rank's account") for file in (folder / ACCOUNTS).glob("rank-*.json")]
    accounts.sort(key=lambda account: float(account["time"]))
    killed = next(killed_ranks(ended.tail), None)
    if killed is None and ended.returncode < 0:
        killed = Killed(0, 0, -ended.returncode)
    if killed is not None:
        return _of_signal(blank, killed, ended, kills)
    # The others fail when the first one does, with words that hide the cause: memory goes first, then time.
    first = next((a for a in accounts if a["status"] == "oom"), accounts[0] if accounts else None)
    if first is not None:
        who = f"rank {first['rank']}: " if blank.devices > 1 else ""
        status, message = first["status"], who + first["message"]
        if status == "error" and kills.count:
            status, message = "oom", f"{kills.words()}; {message}"
        peak = first.get("peak_memory_bytes")
        return replace(blank, status=status, message=message, peak_memory_bytes=peak)
    is_memory = ended.is_out_of_memory or bool(kills.count)
    message = f"ended without a result ({ended.how}): {last_line(ended.tail)}"
    return replace(blank, status="oom" if is_memory else "error", message=message)


def _measured(folder: Path, blank: Point, ended: Ended) -> Point:
    raw = read_json(folder / RESULT, what="point's result")
    point = replace(
        Point(**{key: value for key, value in raw.items() if key in Point.__dataclass_fields__}),
        evidence=blank.evidence,
    )
    if ended.returncode == 0:
        return point
    return replace(
        point, message=f"measured, and then ended with {ended.how}: {last_line(ended.tail)}", status="error"
    )


def _of_signal(blank: Point, killed: Killed, ended: Ended, kills: Kills) -> Point:
    who = f"rank {killed.rank} (process {killed.pid})" if killed.pid else "the process"
    by = signal_words(killed.signal)
    if killed.signal == KILL:
        if kills.count:
            return replace(blank, status="oom", message=f"{who} was ended by {by}: {kills.words()}")
        return replace(
            blank, status="error", message=f"{who} was killed by {by} from outside: {kills.words()}"
        )
    status: Status = "oom" if killed.signal == ABORT and ended.is_out_of_memory else "error"
    return replace(blank, status=status, message=f"{who} ended by {by}: {last_line(ended.tail)}")


def _steps(folder: Path) -> int:
    """Steps that the first rank has told of."""
    try:
        return sum(1 for line in (folder / STEPS).read_text().splitlines() if '"step"' in line)
    except OSError:
        return 0


def _progress(evidence: dict[str, Any]) -> str:
    return f"; {evidence['steps'] or 'no'} step(s) were done"
