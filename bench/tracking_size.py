"""How long a long run takes to ship and to open: `python -m bench.tracking_size`.

A run of 30,000 steps with 40 metrics each step, shipped to a fresh server on loopback; the rival is MLflow's
own client, which is given a part of the same points in batches of 1,000 (the whole is extrapolated). Then the
run is opened in headless Chromium, where one is installed: its overview, until its metrics stand there, the
charts by a click from there, and the charts by their own address in a new tab; the rival is a run with one
metric. Exit code 1: a bar is missed. Processor seconds are the shipper's and the server's.
"""

from __future__ import annotations

import importlib.util
import os
import random
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.table import Line, is_busy, machine, render
from stack.tracking import Journal, Server, ship
from stack.tracking.journal import JOURNAL
from stack.tracking.shipping import ShippedRun

STEPS, METRICS, RIVAL_POINTS = 30_000, 40, 20_000
SHIP_BAR_S, OPEN_BAR_S = 60.0, 3.0
VISITS = 3
BY_ADDRESS = "open its charts by their address, in a new tab"
PAGE_LIMIT_S = 120.0
FIRST_METRIC = "train/m00"
CHARTS_TAB = "//button[normalize-space()='Model metrics']"
SCRIPT = Path(__file__).resolve().parents[1] / "scripts" / "screenshot_ui.py"


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="bench-tracking-") as scratch:
        folder = Path(scratch) / "run"
        write_run(folder)
        megabytes = (folder / JOURNAL).stat().st_size / 1e6
        with Server.start(Path(scratch) / "store") as server:
            spent, served = _cpu_s(), cpu_s_of(server.pid)
            report = ship(folder, server.uri)
            spent, served = _cpu_s() - spent, cpu_s_of(server.pid) - served
            run = report.runs[0]
            rival_s = rival(server.uri) * STEPS * METRICS / RIVAL_POINTS
            idle = _cpu_s()
            again = ship(folder, server.uri)
            idle = _cpu_s() - idle
            write_run(Path(scratch) / "small", steps=300, metrics=1)
            small = ship(Path(scratch) / "small", server.uri).runs[0]
            opened = open_pages(server.uri, [run, small], Path(scratch))
    lines = [
        Line(
            f"ship {STEPS:,} steps x {METRICS} metrics, a journal of {megabytes:.0f} MB",
            f"{report.duration_s:.1f} s, {spent:.1f} + {served:.1f} CPU-s, {report.points_sent:,} points",
            f"MLflow, {STEPS * METRICS:,} points: {rival_s:.0f} s, {rival_s / report.duration_s:.0f}x",
            f"under {SHIP_BAR_S:.0f} s",
            report.duration_s < SHIP_BAR_S,
            is_busy(),
        ),
        Line(
            "ship again",
            f"{again.duration_s:.1f} s, {idle:.1f} CPU-s, {again.points_sent} points",
            "",
            "no point",
            not again.points_sent,
        ),
    ]
    for name, (seconds, least) in opened.items():
        rival_said = f"of a run with one metric: {least:.1f} s"
        if name == BY_ADDRESS:
            lines.append(Line(name, f"{seconds:.1f} s", rival_said, "", None, is_busy()))
        else:
            bar, holds = f"under {OPEN_BAR_S:.0f} s", seconds < OPEN_BAR_S
            lines.append(Line(name, f"{seconds:.1f} s", rival_said, bar, holds, is_busy()))
    if not opened:
        lines.append(Line("open the run", "", "", f"under {OPEN_BAR_S:.0f} s", None))
    print(render(lines) + f"\nMeasured on {machine()}.")
    return int(any(line.holds is False and not line.is_busy for line in lines))


def write_run(folder: Path, steps: int = STEPS, metrics: int = METRICS) -> None:
    """A whole journal with a curve for each metric."""
    rng = random.Random(1)
    journal = Journal(folder, name="long", experiment="stack/train")
    for step in range(steps):
        values = {f"train/m{n:02d}": (n + 1) / (1 + step / 900) + rng.gauss(0, 0.05) for n in range(metrics)}
        journal.metrics(values, step=step)
    journal.end("FINISHED")
    journal.close()


def rival(uri: str) -> float:
    """Seconds that MLflow's own client takes for a part of as many points."""
    from mlflow.entities import Metric
    from mlflow.tracking import MlflowClient

    client = MlflowClient(uri)
    run = client.create_run(client.create_experiment("rival"))
    started = time.monotonic()
    points = [
        Metric(f"m{n % METRICS}", float(n), 1_700_000_000_000 + n, n // METRICS) for n in range(RIVAL_POINTS)
    ]
    for start in range(0, RIVAL_POINTS, 1000):
        client.log_batch(run.info.run_id, metrics=points[start : start + 1000])
    return time.monotonic() - started


def open_pages(uri: str, runs: list[ShippedRun], scratch: Path) -> dict[str, list[float]]:
    """Seconds until a page of each of the runs is drawn, the middle of three visits.

    By a browser that has MLflow's own code: a first visit to each kind of page, which loads and compiles
    several MB of it, is not told.
    """
    spec = importlib.util.spec_from_file_location("screenshot_ui", SCRIPT)
    assert spec is not None and spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    try:
        browser = module.open_browser(str(scratch / "profile"))
    except SystemExit:
        return {}
    seconds: dict[str, list[float]] = {}
    try:
        module.close_assistant(browser, uri)
        visit(browser, module, uri, runs[-1])
        for run in runs:
            visits = [visit(browser, module, uri, run) for _ in range(VISITS)]
            for name in visits[0]:
                seconds.setdefault(name, []).append(statistics.median(taken[name] for taken in visits))
    finally:
        browser.quit()
    return seconds


def visit(browser: Any, module: Any, uri: str, run: ShippedRun) -> dict[str, float]:
    """One look at a run as people take it: the run, from there its charts; and the charts' address alone."""
    address = f"{uri}/#/experiments/{run.experiment_id}/runs/{run.mlflow_run_id}"
    shows_metrics = f"return document.body.innerText.includes('{FIRST_METRIC}')"
    shows_charts = f"return document.querySelector('{module.CHART}') !== null"
    return {
        "open the run": _drawn(browser, lambda: _go(browser, f"{address}?{module.MODE}"), shows_metrics),
        "from there its charts": _drawn(
            browser, browser.find_element("xpath", CHARTS_TAB).click, shows_charts
        ),
        BY_ADDRESS: _drawn(
            browser, lambda: _go(browser, f"{address}/model-metrics?{module.MODE}"), shows_charts
        ),
    }


def _go(browser: Any, address: str) -> None:
    """As a new tab would: a page that is open already would only change what it shows."""
    browser.get("about:blank")
    browser.get(address)


def _drawn(browser: Any, ask: Callable[[], object], condition: str) -> float:
    started = time.monotonic()
    ask()
    while not browser.execute_script(condition):
        if time.monotonic() - started > PAGE_LIMIT_S:
            raise SystemExit(f"a page was not drawn in {PAGE_LIMIT_S:.0f} s: {browser.current_url}")
        time.sleep(0.02)
    return time.monotonic() - started


def _cpu_s() -> float:
    own = resource.getrusage(resource.RUSAGE_SELF)
    return own.ru_utime + own.ru_stime


def cpu_s_of(pid: int) -> float:
    """Of another process; proc(5), /proc/pid/stat, fields 14 and 15."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    sys.exit(main())
