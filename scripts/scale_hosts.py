"""What many hosts cost the controller: a play in check mode over simulated hosts, its time and memory.

scale_hosts.py N [N...]      one play for each number of hosts; prints hosts, wall and processor seconds, MB

The hosts are this machine under N names (connection local), in check mode: nothing is changed. So modules run
here too, and the times are an upper bound of the controller's own; memory is that of ansible-playbook
and its forks, taken four times a second. Needs ansible-playbook on the path.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

CHECKOUT = Path(__file__).parents[1]
# The engine's role asks systemd for its unit, which a container has not.
HAS_SYSTEMD = Path("/run/systemd/system").is_dir()
ROLES = "site_check,host_record,host_base" + (",container_runtime,images" if HAS_SYSTEMD else "")


def inventory(count: int) -> dict[str, object]:
    local = {"ansible_connection": "local", "ansible_python_interpreter": "/usr/bin/python3"}
    return {
        "all": {
            "vars": {**local, "stack_bundle": "/nonexistent", "container_runtime_packages": []},
            "children": {
                "trainers": {"hosts": {f"host{number:03}": {} for number in range(count)}},
                "tracking": {"hosts": {}},
            },
        }
    }


def family_kb(root: int) -> int:
    """Proportional memory of a process and all below it: what is shared between forks counts once."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            pid, rest = int(entry.parent.name), entry.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        children.setdefault(int(rest[1]), []).append(pid)
    total, todo = 0, [root]
    while todo:
        pid = todo.pop()
        todo += children.get(pid, [])
        try:
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        total += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return total


def measure(count: int) -> str:
    with tempfile.TemporaryDirectory() as scratch:
        hosts = Path(scratch) / "hosts.yml"
        hosts.write_text(json.dumps(inventory(count)))
        wanted = {"site_check_systems": [], "site_check_free_gb": {}, "stack_serial": "100%"}
        command = [
            "ansible-playbook",
            "-i",
            str(hosts),
            "playbooks/provision.yml",
            "--check",
            "--tags",
            ROLES,
        ]
        began, used = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
        with (Path(scratch) / "log").open("w") as log:
            play = subprocess.Popen(
                [*command, "-e", json.dumps(wanted)],
                cwd=CHECKOUT / "ansible",
                stdout=log,
                stderr=log,
                env={**os.environ, "ANSIBLE_NOCOLOR": "1"},
            )
            peak_kb = 0
            while play.poll() is None:
                peak_kb = max(peak_kb, family_kb(play.pid))
                time.sleep(0.25)
        if play.returncode != 0:
            sys.stderr.write((Path(scratch) / "log").read_text()[-3000:])
            raise SystemExit(play.returncode)
        wall_s, now = time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu_s = now.ru_utime + now.ru_stime - used.ru_utime - used.ru_stime
        return f"{ROLES}: {count:>5} hosts {wall_s:>8.0f} s {cpu_s:>8.0f} CPU s {peak_kb / 1000:>8.0f} MB"


if __name__ == "__main__":
    for number in sys.argv[1:] or ["64"]:
        print(measure(int(number)), flush=True)
