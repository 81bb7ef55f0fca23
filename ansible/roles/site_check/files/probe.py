#!/usr/bin/env python3
"""What a host is, as one JSON object on stdout. Reads only and never fails: what cannot be read is null.

Plain Python 3.6 and its standard library: it runs on a host before anything is installed there.
Formats: npu-smi's key/value views (`-t board|health|usages|proc-mem`), whose names differ between drivers;
the table of plain `npu-smi info` has three widths in the field and is not read. PROBE_ROOT moves all paths,
for tests.
"""

import glob
import json
import os
import platform
import shutil
import socket
import subprocess
import sys
import time

ROOT = os.environ.get("PROBE_ROOT", "")


def read(path):
    try:
        with open(ROOT + path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return None


def pairs(text, separator):
    """Lines of `key SEP value` as a dict; the first of a repeated key counts."""
    found = {}
    for line in (text or "").splitlines():
        key, sep, value = line.partition(separator)
        if sep:
            found.setdefault(key.strip(), value.strip().strip('"'))
    return found


def run(*command):
    """(exit code, output) of a command within ten seconds; (None, reason) when it did not run."""
    try:
        done = subprocess.run(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=10,
            universal_newlines=True,  # noqa: UP021 (3.6)
        )
        return done.returncode, done.stdout
    except (OSError, subprocess.TimeoutExpired) as error:
        return None, str(error)


def kind_of(path):
    """file, folder, device or other; None where nothing is."""
    path = ROOT + path
    if not os.path.lexists(path):
        return None
    if os.path.isdir(path):
        return "folder"
    if os.path.isfile(path):
        return "file"
    return "device" if os.path.exists(path) else "other"


def free_bytes(path):
    """Room on the file system that will hold `path`, which need not be there yet."""
    place = ROOT + path
    while not os.path.exists(place):
        place = os.path.dirname(place) or "/"
    return shutil.disk_usage(place).free


def writable(path):
    """Whether root could write there: a read-only mount says no."""
    try:
        return not os.statvfs(ROOT + path).f_flag & os.ST_RDONLY
    except OSError:
        return None


def listening_ports():
    found = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in (read(table) or "").splitlines()[1:]:
            fields = line.split()
            if len(fields) > 3 and fields[3] == "0A":
                found.add(int(fields[1].rsplit(":", 1)[1], 16))
    return sorted(found)


def card_holders():
    """Processes that have a card's device node open, in containers too: `{node: [pid, ...]}`.

    The driver's own view (`-t proc-mem`) lists only those that have memory on a card.
    """
    found = {}
    for link in glob.glob("/proc/[0-9]*/fd/*"):
        try:
            target = os.readlink(link)
        except OSError:
            continue
        if target.startswith(ROOT + "/dev/davinci") and target[len(ROOT + "/dev/davinci") :].isdigit():
            pid = int(link.split("/")[2])
            if pid not in found.setdefault(target[len(ROOT) :], []):
                found[target[len(ROOT) :]].append(pid)
    return {node: sorted(pids) for node, pids in sorted(found.items())}


def boot():
    """Changes with every boot; a container that stands for a host keeps its boot id, and gets a new init."""
    started = (read("/proc/1/stat") or "").rpartition(")")[2].split()
    return "{}/{}".format((read("/proc/sys/kernel/random/boot_id") or "").strip(), (started + [""] * 20)[19])


def kernels():
    """The running kernel, those that could boot next, and what the driver's installer builds modules with."""
    running = platform.release()
    return {
        "running": running,
        "installed": sorted(os.path.basename(path)[8:] for path in glob.glob(ROOT + "/boot/vmlinuz-*")),
        "headers": os.path.isdir(ROOT + "/lib/modules/" + running + "/build"),
        "tools": [name for name in ("dkms", "gcc", "make") if shutil.which(name)],
    }


def npu_smi():
    """npu-smi lies in bin or in sbin, and sbin is not on everybody's PATH."""
    for place in ("/usr/local/bin/npu-smi", "/usr/local/sbin/npu-smi", "/usr/sbin/npu-smi"):
        if kind_of(place) == "file":
            return ROOT + place
    return None


def processes(text):
    """Process ids of a `-t proc-mem` view."""
    return [
        int(line.partition(":")[2])
        for line in text.splitlines()
        if line.strip().lower().startswith("process id") and line.partition(":")[2].strip().isdigit()
    ]


def cards(tool):
    """(exit code of `-l`, one dict a card). Card ids are board slots: not always from 0, nor without gaps."""
    code, text = run(tool, "info", "-l")
    if code != 0:
        return code, []
    ids = [
        int(line.partition(":")[2])
        for line in text.splitlines()
        if line.strip().startswith("NPU ID") and line.partition(":")[2].strip().isdigit()
    ]
    found = []
    for number in ids:
        board = pairs(run(tool, "info", "-t", "board", "-i", str(number))[1], ":")
        health = pairs(run(tool, "info", "-t", "health", "-i", str(number), "-c", "0")[1], ":")
        usages = pairs(run(tool, "info", "-t", "usages", "-i", str(number))[1], ":")
        busy = processes(run(tool, "info", "-t", "proc-mem", "-i", str(number))[1])
        found.append(
            {
                "id": number,
                "driver": board.get("Software Version"),
                "firmware": board.get("Firmware Version"),
                "compatibility": board.get("Compatibility"),
                "health": health.get("Health Status") or health.get("Health"),
                "hbm_used_percent": usages.get("HBM Usage Rate(%)"),
                "processes": busy,
            }
        )
    return code, found


def ascend():
    install = pairs(read("/etc/ascend_install.info"), "=")
    prefix = install.get("Driver_Install_Path_Param") or "/usr/local/Ascend"
    tool = npu_smi()
    code, found = cards(tool) if tool else (None, [])
    devices = glob.glob(ROOT + "/dev/davinci[0-9]*")
    return {
        "prefix": prefix,
        "install_status": install.get("Driver_Install_Status"),
        "driver": pairs(read(prefix + "/driver/version.info"), "=").get("Version"),
        "firmware": pairs(read(prefix + "/firmware/version.info"), "=").get("Version"),
        "npu_smi": tool[len(ROOT) :] if tool else None,
        "npu_smi_code": code,
        "cards": found,
        "devices": sorted(path[len(ROOT) :] for path in devices),
        "holders": card_holders(),
        "user": install.get("UserName"),
    }


def main():
    release = pairs(read("/etc/os-release"), "=")
    mounts = sys.argv[1:]
    print(
        json.dumps(
            {
                "name": socket.gethostname(),
                "machine": platform.machine(),
                "kernel": platform.release(),
                "kernels": kernels(),
                "boot": boot(),
                "os": release.get("ID"),
                "os_version": release.get("VERSION_ID"),
                "python": platform.python_version(),
                "time_s": time.time(),
                "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
                "free_bytes": {path: free_bytes(path) for path in mounts},
                "writable": {path: writable(path) for path in ("/etc", "/usr/local", "/var/lib")},
                "ports": listening_ports(),
                "kinds": {
                    path: kind_of(path)
                    for path in (
                        "/usr/local/Ascend/driver",
                        "/usr/local/dcmi",
                        "/etc/ascend_install.info",
                        "/etc/hccn.conf",
                        "/dev/davinci_manager",
                        "/dev/devmm_svm",
                        "/dev/hisi_hdc",
                    )
                },
                "ascend": ascend(),
            },
            sort_keys=True,
        )
    )


if __name__ == "__main__":
    main()
