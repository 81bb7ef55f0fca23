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
import random
import shutil
import signal
import subprocess
import tarfile
import time
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
        cards = {"site_check_cards": 0 if "tracking" in hosts else 2}
        begun = self.begin(self.book_of(roles, hosts), *options, **{**cards, **values})
        return self.ended(begun)

    def book_of(self, roles: list[str], hosts: str) -> Path:
        tasks: list[dict[str, Any]] = [
            {"name": "Look", "ansible.builtin.include_role": {"name": "site_check", "tasks_from": "probe"}}
        ]
        tasks += [{"name": role, "ansible.builtin.include_role": {"name": role}} for role in roles]
        play = [{"name": "Drill", "hosts": hosts, "gather_facts": False, "tasks": tasks}]
        book = self.scratch / "drill.yml"
        book.write_text(yaml.safe_dump(play))
        return book

    def begin(self, book: Path, *options: str, **values: Any) -> subprocess.Popen[str]:
        """Start a play, as a session of its own."""
        (self.scratch / "values.yml").write_text(yaml.safe_dump({**VALUES, **values}))
        self.report.unlink(missing_ok=True)
        return subprocess.Popen(
            [ANSIBLE, "-i", str(FOLDER / "inventory/hosts.yml"), str(book),
             "-e", f"@{self.scratch / 'values.yml'}", *options],
            cwd=CHECKOUT / "ansible", env={**os.environ, "STACK_REPORT": str(self.report)},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
        )  # fmt: skip

    def ended(self, begun: subprocess.Popen[str]) -> Played:
        text, _ = begun.communicate()
        assert self.report.exists(), text
        played = Played(begun.returncode, text, json.loads(self.report.read_text()))
        assert (played.code == 0) == (not played.report["failures"]), text
        return played

    @property
    def report(self) -> Path:
        return self.scratch / "report.json"


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
    packages = FOLDER / "engine-and-time"
    if not packages.exists():
        fetch = ["sh", "scripts/os_packages.sh", "stack-test-base:bookworm", "debian-12", "drills"]
        new = FOLDER / "packages.new"
        wanted = ["docker.io", "chrony"]
        subprocess.run([*fetch, str(new), *wanted], cwd=CHECKOUT, check=True, stdout=subprocess.DEVNULL)
        new.rename(packages)
    shutil.copytree(packages, made.bundle / "packages/debian-12-x86_64")
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
    # Without force: a bare host lacks these and is whole; other libraries of the list belong to its system.
    gone = "iptables libip6tc2 libnetfilter-conntrack3 libnfnetlink0 libnftnl11 netbase dmsetup"
    on("tracking", f"dpkg --purge {gone} >/dev/null 2>&1 || true; ! command -v iptables")
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
    on(
        "tracking",
        "systemctl stop docker.socket docker; umount -R /var/lib/docker; "
        # On a fast machine, this is its third start within the minute, which systemd takes for a fault.
        "systemctl reset-failed docker; systemctl start docker",
    )

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


def meet(host: str, pattern: str, begun: subprocess.Popen[str]) -> None:
    """Wait until the host runs a command like this."""
    look = ["docker", "exec", f"{host}-{SET}", "pgrep", "-f", pattern]
    end = time.monotonic() + 1200
    while subprocess.run(look, stdout=subprocess.DEVNULL).returncode != 0:
        if begun.poll() is not None or time.monotonic() > end:
            begun.kill()
            pytest.fail(f"{host} never ran {pattern}: {begun.communicate()[0]}")
        time.sleep(0.05)


def stands(host: str, id: str) -> None:
    """Every package whole, the engine up with the image under its tag, nothing left in staging."""
    assert on(host, "dpkg --audit; find /opt/stack/packages /opt/stack/images -type f -name '*.tar'") == ""
    assert on(host, "docker image inspect -f '{{.Id}}' drill:2").strip() == id
    assert on(host, "systemctl is-active docker").strip() == "active"


PROVISION = CHECKOUT / "ansible/playbooks/provision.yml"
MACHINES = ("--tags", "site_check,host_record,host_base,container_runtime,images")


def wanted_image(site: Site) -> dict[str, Any]:
    id = save_image(site.bundle / "images/drill.tar", "drill:2", random.Random(8).randbytes(1 << 20) * 60)
    return {"images_wanted": [{"archive": "drill.tar", "id": id, "tag": "drill:2"}]}


def test_an_interrupted_play_is_given_again_and_ends_good(site: Site) -> None:
    """Ctrl-C while a host's dpkg is at work, then the controller's death while an image is loaded."""
    values = wanted_image(site)
    start = (PROVISION, *MACHINES, "--limit", "trainer1")
    begun = site.begin(*start, **values)
    meet("trainer1", "^/usr/bin/dpkg .*(unpack|configure)", begun)
    os.killpg(begun.pid, signal.SIGINT)
    assert begun.wait(60) != 0
    begun = site.begin(*start, **values)
    meet("trainer1", "docker load", begun)
    os.killpg(begun.pid, signal.SIGKILL)
    begun.wait()
    ended = site.ended(site.begin(*start, **values))
    assert ended.code == 0, ended.said
    stands("trainer1", values["images_wanted"][0]["id"])
    again = site.ended(site.begin(*start, **values))
    assert again.code == 0 and again.changed == {"trainer1": 0}, again.report["changes"]


def test_a_host_that_dies_in_provisioning_stops_the_rollout_and_is_finished_by_the_same_play(
    site: Site,
) -> None:
    """The host's power fails while dpkg unpacks; the next host of the rollout is not begun."""
    values = wanted_image(site)
    start = (PROVISION, *MACHINES, "--limit", "trainer2,tracking")
    before = on("tracking", "find /etc /opt /usr -xdev | sort | sha256sum")
    begun = site.begin(*start, **values)
    meet("trainer2", "^/usr/bin/dpkg .*(unpack|configure)", begun)
    subprocess.run(["docker", "kill", f"trainer2-{SET}"], check=True, stdout=subprocess.DEVNULL)
    died = site.ended(begun)
    assert died.code != 0 and [(one["host"], one["kind"]) for one in died.report["failures"]] == [
        ("trainer2", "unreachable")
    ], died.said
    assert on("tracking", "find /etc /opt /usr -xdev | sort | sha256sum") == before, "the rollout went on"
    subprocess.run(["docker", "start", f"trainer2-{SET}"], check=True, stdout=subprocess.DEVNULL)
    subprocess.run(
        ["sh", "scripts/test_hosts.sh", "up", str(FOLDER)], cwd=CHECKOUT, check=True,
        env={**os.environ, "STACK_TEST_SET": SET},
    )  # fmt: skip
    half = on("trainer2", "dpkg --audit; ls /var/lib/dpkg/updates")
    assert half != "", "the host died too early or too late to be half installed"
    ended = site.ended(site.begin(*start, **values))
    assert ended.code == 0, ended.said
    for host in ("trainer2", "tracking"):
        stands(host, values["images_wanted"][0]["id"])
    again = site.ended(site.begin(*start, **values))
    assert again.code == 0 and again.changed == {"trainer2": 0, "tracking": 0}, again.report["changes"]


def test_verify_multiplies_and_sums_over_two_hosts_in_the_training_image(site: Site) -> None:
    """With gloo, as there are no cards; then a host to which nothing gets through."""
    made = subprocess.run(
        ["sh", "scripts/test_image.sh", str(FOLDER)], cwd=CHECKOUT, check=True, capture_output=True, text=True
    )
    id = made.stdout.split()[-1]
    image = {"images_wanted": [{"archive": "train.tar", "id": id, "tag": "drill-train:1"}]}
    there = site.play(["host_base", "container_runtime", "images"], "trainers", **image)
    assert there.code == 0, there.said
    values: dict[str, Any] = {
        "verify_image": id, "verify_device": "cpu", "verify_processes": 2, "verify_timeout_s": 240,
        "train_job_mounts": [{"source": "/opt/test-host/env", "target": "/opt/stack/env", "kind": "folder"}],
    }  # fmt: skip
    playbook = CHECKOUT / "ansible/playbooks/verify.yml"
    without = site.ended(site.begin(playbook, **{**values, "verify_image": ""}))
    assert without.code != 0 and "error[verify-image] trainer1: no image is named" in without.said
    verified = site.ended(site.begin(playbook, **values))
    assert verified.code == 0, verified.said
    for host in ADDRESS:
        record = json.loads(on(host, "cat /opt/stack/records/verify.json"))
        assert record["image"] == id and record["hosts"] == ["trainer1", "trainer2"]
        assert (record["world"], record["backend"]) == (4, "gloo")
        assert record["product_bf16"] is True and record["all_reduce"] is True
    on("trainer2", f"iptables -I OUTPUT -p tcp -d {ADDRESS['trainer1']} --dport 29500 -j DROP")
    cut = site.ended(site.begin(playbook, **{**values, "verify_timeout_s": 60}))
    on("trainer2", f"iptables -D OUTPUT -p tcp -d {ADDRESS['trainer1']} --dport 29500 -j DROP")
    assert (
        "error[verify-smoke] trainer2: no result within 60 s" in cut.said
        and "29500/tcp on trainer1" in cut.said
    )
    assert on("trainer1", "docker ps -aq") == on("trainer2", "docker ps -aq") == "", "no container is left"


CONTAINERD_STORE = """{"features": {"containerd-snapshotter": true}}"""


def newer_engine() -> Path:
    """Debian 13's engine: Debian 12's has no containerd store. Its packages run on Debian 12's libraries."""
    folder = FOLDER / "engine-13"
    if not folder.exists():
        new = FOLDER / "engine-13.new"
        new.mkdir(exist_ok=True)
        script = (
            "sed -i '/bookworm/s/bookworm[^ ]*/trixie/' /etc/apt/sources.list; apt-get -qq update; cd /out; "
            "apt-get -qq download docker.io docker-cli containerd"
        )
        subprocess.run(
            ["docker", "run", "--rm", f"--volume={new}:/out", "stack-test-base:bookworm",
             "sh", "-euc", script],
            check=True, capture_output=True,
        )  # fmt: skip
        new.rename(folder)
    return folder


# Without the right to set the machine's clock chronyd is not started; with -x it only says what it would do.
WITHOUT_A_CLOCK = """mkdir -p /etc/systemd/system/chrony.service.d
cat >/etc/systemd/system/chrony.service.d/test.conf <<'UNIT'
[Unit]
ConditionCapability=
[Service]
ExecStart=
ExecStart=!/usr/sbin/chronyd -x $DAEMON_OPTS
UNIT
systemctl daemon-reload"""
CHRONY = "/etc/chrony/chrony.conf"


def test_a_host_follows_the_sites_time_server_and_gets_its_own_settings_back(site: Site) -> None:
    """One without a time service; trainer1 is the server, and silent at first."""
    for host in ("trainer1", "tracking"):
        on(host, WITHOUT_A_CLOCK)
    servers = {"host_time_servers": [ADDRESS["trainer1"]], "host_time_wait_s": 16}
    none = site.play(["host_time"], "tracking", **servers)
    assert "error[time-no-service] neither chrony nor systemd-timesyncd" in none.said
    roles = ["host_base", "container_runtime"]
    assert site.play(roles, "tracking", **servers).code == 0, "chrony comes from the bundle"
    own = on("tracking", f"rm -rf /var/lib/stack; cat {CHRONY}")
    assert site.play(["host_record"], "tracking").code == 0

    silent = site.play(["host_time"], "tracking", **servers)
    assert f"error[time-not-followed] chrony follows none of {ADDRESS['trainer1']}" in silent.said
    packages = site.bundle / "packages/debian-12-x86_64"
    subprocess.run(["docker", "cp", str(packages), f"trainer1-{SET}:/opt/packages"], check=True)
    on(
        "trainer1",
        "cd /opt/packages; rm -f docker* containerd* runc* tini*; export DEBIAN_FRONTEND=noninteractive; "
        "apt-get install -qq -y --no-install-recommends -o Dir::Etc::SourceList=/dev/null "
        "-o Dir::Etc::SourceParts=/dev/null ./*.deb >/dev/null 2>&1; "
        f"printf 'local stratum 8\\nallow\\n' >{CHRONY}; systemctl restart chrony",
    )
    followed = site.play(["host_time"], "tracking", **{**servers, "host_time_wait_s": 60})
    assert followed.code == 0, followed.said
    assert f"^,*,{ADDRESS['trainer1']}" in on("tracking", "chronyc -n -c sources")
    again = site.play(["host_time"], "tracking", **servers)
    assert again.code == 0 and again.changed == {"tracking": 0}, again.report["changes"]

    gone = site.play(["teardown"], "tracking")
    assert gone.code == 0, gone.said
    assert on("tracking", f"cat {CHRONY}") == own
    assert ADDRESS["trainer1"] not in on("tracking", "chronyc -n -c sources")


def test_images_are_known_by_id_in_the_containerd_store_too(site: Site) -> None:
    """The last drill: the tracking host gets an engine that names images by their manifests."""
    subprocess.run(["docker", "cp", f"{newer_engine()}/.", f"tracking-{SET}:/root/engine-13"], check=True)
    on(
        "tracking",
        "systemctl stop docker.socket docker containerd; "
        "mount -t tmpfs -o size=600m content /var/lib/containerd; "
        "dpkg --install --auto-deconfigure /root/engine-13/*.deb >/dev/null; "
        f"echo '{CONTAINERD_STORE}' >/etc/docker/daemon.json; systemctl restart containerd docker",
    )
    assert "io.containerd.snapshotter" in on("tracking", "docker info -f '{{.DriverStatus}}'")
    images = site.bundle / "images"
    content = random.Random(9).randbytes(1 << 20)
    id = save_image(images / "store.tar", "store:1", content)
    other = save_image(images / "foreign.tar", "store:1", b"another")
    wanted = [{"archive": "store.tar", "id": id, "tag": "store:1"}]

    subprocess.run(["docker", "cp", str(images / "foreign.tar"), f"tracking-{SET}:/foreign.tar"], check=True)
    on("tracking", "docker load -q -i /foreign.tar")
    taken = site.play(["images"], "tracking", images_wanted=wanted)
    assert f"error[image-tag-taken] store:1 is image {other} on this host" in taken.said
    on("tracking", "docker rmi store:1")
    good = site.play(["images"], "tracking", images_wanted=wanted)
    assert good.code == 0, good.said
    assert on("tracking", "docker image inspect -f '{{.Id}}' store:1").strip() != id, "named by its manifest"
    held = on(
        "tracking",
        "docker create --name held store:1 >/dev/null; docker cp held:/payload - | tar -xO | sha256sum",
    )
    assert held.split()[0] == hashlib.sha256(content).hexdigest()
    again = site.play(["images"], "tracking", images_wanted=wanted)
    assert again.code == 0 and again.changed == {"tracking": 0}, again.report["changes"]
    on("tracking", "docker rm held; docker tag store:1 kept:1; docker rmi store:1")
    retagged = site.play(["images"], "tracking", images_wanted=wanted)
    assert retagged.code == 0 and [one["task"] for one in retagged.report["changes"]] == [
        "images : Give it its tag"
    ], "what is held is not loaded again"
