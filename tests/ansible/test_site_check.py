"""What a host is found to be, and how it is judged, against folders that stand for hosts."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

CHECKOUT = Path(__file__).parents[2]
PROBE = CHECKOUT / "ansible/roles/site_check/files/probe.py"


def plugin(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, CHECKOUT / f"ansible/plugins/filter/{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


site, packages = plugin("stack_site"), plugin("stack_packages")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A host with two cards."""
    driver = tmp_path / "usr/local/Ascend/driver"
    driver.mkdir(parents=True)
    (driver / "version.info").write_text("Version=25.5.0\nInnerversion=V100\n")
    (tmp_path / "usr/local/Ascend/firmware").mkdir()
    (tmp_path / "usr/local/Ascend/firmware/version.info").write_text("Version=7.8.0.1.220\n")
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/os-release").write_text('ID=debian\nVERSION_ID="12"\n')
    (tmp_path / "etc/ascend_install.info").write_text(
        "UserName=HwHiAiUser\nDriver_Install_Path_Param=/usr/local/Ascend\nDriver_Install_Status=complete\n"
    )
    for name in ("davinci0", "davinci1", "davinci_manager"):
        (tmp_path / "dev").mkdir(exist_ok=True)
        (tmp_path / "dev" / name).touch()
    (tmp_path / "usr/local/bin").mkdir()
    shutil.copy(CHECKOUT / "tests/ansible/hosts/fake-npu-smi", tmp_path / "usr/local/bin/npu-smi")
    (tmp_path / "proc/net").mkdir(parents=True)
    (tmp_path / "proc/net/tcp").write_text(
        "  sl  local_address rem_address   st\n"
        "   0: 00000000:733C 00000000:0000 0A 0\n"  # 29500, listens
        "   1: 0100007F:0016 0100007F:0017 01 0\n"  # connected, listens to nobody
    )
    return tmp_path


def probe(root: Path, **environment: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, str(PROBE), "/var/lib/docker"],
        env={**os.environ, "PROBE_ROOT": str(root), **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return dict(json.loads(done.stdout))


WANTED = {
    "systems": ["debian-12"], "machines": ["x86_64", "aarch64"], "free_gb": {}, "free_ports": [],
    "clock_skew_s": 5, "hbm_idle_percent": 10, "cards": 2, "driver": "25.5.0", "firmware": "7.8.0.1.220",
}  # fmt: skip


def judged(found: dict[str, Any], **wanted: Any) -> dict[str, str]:
    """Problem ids and what they say of one host."""
    now_s = time.time()
    facts = {"probe": found, "wanted": {**WANTED, **wanted}, "before_s": now_s - 60, "after_s": now_s}
    return {entry["id"]: entry["what"] for entry in site.site_problems({"h": facts})}


def test_a_good_host_has_no_problem(root: Path) -> None:
    found = probe(root)
    assert found["ports"] == [29500] and found["kinds"]["/usr/local/Ascend/driver"] == "folder"
    assert [card["id"] for card in found["ascend"]["cards"]] == [0, 1]
    assert judged(found) == {}


@pytest.mark.parametrize(
    ("environment", "wanted", "id", "words"),
    [
        ({"NPU_SICK": "1"}, {}, "site-card-health", "card 1 says Alarm"),
        ({"NPU_BUSY": "0"}, {}, "site-card-busy", "process 4242"),
        ({"NPU_COMPATIBILITY": "NOK"}, {}, "site-firmware-fit", "does not fit"),
        ({"NPU_FAIL": "1"}, {}, "site-driver-silent", "exit code 187"),
        ({"NPU_COUNT": "1"}, {}, "site-cards", "lists 1 cards; the inventory wants 2"),
        ({}, {"driver": "26.0.0"}, "site-driver-version", "is 25.5.0; the inventory wants 26.0.0"),
        ({}, {"firmware": "8.0"}, "site-firmware-version", "is 7.8.0.1.220; the inventory wants 8.0"),
        ({}, {"free_ports": [29500, 29501]}, "site-ports", "29500"),
        ({}, {"free_gb": {"/var/lib/docker": 10**9}}, "site-disk", "/var/lib/docker"),
        ({}, {"systems": ["openEuler-24.03"]}, "site-system", "debian-12"),
        ({}, {"machines": ["riscv64"]}, "site-machine", "riscv64"),
    ],
)
def test_each_problem_is_named(
    root: Path, environment: dict[str, str], wanted: dict[str, Any], id: str, words: str
) -> None:
    found = judged(probe(root, **environment), **wanted)
    assert words in found[id]


@pytest.mark.parametrize(("version", "told"), [("3.7.9", True), ("3.8.0", False), ("3.11.2", False)])
def test_a_python_that_the_modules_do_not_run_on_is_told(root: Path, version: str, told: bool) -> None:
    found = judged({**probe(root), "python": version})
    assert ("site-python" in found) == told
    assert not told or "is 3.7.9; Ansible's modules need 3.8" in found["site-python"]


def test_a_tool_in_sbin_is_found_and_one_that_is_nowhere_is_told(root: Path) -> None:
    (root / "usr/local/sbin").mkdir()
    (root / "usr/local/bin/npu-smi").rename(root / "usr/local/sbin/npu-smi")
    assert judged(probe(root)) == {}
    (root / "usr/local/sbin/npu-smi").unlink()
    assert list(judged(probe(root))) == ["site-no-driver"]
    assert judged(probe(root), cards=0) == {}


def test_a_clock_is_judged_by_what_is_certain(root: Path) -> None:
    assert site.skew_s(100.0, 90.0, 110.0) == 0.0, "read in between: nothing is known to be wrong"
    assert site.skew_s(80.0, 90.0, 110.0) == -10.0 and site.skew_s(130.0, 90.0, 110.0) == 20.0
    found = {**probe(root), "time_s": time.time() + 3600}
    assert "+3600 s" in judged(found)["site-clock"] or "+3599 s" in judged(found)["site-clock"]


def test_a_host_of_which_nothing_can_be_read_is_probed_all_the_same(tmp_path: Path) -> None:
    found = probe(tmp_path)
    assert (found["os"], found["ascend"]["driver"], found["ascend"]["cards"]) == (None, None, [])


def test_packages_that_are_due() -> None:
    paths = ["/b/docker.io_20.10_amd64.deb", "/b/runc_1%3a1.1_amd64.deb", "/b/other_1_all.deb"]
    files = packages.package_files(paths, ["docker.io", "runc"])
    assert [(file["name"], file["version"]) for file in files] == [("docker.io", "20.10"), ("runc", "1:1.1")]
    installed = {"docker.io": [{"version": "20.10"}], "runc": [{"version": "1.0"}]}
    assert [file["name"] for file in packages.packages_due(files, installed)] == ["runc"]
    with pytest.raises(ValueError, match="twice"):
        packages.package_files([*paths, "/b/runc_2_amd64.deb"], ["runc"])
