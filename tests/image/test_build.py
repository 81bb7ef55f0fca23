"""The image is really built and run, over a stand-in of the vendor's, with no network. Needs an engine.

STACK_DOCKER=1                  switch these tests on
STACK_STANDIN=TAG               a stand-in that is there already (default: one is made, with an index)
STACK_CONTAINER_WHEELS=DIR      a wheelhouse that is there already (default: one is fetched, with an index)
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from stack.errors import WorkFailed
from stack.manifests import load_images_manifest, load_wheels_manifest
from stack.supply import docker
from stack.supply.fetching import fetch
from stack.supply.image import STAGE_LABEL, Built, build

pytestmark = pytest.mark.skipif("STACK_DOCKER" not in os.environ, reason="builds images; set STACK_DOCKER=1")
TAGS = ("stack-test:first", "stack-test:second", "stack-test:refused")


def run(*words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["docker", *words], capture_output=True, text=True, check=check)


def inside(built: Built, *words: str, options: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    return run("run", "--rm", "--network", "none", *options, built.tag, *words, check=False)


@pytest.fixture(scope="session")
def base(checkout: Path) -> str:
    if given := os.environ.get("STACK_STANDIN"):
        return given
    tag = "stack-standin:test"
    subprocess.run(["sh", str(checkout / "scripts" / "standin_base.sh"), tag], check=True)
    return tag


@pytest.fixture(scope="session")
def wheels(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    if given := os.environ.get("STACK_CONTAINER_WHEELS"):
        return Path(given).absolute()
    folder = tmp_path_factory.mktemp("wheels") / "container"
    manifest = load_wheels_manifest(checkout / "manifests" / "wheels.yaml").manifest
    fetch(manifest, f"container-{docker.engine_machine()}", checkout / "manifests" / "locks", folder)
    return folder


def make(checkout: Path, base: str, wheels: Path, tag: str, **options: object) -> Built:
    images = load_images_manifest(checkout / "manifests" / "images.yaml").manifest
    manifest = load_wheels_manifest(checkout / "manifests" / "wheels.yaml").manifest
    return build(checkout, images, manifest, wheels=wheels, base=base, tag=tag, **options)  # type: ignore[arg-type]


@pytest.fixture(scope="session", autouse=True)
def _swept_at_the_end() -> Iterator[None]:
    """What the builds leave is removed once; it takes longer than it should where others use the disk."""
    sweep = docker.prune_stages
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(docker, "prune_stages", lambda label: None)
        yield
    for tag in TAGS:
        run("image", "rm", "--force", tag, check=False)
    sweep(STAGE_LABEL)


@pytest.fixture(scope="session")
def first(checkout: Path, base: str, wheels: Path) -> Built:
    return make(checkout, base, wheels, TAGS[0], cache=False)


def test_two_builds_have_the_same_layers(checkout: Path, base: str, wheels: Path, first: Built) -> None:
    """A layer's digest is over paths, modes, owners, times and bytes of all its files."""
    second = make(checkout, base, wheels, TAGS[1], cache=False)
    assert first.did and second.did
    assert first.layers == second.layers and len(first.layers) >= 1
    assert 0 < first.size_bytes < 2e9


def test_a_second_call_has_nothing_to_do_and_says_so_at_once(
    checkout: Path, base: str, wheels: Path, first: Built
) -> None:
    started = time.process_time()
    again = make(checkout, base, wheels, TAGS[0])
    assert not again.did and again.id == first.id
    assert time.process_time() - started < 3


def test_the_doctor_says_able_without_any_network(first: Built) -> None:
    done = inside(first, "stack", "doctor", "--json", "-")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["host"]["versions"]["torch"] == "2.7.1"
    assert found["host"]["versions"]["torch_npu"] == "2.7.1.post6"
    assert found["host"]["versions"]["lerobot"] == "0.4.0"


def test_it_runs_as_a_user_of_the_drivers_group(first: Built) -> None:
    assert inside(first, "id", "-u").stdout.strip() == "10001"
    assert inside(first, "id", "-gn").stdout.strip() == "HwHiAiUser"
    other = inside(first, "sh", "-c", "touch /work/mine && stack --version", options=("--user", "4242:4242"))
    assert other.returncode == 0, other.stderr


def test_commands_have_canns_environment_also_past_the_entry_point(first: Built) -> None:
    words = ("sh", "-c", "echo $ASCEND_HOME_PATH:$LD_LIBRARY_PATH")
    through = inside(first, *words).stdout
    assert (
        "/usr/local/Ascend/ascend-toolkit/latest" in through
        and "/usr/local/Ascend/driver/lib64/driver" in through
    )
    past = run("run", "--rm", "--network", "none", "--entrypoint", "/bin/sh", first.tag, "-c",
               "python -c 'import os; print(os.environ[\"ASCEND_HOME_PATH\"])'")  # fmt: skip
    assert past.stdout.strip() == "/usr/local/Ascend/ascend-toolkit/latest"


def test_the_lock_wins_over_the_base_and_torch_comes_from_the_base(first: Built) -> None:
    code = (
        "import importlib.metadata as m\n"
        "for name in ('numpy', 'transformers', 'torch'):\n"
        "    print(name, m.version(name), m.distribution(name).locate_file(''))"
    )
    places = dict(line.split(" ", 1) for line in inside(first, "python", "-c", code).stdout.splitlines())
    assert places["numpy"].startswith("2.2.6 /opt/stack/env/")
    assert places["transformers"].startswith("4.53.3 /opt/stack/env/")
    assert places["torch"].startswith("2.7.1 /opt/conda/envs/torch2.7.1/")


def test_data_work_is_done_in_it(first: Built) -> None:
    """The demo is written and audited, faults found: the code, its data and PyAV are whole."""
    script = (
        "stack demo demo && for one in demo/deliveries/*; do stack audit $one --for pi05; echo code $?; done"
    )
    done = inside(first, "sh", "-c", script)
    assert done.returncode == 0, done.stderr
    codes = [line for line in done.stdout.splitlines() if line.startswith("code ")]
    assert codes == ["code 1"] * 2, done.stdout + done.stderr


def test_nothing_of_ours_is_compiled_again_at_a_start(first: Built) -> None:
    """Python says where code came from: a path in quotes is a compiled file, a bare one a source."""
    code = "import stack.cli, pydantic, yaml, click, pyarrow, av"
    said = inside(first, "python", "-v", "-c", code).stderr
    assert "# code object from '/opt/stack/env/" in said
    assert "# code object from /opt/stack/" not in said and "could not create '/opt/stack" not in said


def test_the_labels_and_the_health_check(first: Built, checkout: Path) -> None:
    facts = json.loads(run("image", "inspect", first.tag).stdout)[0]["Config"]
    head = subprocess.run(["git", "-C", str(checkout), "rev-parse", "HEAD"], capture_output=True, text=True)
    assert facts["Labels"]["org.opencontainers.image.revision"] == head.stdout.strip()
    assert facts["Labels"]["org.opencontainers.image.base.digest"].startswith("sha256:")
    assert facts["Healthcheck"]["Test"] == ["CMD", "stack", "doctor"]
    name = run(
        "run", "--detach", "--network", "none", "--health-interval", "2s", first.tag, "sleep", "600"
    ).stdout.strip()
    try:
        deadline = time.monotonic() + 300
        while (
            state := run("inspect", "--format", "{{.State.Health.Status}}", name).stdout.strip()
        ) == "starting":
            assert time.monotonic() < deadline
            time.sleep(1)
        assert state == "healthy"
    finally:
        run("rm", "--force", name)


def test_a_base_with_another_cann_is_refused_by_the_build(checkout: Path, base: str, wheels: Path) -> None:
    with pytest.raises(WorkFailed, match=r"holds CANN 9\.1\.0; 8\.5\.0 is wanted"):
        make(checkout, base, wheels, TAGS[2], cann="8.5.0")


def test_a_driver_group_of_another_number_is_refused_by_the_build(
    checkout: Path, base: str, wheels: Path
) -> None:
    with pytest.raises(WorkFailed, match="HwHiAiUser has the number 1000; DRIVER_GID is 777"):
        make(checkout, base, wheels, TAGS[2], driver_gid=777)
