"""Pictures of the tracking server's pages, taken in headless Chromium.

    python scripts/screenshot_ui.py http://127.0.0.1:5000 work/ui --folder work/demo-cpu
    python scripts/screenshot_ui.py http://127.0.0.1:5000 work/ui --experiment stack/reproduce

Which pages: of each experiment the table of runs; of each run that has a curve its overview and its charts;
of each parent with points below it the comparison of the points; of each run with HTML artifacts its
verdict, or else the first.

Needs chromium and chromedriver (Debian: `apt-get install chromium chromium-driver`) and the Python package
selenium. Exit code 3: one of them is missing, and which.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

PAGE_LIMIT_S = 60.0
SETTLE_S = 1.5
SIZE = (1600, 1200)
TALL = (1600, 2200)  # for pages that people scroll
MODE = "workflowType=machine_learning"
VIEW = f"viewStateShareKey=stack&{MODE}"
HEADING = "h2, h3, h4"
CHART = ".js-plotly-plot"
TABLE_ROW = ".ag-row"
FLAGS = [
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
]

Run = dict[str, Any]


class Api:
    """The few calls of MLflow's REST API that finding the pages takes."""

    def __init__(self, server: str) -> None:
        self.server = server.rstrip("/")

    def experiments(self) -> dict[str, str]:
        """Names by id."""
        answer = self._post("experiments/search", {"max_results": 1000})
        return {e["experiment_id"]: e["name"] for e in answer.get("experiments", [])}

    def runs(self, experiment_ids: list[str], where: str = "") -> list[Run]:
        """At most 1000 runs, oldest first."""
        body = {"experiment_ids": experiment_ids, "filter": where, "max_results": 1000}
        return list(self._post("runs/search", {**body, "order_by": ["start_time ASC"]}).get("runs", []))

    def artifacts(self, run_id: str, folder: str = "") -> Iterator[str]:
        files = self._get(f"artifacts/list?run_id={run_id}&path={quote(folder)}").get("files", [])
        for file in files:
            if file.get("is_dir"):
                yield from self.artifacts(run_id, file["path"])
            else:
                yield file["path"]

    def points(self, run_id: str, key: str) -> int:
        answer = self._get(f"metrics/get-history?run_id={run_id}&metric_key={quote(key)}&max_results=3")
        return len(answer.get("metrics", []))

    def _get(self, path: str) -> dict[str, Any]:
        with urllib.request.urlopen(f"{self.server}/api/2.0/mlflow/{path}", timeout=30) as answer:
            return dict(json.load(answer))

    def _post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        request = urllib.request.Request(
            f"{self.server}/api/2.0/mlflow/{path}",
            data=json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            return dict(json.load(answer))


def pages(api: Api, runs: list[Run]) -> Iterator[tuple[str, str, str]]:
    """Pages of these runs: file name, address after `#`, CSS selector of what must be drawn."""
    names = api.experiments()
    for experiment in sorted({run["info"]["experiment_id"] for run in runs}):
        yield f"runs-{_file_part(names[experiment])}", f"/experiments/{experiment}/runs?{VIEW}", TABLE_ROW
    for run in runs:
        info = run["info"]
        address = f"/experiments/{info['experiment_id']}/runs/{info['run_id']}"
        part = _file_part(info["run_name"])
        keys = [metric["key"] for metric in run["data"].get("metrics", [])]
        if any(api.points(info["run_id"], key) > 1 for key in keys):
            yield f"run-{part}", f"{address}?{MODE}", HEADING
            yield f"charts-{part}", f"{address}/model-metrics?{MODE}", CHART
        reports = [path for path in api.artifacts(info["run_id"]) if path.endswith(".html")]
        for path in sorted(reports, key=lambda path: not path.startswith("verdict"))[:1]:
            yield f"artifact-{part}-{_file_part(path)}", f"{address}/artifacts/{quote(path)}?{MODE}", "iframe"
        children = [other for other in runs if _tags(other).get("mlflow.parentRunId") == info["run_id"]]
        if _tags(run).get("stack.kind") == "sweep" and len(children) > 1:
            yield f"run-{part}", f"{address}?{MODE}", HEADING
            ids = json.dumps([child["info"]["run_id"] for child in children], separators=(",", ":"))
            where = (
                f"/compare-runs?runs={quote(ids)}&experiments={quote(json.dumps([info['experiment_id']]))}"
            )
            yield f"compare-{part}", where, CHART


def runs_of(api: Api, folder: Path | None, experiment: str | None) -> list[Run]:
    ids = {name: id for id, name in api.experiments().items()}
    if folder is None:
        wanted = [ids[experiment]] if experiment in ids else []
        return api.runs(wanted) if wanted else []
    found = []
    for path in sorted(folder.rglob("journal.jsonl")):
        with path.open() as file:
            run_id = json.loads(file.readline())["run_id"]
        found += api.runs(list(ids.values()), f"tags.`stack.run_id` = '{run_id}'")
    return sorted(found, key=lambda run: int(run["info"]["start_time"]))


def open_browser(profile: str) -> Any:
    """A headless Chromium; leaves with exit code 3 and what to install where something is missing."""
    missing = [name for name in ("chromium", "chromedriver") if shutil.which(name) is None]
    try:
        from selenium import webdriver
    except ImportError:
        missing.append("the Python package selenium")
    if missing:
        print(f"not installed: {', '.join(missing)}", file=sys.stderr)
        print("  do: apt-get install chromium chromium-driver; pip install selenium", file=sys.stderr)
        raise SystemExit(3)
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    for flag in (*FLAGS, f"--user-data-dir={profile}", f"--window-size={SIZE[0]},{SIZE[1]}"):
        options.add_argument(flag)
    return webdriver.Chrome(options, webdriver.ChromeService(shutil.which("chromedriver")))


def close_assistant(browser: Any, server: str) -> None:
    """A side panel for a chat assistant opens on a first visit and covers a third of every page."""
    browser.get(f"{server}/#/experiments")
    browser.execute_script(
        "localStorage.setItem('mlflow.assistant.fab.autoOpenedOnFirstLoad_v1', 'true');"
        "localStorage.setItem('mlflow.assistant.panelOpen_v1', 'false');"
    )


def shoot(browser: Any, server: str, address: str, wanted: str, target: Path) -> bool:
    """Open a page, wait until `wanted` is drawn, and save it; False if it never was."""
    from selenium.webdriver.common.by import By

    browser.set_window_size(*(TALL if wanted == CHART else SIZE))
    browser.get("about:blank")
    browser.get(f"{server}/#{address}")
    deadline, drawn = time.monotonic() + PAGE_LIMIT_S, False
    while not drawn and time.monotonic() < deadline:
        time.sleep(0.3)
        drawn = bool(browser.find_elements(By.CSS_SELECTOR, wanted))
    time.sleep(SETTLE_S)
    browser.save_screenshot(str(target))
    return drawn


def _tags(run: Run) -> dict[str, str]:
    return {tag["key"]: tag["value"] for tag in run["data"].get("tags", [])}


def _file_part(name: str) -> str:
    return "".join(c if c.isalnum() else "-" for c in name).strip("-").lower()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("server", help="address of the tracking server")
    parser.add_argument("out", type=Path, help="folder for the pictures")
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--folder", type=Path, help="a shipped run folder")
    which.add_argument("--experiment", help="name of an experiment")
    options = parser.parse_args()
    try:
        api = Api(options.server)
        runs = runs_of(api, options.folder, options.experiment)
    except OSError as error:
        print(f"the tracking server does not answer at {options.server}: {error}", file=sys.stderr)
        return 3
    if not runs:
        print("no run on the server for this; ship the run folder first", file=sys.stderr)
        return 2
    options.out.mkdir(parents=True, exist_ok=True)
    incomplete = 0
    with tempfile.TemporaryDirectory() as profile:
        browser = open_browser(profile)
        try:
            close_assistant(browser, api.server)
            for name, address, wanted in pages(api, runs):
                target = options.out / f"{name}.png"
                drawn = shoot(browser, api.server, address, wanted, target)
                incomplete += not drawn
                print(f"{target}{'' if drawn else f'  NOT WHOLE: no {wanted} in {PAGE_LIMIT_S:.0f} s'}")
        finally:
            browser.quit()
    return 1 if incomplete else 0


if __name__ == "__main__":
    sys.exit(main())
