"""The server's pages in headless Chromium: what a lead sees first is there, drawn by the real interface."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from stack.tracking import Journal, names, ship

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "screenshot_ui.py"


def script() -> Any:
    spec = importlib.util.spec_from_file_location("screenshot_ui", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def chain(store: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pages")
    top = Journal(folder, name="chain", experiment=names.REPRODUCE)
    top.params({"global_batch": 8})
    top.metrics({names.FINAL_LOSS: 0.4321}, step=0)
    top.tags({names.VERDICT: "within-band"})
    (folder / "verdict.html").write_text("<h1>within band</h1>")
    top.artifact(folder / "verdict.html")
    train = Journal(folder / "train", name="training", experiment=names.TRAIN, parent=top.run_id)
    for step in range(20):
        train.metrics({names.LOSS: 1 / (step + 1)}, step=step)
    train.end("FINISHED")
    top.end("FINISHED")
    ship(folder, store.uri)
    return folder


def test_the_pages_of_a_run_folder_are_found(store: Any, chain: Path) -> None:
    module = script()
    api = module.Api(store.uri)
    found = [name for name, _, _ in module.pages(api, module.runs_of(api, chain, None))]
    assert found == [
        "runs-stack-reproduce",
        "artifact-chain-verdict-html",
        "run-training",
        "charts-training",
    ]


def test_the_table_opens_with_verdict_and_loss(store: Any, chain: Path, tmp_path: Path) -> None:
    pytest.importorskip("selenium")
    if shutil.which("chromium") is None or shutil.which("chromedriver") is None:
        pytest.skip("chromium and chromedriver are not installed")
    module = script()
    api = module.Api(store.uri)
    name, address, wanted = next(module.pages(api, module.runs_of(api, chain, None)))
    browser = module.open_browser(str(tmp_path / "profile"))
    try:
        module.close_assistant(browser, store.uri)
        assert module.shoot(browser, store.uri, address, wanted, tmp_path / f"{name}.png")
        deadline = time.monotonic() + 20
        while "within-band" not in (text := browser.find_element("tag name", "body").text):
            assert time.monotonic() < deadline, text
            time.sleep(0.2)
        cells = browser.find_elements("css selector", ".ag-header-cell")
        left = {cell.text.strip(): cell.rect["x"] for cell in cells}
    finally:
        browser.quit()
    assert "0.432" in text
    # As the eye reads them; the document's own order is another.
    assert left["stack.verdict"] < left["stack.outcome"] < left["final_loss"], left
    assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")


def test_a_machine_without_chromium_is_told_what_to_install(store: Any, chain: Path, tmp_path: Path) -> None:
    arguments = [sys.executable, str(SCRIPT), store.uri, str(tmp_path), "--folder", str(chain)]
    done = subprocess.run(arguments, env={"PATH": ""}, capture_output=True, text=True, timeout=60)
    assert done.returncode == 3
    assert "chromium" in done.stderr and "apt-get install" in done.stderr
    assert "Traceback" not in done.stderr
