"""Who failed first, and how: the ranks' own accounts, the elastic launcher's, and the kernel's.

A rank that fails takes the others with it: their connections close, and they fail with words that hide the
cause. Each rank therefore writes down its failure with the time, and a rank that could not, because a signal
ended it, is found in the launcher's account.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stack.devices import is_out_of_memory
from stack.errors import Exit, StackError
from stack.files import read_json, write_json
from stack.train.child import Ended, last_line, signal_words
from stack.train.result import TrainResult

FAILURES = "failures"
# torch.distributed.elastic.multiprocessing.errors.ChildFailedError prints these lines for each failed rank.
_FAILED = re.compile(r"rank\s+: (\d+) \(local_rank: \d+\)\s+exitcode\s+: (-?\d+) \(pid: (\d+)\)")
# The launcher ends the ranks that are left with this one.
_BY_LAUNCHER = -15


@dataclass(frozen=True)
class Killed:
    """A rank that a signal ended."""

    rank: int
    pid: int
    signal: int


def record_failure(out: Path, rank: int, error: BaseException) -> None:
    """Write down why this rank fails, for the parent to read."""
    if isinstance(error, StackError):
        what = {
            "id": error.id,
            "what": error.what,
            "where": error.where,
            "do": error.do,
            "exit": int(error.exit),
        }
    else:
        outcome = "oom" if is_out_of_memory(error) else "crashed"
        what = {"outcome": outcome, "what": f"{type(error).__name__}: {error}"}
    write_json(out / FAILURES / f"rank-{rank}.json", {"time": time.time(), "rank": rank, **what})


def first_failure(out: Path) -> dict[str, Any] | None:
    """The earliest account of a rank; None where no rank wrote one."""
    accounts = [read_json(file, what="rank's failure") for file in (out / FAILURES).glob("rank-*.json")]
    return min(accounts, key=lambda account: float(account["time"]), default=None)


def killed_ranks(tail: str) -> Iterator[Killed]:
    """Ranks that the elastic launcher saw ended by a signal that was not its own, as it lists them."""
    for rank, code, pid in _FAILED.findall(tail):
        if int(code) < 0 and int(code) != _BY_LAUNCHER:
            yield Killed(int(rank), int(pid), -int(code))


def judge(out: Path, ended: Ended, ranks: int) -> TrainResult:
    """What a training came to whose first rank left no result.

    Raises:
        StackError: the first rank to fail did so with one; it is raised as that rank's.
    """
    killed = next(killed_ranks(ended.tail), None)
    if killed is None and ended.returncode < 0 and not ended.is_signalled:
        killed = Killed(0, 0, -ended.returncode)
    if killed is not None:
        return _of_signal(killed, ended, ranks)
    first = first_failure(out)
    if first is not None:
        who = f"rank {first['rank']}: " if ranks > 1 else ""
        if "id" in first:
            raise StackError(
                first["id"],
                who + first["what"],
                where=first["where"],
                do=first["do"],
                exit=Exit(first["exit"]),
            )
        return TrainResult(first["outcome"], who + first["what"])
    if ended.is_signalled:
        return TrainResult("stopped", "stopped before its first step; nothing was saved")
    outcome = "oom" if ended.is_out_of_memory else "crashed"
    words = "ran out of memory" if outcome == "oom" else "ended without a result"
    return TrainResult(outcome, f"the trainer {words} ({ended.how}): {last_line(ended.tail)}")  # type: ignore[arg-type]


def _of_signal(killed: Killed, ended: Ended, ranks: int) -> TrainResult:
    who = f"rank {killed.rank} (process {killed.pid})" if ranks > 1 else "the trainer"
    by = signal_words(killed.signal)
    if killed.signal != 9:
        words = [line for line in ended.tail.splitlines() if "rror" in line]
        return TrainResult(
            "crashed", f"{who} crashed with {by}: {words[-1].strip() if words else last_line(ended.tail)}"
        )
    if ended.kernel_kills:
        return TrainResult(
            "oom",
            f"{who} ran out of host memory: the kernel ended {ended.kernel_kills} process(es) for it while "
            f"the training ran, this one with {by}",
        )
    kernel = (
        "the kernel does not tell whether memory ran out"
        if ended.kernel_kills is None
        else "the kernel ended no process for memory meanwhile"
    )
    return TrainResult("killed", f"{who} was killed by {by} from outside ({kernel}); go on with --resume")
