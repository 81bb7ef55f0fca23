"""`stack reproduce --until`: stages are done once, and nothing is judged or recorded."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from stack.cli import cli
from stack.errors import BadRequest
from stack.manifests import load_run_manifest
from stack.reproduce import advance


@pytest.fixture
def manifest(tmp_path: Path, checkout: Path) -> Path:
    shutil.copytree(checkout / "manifests", tmp_path / "manifests")
    return tmp_path / "manifests" / "runs" / "demo-two-hosts.yaml"


def test_a_stage_is_done_once_and_what_follows_is_not_begun(manifest: Path, tmp_path: Path) -> None:
    loaded, lines = load_run_manifest(manifest), list[str]()
    first = advance(loaded, work=tmp_path / "work", until="demo", log=lines.append)
    again = advance(loaded, work=tmp_path / "work", until="demo", log=lines.append)
    assert (first.did, first.good, again.did, again.good) == (True, True, False, True)
    assert (tmp_path / "work" / "demo" / "deliveries").is_dir()
    run = tmp_path / "work" / "runs" / "demo-two-hosts"
    assert [path.name for path in run.iterdir()] == []
    assert not any("prepare" in line for line in lines)


def test_a_stage_that_the_run_does_not_have(manifest: Path, tmp_path: Path) -> None:
    with pytest.raises(BadRequest) as caught:
        advance(load_run_manifest(manifest), work=tmp_path / "work", until="sweep", log=print)
    assert caught.value.id == "reproduce-no-such-stage" and "mirror" in caught.value.what


def test_until_goes_with_no_verdict(manifest: Path) -> None:
    done = CliRunner().invoke(cli, ["reproduce", str(manifest), "--until", "demo", "--json", "-"])
    assert done.exit_code == 2 and "--until judges nothing" in done.output
