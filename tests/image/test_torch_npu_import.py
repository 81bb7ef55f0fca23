"""The real torch_npu with the real torch, over libraries that stand in for CANN's.

It is imported, counts devices and names them; nothing numeric can be done. What this tells: that the two
versions fit, that `stack doctor` reads the real package, and that our words reach the user when it cannot.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(
    importlib.metadata.version("torch") != "2.7.1" or not (shutil.which("cc") and shutil.which("nm")),
    reason="needs torch 2.7.1 (the production line), a C compiler and nm",
)


@pytest.fixture(scope="session")
def environment(
    checkout: Path, tmp_path_factory: pytest.TempPathFactory, torch_npu_wheel: Callable[[str, str], Path]
) -> dict[str, str]:
    """What a process needs to see torch_npu and the stand-in, as set_env.sh would leave it."""
    root = tmp_path_factory.mktemp("npu")
    site, home = root / "site", root / "cann"
    for part in ("lib64", "opp", "runtime", "compiler"):
        (home / part).mkdir(parents=True)
    wheel = torch_npu_wheel(f"{sys.version_info[0]}{sys.version_info[1]}", os.uname().machine)
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    torch = Path(str(importlib.metadata.distribution("torch").locate_file("torch")))
    script = checkout / "scripts" / "standin_cann.sh"
    subprocess.run(["sh", str(script), str(home / "lib64"), str(site / "torch_npu"), str(torch)], check=True)
    return {
        **os.environ,
        "PYTHONPATH": f"{checkout}:{site}",
        "LD_LIBRARY_PATH": str(home / "lib64"),
        "ASCEND_HOME_PATH": str(home),
        "ASCEND_OPP_PATH": str(home / "opp"),
    }


def doctor(environment: dict[str, str], *words: str, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "stack", "doctor", "--device", "npu", "--json", "-", *words],
        capture_output=True,
        text=True,
        env={**environment, **more},
    )


def test_the_pair_of_versions_fits_and_no_device_is_no_device(environment: dict[str, str]) -> None:
    done = doctor(environment)
    found = json.loads(done.stdout)
    assert done.returncode == 3
    assert found["host"]["versions"]["torch_npu"] == "2.7.1.post6"
    assert found["devices"]["count"] == 0 and "is_available() says no" in found["devices"]["problem"]


def test_without_set_env_the_doctor_says_that_the_backend_did_not_load(environment: dict[str, str]) -> None:
    """As in a container where nobody sourced set_env.sh: `import torch` itself fails."""
    done = doctor({**environment, "LD_LIBRARY_PATH": ""})
    assert done.returncode == 3
    assert "torch_npu" in json.loads(done.stdout)["devices"]["problem"]


@pytest.mark.skipif("STACK_DOCKER" not in os.environ, reason="once more a whole import; set STACK_DOCKER=1")
def test_devices_are_counted_and_named_by_the_real_package(environment: dict[str, str]) -> None:
    code = (
        "import torch; npu = torch.npu; print(npu.device_count(), npu.is_available(), npu.get_device_name(0))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={**environment, "STANDIN_DEVICES": "8"},
    )
    assert done.stdout.split() == ["8", "True", "Ascend910B3"], done.stderr
