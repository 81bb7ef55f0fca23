"""Drills on hosts with rpm: dnf and rpm over Debian's files, own packages, an os-release of openEuler.

    STACK_TEST_HOSTS=1 STACK_TEST_SET=87 python -m pytest tests/ansible/test_rpm_drills.py

Needs what test_machine_drills.py needs; STACK_TEST_KEEP=1 takes the hosts as they stand, and leaves them.
The engine is a real one, in a package of openEuler's name. dnf, rpm and our roles are tried, not openEuler.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from stack.manifests.load import load_packages_manifest

_spec = importlib.util.spec_from_file_location(
    "machine_drills", Path(__file__).with_name("test_machine_drills.py")
)
assert _spec is not None and _spec.loader is not None
drills = importlib.util.module_from_spec(_spec)
sys.modules[_spec.name] = drills  # where dataclasses look for it
_spec.loader.exec_module(drills)
CHECKOUT, SET, FOLDER, on = drills.CHECKOUT, drills.SET, drills.FOLDER, drills.on
IMAGE, HOST = f"stack-test-rpm-host:{SET}", "openEuler-22.03-x86_64"
ENGINE = {"containerd", "device-mapper-libs", "docker-engine", "docker-runc", "engine-data", "engine-rich"}
ENVIRONMENT = {**os.environ, "STACK_TEST_SET": SET, "STACK_TEST_SYSTEM": "rpm"}

pytestmark = pytest.mark.skipif(
    os.environ.get("STACK_TEST_HOSTS") != "1", reason="set STACK_TEST_HOSTS=1 to drill on test hosts"
)

# The connected machine: the same system, which reaches its repository over HTTP (its own, without a network).
CONNECTED = """
python3 -m http.server -d /opt/test-host/repository --bind 127.0.0.1 8000 >/dev/null 2>&1 &
printf '[all]\\nname=all\\nbaseurl=http://127.0.0.1:8000/\\ngpgcheck=0\\n' >/etc/yum.repos.d/openEuler.repo
sleep 1
"""


def listed(out: Path, *arguments: str, before: str = "") -> subprocess.CompletedProcess[str]:
    """Run scripts/rpm_packages.sh on the connected machine; /out is `out`."""
    script = ["sh", "-euc", f'{CONNECTED}{before}exec sh /scripts/rpm_packages.sh "$@"', "sh", *arguments]
    volumes = [f"--volume={CHECKOUT / 'scripts'}:/scripts:ro", f"--volume={out}:/out"]
    return subprocess.run(
        ["docker", "run", "--rm", "--network", "none", *volumes, IMAGE, *script],
        capture_output=True,
        text=True,
    )


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Three fresh hosts with rpm; their list in `site.manifests` and its files in the bundle."""
    script = ["sh", "scripts/test_hosts.sh"]
    kept = os.environ.get("STACK_TEST_KEEP") == "1"
    subprocess.run(
        [*script, "up" if kept else "fresh", str(FOLDER)], cwd=CHECKOUT, env=ENVIRONMENT, check=True
    )
    scratch = tmp_path_factory.mktemp("rpm-drills")
    made = drills.Site(scratch)
    made.manifests = scratch / "manifests"
    made.manifests.mkdir()
    done = listed(scratch, "drills", "/out/files", "docker-engine", "chrony")
    assert done.returncode == 0, done.stderr
    (made.manifests / f"{HOST}.yaml").write_text(done.stdout)
    made.before = state("tracking")
    made.files = made.bundle / "packages" / HOST
    shutil.rmtree(made.bundle, ignore_errors=True)
    shutil.copytree(scratch / "files", made.files)
    yield made
    if not kept:
        subprocess.run([*script, "down", str(FOLDER)], cwd=CHECKOUT, env=ENVIRONMENT, check=True)


def play(site: Any, roles: list[str], host: str, *options: str, **values: Any) -> Any:
    given = {"container_runtime_manifests": str(site.manifests), "site_check_cards": 0, **values}
    return site.play(roles, host, *options, **{"site_check_systems": ["openEuler-22.03"], **given})


def state(host: str) -> list[str]:
    """Files, packages, users and groups; without caches, dnf's own history and useradd's copies."""
    return on(
        host,
        "{ find /etc /opt /usr /var/lib -xdev; rpm -qa; getent passwd; getent group; } | sort | "
        "grep -v '__pycache__\\|^/var/lib/dnf\\|^/etc/sub.id-$'",
    ).splitlines()


def test_a_list_holds_what_a_bare_host_lacks_and_pins_it(site: Any, tmp_path: Path) -> None:
    manifest = load_packages_manifest(site.manifests / f"{HOST}.yaml").manifest
    assert (manifest.host, manifest.machine, manifest.kind) == ("openEuler-22.03", "x86_64", "rpm")
    by_name = {package.name: package for package in manifest.packages}
    # Not the weak engine-tips, and not the installed system-base.
    assert set(by_name) == ENGINE | {"chrony"}
    # A soname, a file, a virtual and a rich one, and a plain one with an epoch.
    assert set(by_name["docker-engine"].depends or ()) == ENGINE - {"docker-engine"}
    assert by_name["docker-engine"].version == "1:25.0.3-1.oe2203"
    assert by_name["engine-rich"].version == "1.0~rc1^git2-1.oe2203"
    for package in manifest.packages:
        content = (site.files / package.file).read_bytes()
        assert (len(content), hashlib.sha256(content).hexdigest()) == (package.size, package.sha256)

    (tmp_path / "there").mkdir()
    for arguments, code, words in (
        (("who", "/out/new", "podman"), 2, "error[rpm-no-package] no repository of this machine has podman"),
        (("who", "/out/new", "system-base"), 2, "error[rpm-not-bare] system-base is installed here"),
        (("who", "/out/there", "docker-engine"), 2, "error[rpm-out-there] /out/there is there already"),
        (("who", "/out/new"), 2, "scripts/rpm_packages.sh"),
    ):
        wrong = listed(tmp_path, *arguments)
        assert wrong.returncode == code and words in wrong.stderr and wrong.stdout == "", wrong
    away = listed(tmp_path, "who", "/out/new", "docker-engine", before="rm -r /opt/test-host/repository/*; ")
    assert away.returncode == 3 and "error[rpm-resolve]" in away.stderr and "repomd.xml" in away.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["there"], "nothing half is left"


def test_what_is_wrong_is_told_before_anything_is_changed(site: Any, tmp_path: Path) -> None:
    assert play(site, ["host_record"], "tracking").code == 0
    before = state("tracking")
    checked = play(site, ["host_base", "container_runtime"], "tracking", "--check", "--diff")
    assert checked.code == 0, checked.said
    would = [one["task"] for one in checked.report["changes"]]
    assert "container_runtime : What --check would install" in would
    assert "docker-engine-25.0.3-1.oe2203.x86_64.rpm" in checked.text

    none = play(site, ["container_runtime"], "tracking", container_runtime_manifests=str(tmp_path))
    assert f"error[runtime-no-list] {tmp_path} has no {HOST}.yaml" in none.said
    assert "scripts/rpm_packages.sh" in none.said
    roots = {"container_runtime_rpm_packages": ["docker-engine", "podman"]}
    assert "podman is not in the list" in play(site, ["container_runtime"], "tracking", **roots).said
    file = site.files / "docker-runc-1.1.5-2.oe2203.x86_64.rpm"
    whole = file.read_bytes()
    file.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    spoilt = play(site, ["container_runtime"], "tracking")
    assert f"{file} is not the pinned file: sha256" in spoilt.said
    file.unlink()
    assert f"{file.name} is not in the bundle" in play(site, ["container_runtime"], "tracking").said
    file.write_bytes(whole)
    assert state("tracking") == before


def test_the_engine_comes_with_no_repository_and_a_foreign_conflict_has_dnfs_words(site: Any) -> None:
    on("tracking", "cd /opt/test-host/repository; rpm -i ./legacy-runtime-*.rpm")
    blocked = play(site, ["host_base", "container_runtime"], "tracking")
    assert "error[runtime-install] dnf could not install" in blocked.said
    assert "legacy-runtime" in blocked.said and "conflicts with docker-engine >= 1:20" in blocked.said
    assert set(on("tracking", "rpm -qa --qf '%{NAME}\\n'").split()) == {"system-base", "legacy-runtime"}
    on("tracking", "rpm -e legacy-runtime")

    made = play(site, ["container_runtime"], "tracking")
    assert made.code == 0, made.said
    assert set(on("tracking", "rpm -qa --qf '%{NAME}\\n'").split()) == {"system-base", *ENGINE}
    assert on("tracking", "docker info -f '{{.Driver}} {{.LoggingDriver}}'").strip() == "overlay2 json-file"
    assert (
        on("tracking", "systemctl is-enabled docker; ls /var/lib/docker-engine.ready").split()[0] == "enabled"
    )
    again = play(site, ["host_base", "container_runtime"], "tracking")
    assert again.code == 0 and again.changed == {"tracking": 0}, again.report["changes"]


def meet(begun: subprocess.Popen[str], host: str, seconds: int) -> None:
    """Wait until the engine's last scriptlet runs on the host; it takes so many seconds."""
    end = time.monotonic() + 300
    look = ["docker", "exec", f"{host}-{SET}", "pgrep", "-x", "-f", f"sleep {seconds}"]
    while subprocess.run(look, stdout=subprocess.DEVNULL).returncode != 0:
        if begun.poll() is not None or time.monotonic() > end:
            begun.kill()
            pytest.fail(f"the scriptlet was never met: {begun.communicate()[0]}")
        time.sleep(0.1)


def begun_install(site: Any, host: str, seconds: int) -> subprocess.Popen[str]:
    on(host, f"echo {seconds} >/run/slow")
    values = {"container_runtime_manifests": str(site.manifests), "site_check_cards": 0}
    book = site.book_of(["host_base", "container_runtime"], host)
    begun: subprocess.Popen[str] = site.begin(book, **values)
    meet(begun, host, seconds)
    return begun


def stands(host: str) -> None:
    """The engine in one version, whole, with its last scriptlet done, and up; no note of something begun."""
    assert on(host, "rpm -q docker-engine").split() == ["docker-engine-25.0.3-1.oe2203.x86_64"]
    assert on(
        host, "rpm -V docker-engine containerd docker-runc; ls /var/lib/docker-engine.ready"
    ).split() == ["/var/lib/docker-engine.ready"]
    assert on(host, "systemctl is-active docker; ls /opt/stack/packages | grep -vc rpm || true").split() == [
        "active", "0",
    ]  # fmt: skip


def died(site: Any, host: str) -> None:
    """The host loses power in the engine's last scriptlet, and comes back; the same play finishes it."""
    begun = begun_install(site, host, 600)
    subprocess.run(["docker", "kill", f"{host}-{SET}"], check=True, stdout=subprocess.DEVNULL)
    assert site.ended(begun).code != 0
    subprocess.run(
        ["sh", "scripts/test_hosts.sh", "up", str(FOLDER)], cwd=CHECKOUT, env=ENVIRONMENT, check=True
    )
    assert "docker-engine-25.0.3" in on(host, "rpm -q docker-engine"), "rpm counts it as installed"
    assert on(host, "ls /var/lib/docker-engine.ready 2>/dev/null || true") == "", "and it is not ready"
    ended = play(site, ["host_base", "container_runtime"], host)
    assert ended.code == 0, ended.said
    stands(host)
    again = play(site, ["host_base", "container_runtime"], host)
    assert again.code == 0 and again.changed == {host: 0}, again.report["changes"]


def test_a_host_that_dies_while_dnf_works_is_finished_by_the_next_play(site: Any) -> None:
    """A first installation, and then an update, in which the old version is left beside the new one."""
    died(site, "trainer1")
    on(
        "trainer1",
        "rpm -e docker-engine; cd /opt/test-host/repository; rpm -i ./docker-engine-18.*.rpm; "
        "rm /var/lib/docker-engine.ready",
    )
    died(site, "trainer1")


def test_a_play_that_was_interrupted_leaves_dnf_at_work_and_the_next_one_waits_for_it(site: Any) -> None:
    begun = begun_install(site, "trainer2", 25)
    os.killpg(begun.pid, signal.SIGINT)
    assert begun.wait(60) != 0
    assert "dnf" in on("trainer2", "ps -eo comm"), "dnf ended too early to be waited for"
    ended = play(site, ["host_base", "container_runtime"], "trainer2")
    assert ended.code == 0, ended.said
    assert "container_runtime : Dnf, with no source but these files" not in [
        one["task"] for one in ended.report["changes"]
    ], "it was done already"
    stands("trainer2")
    assert on("trainer2", "cat /run/docker-engine.post").split() == ["1"], "installed once"


def test_a_package_of_the_bare_system_that_is_too_old_is_replaced(site: Any, tmp_path: Path) -> None:
    old = "cd /opt/test-host/repository; rpm -i ./engine-data-0.9-*.rpm"
    done = listed(tmp_path, "drills", "/out/files", "docker-engine", before=f"({old}); ")
    assert done.returncode == 0, done.stderr
    (tmp_path / f"{HOST}.yaml").write_text(done.stdout)
    packages = {one["name"]: one for one in yaml.safe_load(done.stdout)["packages"]}
    assert {name: one.get("replaces") for name, one in packages.items() if "replaces" in one} == {
        "engine-data": "0.9-1.oe2203"
    }
    assert load_packages_manifest(tmp_path / f"{HOST}.yaml").manifest.packages[-2].replaces == "0.9-1.oe2203"
    on("trainer2", f"systemctl stop docker.socket docker; rpm -e docker-engine engine-data; {old}")
    made = play(site, ["container_runtime"], "trainer2", container_runtime_manifests=str(tmp_path))
    assert made.code == 0, made.said
    stands("trainer2")
    assert on("trainer2", "rpm -q engine-data").strip() == "engine-data-1.0-1.oe2203.noarch"
    again = play(site, ["container_runtime"], "trainer2", container_runtime_manifests=str(tmp_path))
    assert again.code == 0 and again.changed == {"trainer2": 0}, again.report["changes"]


def test_time_follows_the_sites_server_and_teardown_takes_only_what_came_with_us(site: Any) -> None:
    server = drills.ADDRESS["trainer1"]
    on(
        "trainer1",
        "cd /opt/test-host/repository; rpm -i ./chrony-*.rpm; "
        "printf 'local stratum 8\\nallow\\n' >/etc/chrony.conf; systemctl start chronyd",
    )
    values = {"host_time_servers": [server]}
    roles = ["container_runtime", "host_time"]
    timed = play(site, roles, "tracking", **values)
    assert timed.code == 0, timed.said
    assert f"^,*,{server}" in on("tracking", "chronyc -n -c sources")
    assert "# off by stack: pool pool.ntp.org" in on("tracking", "cat /etc/chrony.conf")
    again = play(site, roles, "tracking", **values)
    assert again.code == 0 and again.changed == {"tracking": 0}, again.report["changes"]

    on("tracking", "cd /opt/test-host/repository; rpm -i ./unrelated-*.rpm")
    kept = play(site, ["teardown"], "tracking", teardown_data=True)
    assert "error[teardown-packages] rpm cannot remove the packages that came with us" in kept.said
    assert "is needed by (installed) unrelated-1.0-1.oe2203.noarch" in kept.said
    assert kept.changed == {"tracking": 0} and on("tracking", "docker info -f '{{.Driver}}'").strip()
    on("tracking", "rpm -e unrelated")
    gone = play(site, ["teardown"], "tracking", teardown_data=True)
    assert gone.code == 0, gone.said
    assert on("tracking", "ps -eo comm | grep -E 'docker|containerd|chrony' || true") == ""


def test_a_host_with_rpm_is_left_as_it_was_and_nothing_asked_the_way_out(site: Any) -> None:
    """Files, packages, users and groups as on the fresh host; the firewalls count what tried to leave."""
    assert state("tracking") == site.before
    counted = subprocess.run(
        ["sh", "scripts/test_hosts.sh", "attempts"],
        cwd=CHECKOUT,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
    )
    assert counted.returncode == 0 and counted.stdout.split()[1::2] == ["0", "0", "0"], counted.stdout
