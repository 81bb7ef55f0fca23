"""What the record costs a training: `python -m bench.tracking_overhead`.

As many processes as there are cores do steps of fixed work on one core each; the first one writes its
progress as the trainer does. Beside them a process does the record's work: it follows the progress ten
times a second, samples the machine and writes the journal, and its shipper ships to a server that is well
(on the same cores), away, or slow. As beside a run, shipper and server give way, a pass asks only for what
is new, and the shipper rests for as many times as long as it worked; but it pauses for a second at least
instead of 20. What is done once, the shipper's imports and its first pass, is over before the measurement
begins.

Four times a second the record and the server are stopped or go on (SIGSTOP, SIGCONT), and the mean steps
with and without them are compared with their neighbours', so that whatever else the machine does falls on
both. The ratio is told with its standard error: a machine too restless to tell one per cent proves nothing.
Clocks run on while the record is stopped, so that more of its work falls on the phases with it than in a
run. Exit code 1: a bar is missed.
"""

from __future__ import annotations

import bisect
import contextlib
import json
import os
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from bench.table import Line, is_busy, machine, render
from bench.tracking_size import cpu_s_of
from stack.errors import StackError
from stack.tracking import Journal, Server, ship
from stack.tracking.priority import step_back
from stack.tracking.sampler import Sampler
from stack.tracking.shipping import FOLLOW_SHARE, Passes

PHASE_S, PHASES = 0.25, 801
TELLS = 0.004
"""Standard error of a ratio from which on one per cent can be told."""
SHIP_EVERY_S = 1.0
SETTLE_S, FIRST_PASS_S = 3.0, 120.0
SETTLED = "first-pass-is-over"
CORES = len(os.sched_getaffinity(0))
BAR = 1.01
TRAINER = """
import json, os, sys, time
# More threads than one wait for each other, and whatever runs beside one of them holds up all.
for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[name] = "1"
from pathlib import Path
import numpy
from stack.train.worker import emitter
events, times, end = Path(sys.argv[1]), [], float(sys.argv[2])
emit, a = emitter(events, sys.argv[3] == "0"), numpy.random.default_rng(0).random((150, 150))
step, spent_s = 0, 0.0
while time.time() < end:
    began, cpu = time.time(), time.process_time()
    for _ in range(20):
        a = a @ a; a /= a.max()
    step += 1
    if step % 100 == 0:
        asked = time.perf_counter()
        emit("window", step=step, loss=1.0, lr=1e-5, grad_norm=1.0, step_s=0.1, samples_per_s=1.0)
        spent_s += time.perf_counter() - asked
    times.append((began, time.time(), time.process_time() - cpu))
print(json.dumps({"times": times, "emit_s": spent_s}))
"""
RECORD = "from bench.tracking_overhead import record; import sys; record(*sys.argv[1:])"


class Slow(BaseHTTPRequestHandler):
    """Takes every request and answers after two seconds, with an error."""

    def do_GET(self) -> None:
        time.sleep(2)
        self.send_response(503)
        self.end_headers()

    do_POST = do_GET

    def log_message(self, *args: Any) -> None:
        pass


class Record:
    """The recorder's work, until it is told to end."""

    def __init__(self, folder: Path, events: Path, server: str) -> None:
        self.journal = Journal(folder, name="bench", experiment="stack/train")
        self.sampler = Sampler(self.journal, "cpu", folder)
        self.folder, self.events, self.server, self.rest = folder, events, server, b""
        self.offset, self.passes, self.count = 0, Passes(), 0
        self.is_over = threading.Event()

    def poll(self) -> None:
        while not self.is_over.wait(0.1):
            self.sampler.poll()
            with self.events.open("rb") as file:
                file.seek(self.offset)
                content = file.read()
            self.offset += len(content)
            *lines, self.rest = (self.rest + content).split(b"\n")
            for line in lines:
                event = json.loads(line)
                metrics = {"train/loss": event["loss"], "train/lr": event["lr"]}
                self.journal.metrics(metrics, step=event["step"])

    def ship(self) -> None:
        step_back()
        rest_s = 0.0
        while not self.is_over.wait(rest_s):
            self.count += 1
            started = time.monotonic()
            with contextlib.suppress(StackError):
                ship(self.folder, self.server, passes=self.passes)
            (self.folder / SETTLED).touch()
            rest_s = max(SHIP_EVERY_S, FOLLOW_SHARE * (time.monotonic() - started))


def record(folder: str, events: str, server: str) -> None:
    """The record's process; says what it spent when its standard input ends."""
    own = Record(Path(folder), Path(events), server)
    for work in (own.poll, own.ship):
        threading.Thread(target=work, daemon=True).start()
    while not (own.folder / SETTLED).exists():
        time.sleep(0.1)
    before, since_s = own.count, _cpu_s()
    sys.stdin.read()
    own.is_over.set()
    print(json.dumps({"passes": own.count - before, "cpu_s": _cpu_s() - since_s}))


def measure(scratch: Path, name: str, server: str, *, pid: int | None = None) -> Line:
    """One line of the table; `pid`: the server's process, which leads its own group."""
    folder = scratch / name
    folder.mkdir()
    events = folder / "events.jsonl"
    events.touch()
    beside = _start(RECORD, folder, events, server, stdin=subprocess.PIPE, start_new_session=True)
    until = time.monotonic() + FIRST_PASS_S
    while not (folder / SETTLED).exists() and time.monotonic() < until:
        time.sleep(0.1)
    served = cpu_s_of(pid) if pid else 0.0
    end = time.time() + SETTLE_S + PHASE_S * PHASES
    trainers = [_start(TRAINER, events, end, rank) for rank in range(CORES)]
    time.sleep(SETTLE_S)
    switched = []
    for phase in range(PHASES):
        for group in filter(None, (beside.pid, pid)):
            os.killpg(group, signal.SIGCONT if phase % 2 else signal.SIGSTOP)
        switched.append(time.time())
        time.sleep(PHASE_S)
    for group in filter(None, (beside.pid, pid)):
        os.killpg(group, signal.SIGCONT)
    told = [json.loads(trainer.communicate()[0]) for trainer in trainers]
    record_told = json.loads(beside.communicate()[0])
    served = cpu_s_of(pid) - served if pid else 0.0
    ratios = [[r for one in told for r in _ratios(one["times"], switched, how)] for how in (_wall, _cpu)]
    (wall, error), (cpu, cpu_error) = (_mean(own) for own in ratios)
    on_s = SETTLE_S + PHASES * PHASE_S / 2
    share = told[0]["emit_s"] / sum(_wall(step) for step in told[0]["times"])
    return Line(
        f"a step with the record over one without, server {name}",
        f"{wall:.4f} ± {error:.4f} of the time, {cpu:.4f} ± {cpu_error:.4f} of the CPU; "
        f"progress is {share:.3%} of the trainer",
        f"recorder and {record_told['passes']} passes: {record_told['cpu_s'] / on_s:.3f} CPU-s a second, "
        f"server {served / on_s:.3f}",
        f"at most {BAR}",
        # One per cent cannot be told while other work takes the cores, for better or for worse.
        None if is_busy() or error > TELLS else wall <= BAR,
    )


def _start(code: str, *given: object, **how: Any) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", code, *map(str, given)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, **how)


def _wall(step: Sequence[float]) -> float:
    return step[1] - step[0]


def _cpu(step: Sequence[float]) -> float:
    return step[2]


def _mean(ratios: list[float]) -> tuple[float, float]:
    """The trimmed mean, a tenth off each end, and its standard error (Tukey and McLaughlin 1963)."""
    cut = len(ratios) // 10
    kept = sorted(ratios)[cut : len(ratios) - cut]
    held = [min(max(ratio, kept[0]), kept[-1]) for ratio in ratios]
    return statistics.fmean(kept), statistics.stdev(held) * len(ratios) ** 0.5 / len(kept)


def _ratios(
    times: list[list[float]], switched: list[float], cost: Callable[[Sequence[float]], float]
) -> list[float]:
    """On over off, for each phase with the record and its two neighbours, of the mean step."""
    phases: list[list[float]] = [[] for _ in switched]
    for step in times:
        phase = bisect.bisect(switched, step[0]) - 1
        # A step over a switch belongs to neither side; the last phase ends with the trainer.
        if phase >= 0 and phase == bisect.bisect(switched, step[1]) - 1:
            phases[phase].append(cost(step))
    own = [statistics.fmean(steps) if steps else None for steps in phases]
    ratios = []
    for n in range(1, len(own) - 1, 2):
        before, on, after = own[n - 1], own[n], own[n + 1]
        if before and on and after:
            ratios.append(2 * on / (before + after))
    return ratios


def _cpu_s() -> float:
    own = resource.getrusage(resource.RUSAGE_SELF)
    return own.ru_utime + own.ru_stime


def main() -> int:
    lines = []
    with tempfile.TemporaryDirectory(prefix="bench-tracking-") as folder:
        scratch = Path(folder)
        with Server.start(scratch / "store", is_beside=True) as server:
            lines.append(measure(scratch, "well", server.uri, pid=server.pid))
            away = server.uri
        lines.append(measure(scratch, "away", away))
        with ThreadingHTTPServer(("127.0.0.1", 0), Slow) as slow:
            slow.daemon_threads = True
            threading.Thread(target=slow.serve_forever, daemon=True).start()
            lines.append(measure(scratch, "slow", f"http://127.0.0.1:{slow.server_address[1]}"))
            slow.shutdown()
    print(render(lines) + f"\nMeasured on {machine()}.")
    return int(any(line.holds is False and not line.is_busy for line in lines))


if __name__ == "__main__":
    sys.exit(main())
