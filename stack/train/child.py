"""Running a child of ours: own process group, signals forwarded, output to a file, a time limit."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import stack
from stack.devices.memory import is_out_of_memory, kernel_kills
from stack.tracking.liveness import this_process
from stack.train.hosts import INTERFACE_VARIABLES, Hosts, interface_to
from stack.train.offline import OFFLINE_ENV

POLL_S = 0.1
GRACE_S = 20.0
TAIL_BYTES = 8000
LAUNCHER = "torch.distributed.run"
# What another launcher has said of ranks is not meant for ours, and a single process would believe it.
OTHERS_RANKS = {
    "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK",
    "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_USE_AGENT_STORE",
    "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS", "TORCHELASTIC_ERROR_FILE",
}  # fmt: skip
LAUNCHER_ENV = "STACK_LAUNCHER"  # who started a child, so that one that has lost it can be told


@dataclass(frozen=True)
class Ended:
    """How a child ended: its return code (negative: the signal), whether we ended it, its last words.

    `kernel_kills`: processes that the kernel ended for memory meanwhile; None: it does not tell.
    """

    returncode: int
    is_timeout: bool
    is_signalled: bool
    seconds: float
    tail: str
    kernel_kills: int | None = None

    @property
    def is_out_of_memory(self) -> bool:
        return is_out_of_memory(self.returncode, self.tail, kernel_kills=self.kernel_kills)

    @property
    def how(self) -> str:
        """The end in words."""
        if self.returncode >= 0:
            return f"return code {self.returncode}"
        return signal_words(-self.returncode)


def python_module(module: str, arguments: Sequence[str], ranks: int, hosts: Hosts | None = None) -> list[str]:
    """The command for a module of ours: plain for one process, torch's elastic launcher for several.

    Args:
        ranks: processes on all hosts together.
    """
    if ranks == 1:
        return [sys.executable, "-m", module, *arguments]
    is_alone = hosts is None or hosts.count == 1
    where = ["--standalone", "--nnodes=1"] if is_alone or hosts is None else hosts.launcher_options()
    here = ranks if is_alone or hosts is None else hosts.ranks_here(ranks)
    launcher = ["-m", LAUNCHER, *where, f"--nproc-per-node={here}"]
    return [sys.executable, *launcher, "-m", module, *arguments]


def environment(home: Path, *, is_cpu: bool, ranks: int, hosts: Hosts | None = None) -> dict[str, str]:
    """The child's environment: offline, caches in `home`, one thread a process on a cpu."""
    root = str(Path(stack.__file__).parent.parent)
    paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
    own = {
        **OFFLINE_ENV,
        "HF_HOME": str(home),
        "PYTHONPATH": os.pathsep.join(paths),
        "PYTHONUNBUFFERED": "1",
        LAUNCHER_ENV: json.dumps(this_process()),
    }
    if is_cpu:
        own["OMP_NUM_THREADS"] = "1"
        own["GLOO_SOCKET_IFNAME"] = "lo"
        own["CUDA_VISIBLE_DEVICES"] = ""
    if hosts is not None and hosts.count > 1:
        # Torch's launcher hands its ranks the first host's address, and backends need to know the way.
        net = interface_to(hosts)
        own.pop("GLOO_SOCKET_IFNAME", None)
        own |= {name: net for name in INTERFACE_VARIABLES if net and not os.environ.get(name)}
    elif ranks > 1:
        own["MASTER_ADDR"] = "127.0.0.1"
    inherited = {name: value for name, value in os.environ.items() if name not in OTHERS_RANKS}
    return {**inherited, **own}


def run_child(
    command: Sequence[str],
    *,
    env: Mapping[str, str],
    output: Path,
    timeout_s: float | None = None,
    on_poll: Callable[[], None] = lambda: None,
    on_start: Callable[[int], None] = lambda _: None,
    should_end: Callable[[], bool] = lambda: False,
) -> Ended:
    """Run `command` to its end; SIGINT and SIGTERM to this process reach it as SIGTERM.

    Args:
        output: gets the child's stdout and stderr.
        on_poll: called ten times a second while the child runs, and once after its end.
        on_start: called once with the child's process id.
        should_end: asked as often; the child is ended, as if its time were over.
    """
    started, kills = time.monotonic(), kernel_kills()
    signalled: list[int] = []
    is_timeout = False
    with output.open("ab") as sink:
        begin = sink.tell()
        child = subprocess.Popen(
            [*command],
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=sink,
            start_new_session=True,
        )
        restore = _forward_signals(child, signalled)
        try:
            on_start(child.pid)
            while child.poll() is None:
                on_poll()
                is_late = timeout_s is not None and time.monotonic() - started > timeout_s
                if is_late or should_end():
                    is_timeout = True
                    _end(child)
                time.sleep(POLL_S)
        finally:
            if child.poll() is None:
                _end(child)
            restore()
    on_poll()
    with output.open("rb") as words:
        words.seek(max(begin, output.stat().st_size - TAIL_BYTES))
        tail = words.read().decode(errors="replace")
    now = kernel_kills()
    return Ended(
        returncode=child.returncode,
        is_timeout=is_timeout,
        is_signalled=bool(signalled),
        seconds=time.monotonic() - started,
        tail=tail,
        kernel_kills=None if kills is None or now is None else now - kills,
    )


def signal_words(number: int) -> str:
    """A signal as people know it."""
    try:
        return f"signal {number} ({signal.Signals(number).name})"
    except ValueError:
        return f"signal {number}"


def last_line(tail: str) -> str:
    """The last line of a child's output that says something."""
    lines = [line.strip() for line in tail.splitlines() if line.strip()]
    return lines[-1] if lines else "it said nothing"


def _forward_signals(child: subprocess.Popen[bytes], seen: list[int]) -> Callable[[], None]:
    if threading.current_thread() is not threading.main_thread():
        return lambda: None

    def forward(number: int, _frame: FrameType | None) -> None:
        # Not the group: a loader worker that ends first makes a crash of what is to be an orderly stop. Not
        # torch's launcher either, which gives its ranks 30 s: a large checkpoint takes longer.
        seen.append(number)
        for pid in _ranks_of(child) or [child.pid]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)

    before: dict[int, Any] = {n: signal.signal(n, forward) for n in (signal.SIGINT, signal.SIGTERM)}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    return restore


def _ranks_of(child: subprocess.Popen[bytes]) -> list[int]:
    """The processes that torch's launcher has started; none where `child` is no launcher."""
    if LAUNCHER not in [*map(str, child.args)]:  # type: ignore[arg-type]
        return []
    try:
        words = Path(f"/proc/{child.pid}/task/{child.pid}/children").read_text()
    except OSError:
        return []
    return [int(word) for word in words.split()]


def _signal_group(child: subprocess.Popen[bytes], number: int) -> None:
    try:
        os.killpg(child.pid, number)
    except ProcessLookupError:
        return


def _end(child: subprocess.Popen[bytes]) -> None:
    """Ask the child's group to leave, and after a grace time make it."""
    _signal_group(child, signal.SIGTERM)
    try:
        child.wait(GRACE_S)
    except subprocess.TimeoutExpired:
        _signal_group(child, signal.SIGKILL)
        child.wait()
