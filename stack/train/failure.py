"""Who failed first, and how: the ranks' own accounts, the elastic launcher's, and the kernel's.

A rank that fails takes the others with it: their connections close, and they fail with words that hide the
cause. Each rank therefore writes down its failure with the time, and a rank that could not, because a signal
ended it, is found in the launcher's account.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stack.devices import is_out_of_memory
from stack.errors import Exit, StackError, WorkFailed
from stack.files import read_json, write_json
from stack.train.child import Ended, last_line, signal_words
from stack.train.offline import OutsideConnection
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


def record_failure(folder: Path, rank: int, error: BaseException) -> None:
    """Write down why this rank fails, for the launcher that works in `folder` to read."""
    outside = _outside(error)
    if outside is not None:
        error = WorkFailed(
            "outside-connection",
            f"something tried to leave this machine and was stopped: {outside}",
            do="trainer.log shows from where; a training needs nothing from outside",
        )
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
    write_json(folder / FAILURES / f"rank-{rank}.json", {"time": time.time(), "rank": rank, **what})


def _outside(error: BaseException) -> OutsideConnection | None:
    """The refused connection that an error, which is not ours, comes from."""
    seen: BaseException | None = error
    while seen is not None and not isinstance(seen, StackError):
        if isinstance(seen, OutsideConnection):
            return seen
        seen = seen.__cause__ or seen.__context__
    return None


def failures_in(folder: Path) -> list[dict[str, Any]]:
    """The accounts of the ranks that a host's launcher started from `folder`."""
    return [read_json(file, what="rank's failure") for file in (folder / FAILURES).glob("rank-*.json")]


def first_failure(folder: Path) -> dict[str, Any] | None:
    """The earliest account of a rank; None where no rank wrote one."""
    return min(failures_in(folder), key=lambda account: float(account["time"]), default=None)


def killed_ranks(tail: str) -> Iterator[Killed]:
    """Ranks that the elastic launcher saw ended by a signal that was not its own, as it lists them."""
    for rank, code, pid in _FAILED.findall(tail):
        if int(code) < 0 and int(code) != _BY_LAUNCHER:
            yield Killed(int(rank), int(pid), -int(code))


@dataclass(frozen=True)
class Ending:
    """How one host's part of a training ended.

    Attributes:
        host: its number and name in words; empty where there is only one.
        killed: its rank that a signal ended; `words`: what its output says of that.
        accounts: its ranks' own, times on the first host's clock.
    """

    host: str
    killed: Killed | None
    words: str
    accounts: tuple[Mapping[str, Any], ...]
    ended: Mapping[str, Any]

    @staticmethod
    def of(folder: Path, ended: Ended, host: str = "") -> Ending:
        """This host's."""
        killed = next(killed_ranks(ended.tail), None)
        if killed is None and ended.returncode < 0 and not (ended.is_signalled or ended.is_timeout):
            killed = Killed(0, 0, -ended.returncode)
        errors = [line.strip() for line in ended.tail.splitlines() if "rror" in line]
        return Ending(
            host=host,
            killed=killed,
            words=errors[-1] if errors else last_line(ended.tail),
            accounts=tuple(failures_in(folder)),
            ended={
                "how": ended.how,
                "is_signalled": ended.is_signalled,
                "is_out_of_memory": ended.is_out_of_memory,
                "kernel_kills": ended.kernel_kills,
                "last_line": last_line(ended.tail),
            },
        )

    def to_json(self) -> dict[str, Any]:
        killed = None if self.killed is None else vars(self.killed)
        return {"killed": killed, "words": self.words, "accounts": [*self.accounts], "how": dict(self.ended)}

    @staticmethod
    def from_json(raw: Mapping[str, Any], host: str, clock_ahead_s: float) -> Ending:
        """Another host's, whose clock is ahead of this one's."""
        killed = None if raw["killed"] is None else Killed(**raw["killed"])
        accounts = ({**a, "time": float(a["time"]) - clock_ahead_s} for a in raw["accounts"])
        return Ending(host, killed, raw["words"], tuple(accounts), raw["how"])


def judge(endings: Sequence[Ending], ranks: int) -> TrainResult:
    """What a training came to whose first rank left no result; `endings` of all hosts, the first one's first.

    Raises:
        StackError: the first rank to fail did so with one; it is raised as that rank's.
    """
    for ending in endings:
        if ending.killed is not None:
            return _of_signal(ending.killed, ending, ranks)
    accounts = [(account, ending.host) for ending in endings for account in ending.accounts]
    first, host = min(accounts, key=lambda pair: float(pair[0]["time"]), default=(None, ""))
    if first is not None:
        who = f"rank {first['rank']}{_on(host)}: " if ranks > 1 else ""
        if "id" in first:
            raise StackError(
                first["id"],
                who + first["what"],
                where=first["where"],
                do=first["do"],
                exit=Exit(first["exit"]),
            )
        return TrainResult(first["outcome"], who + first["what"])
    ended = endings[0].ended
    if ended["is_signalled"]:
        return TrainResult("stopped", "stopped before its first step; nothing was saved")
    outcome = "oom" if ended["is_out_of_memory"] else "crashed"
    words = "ran out of memory" if outcome == "oom" else "ended without a result"
    return TrainResult(outcome, f"the trainer {words} ({ended['how']}): {ended['last_line']}")  # type: ignore[arg-type]


def _of_signal(killed: Killed, ending: Ending, ranks: int) -> TrainResult:
    who = f"rank {killed.rank} (process {killed.pid}{_on(ending.host)})" if ranks > 1 else "the trainer"
    by, kills = signal_words(killed.signal), ending.ended["kernel_kills"]
    if killed.signal != 9:
        return TrainResult("crashed", f"{who} crashed with {by}: {ending.words}")
    if kills:
        return TrainResult(
            "oom",
            f"{who} ran out of host memory: the kernel ended {kills} process(es) for it while "
            f"the training ran, this one with {by}",
        )
    kernel = (
        "the kernel does not tell whether memory ran out"
        if kills is None
        else "the kernel ended no process for memory meanwhile"
    )
    return TrainResult("killed", f"{who} was killed by {by} from outside ({kernel}); go on with --resume")


def _on(host: str) -> str:
    return f" on {host}" if host else ""
