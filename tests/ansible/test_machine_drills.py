"""Drills about machines, on test hosts: each fault is made, told in the right words, and gone with its cause.

    STACK_TEST_HOSTS=1 STACK_TEST_SET=83 python -m pytest tests/ansible/test_machine_drills.py

Needs root, a Docker engine (scripts/engine.sh), Debian's archive for the first run, and ansible-playbook
(STACK_ANSIBLE=FOLDER of it, or on PATH). STACK_TEST_KEEP=1 takes the hosts as they stand, and leaves them.
No clock is ever set: a host's Python is told another time.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import platform
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

CHECKOUT = Path(__file__).parents[2]
SET = os.environ.get("STACK_TEST_SET", "80")
FOLDER = Path(f"/tmp/stack-test-hosts-{SET}")
ANSIBLE = shutil.which("ansible-playbook", path=os.environ.get("STACK_ANSIBLE")) or "ansible-playbook"
ADDRESS = {"trainer1": f"172.30.{SET}.11", "trainer2": f"172.30.{SET}.12"}
VALUES = {
    "site_check_free_gb": {},
    "site_check_free_ports": [],
    "site_check_driver": "25.5.0",
    "site_check_firmware": "7.8.0.1.220",
    "ascend_driver_kernels": [platform.release()],
    "host_base_nofile": 20000,
    "host_base_memlock": "8192",
}

pytestmark = pytest.mark.skipif(
    os.environ.get("STACK_TEST_HOSTS") != "1", reason="set STACK_TEST_HOSTS=1 to drill on test hosts"
)


def on(host: str, script: str) -> str:
    done = subprocess.run(
        ["docker", "exec", "-i", f"{host}-{SET}", "sh", "-euc", script], capture_output=True, text=True
    )
    assert done.returncode == 0, f"{host}: {script}: {done.stderr}"
    return done.stdout


@dataclass(frozen=True)
class Played:
    code: int
    text: str
    report: dict[str, Any]

    @property
    def changed(self) -> dict[str, int]:
        return {host: counts["changed"] for host, counts in self.report["hosts"].items()}

    @property
    def said(self) -> str:
        return "\n".join(failure["message"] for failure in self.report["failures"])


class Site:
    def __init__(self, scratch: Path) -> None:
        self.scratch = scratch
        self.bundle = FOLDER / "bundle"

    def play(self, roles: list[str], hosts: str, *options: str, **values: Any) -> Played:
        """One play of these roles, after a look at the hosts."""
        tasks: list[dict[str, Any]] = [
            {"name": "Look", "ansible.builtin.include_role": {"name": "site_check", "tasks_from": "probe"}}
        ]
        tasks += [{"name": role, "ansible.builtin.include_role": {"name": role}} for role in roles]
        play = [{"name": "Drill", "hosts": hosts, "gather_facts": False, "tasks": tasks}]
        (self.scratch / "drill.yml").write_text(yaml.safe_dump(play))
        cards = {"site_check_cards": 0 if "tracking" in hosts else 2}
        (self.scratch / "values.yml").write_text(yaml.safe_dump({**VALUES, **cards, **values}))
        report = self.scratch / "report.json"
        report.unlink(missing_ok=True)
        done = subprocess.run(
            [ANSIBLE, "-i", str(FOLDER / "inventory/hosts.yml"), str(self.scratch / "drill.yml"),
             "-e", f"@{self.scratch / 'values.yml'}", *options],
            cwd=CHECKOUT / "ansible", env={**os.environ, "STACK_REPORT": str(report)},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        assert report.exists(), done.stdout
        played = Played(done.returncode, done.stdout, json.loads(report.read_text()))
        assert (played.code == 0) == (not played.report["failures"]), done.stdout
        return played


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Three fresh hosts, and a bundle with packages, two images, and the fake installers."""
    environment = {**os.environ, "STACK_TEST_SET": SET}
    script = ["sh", "scripts/test_hosts.sh"]
    start = "up" if os.environ.get("STACK_TEST_KEEP") == "1" else "fresh"
    subprocess.run([*script, start, str(FOLDER)], cwd=CHECKOUT, env=environment, check=True)
    for host in (*ADDRESS, "tracking"):
        # A host that reboots comes back.
        subprocess.run(
            ["docker", "update", "--restart", "always", f"{host}-{SET}"],
            check=True,
            stdout=subprocess.DEVNULL,
        )
    made = Site(tmp_path_factory.mktemp("drills"))
    shutil.rmtree(made.bundle, ignore_errors=True)
    for part in ("packages", "images", "site/hdk"):
        (made.bundle / part).mkdir(parents=True)
    if not (FOLDER / "engine").exists():
        fetch = ["sh", "scripts/os_packages.sh", "stack-test-base:bookworm", "debian-12", "drills"]
        new = FOLDER / "engine.new"
        subprocess.run([*fetch, str(new), "docker.io"], cwd=CHECKOUT, check=True, stdout=subprocess.DEVNULL)
        new.rename(FOLDER / "engine")
    shutil.copytree(FOLDER / "engine", made.bundle / "packages/debian-12-x86_64")
    for name in ("driver_25.5.0_linux-x86_64", "firmware_7.8.0.1.220"):
        shutil.copy(
            CHECKOUT / "tests/ansible/hosts/fake-hdk.run",
            made.bundle / f"site/hdk/Ascend-hdk-910b-npu-{name}.run",
        )
    yield made
    if os.environ.get("STACK_TEST_KEEP") != "1":
        subprocess.run([*script, "down", str(FOLDER)], cwd=CHECKOUT, env=environment, check=True)


def save_image(path: Path, tag: str, content: bytes) -> str:
    """Write an image of one file as `docker save` does; returns its id."""
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as archive:
        entry = tarfile.TarInfo("payload")
        entry.size = len(content)
        archive.addfile(entry, io.BytesIO(content))
    rootfs = {"type": "layers", "diff_ids": ["sha256:" + hashlib.sha256(layer.getvalue()).hexdigest()]}
    config = json.dumps(
        {"architecture": "amd64", "os": "linux", "config": {"Cmd": ["/payload"]}, "rootfs": rootfs}
    ).encode()
    digest = hashlib.sha256(config).hexdigest()
    manifest = json.dumps(
        [{"Config": f"{digest}.json", "RepoTags": [tag], "Layers": ["l/layer.tar"]}]
    ).encode()
    with tarfile.open(path, "w") as archive:
        for name, data in (
            (f"{digest}.json", config),
            ("l/layer.tar", layer.getvalue()),
            ("manifest.json", manifest),
        ):
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return f"sha256:{digest}"


# Two hours late, for the probe alone.
OTHER_TIME = """import sys, time
real = time.time
if any("probe" in word for word in sys.orig_argv):
    time.time = lambda: real() + 7200
"""
SICK, PYTHON = "/opt/test-host/npu.env", "/usr/lib/python3/dist-packages"


def test_faults_of_hosts_are_told_all_at_once_and_gone_with_their_causes(site: Site) -> None:
    """A sick card, a foreign process on a card, a clock that is off, read-only /etc, npu-smi in sbin."""
    on(
        "trainer1",
        f"echo NPU_SICK=1 >{SICK}; nohup sleep 100000 </dev/davinci0 >/dev/null 2>&1 & echo $! >/run/held",
    )
    pid = on("trainer1", "cat /run/held").strip()
    on(
        "trainer2",
        f"echo '{OTHER_TIME}' >{PYTHON}/told_time.py; echo import told_time >{PYTHON}/told_time.pth; "
        "mv /usr/local/bin/npu-smi /usr/local/sbin/; "
        "mount --bind /etc /etc; mount -o remount,bind,ro /etc",
    )
    told = site.play(["site_check"], "trainers")
    assert told.code != 0 and set(told.changed.values()) == {0}
    for words in (
        "trainer1: card 1 says Alarm", f"trainer1: card 0 is held by process {pid}",
        "trainer2: the clock is +7", "trainer2: /etc is mounted read-only",
    ):  # fmt: skip
        assert words in told.said
    assert "error[site-no-driver]" not in told.said, "a tool in sbin is found"
    on("trainer1", f"rm {SICK}; kill {pid}")
    on("trainer2", f"umount /etc; rm {PYTHON}/told_time.*; mv /usr/local/sbin/npu-smi /usr/local/bin/")
    good = site.play(["site_check"], "trainers")
    assert good.code == 0 and set(good.changed.values()) == {0}, good.said


def test_driver_and_firmware_come_in_the_vendors_order_and_a_boot_brings_them_into_effect(site: Site) -> None:
    """trainer1 is bare; trainer2 has a driver that is too old, and then firmware that does not fit."""
    on(
        "trainer1",
        "rm -rf /usr/local/Ascend /usr/local/dcmi /usr/local/bin/npu-smi /etc/ascend_install.info "
        "/run/fake-npu /dev/davinci* /dev/devmm_svm /dev/hisi_hdc",
    )
    on(
        "trainer2",
        "sed -i s/25.5.0/25.0.1/ /usr/local/Ascend/driver/version.info; "
        "echo Version=7.5.0.1.129 >/usr/local/Ascend/firmware/version.info; sh /opt/test-host/load-driver.sh",
    )
    told = site.play(["site_check"], "trainers").said
    assert "trainer1: npu-smi is not there" in told
    assert "error[site-driver-unfit] trainer2: the driver is 25.0.1; the image's CANN runs on 25.2.*" in told

    kernel = site.play(
        ["host_base", "ascend_driver"], "trainers", ascend_driver_install=True, ascend_driver_kernels=[]
    )
    assert "error[driver-kernel] trainer1: no module can be had for the running kernel" in kernel.said
    asked = site.play(["ascend_driver"], "trainers", ascend_driver_install=True)
    assert "error[driver-reboot] trainer1: what was installed takes effect with a reboot" in asked.said
    assert on("trainer1", "grep Start /var/log/ascend_seclog/ascend_install.log").split("\n")[:2] == [
        "[Driver] [INFO]Start: full 25.5.0", "[Firmware] [INFO]Start: full 7.8.0.1.220",
    ]  # fmt: skip
    assert on("trainer2", "grep Start /var/log/ascend_seclog/ascend_install.log").split("\n")[:2] == [
        "[Firmware] [INFO]Start: upgrade 7.8.0.1.220", "[Driver] [INFO]Start: upgrade 25.5.0",
    ]  # fmt: skip
    booted = site.play(["ascend_driver"], "trainers", ascend_driver_install=True, ascend_driver_reboot=True)
    assert booted.code == 0 and booted.changed == {"trainer1": 1, "trainer2": 1}, booted.said
    assert "Software Version               : 25.5.0" in on("trainer2", "npu-smi info -t board -i 0")
    again = site.play(["site_check", "ascend_driver"], "trainers", ascend_driver_install=True)
    assert again.code == 0 and set(again.changed.values()) == {0}, again.said

    on(
        "trainer2",
        "echo Version=7.5.0.1.129 >/usr/local/Ascend/firmware/version.info; sh /opt/test-host/load-driver.sh",
    )
    unfit = site.play(["site_check"], "trainers", site_check_firmware="").said
    assert (
        "error[site-firmware-fit] trainer2: card 0: firmware 7.5.0.1.129 does not fit driver 25.5.0" in unfit
    )
    held = on("trainer2", "nohup sleep 100000 </dev/davinci1 >/dev/null 2>&1 & echo $!").strip()
    busy = site.play(["ascend_driver"], "trainer2", ascend_driver_install=True, ascend_driver_reboot=True)
    assert f"/dev/davinci1 by [{held}]" in busy.said and set(busy.changed.values()) == {0}
    on("trainer2", f"kill {held}")
    mended = site.play(["ascend_driver"], "trainer2", ascend_driver_install=True, ascend_driver_reboot=True)
    assert mended.code == 0, mended.said
    assert "Compatibility                  : OK" in on("trainer2", "npu-smi info -t board -i 0")


def test_the_ports_between_hosts_are_judged_together(site: Site) -> None:
    """A link that is down, TLS switches that differ, and a rank table of an earlier address plan."""
    table = {"version": "1.0", "server_list": [
        {"server_id": ADDRESS["trainer2"], "device": [{"device_id": "0", "device_ip": "10.9.9.9"}]}
    ]}  # fmt: skip
    on("trainer1", f"echo '{json.dumps(table)}' >/root/hccl_2s_16p.json")
    on("trainer2", "printf 'HCCN_DOWN=1\\nHCCN_TLS=1\\n' >/opt/test-host/npu.env")
    told = site.play(["hccn"], "trainers").said
    for words in (
        "trainer2: card 1: link is DOWN", "trainer2: card 1 does not reach 10.20.11.2: 100 % lost",
        "the TLS switch differs: off on trainer1 card 0", "/root/hccl_2s_16p.json is stale: card 0 of",
    ):  # fmt: skip
        assert words in told
    on("trainer1", "rm /root/hccl_2s_16p.json")
    on("trainer2", "rm /opt/test-host/npu.env")
    good = site.play(["hccn"], "trainers")
    assert good.code == 0 and set(good.changed.values()) == {0}, good.said


def test_a_bare_host_gets_its_engine_from_the_list_and_a_spoilt_package_is_named(site: Site) -> None:
    gone = (
        "iptables libip4tc2 libip6tc2 libxtables12 libmnl0 libnfnetlink0 libnetfilter-conntrack3 libnftnl11"
    )
    on("tracking", f"dpkg --purge --force-depends {gone} netbase dmsetup libdevmapper1.02.1 >/dev/null 2>&1")
    file = next((site.bundle / "packages/debian-12-x86_64").glob("runc_*.deb"))
    whole = file.read_bytes()
    file.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    spoilt = site.play(["host_base", "container_runtime"], "tracking")
    assert f"{file} is not the pinned file: sha256" in spoilt.said
    assert "docker" not in on("tracking", "ls /opt/stack/packages; dpkg -l | grep docker.io || true")
    file.write_bytes(whole)
    made = site.play(["container_runtime"], "tracking")
    assert made.code == 0, made.said
    assert on("tracking", "docker info -f '{{.Driver}}'").strip() == "overlay2"
    again = site.play(["host_base", "container_runtime"], "tracking")
    assert again.code == 0 and again.changed == {"tracking": 0}, again.report["changes"]


def test_images_are_known_by_id_and_a_full_disk_leaves_nothing_half(site: Site) -> None:
    """The host of the test before, with its engine: wrong archive, wrong image under the tag, full disk."""
    images = site.bundle / "images"
    id = save_image(images / "big.tar", "drill:1", os.urandom(1 << 20) * 60)
    other = save_image(images / "other.tar", "drill:1", b"another")
    wanted = {"archive": "big.tar", "id": id, "tag": "drill:1"}

    wrong = site.play(["images"], "tracking", images_wanted=[{**wanted, "archive": "other.tar"}])
    assert f"the archive holds {other}; wanted is {id}" in wrong.said
    assert on("tracking", "docker images -q").strip() == "", "nothing was loaded"

    # A disk of 40 MB below the engine, for an image of 60 MB.
    on(
        "tracking",
        "systemctl stop docker.socket docker; mount -t tmpfs -o size=40m full /var/lib/docker; "
        "systemctl start docker",
    )
    full = site.play(["images"], "tracking", images_wanted=[wanted])
    assert "error[image-load] big.tar" in full.said and "no space left on device" in full.said
    assert on("tracking", "docker images -q; ls /opt/stack/images").strip() == "", "nothing half is left"
    on("tracking", "systemctl stop docker.socket docker; umount -R /var/lib/docker; systemctl start docker")

    subprocess.run(["docker", "cp", str(images / "other.tar"), f"tracking-{SET}:/other.tar"], check=True)
    on("tracking", "docker load -q -i /other.tar")
    taken = site.play(["images"], "tracking", images_wanted=[wanted])
    assert f"error[image-tag-taken] drill:1 is image {other} on this host" in taken.said
    on("tracking", "docker rmi drill:1")
    good = site.play(["images"], "tracking", images_wanted=[wanted])
    assert good.code == 0 and on("tracking", "docker image inspect -f '{{.Id}}' drill:1").strip() == id, (
        good.said
    )
    again = site.play(["images"], "tracking", images_wanted=[wanted])
    assert again.code == 0 and again.changed == {"tracking": 0}
