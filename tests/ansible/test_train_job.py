"""A job's container on a host: mounts that are looked at, variables by topology, its state, how it ended."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

CHECKOUT = Path(__file__).parents[2]


def plugin() -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "stack_job", CHECKOUT / "ansible/plugins/filter/stack_job.py"
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


job_filters = plugin()
DRIVER = "/usr/local/Ascend/driver"


def looked(**kinds: str | None) -> list[dict[str, Any]]:
    """What a loop of ansible.builtin.stat gives, as its documentation says."""
    flags = {"folder": "isdir", "file": "isreg", "device": "ischr"}
    every = {"isdir": False, "isreg": False, "ischr": False, "exists": True}
    return [
        {"train_job_path": path, "stat": {**every, flags[kind]: True} if kind else {"exists": False}}
        for path, kind in kinds.items()
    ]


def host(**changes: str | None) -> list[dict[str, Any]]:
    """A host with two cards, npu-smi in sbin."""
    kinds: dict[str, str | None] = {
        DRIVER: "folder",
        "/usr/local/dcmi": "folder",
        "/etc/ascend_install.info": "file",
        "/etc/hccn.conf": "file",
        "/usr/local/bin/npu-smi": None,
        "/usr/local/sbin/npu-smi": "file",
        "/dev/davinci0": "device",
        "/dev/davinci1": "device",
        "/dev/davinci_manager": "device",
        "/dev/devmm_svm": "device",
        "/dev/hisi_hdc": "device",
    }
    return looked(**{**kinds, **changes})


def job(**changes: Any) -> dict[str, Any]:
    return {
        "name": "demo",
        "run": "demo",
        "manifest": "runs/demo.yaml",
        "manifests": "0",
        "set": [],
        "image": "sha256:1",
        "folder": "/opt/stack/train",
        "user": "1000:1000",
        "shm": "1g",
        "stop_s": 600,
        "hosts": ["a", "b"],
        "addresses": ["192.0.2.11", "192.0.2.12"],
        "index": 0,
        "leader": "192.0.2.11",
        "port": 29400,
        "interface": "",
        "meet_s": 600,
        "cards": 0,
        "hccl": {},
        "environment": {},
        "container": {"volumes": [], "devices": []},
        "resume": False,
        **changes,
    }


@pytest.mark.parametrize(
    ("mirror", "overrides", "place"),
    [
        ("../../mirror", [], "mirror"),
        ("../../work/mirror", [], "work/mirror"),
        ("../../work/mirror", ["mirror=../../mirror"], "mirror"),
    ],
)
def test_weights_are_shared_from_where_the_manifest_looks_for_them(
    mirror: str, overrides: list[str], place: str
) -> None:
    manifest = {"mirror": mirror, "device": {"count": 4}}
    found = job_filters.run_needs(manifest, "runs/demo.yaml", overrides, ["a", "b"])
    assert found == {"mirror": place, "problems": []}


@pytest.mark.parametrize(
    ("count", "overrides", "hosts", "wrong"),
    [(1, [], 2, True), (2, [], 2, False), (8, [], 3, True), (8, ["device.count=9"], 3, False)],
)
def test_devices_that_the_hosts_cannot_share_are_told_before_anything_starts(
    count: int, overrides: list[str], hosts: int, wrong: bool
) -> None:
    manifest = {"mirror": "../../mirror", "device": {"count": count}}
    names = [f"h{number}" for number in range(hosts)]
    problems = job_filters.run_needs(manifest, "runs/demo.yaml", overrides, names)["problems"]
    assert [problem.split("]")[0] for problem in problems] == (["error[train-uneven"] if wrong else [])


def test_a_mirror_that_no_container_sees_is_told() -> None:
    manifest = {"mirror": "../../../mirror"}
    (problem,) = job_filters.run_needs(manifest, "runs/demo.yaml", [], ["a"])["problems"]
    assert "error[train-mirror-outside]" in problem and "\n  do: " in problem


@pytest.mark.parametrize(
    ("image", "is_there", "id", "words"),
    [
        ("", False, "train-image-not-given", "train_job_image is not set"),
        ("sha256:1", False, "train-no-image", "make provision"),
        ("sha256:2", False, "train-no-image", "compare train_job_image with images_wanted: sha256:1 (t:1)"),
        ("sha256:2", True, None, ""),
    ],
)
def test_an_image_that_is_not_there_is_told_with_what_to_do(
    image: str, is_there: bool, id: str | None, words: str
) -> None:
    wanted = [{"archive": "t.tar", "id": "sha256:1", "tag": "t:1"}]
    problems = job_filters.image_problems(image, is_there, wanted)
    assert (f"error[{id}]" in problems[0] and words in problems[0]) if id else problems == []


def test_an_interface_that_a_host_has_not_is_told_by_the_variables_name() -> None:
    assert job_filters.interface_problems("", []) == []
    assert job_filters.interface_problems("eth0", ["eth0", "lo"]) == []
    (problem,) = job_filters.interface_problems("eth1", ["eth0", "lo"])
    assert "train_job_interface is 'eth1', and this host has eth0, lo" in problem and "\n  do: " in problem


def test_only_the_driver_is_mounted_and_npu_smi_where_it_is() -> None:
    found = job_filters.container_mounts(host(), [], 2, DRIVER)
    assert found["problems"] == []
    sources = [volume.split(":")[0] for volume in found["volumes"]]
    assert "/usr/local/sbin/npu-smi" in sources and "/usr/local/bin/npu-smi" not in sources
    assert "/usr/local/Ascend" not in sources
    assert all(volume.endswith(":ro") for volume in found["volumes"])
    assert found["devices"][:2] == ["/dev/davinci0", "/dev/davinci1"]


@pytest.mark.parametrize(
    ("path", "kind", "words"),
    [
        ("/usr/local/sbin/npu-smi", "folder", "npu-smi is not there"),  # as Docker leaves it behind
        ("/usr/local/dcmi", None, "/usr/local/dcmi is not there"),
        (DRIVER, "file", "is a file, not a folder"),
        ("/dev/davinci1", None, "/dev/davinci1 is not there"),
        ("/dev/davinci1", "file", "/dev/davinci1 is no device node"),
    ],
)
def test_a_source_of_the_wrong_kind_is_named(path: str, kind: str | None, words: str) -> None:
    found = job_filters.container_mounts(host(**{path: kind}), [], 2, DRIVER)
    assert len(found["problems"]) == 1 and words in found["problems"][0]


def test_a_host_without_cards_needs_nothing_of_the_driver() -> None:
    mounts = [{"source": "/data", "target": "/data2", "kind": "folder"}]
    assert job_filters.container_mounts(looked(**{"/data": "folder"}), mounts, 0, DRIVER) == {
        "problems": [],
        "volumes": ["/data:/data2:ro"],
        "devices": [],
    }


@pytest.mark.parametrize(
    ("cards", "hosts", "hccl", "several"),
    [
        (0, ["a"], False, False),
        (0, ["a", "b"], False, True),
        (8, ["a"], True, False),
        (8, ["a", "b"], True, True),
    ],
)
def test_variables_follow_the_topology(cards: int, hosts: list[str], hccl: bool, several: bool) -> None:
    found = job_filters.job_variables(job(cards=cards, hosts=hosts, interface="eth1"))
    assert ("HCCL_IF_BASE_PORT" in found) == hccl
    assert (found.get("HCCL_SOCKET_IFNAME") == "=eth1") == (hccl and several)
    assert (found.get("STACK_HOSTS") == "2") == several
    assert all(isinstance(value, str) for value in found.values())


def test_the_site_has_the_last_word() -> None:
    found = job_filters.job_variables(job(cards=8, hccl={"HCCL_CONNECT_TIMEOUT": 7200}))
    assert found["HCCL_CONNECT_TIMEOUT"] == "7200"


def test_a_resumed_job_is_the_same_job_and_another_manifest_is_not() -> None:
    assert job_filters.job_key(job(resume=True)) == job_filters.job_key(job())
    assert job_filters.job_key(job(manifests="1")) != job_filters.job_key(job())


@pytest.mark.parametrize("way", [{"interface": "eth1"}, {"port": 29600}, {"stop_s": 9}, {"shm": "2g"}])
def test_how_the_hosts_reach_each_other_makes_no_other_job(way: dict[str, Any]) -> None:
    """A finished job would be started again, and one that runs would be in the way of itself."""
    assert job_filters.job_key(job(**way)) == job_filters.job_key(job())


def test_a_finished_job_is_run_again_only_where_its_chain_can_see_a_change() -> None:
    same = ({"hosts": ["a", "c"]}, {"environment": {"A": 1}}, {"interface": "eth1"}, {"index": 1})
    other = ({"hosts": ["b", "a"]}, {"image": "sha256:2"}, {"set": ["train.steps=9"]}, {"manifests": "1"})
    key = job_filters.finished_key(job())
    assert [job_filters.finished_key(job(**change)) for change in same] == [key] * len(same)
    assert key not in {job_filters.finished_key(job(**change)) for change in other}


def inspected(status: str, code: int, key: str) -> dict[str, Any]:
    container = {"State": {"Status": status, "ExitCode": code}, "Config": {"Labels": {"stack.job": key}}}
    return {"rc": 0, "stdout": json.dumps(container)}


@pytest.mark.parametrize(
    ("found", "state"),
    [
        ({"rc": 1, "stdout": ""}, "absent"),
        (inspected("running", 0, "k"), "running"),
        (inspected("running", 0, "else"), "other"),
        (inspected("exited", 0, "k"), "ended"),
        (inspected("exited", 4, "k"), "failed"),
        (inspected("exited", 0, "else"), "absent"),
    ],
)
def test_states(found: dict[str, Any], state: str) -> None:
    assert job_filters.job_state(found, "k") == state


def end(code: int, finished: str, running: str = "false") -> dict[str, Any]:
    return {"stdout": f"{running} {code} 2026-01-01T00:00:{finished}Z"}


def test_the_first_failure_comes_first() -> None:
    found = job_filters.job_ends({"a": end(4, "09"), "b": end(137, "02")}, ["a", "b"], False)
    assert not found["good"] and found["first"] == "b" and found["code"] == 137


def test_a_host_that_is_gone_is_named() -> None:
    found = job_filters.job_ends({"a": end(4, "09"), "b": {}}, ["a"], False)
    assert "error[train-host-gone] b" in found["text"] and found["first"] == "a"


def test_a_good_end_and_a_running_job() -> None:
    assert job_filters.job_ends({"a": end(0, "01"), "b": end(0, "02")}, ["a", "b"], False)["good"]
    found = job_filters.job_ends({"a": end(0, "00", "true"), "b": end(0, "02")}, ["a", "b"], False)
    assert not found["good"] and "still running on a" in found["text"]


def test_a_verdict_that_is_not_good_is_an_end_and_stays_not_good() -> None:
    found = job_filters.job_ends({"a": end(1, "01"), "b": end(0, "02")}, ["a", "b"], False)
    assert not found["good"] and found["done"] and found["code"] == 1
    again = job_filters.job_ends({"a": {}, "b": {}}, ["a", "b"], True, 1)
    assert not again["good"] and again["code"] == 1
    crashed = job_filters.job_ends({"a": end(4, "01"), "b": end(4, "02")}, ["a", "b"], False)
    assert not crashed["done"]


def test_a_stop_that_was_meant_is_told_as_one() -> None:
    found = job_filters.job_ends({"a": end(130, "01"), "b": end(130, "02")}, ["a", "b"], False)
    assert not found["good"] and not found["done"] and "error[train-stopped]" in found["text"]
    assert "do: nothing, if that was meant" in found["text"]
    mixed = job_filters.job_ends({"a": end(130, "02"), "b": end(4, "01")}, ["a", "b"], False)
    assert "error[train-ended] the job ended with exit code 4, on b first" in mixed["text"]


def test_the_verdict_is_told_from_its_heading_on_and_without_paths_of_the_container() -> None:
    table = [
        "gate  what  expected  got",
        "----  ----  ----  ----",
        *(f"data  {n}  1  1  pass" for n in range(40)),
    ]
    words = [
        "an older line",
        *table,
        "",
        "verdict of demo: within band",
        "results in /work/work/runs/demo (x)",
    ]
    assert job_filters.verdict_lines("\n".join(words)) == [*table, "verdict of demo: within band"]
    assert job_filters.verdict_lines("error[x]: y\n  do: z") == ["error[x]: y", "  do: z"]


@pytest.mark.parametrize(("state", "code"), [("true 0 0001", 0), ("false 4 2026", 0), (None, 1)])
def test_a_look_at_the_job_tells_its_state_and_beside_it_its_last_line(
    tmp_path: Path, state: str | None, code: int
) -> None:
    docker = tmp_path / "docker"
    docker.write_text(
        "#!/bin/sh\ncase $1 in\n  wait) exec sleep 60;;\n"
        f"  container) {f'echo {state}' if state else 'echo no such container >&2; exit 1'};;\n"
        "  logs) echo 'step 9/60' >&2;;\nesac\n"
    )
    docker.chmod(0o755)
    (task,) = yaml.safe_load((CHECKOUT / "ansible/roles/train_job/tasks/wait.yml").read_text())
    script = task["ansible.builtin.command"]["argv"][2]
    done = subprocess.run(
        ["sh", "-c", script, "sh", "stack-demo", "0.2", "FORMAT"],
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == code and done.stdout == (f"{state}\n" if state else "")
    assert done.stderr == ("step 9/60\n" if state else "no such container\n")


def test_first_host_runs_the_chain_and_the_others_the_training() -> None:
    first = job_filters.job_arguments(job())
    assert first[first.index("sha256:1") + 1 :][:2] == ["stack", "reproduce"]
    other = job_filters.job_arguments(job(index=1, resume=True))
    assert other[other.index("sha256:1") + 1 :][:2] == ["stack", "train"] and "--resume" in other
    assert "STACK_HOST_INDEX=1" in other


def test_no_name_server_is_asked_for_the_hosts_of_the_job() -> None:
    """Each address has its line in the container's /etc/hosts; names are the site's to know."""
    found = job_filters.job_arguments(job(addresses=["192.0.2.11", "b.example"]))
    assert [found[at + 1] for at, word in enumerate(found) if word == "--add-host"] == [
        "a:192.0.2.11",
        "a.mapped:::ffff:192.0.2.11",
    ]


def test_the_container_that_ships_keeps_the_hosts_own_names() -> None:
    """Docker copies the host's /etc/hosts into a container only where no --add-host is given."""
    ship = yaml.safe_load((CHECKOUT / "ansible/roles/train_job/tasks/ship.yml").read_text())
    (bring,) = (task for task in ship[0]["block"] if task["name"] == "Bring it there")
    assert "combine({'hosts': [], 'addresses': []})" in bring["ansible.builtin.command"]["argv"]
    found = job_filters.side_arguments(job(hosts=[], addresses=[]), ["stack", "track", "ship"])
    assert "--add-host" not in found and found[-3:] == ["stack", "track", "ship"]


def test_only_addresses_become_names() -> None:
    """A host that the inventory knows by a name alone keeps to what its own resolver says."""
    assert job_filters.name_options(["a", "b", "c"], ["192.0.2.11", "b.example", "2001:db8::3"]) == [
        "--add-host",
        "a:192.0.2.11",
        "--add-host",
        "a.mapped:::ffff:192.0.2.11",
        "--add-host",
        "c:2001:db8::3",
    ]
