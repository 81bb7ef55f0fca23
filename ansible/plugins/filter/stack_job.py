"""A training job's container on one host: mounts, variables, command. Plain values in and out."""

from __future__ import annotations

import hashlib
import ipaddress
import json
import posixpath
from pathlib import Path
from typing import Any

NPU_SMI = ("/usr/local/bin/npu-smi", "/usr/local/sbin/npu-smi")
# What a container without the vendor's runtime needs: the driver alone; all of /usr/local/Ascend would hide
# the image's CANN. hccn.conf tells the cards' own addresses; without it collectives gave wrong numbers.
NEEDED = {"/usr/local/dcmi": "folder", "/etc/ascend_install.info": "file"}
WANTED = {"/etc/hccn.conf": "file"}
CONTROL_NODES = ("/dev/davinci_manager", "/dev/devmm_svm", "/dev/hisi_hdc")
INTERRUPTED = 130  # a stack that was told to stop and saved, docs/runbook.md


def kind_of(stat: dict[str, Any]) -> str | None:
    """file, folder, device or other; None where nothing is. `stat`: what ansible.builtin.stat found."""
    if not stat.get("exists"):
        return None
    for key, kind in (("isdir", "folder"), ("isreg", "file"), ("ischr", "device")):
        if stat.get(key):
            return kind
    return "other"


def container_mounts(
    results: list[dict[str, Any]], mounts: list[dict[str, str]], cards: int, driver: str
) -> dict[str, Any]:
    """`{problems, volumes, devices}` of a container, from what was found at each path.

    Args:
        results: of a loop of ansible.builtin.stat over paths (following links).
        mounts: further mounts, `{source, target, kind}`.
        cards: Ascend cards; with 0 nothing of the driver is mounted.
    """
    found = {entry["train_job_path"]: kind_of(entry.get("stat", {})) for entry in results}
    problems, volumes, devices = [], [], []

    def mount(source: str, target: str, kind: str) -> None:
        if found.get(source) == kind:
            volumes.append(f"{source}:{target}:ro")
            return
        what = "is not there" if found.get(source) is None else f"is a {found[source]}, not a {kind}"
        problems.append(
            f"error[train-mount] {source} {what}; Docker would mount an empty folder in its place\n"
            f"  do: put it right, or take it out of the job's mounts"
        )

    for entry in mounts:
        mount(entry["source"], entry.get("target", entry["source"]), entry["kind"])
    if cards > 0:
        mount(driver, driver, "folder")
        for path, kind in NEEDED.items():
            mount(path, path, kind)
        for path, kind in WANTED.items():
            if found.get(path) == kind:
                volumes.append(f"{path}:{path}:ro")
        tools = [path for path in NPU_SMI if found.get(path) == "file"]
        mount(*((tools[0], tools[0]) if tools else (NPU_SMI[0], NPU_SMI[0])), "file")
        for node in (*(f"/dev/davinci{card}" for card in range(cards)), *CONTROL_NODES):
            if found.get(node) == "device":
                devices.append(node)
            else:
                problems.append(
                    f"error[train-device] {node} "
                    f"{'is not there' if found.get(node) is None else 'is no device node'}\n"
                    "  do: load the driver again, or correct train_job_cards"
                )
    return {"problems": problems, "volumes": volumes, "devices": devices}


def run_needs(manifest: dict[str, Any], name: str, overrides: list[str], hosts: list[str]) -> dict[str, Any]:
    """`{mirror, problems}` of a run's manifest: what can be said of it before anything is started.

    Args:
        name: its path below the folder of manifests.
        overrides: `a.b=c`, of which `mirror` and `device.count` are looked at.
    """
    given = dict(each.split("=", 1) for each in overrides if "=" in each)
    mirror = given.get("mirror", manifest.get("mirror") or "../../work/mirror")
    # Paths are relative to the manifest; the job's folder is the root that they start from.
    place = posixpath.normpath(posixpath.join("manifests", posixpath.dirname(name), str(mirror)))
    problems = []
    if place.startswith(("..", "/")):
        problems.append(
            f"error[train-mirror-outside] {name}: the mirror '{mirror}' is not below train_job_folder\n"
            "  do: let it be ../../mirror, and bring the files to mirror/ in that folder"
        )
    count = str(given.get("device.count", (manifest.get("device") or {}).get("count", 1)))
    if count.isdigit() and int(count) % len(hosts):
        problems.append(
            f"error[train-uneven] {name}: device.count is {count}, which {len(hosts)} hosts "
            f"({', '.join(hosts)}) cannot share out evenly\n"
            "  do: let it count the devices of all hosts, or name fewer in train_job_hosts"
        )
    return {"mirror": place, "problems": problems}


def image_problems(image: str, is_there: bool, wanted: list[dict[str, str]]) -> list[str]:
    """What is wrong with the image of a job, as the inventory names it."""
    known = ", ".join(f"{entry['id']} ({entry['tag']})" for entry in wanted) or "none"
    if not image:
        return [
            "error[train-image-not-given] train_job_image is not set\n"
            f"  do: set it to the id of an image of images_wanted: {known}"
        ]
    if is_there:
        return []
    if image in {entry["id"] for entry in wanted}:
        return [
            f"error[train-no-image] image {image} is not on this host\n"
            "  do: make provision INVENTORY=..., which loads it"
        ]
    return [
        f"error[train-no-image] image {image} is not on this host, and not in images_wanted\n"
        f"  do: compare train_job_image with images_wanted: {known}"
    ]


def interface_problems(interface: str, links: list[str]) -> list[str]:
    """Whether the network interface between the hosts is one of this host's."""
    if not interface or interface in links:
        return []
    return [
        f"error[train-interface] train_job_interface is '{interface}', and this host has {', '.join(links)}\n"
        "  do: name one of them, for a host that differs in its host_vars; or leave it out, "
        "and the one that reaches the first host is used"
    ]


def manifests_digest(paths: list[str]) -> str:
    """sha256 over names and contents of files on the controller."""
    digest = hashlib.sha256()
    for path in sorted(paths):
        digest.update(Path(path).name.encode() + b"\0" + Path(path).read_bytes() + b"\0")
    return digest.hexdigest()


def job_variables(job: dict[str, Any]) -> dict[str, str]:
    """Variables of the job's container on one host.

    HCCL's are set only where cards are. Its own list of allowed hosts is off (the network is the site's
    own), its ports stand where host_base reserves them, and over several hosts the ranks may come minutes
    apart: the first step compiles. Names and defaults: CANN's reference of environment variables.
    """
    variables: dict[str, Any] = {}
    several = len(job["hosts"]) > 1
    if several:
        variables |= {
            "STACK_HOSTS": len(job["hosts"]),
            "STACK_HOST_INDEX": job["index"],
            "STACK_FIRST_HOST": f"{job['leader']}:{job['port']}",
            "STACK_MEET_S": job["meet_s"],
        }
        if job["interface"]:
            variables["STACK_NET"] = job["interface"]
    if job["cards"] > 0:
        variables |= {"HCCL_WHITELIST_DISABLE": 1, "HCCL_IF_BASE_PORT": 60000}
        if several:
            variables |= {"HCCL_CONNECT_TIMEOUT": 1800, "HCCL_EXEC_TIMEOUT": 1836}
            if job["interface"]:
                variables["HCCL_SOCKET_IFNAME"] = f"={job['interface']}"
        variables |= job["hccl"]
    variables |= job["environment"]
    return {key: str(value) for key, value in variables.items()}


def job_command(job: dict[str, Any]) -> list[str]:
    """What the container runs: the first host the whole chain with its verdict, the others the training."""
    manifest, overrides = f"manifests/{job['manifest']}", [f"--set={each}" for each in job["set"]]
    if job["index"] == 0:
        return ["stack", "reproduce", manifest, "--no-track", *overrides]
    run = f"work/runs/{job['run']}"
    out = ["--dataset", f"{run}/prepare", "--out", f"{run}/train.partial"]
    return ["stack", "train", manifest, *out, *(["--resume"] if job["resume"] else []), *overrides]


# How the hosts reach each other, and how long somebody waits: no part of what is trained.
UNDECIDED = ("resume", "meet_s", "stop_s", "interface", "port", "leader", "addresses", "shm")


def job_key(job: dict[str, Any]) -> str:
    """What decides a job: jobs with one key are the same one, also when one of them is resumed."""
    decides = {key: value for key, value in job.items() if key not in UNDECIDED}
    return hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()


def finished_key(job: dict[str, Any]) -> str:
    """What decides that a finished job is to be run again: all that its chain can see a change of.

    Other hosts, mounts or variables would start containers that find nothing to do, or wait for such a one.
    """
    decides = {key: job[key] for key in ("name", "run", "manifest", "manifests", "set", "image", "folder")}
    decides["first"] = job["hosts"][0]
    return hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()


def is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def name_options(hosts: list[str], addresses: list[str]) -> list[str]:
    """Options of `docker run` that let nothing ask a name server who the hosts are.

    Torch looks up the name of each address that it meets at, mostly through a socket of IPv6, where the C
    library compares with the mapped form only.
    """
    options = []
    for host, address in zip(hosts, addresses, strict=True):
        if is_address(address):
            options += ["--add-host", f"{host}:{address}"]
            if ":" not in address:
                options += ["--add-host", f"{host}.mapped:::ffff:{address}"]
    return options


def container_options(job: dict[str, Any]) -> list[str]:
    """Options of `docker run` that every container of the job has."""
    options = [
        "--network",
        "host",
        "--user",
        job["user"],
        "--volume",
        f"{job['folder']}:/work",
        "--workdir",
        "/work",
    ]
    options += name_options(job["hosts"], job["addresses"])
    for volume in job["container"]["volumes"]:
        options += ["--volume", volume]
    for device in job["container"]["devices"]:
        options += ["--device", device]
    return options


def job_arguments(job: dict[str, Any]) -> list[str]:
    """`docker run` of the job. --init: a first process of its own hands signals on and buries children."""
    options = [
        "--detach",
        "--init",
        "--name",
        f"stack-{job['name']}",
        "--restart",
        "no",
        "--shm-size",
        job["shm"],
    ]
    options += [
        "--stop-timeout",
        str(job["stop_s"]),
        "--label",
        f"stack.job={job_key(job)}",
        *container_options(job),
    ]
    for key, value in sorted(job_variables(job).items()):
        options += ["--env", f"{key}={value}"]
    return ["docker", "run", *options, job["image"], *job_command(job)]


def side_arguments(job: dict[str, Any], command: list[str], options: list[str] | None = None) -> list[str]:
    """`docker run` of a short command beside the job, with the job's folder."""
    return [
        "docker",
        "run",
        "--rm",
        "--init",
        *(options or []),
        *container_options(job),
        job["image"],
        *command,
    ]


def job_state(inspected: dict[str, Any], key: str) -> str:
    """absent, running, ended (with code 0), failed; other: a container of that name that is another job.

    Args:
        inspected: the registered result of `docker container inspect --format {{json .}}`.
    """
    if inspected.get("rc") != 0:
        return "absent"
    container = json.loads(inspected["stdout"])
    is_same = container["Config"]["Labels"].get("stack.job") == key
    if container["State"]["Status"] in ("running", "restarting", "paused"):
        return "running" if is_same else "other"
    if not is_same:
        return "absent"
    return "ended" if container["State"]["ExitCode"] == 0 else "failed"


def job_ends(
    ends: dict[str, dict[str, Any]], reached: list[str], all_done: bool, done_code: int = 0
) -> dict[str, Any]:
    """`{good, code, first, text}` of a job: how its containers ended, the first failure first.

    Args:
        ends: by host, the registered result of `docker container inspect` with `Running ExitCode FinishedAt`.
        reached: hosts that still answer.
        all_done: an earlier call saw the job to its end, and nothing was started.
        done_code: the first host's exit code then; 1 is a verdict that is not good, and stays one.
    """
    if all_done:
        text = "nothing to do: the job is done" + ("" if done_code == 0 else ", and its verdict is not good")
        return {"good": done_code == 0, "code": done_code, "first": None, "text": text, "done": False}
    gone = [host for host in ends if host not in reached]
    failed, running = [], []
    for host in ends:
        if host in gone:
            continue
        is_running, code, finished = (ends[host] or {}).get("stdout", "false 255 -").split(" ", 2)
        if is_running == "true":
            running.append(host)
        elif code != "0":
            failed.append((finished, host, int(code)))
    failed.sort()
    lines = [f"error[train-host-gone] {host} does not answer any more" for host in gone]
    do = "mend what is named; the same command goes on from the newest checkpoint"
    if failed and not gone and {code for _, _, code in failed} == {INTERRUPTED}:
        lines.append(
            f"error[train-stopped] the job was told to stop, saved, and ended, on {failed[0][1]} first"
        )
        do = "nothing, if that was meant; the same command goes on from the checkpoint"
    elif failed:
        _, first, code = failed[0]
        lines.append(f"error[train-ended] the job ended with exit code {code}, on {first} first")
    if running:
        lines.append(f"still running on {', '.join(running)}; the same command waits again")
    if lines:
        lines.append(f"  do: {do}")
    return {
        "good": not lines,
        "code": failed[0][2] if failed else 0,
        "first": failed[0][1] if failed else None,
        # A verdict that is not good is an end, too: the same job would only come to it again.
        "done": not gone and not running and [code for _, _, code in failed] in ([], [1]),
        "text": "\n".join(lines),
    }


def verdict_lines(words: str) -> list[str]:
    """The verdict's table, from its heading on, of what the first host's container said on stdout.

    Without the lines that name paths of the container: the play names those of the controller.
    """
    lines = [line for line in words.splitlines() if line.strip()]
    start = max((at for at, line in enumerate(lines) if line.split()[:2] == ["gate", "what"]), default=0)
    return [line for line in lines[start:] if not line.startswith("results in ")]


class FilterModule:
    def filters(self) -> dict[str, Any]:
        return {
            function.__name__: function
            for function in (
                container_mounts,
                run_needs,
                image_problems,
                interface_problems,
                name_options,
                verdict_lines,
                manifests_digest,
                job_variables,
                job_command,
                job_key,
                finished_key,
                job_arguments,
                side_arguments,
                job_state,
                job_ends,
            )
        }
