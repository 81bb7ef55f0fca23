"""A training job's container on one host: mounts, variables, command. Plain values in and out."""

from __future__ import annotations

import hashlib
import ipaddress
import json
from pathlib import Path
from typing import Any

NPU_SMI = ("/usr/local/bin/npu-smi", "/usr/local/sbin/npu-smi")
# What a container without the vendor's runtime needs: the driver alone; all of /usr/local/Ascend would hide
# the image's CANN. hccn.conf tells the cards' own addresses; without it collectives gave wrong numbers.
NEEDED = {"/usr/local/dcmi": "folder", "/etc/ascend_install.info": "file"}
WANTED = {"/etc/hccn.conf": "file"}
CONTROL_NODES = ("/dev/davinci_manager", "/dev/devmm_svm", "/dev/hisi_hdc")


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


def job_key(job: dict[str, Any]) -> str:
    """What decides a job: jobs with one key are the same one, also when one of them is resumed."""
    decides = {key: value for key, value in job.items() if key not in ("resume", "meet_s")}
    return hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()


def is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


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
    # Torch looks up the name of each address that it meets at, mostly through a socket of IPv6, where the C
    # library compares with the mapped form only. Without both lines that asks a name server.
    for host, address in zip(job["hosts"], job["addresses"], strict=True):
        if is_address(address):
            options += ["--add-host", f"{host}:{address}"]
            if ":" not in address:
                options += ["--add-host", f"{host}.mapped:::ffff:{address}"]
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
    if failed:
        _, first, code = failed[0]
        lines.append(f"error[train-ended] the job ended with exit code {code}, on {first} first")
    if running:
        lines.append(f"still running on {', '.join(running)}; the same command waits again")
    if lines:
        lines.append("  do: mend what is named; the same command goes on from the newest checkpoint")
    return {
        "good": not lines,
        "code": failed[0][2] if failed else 0,
        "first": failed[0][1] if failed else None,
        # A verdict that is not good is an end, too: the same job would only come to it again.
        "done": not gone and not running and [code for _, _, code in failed] in ([], [1]),
        "text": "\n".join(lines),
    }


class FilterModule:
    def filters(self) -> dict[str, Any]:
        return {
            function.__name__: function
            for function in (
                container_mounts,
                manifests_digest,
                job_variables,
                job_command,
                job_key,
                job_arguments,
                side_arguments,
                job_state,
                job_ends,
            )
        }
