"""The Dockerfile and what the build sends, without an engine."""

from __future__ import annotations

import os
import re
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest

from stack.errors import BadRequest, NotAble, WorkFailed
from stack.manifests import ImagesManifest, load_images_manifest, load_wheels_manifest
from stack.supply import docker, image
from stack.supply.wheelhouse import Proof

SHELL_SCRIPTS = ("engine.sh", "standin_base.sh", "standin_cann.sh", "image/find_base.sh", "image/assemble.sh")


@pytest.fixture(scope="session")
def instructions(checkout: Path) -> list[tuple[str, str]]:
    """(instruction, arguments), continuation lines joined."""
    text = (checkout / "Dockerfile").read_text().replace("\\\n", " ")
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [(word.upper(), rest.strip()) for word, _, rest in (line.partition(" ") for line in lines)]


def test_it_needs_only_what_the_classic_builder_knows(
    checkout: Path, instructions: list[tuple[str, str]]
) -> None:
    text = (checkout / "Dockerfile").read_text()
    assert not re.search(r"^#\s*syntax\s*=", text, re.MULTILINE | re.IGNORECASE)
    assert "<<" not in text
    for word, rest in instructions:
        assert word in {
            "ARG",
            "FROM",
            "LABEL",
            "USER",
            "COPY",
            "RUN",
            "ENV",
            "WORKDIR",
            "HEALTHCHECK",
            "ENTRYPOINT",
            "CMD",
        }
        assert not re.search(r"--(mount|chmod|link|parents|exclude|security|network)\b", rest), (word, rest)


def test_the_base_has_no_default_that_a_registry_could_answer(instructions: list[tuple[str, str]]) -> None:
    assert instructions[0] == ("ARG", "BASE_IMAGE")
    assert {rest.split()[0] for word, rest in instructions if word == "FROM"} == {"${BASE_IMAGE}"}


def test_it_runs_as_somebody_with_a_health_check_and_the_offline_switches(
    checkout: Path, instructions: list[tuple[str, str]]
) -> None:
    final = instructions[max(i for i, (word, _) in enumerate(instructions) if word == "FROM") :]
    assert [rest for word, rest in final if word == "USER"][-1] == "stack"
    (health,) = [rest for word, rest in final if word == "HEALTHCHECK"]
    assert health.endswith('CMD ["stack", "doctor"]')
    (environment,) = [rest for word, rest in final if word == "ENV"]
    from stack.devices.doctor import OFFLINE_SWITCHES

    for switch in (*OFFLINE_SWITCHES, "PIP_NO_INDEX", "UV_OFFLINE"):
        assert f"{switch}=1" in environment


def test_every_argument_of_the_dockerfile_is_given_by_the_build(
    instructions: list[tuple[str, str]], plan: dict[str, str]
) -> None:
    asked = {rest for word, rest in instructions if word == "ARG"}
    assert asked == set(plan) | {"BASE_IMAGE"}
    used = set(re.findall(r"\$\{(\w+)\}", " ".join(rest for _, rest in instructions))) - {"PATH"}
    assert used <= asked


@pytest.mark.parametrize("name", SHELL_SCRIPTS)
def test_scripts_are_plain_shell(checkout: Path, name: str) -> None:
    script = checkout / "scripts" / name
    assert script.stat().st_mode & stat.S_IXUSR
    assert subprocess.run(["sh", "-n", str(script)], capture_output=True, text=True).stderr == ""


# --- the plan of a build ---

BASE = image.Base("vendor:1", "sha256:" + "a" * 64, "aarch64", 1000, ("sha256:one",))
SOURCE = image.Source("c0ffee" * 6 + "c0ff", 1_760_000_000, False)
PROOF = Proof("container-aarch64", "d" * 64, (), (), ())


def arguments(checkout: Path, **changed: Any) -> dict[str, str]:
    images = load_images_manifest(checkout / "manifests" / "images.yaml").manifest
    given = {
        "base": BASE,
        "source": SOURCE,
        "proof": PROOF,
        "cann": None,
        "driver_gid": None,
        "run_uid": 10001,
    }
    given |= changed
    return image._arguments(checkout, images.base, *given.values())


@pytest.fixture
def plan(checkout: Path) -> dict[str, str]:
    return arguments(checkout)


def test_the_labels_tell_commit_lock_and_base(plan: dict[str, str], checkout: Path) -> None:
    from stack.files import sha256_file

    assert plan["REVISION"] == SOURCE.revision and plan["BASE_ID"] == BASE.id
    assert plan["LOCK"] == sha256_file(checkout / "manifests" / "locks" / "container.txt")[:16]
    assert plan["CREATED"] == "2025-10-09T08:53:20Z"


@pytest.mark.parametrize(
    "changed",
    [{"cann": "any"}, {"driver_gid": 1001}, {"run_uid": 7},
     {"source": image.Source("f" * 40, 1_760_000_000, False)},
     {"base": image.Base("vendor:1", "sha256:" + "b" * 64, "aarch64", 1000, ())},
     {"proof": Proof("container-aarch64", "e" * 64, (), (), ())}],
)  # fmt: skip
def test_whatever_decides_the_image_decides_its_inputs_label(
    checkout: Path, plan: dict[str, str], changed: dict[str, Any]
) -> None:
    assert arguments(checkout)["INPUTS"] == plan["INPUTS"]
    assert arguments(checkout, **changed)["INPUTS"] != plan["INPUTS"]


# --- refusals, with an engine that answers what a test says ---


class Engine:
    """Stands in for stack.supply.docker."""

    def __init__(self, machine: str, **images: dict[str, Any]) -> None:
        self.MACHINES = docker.MACHINES
        self.machine, self.images, self.builds = machine, images, 0

    def engine_machine(self) -> str:
        return self.machine

    def inspect_image(self, name: str) -> dict[str, Any] | None:
        return self.images.get(name)

    def build(self, *_: object, **__: object) -> tuple[int, str]:
        self.builds += 1
        return (
            3,
            "Step 1\nbase: looked here\nerror[image-no-cann]: none\n  do: that\nThe command returned 3\n",
        )


def facts(architecture: str, **labels: str) -> dict[str, Any]:
    return {"Id": "sha256:" + "a" * 64, "Architecture": architecture, "Size": 5, "RootFS": {"Layers": ["l"]},
            "Config": {"Labels": labels}}  # fmt: skip


def run(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: Engine, **options: Any
) -> image.Built:
    monkeypatch.setattr(image, "docker", engine)
    wheels = load_wheels_manifest(checkout / "manifests" / "wheels.yaml").manifest
    images: ImagesManifest = load_images_manifest(checkout / "manifests" / "images.yaml").manifest
    tmp_path.joinpath("wheels").mkdir(exist_ok=True)
    return image.build(checkout, images, wheels, wheels=tmp_path / "wheels", log=lambda _: None, **options)


def test_an_unpinned_base_is_refused_with_how_to_pin_it(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(BadRequest, match="drivingsdk") as refused:
        run(checkout, tmp_path, monkeypatch, Engine("aarch64"))
    assert refused.value.id == "image-base-unpinned" and "docker image inspect" in refused.value.do


def test_a_base_that_is_not_there_is_not_pulled(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(BadRequest, match="nothing is pulled"):
        run(checkout, tmp_path, monkeypatch, Engine("aarch64"), base="vendor:1")


def test_a_base_of_another_architecture_is_refused(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(NotAble, match="aarch64, this engine runs x86_64"):
        run(checkout, tmp_path, monkeypatch, Engine("x86_64", vendor=facts("arm64")), base="vendor")


def test_half_a_wheelhouse_is_refused_before_the_engine_builds(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Engine("x86_64", vendor=facts("amd64"))
    with pytest.raises(BadRequest, match="no whole wheelhouse") as refused:
        run(checkout, tmp_path, monkeypatch, engine, base="vendor")
    assert refused.value.do.startswith("stack mirror wheels --for container-x86_64") and engine.builds == 0


def test_a_failed_build_tells_our_own_reason(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(image, "_prove_wheels", lambda *_: PROOF)
    with pytest.raises(WorkFailed) as failed:
        run(checkout, tmp_path, monkeypatch, Engine("x86_64", vendor=facts("amd64")), base="vendor")
    assert "base: looked here" in failed.value.what and "error[image-no-cann]: none" in failed.value.what
    assert "Step 1" not in failed.value.what


def test_the_same_inputs_are_not_built_again(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(image, "_prove_wheels", lambda *_: PROOF)
    monkeypatch.setattr(image, "_source", lambda _: SOURCE)
    engine = Engine("x86_64", vendor=facts("amd64"))
    base = image.Base("vendor", facts("amd64")["Id"], "x86_64", 5, ("l",))
    engine.images["ours"] = facts("amd64", **{image.INPUTS_LABEL: arguments(checkout, base=base)["INPUTS"]})
    built = run(checkout, tmp_path, monkeypatch, engine, base="vendor", tag="ours")
    assert not built.did and engine.builds == 0
    engine.images["ours"] = facts("amd64", **{image.INPUTS_LABEL: "other"})
    with pytest.raises(WorkFailed):
        run(checkout, tmp_path, monkeypatch, engine, base="vendor", tag="ours")
    assert engine.builds == 1


def test_only_committed_files_and_proven_wheels_are_sent(checkout: Path, tmp_path: Path) -> None:
    context, wheels = tmp_path / "context", tmp_path / "wheels"
    context.mkdir()
    wheels.mkdir()
    (wheels / "stranger-1-py3-none-any.whl").write_bytes(b"x")
    stray = checkout / "stack" / "supply" / "never_committed.py"
    stray.write_text("")
    try:
        image._stage(checkout, context, wheels, PROOF)
    finally:
        stray.unlink()
    sent = {path.relative_to(context).as_posix() for path in context.rglob("*") if path.is_file()}
    assert (
        "Dockerfile" in sent and "stack/cli/__init__.py" in sent and "manifests/locks/container.txt" in sent
    )
    assert not any(
        name.startswith(("wheels/", "tests/", ".git")) or "never_committed" in name for name in sent
    )


# --- the engine script, with a docker that answers what a test says ---


def engine_script(
    checkout: Path, tmp_path: Path, docker: str, *words: str
) -> subprocess.CompletedProcess[str]:
    tools = tmp_path / "bin"
    tools.mkdir(exist_ok=True)
    (tools / "docker").write_text(f"#!/bin/sh\n{docker}\n")
    (tools / "dockerd").write_text(f"#!/bin/sh\necho started >>{tmp_path}/dockerd.calls\nexit 1\n")
    for tool in tools.iterdir():
        tool.chmod(0o755)
    environment = {"PATH": f"{tools}:{os.environ['PATH']}", "STACK_ENGINE": str(tmp_path / "engine")}
    return subprocess.run(
        ["sh", str(checkout / "scripts" / "engine.sh"), *words],
        capture_output=True,
        text=True,
        env=environment,
    )


def test_an_engine_that_answers_is_used_and_never_doubled(checkout: Path, tmp_path: Path) -> None:
    done = engine_script(checkout, tmp_path, "exit 0", "start")
    assert done.returncode == 0 and "answers already" in done.stderr
    assert not (tmp_path / "dockerd.calls").exists()


def test_status_and_stop_say_what_is_there(checkout: Path, tmp_path: Path) -> None:
    assert engine_script(checkout, tmp_path, "exit 1", "status").returncode == 3
    assert engine_script(checkout, tmp_path, "exit 1", "nonsense").returncode == 2
    stopped = engine_script(checkout, tmp_path, "exit 0", "stop")
    assert stopped.returncode == 0 and "no engine of this script runs" in stopped.stderr


def test_stop_ends_no_process_that_only_has_the_recorded_number(checkout: Path, tmp_path: Path) -> None:
    bystander = subprocess.Popen(["sleep", "60"])
    try:
        (tmp_path / "engine").mkdir()
        (tmp_path / "engine" / "docker.pid").write_text(str(bystander.pid))
        assert engine_script(checkout, tmp_path, "exit 0", "stop").returncode == 0
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


@pytest.fixture
def own_processes() -> list[str]:
    """A process namespace of one's own, so that a real engine of this machine is neither seen nor touched."""
    words = ["unshare", "--pid", "--fork", "--mount-proc"]
    if os.geteuid() != 0 or subprocess.run([*words, "true"], capture_output=True).returncode != 0:
        pytest.skip("needs root and process namespaces")
    return words


def test_start_status_and_stop_of_an_own_engine(
    checkout: Path, tmp_path: Path, own_processes: list[str]
) -> None:
    """With a daemon that does nothing but live: started once, found again, ended by its own number."""
    tools, home = tmp_path / "bin", tmp_path / "engine"
    tools.mkdir()
    (tools / "docker").write_text(
        f"#!/bin/sh\ntest -s {home}/docker.pid && kill -0 $(cat {home}/docker.pid)\n"
    )
    (tools / "dockerd").write_text(
        f"#!/bin/sh\necho one >>{tmp_path}/calls\necho $$ >{home}/docker.pid\nwhile :; do sleep 0.1; done\n"
    )
    for tool in tools.iterdir():
        tool.chmod(0o755)
    engine = f"sh {checkout}/scripts/engine.sh"
    steps = f"{engine} start && {engine} start && {engine} status && {engine} stop && ! {engine} status"
    environment = {"PATH": f"{tools}:{os.environ['PATH']}", "STACK_ENGINE": str(home)}
    done = subprocess.run(
        [*own_processes, "sh", "-c", steps], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr
    assert [line.split(":")[1].split("(")[0].strip() for line in done.stderr.splitlines()] == [
        "started", "an engine answers already", "answers", "stopped", "no engine answers",
    ]  # fmt: skip
    assert (tmp_path / "calls").read_text() == "one\n"


def test_a_daemon_that_does_not_answer_is_not_joined_by_a_second(
    checkout: Path, tmp_path: Path, own_processes: list[str]
) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "docker").write_text("#!/bin/sh\nexit 1\n")
    (tools / "dockerd").write_text("#!/bin/sh\nwhile :; do sleep 0.1; done\n")
    for tool in tools.iterdir():
        tool.chmod(0o755)
    environment = {"PATH": f"{tools}:{os.environ['PATH']}", "STACK_ENGINE": str(tmp_path / "engine")}
    steps = f"dockerd & sleep 0.3; sh {checkout}/scripts/engine.sh start"
    done = subprocess.run(
        [*own_processes, "sh", "-c", steps], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 3 and "error[engine-other]" in done.stderr


def test_a_run_in_the_image_records_the_images_own_lock(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plan: dict[str, str]
) -> None:
    """So that the verdict's comparison of lock and installed packages means something there."""
    from stack.reproduce.provenance import collect

    monkeypatch.setattr("sys.prefix", str(tmp_path))  # the image has no stamp of `make setup`
    monkeypatch.setenv("STACK_LOCK", plan["LOCK"])
    found = collect()
    assert found.lock == found.installed_lock == plan["LOCK"]
