"""What the record costs a training: `python -m bench.tracking_overhead`.

A process does steps of fixed work on one core and writes its progress as the trainer does. Beside it, phases
with and without the record take turns: with it, the recorder follows the progress ten times a second, samples
the machine and writes the journal, and the shipper ships to a server that is well (on the same cores), away,
or slow. As beside a run, shipper and server give way, a pass asks only for what is new, and the shipper rests
for as many times as long as it worked; but it pauses for a second at least instead of 20. The mean steps of
neighbouring phases are compared, so that whatever else the machine does falls on both, and told with their
standard error: a machine that is too restless to tell one per cent proves nothing. The bar is on the steps'
time; where other work fills the cores, their processor time says more. Exit code 1: a bar is missed.
"""

from __future__ import annotations

import contextlib
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
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

PHASE_S, PHASES = 2.0, 100
TELLS = 0.004
"""Standard error of a ratio from which on one per cent can be told."""
SHIP_EVERY_S = 1.0
BAR = 1.01
TRAINER = """
import json, os, sys, time
# More threads than one wait for each other, and whatever runs beside one of them holds up all.
for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[name] = "1"
from pathlib import Path
import numpy
from stack.train.worker import emitter
events, times, end = Path(sys.argv[1]), [], time.time() + float(sys.argv[2])
emit, a = emitter(events, True), numpy.random.default_rng(0).random((220, 220))
step, spent_s = 0, 0.0
while time.time() < end:
    began, wall, cpu = time.time(), time.perf_counter(), time.process_time()
    for _ in range(40):
        a = a @ a; a /= a.max()
    step += 1
    if step % 10 == 0:
        asked = time.perf_counter()
        emit("window", step=step, loss=1.0, lr=1e-5, grad_norm=1.0, step_s=0.1, samples_per_s=1.0)
        spent_s += time.perf_counter() - asked
    times.append((began, time.perf_counter() - wall, time.process_time() - cpu))
print(json.dumps({"times": times, "emit_s": spent_s}))
"""


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
    """The recorder's work, switched on and off."""

    def __init__(self, folder: Path, events: Path, server: str) -> None:
        self.journal = Journal(folder, name="bench", experiment="stack/train")
        self.sampler = Sampler(self.journal, "cpu", folder)
        self.folder, self.events, self.server, self.offset = folder, events, server, 0
        self.is_on, self.is_over = threading.Event(), threading.Event()
        self.passes, self.count = Passes(), 0
        self.threads = [threading.Thread(target=self._run, args=(work,)) for work in (self._poll, self._ship)]
        for thread in self.threads:
            thread.start()

    def end(self) -> None:
        self.is_over.set()
        self.is_on.set()
        for thread in self.threads:
            thread.join()

    def _run(self, work: Callable[[], None]) -> None:
        while not self.is_over.is_set():
            self.is_on.wait()
            work()

    def _poll(self) -> None:
        self.sampler.poll()
        with self.events.open("rb") as file:
            file.seek(self.offset)
            for line in file:
                self.offset += len(line)
                event = json.loads(line)
                self.journal.metrics(
                    {"train/loss": event["loss"], "train/lr": event["lr"]}, step=event["step"]
                )
        time.sleep(0.1)

    def _ship(self) -> None:
        if not self.count:
            step_back()
        self.count += 1
        started = time.monotonic()
        with contextlib.suppress(StackError):
            ship(self.folder, self.server, passes=self.passes)
        self.is_over.wait(max(SHIP_EVERY_S, FOLLOW_SHARE * (time.monotonic() - started)))


def measure(scratch: Path, name: str, server: str, *, pid: int | None = None) -> Line:
    """One line of the table; `pid`: the server's process, where its processor time is to be told."""
    folder = scratch / name
    folder.mkdir()
    events = folder / "events.jsonl"
    events.touch()
    command = [sys.executable, "-c", TRAINER, str(events), str(PHASE_S * PHASES)]
    record = Record(folder, events, server)
    spent, served = _cpu_s(), cpu_s_of(pid) if pid else 0.0
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    switched = []
    for phase in range(PHASES):
        (record.is_on.set if phase % 2 else record.is_on.clear)()
        switched.append(time.time())
        time.sleep(PHASE_S)
    said = child.communicate()[0]
    spent, served = _cpu_s() - spent, cpu_s_of(pid) - served if pid else 0.0
    record.end()
    told = json.loads(said)
    (wall, error), (cpu, _) = (_mean(_ratios(told["times"], switched, index)) for index in (1, 2))
    on_s = PHASES * PHASE_S / 2
    share = told["emit_s"] / sum(step[1] for step in told["times"])
    return Line(
        f"a step with the record over one without, server {name}",
        f"{wall:.4f} ± {error:.4f} of the time, {cpu:.4f} of the CPU; progress is {share:.3%} of the trainer",
        f"recorder and {record.count} passes: {spent / on_s:.3f} CPU-s a second, server {served / on_s:.3f}",
        f"at most {BAR}",
        # One per cent cannot be told while other work takes the cores, for better or for worse.
        None if is_busy() or error > TELLS else wall <= BAR,
    )


def _mean(ratios: list[float]) -> tuple[float, float]:
    """The trimmed mean, a tenth off each end, and its standard error (Tukey and McLaughlin 1963)."""
    cut = len(ratios) // 10
    kept = sorted(ratios)[cut : len(ratios) - cut]
    held = [min(max(ratio, kept[0]), kept[-1]) for ratio in ratios]
    return statistics.fmean(kept), statistics.stdev(held) * len(ratios) ** 0.5 / len(kept)


def _ratios(times: list[list[float]], switched: list[float], index: int) -> list[float]:
    """On over off, for each pair of neighbouring phases, of the mean step."""
    phases: list[list[float]] = [[] for _ in switched]
    for step in times:
        phase = max((n for n, began in enumerate(switched) if began <= step[0]), default=0)
        phases[phase].append(step[index])
    own = [statistics.fmean(steps) for steps in phases if steps]
    # Each phase with the record stands between two without it.
    return [2 * own[n] / (own[n - 1] + own[n + 1]) for n in range(1, len(own) - 1, 2)]


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
