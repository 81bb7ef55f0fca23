"""What the roles about cards decide, without any host: plans, judgements, options, packages."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from stack.manifests import (
    load_ascend_manifest,
    load_bundle_manifest,
    load_images_manifest,
    load_packages_manifest,
)

CHECKOUT = Path(__file__).parents[2]
MANIFESTS = CHECKOUT / "manifests"


def loaded(file: str) -> ModuleType:
    path = CHECKOUT / "ansible" / file
    spec = importlib.util.spec_from_file_location(path.stem + "_here", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


driver = loaded("plugins/filter/stack_driver.py")
hccn = loaded("plugins/filter/stack_hccn.py")
packages = loaded("plugins/filter/stack_packages.py")
site = loaded("plugins/filter/stack_site.py")
ascend = loaded("plugins/filter/stack_ascend.py")
images = loaded("plugins/filter/stack_images.py")


def kernel(running: str, *installed: str, headers: bool = False, tools: Sequence[str] = ()) -> dict[str, Any]:
    return {"running": running, "installed": list(installed), "headers": headers, "tools": list(tools)}


def host(
    driver: str | None = "25.5.0", firmware: str | None = "7.8.0.1.220", **changes: Any
) -> dict[str, Any]:
    """A probe of a host with two cards."""
    cards = [
        {"id": n, "driver": driver, "firmware": firmware, "health": "OK", "compatibility": "OK",
         "processes": [], "hbm_used_percent": "5"}
        for n in (0, 1)
    ]  # fmt: skip
    found: dict[str, Any] = {
        "machine": "aarch64",
        "boot": "a/1",
        "kernels": kernel("5.10.0-1", "5.10.0-1", headers=True, tools=["dkms", "gcc"]),
        "ascend": {
            "driver": driver, "firmware": firmware, "install_status": "complete" if driver else None,
            "prefix": "/usr/local/Ascend", "npu_smi": "/usr/local/bin/npu-smi" if driver else None,
            "npu_smi_code": 0 if driver else None, "cards": cards if driver else [],
            "devices": ["/dev/davinci0", "/dev/davinci1"] if driver else [], "holders": {},
        },
        "kinds": {
            "/usr/local/Ascend/driver": "folder", "/usr/local/dcmi": "folder",
            "/etc/ascend_install.info": "file", "/etc/hccn.conf": "file", "/dev/davinci_manager": "device",
            "/dev/devmm_svm": "device",
            "/dev/hisi_hdc": "device",
        },
    }  # fmt: skip
    for key, value in changes.items():
        part = found["ascend"] if key in found["ascend"] else found
        part[key] = value
    return found


PACKAGES = driver.driver_packages(
    [
        "/b/Ascend-hdk-910b-npu-driver_26.1.0_linux-aarch64.run",
        "/b/Ascend-hdk-910b-npu-driver_26.1.0_linux-x86_64.run",
        "/b/Ascend-hdk-910b-npu-firmware_8.0.0.2.3.run",
        "/b/Ascend-docker-runtime_6.0.0_linux-aarch64.run",
    ],
    "aarch64",
)


def plan(probe: dict[str, Any], **wanted: Any) -> dict[str, Any]:
    asked = {
        "driver": "26.1.0",
        "firmware": "8.0.0.2.3",
        "install": True,
        "packages": PACKAGES,
        "kernels": [],
    }
    result: dict[str, Any] = driver.driver_plan(probe, {**asked, **wanted})
    return result


def ids(found: dict[str, Any]) -> list[str]:
    return [entry["id"] for entry in found["problems"]]


def test_the_installers_of_this_machine_are_found() -> None:
    assert {part: [one["version"] for one in found] for part, found in PACKAGES.items()} == {
        "driver": ["26.1.0"], "firmware": ["8.0.0.2.3"],
    }  # fmt: skip
    assert PACKAGES["driver"][0]["path"].endswith("linux-aarch64.run")


def test_order_is_driver_first_on_a_bare_host_and_firmware_first_on_an_upgrade() -> None:
    bare, old = plan(host(None, None)), plan(host())
    assert [(step["part"], step["mode"]) for step in bare["steps"]] == [
        ("driver", "--full"),
        ("firmware", "--full"),
    ]
    assert [(step["part"], step["mode"]) for step in old["steps"]] == [
        ("firmware", "--upgrade"), ("driver", "--upgrade"),
    ]  # fmt: skip
    assert [step["part"] for step in plan(host("26.1.0"))["steps"]] == ["firmware"]
    assert plan(host("26.1.0", "8.0.0.2.3")) == {"problems": [], "steps": [], "reboot": False}


def test_an_installation_that_broke_off_is_done_again_from_the_start() -> None:
    broken = host("26.1.0", "8.0.0.2.3", install_status="begin")
    assert [(step["part"], step["mode"]) for step in plan(broken)["steps"]] == [("driver", "--full")]
    assert "was not installed to its end" in plan(broken, install=False)["problems"][0]["what"]


@pytest.mark.parametrize(
    ("probe", "wanted", "id", "words"),
    [
        (host(), {"install": False}, "driver-driver", "is 25.5.0; wanted is 26.1.0"),
        (host(), {"packages": {"driver": [], "firmware": []}}, "driver-package", "0 driver installers"),
        (host(), {"driver": "26.1.1"}, "driver-package", "is version 26.1.0; the inventory wants 26.1.1"),
        (host("26.2.0"), {}, "driver-downgrade", "26.2.0; 26.1.0 would be a step back"),
        (host(holders={"/dev/davinci1": [77]}), {}, "driver-cards-busy", "/dev/davinci1 by [77]"),
        (
            host(kernels={"running": "5.10.0-1", "installed": [], "headers": False, "tools": ["gcc"]}),
            {}, "driver-kernel", "not there are dkms, headers of 5.10.0-1",
        ),
        (
            host(kernels=kernel("5.10.0-9", "5.10.0-10", "5.10.0-9")),
            {"kernels": ["5.10.0-9"]}, "driver-kernel-next", "kernel 5.10.0-10 would boot next",
        ),
    ],
)  # fmt: skip
def test_what_stands_against_an_installation_is_told_and_nothing_is_done(
    probe: dict[str, Any], wanted: dict[str, Any], id: str, words: str
) -> None:
    found = plan(probe, **wanted)
    assert id in ids(found) and found["steps"] == []
    assert words in driver.plan_text(found, "h")


def test_a_busy_card_stands_against_nothing_when_nothing_is_due() -> None:
    assert plan(host("26.1.0", "8.0.0.2.3", holders={"/dev/davinci1": [77]}))["problems"] == []


def test_versions_are_ordered_as_the_vendor_counts() -> None:
    ordered = ["7.8.0.1.220", "25.0.1", "25.2.0", "25.10.0", "26.0.rc1", "26.0.rc2", "26.0.0", "26.1.0"]
    assert sorted(reversed(ordered), key=driver.version_key) == ordered


@pytest.mark.parametrize(
    ("text", "due"),
    [
        (
            "Driver package installed successfully! Reboot needed for installation/upgrade to take effect!",
            True,
        ),
        ("Driver package install success! The new version takes effect immediately.", False),
        (
            "Firmware package installed successfully! Reboot now or after driver installation",
            True,
        ),
        ("something nobody has seen", True),
    ],
)
def test_whether_a_boot_is_due_is_read_from_the_installer(text: str, due: bool) -> None:
    assert driver.reboot_said(text) is due


def test_a_boot_stays_due_until_it_has_been() -> None:
    record = {"reboot": True, "boot": "a/1"}
    good = host("26.1.0", "8.0.0.2.3")
    assert plan(good, record=record)["reboot"] is True
    assert plan({**good, "boot": "b/1"}, record=record)["reboot"] is False
    stale = host("26.1.0", "8.0.0.2.3")
    stale["ascend"]["cards"][0]["driver"] = "25.5.0"
    assert plan(stale)["reboot"] is True, "the cards run another driver than the one on disk"


WANTED = {
    "cards": 2,
    "driver": "26.1.0",
    "firmware": "8.0",
    "driver_fits": ["25.5.*", "26.1.*"],
    "hbm_idle_percent": 10,
}


def judged(probe: dict[str, Any], **wanted: Any) -> list[str]:
    return [entry["id"] for entry in site.card_problems("h", probe["ascend"], {**WANTED, **wanted})]


def test_a_driver_that_the_image_cannot_run_on_is_told_whatever_is_pinned() -> None:
    assert judged(host("25.0.1", "8.0"), driver="") == ["site-driver-unfit"]
    assert judged(host("26.1.7", "8.0"), driver="") == []
    assert judged(host("25.0.1", "8.0"), driver="25.0.1") == ["site-driver-pin", "site-driver-unfit"]


def test_what_an_installation_will_mend_is_no_problem_before_it_but_sick_and_busy_cards_are() -> None:
    assert judged(host("25.0.1", "7.5"), driver_later=True) == []
    assert judged(host(None, None), driver_later=True) == []
    sick = host("25.0.1", "7.5", holders={"/dev/davinci1": [77]})
    sick["ascend"]["cards"][0].update(health="Alarm", compatibility="NOK")
    assert judged(sick, driver_later=True) == ["site-card-busy", "site-card-health"]


def test_the_matrix_holds_the_image_and_leaves_out_what_the_vendor_leaves_out() -> None:
    matrix = load_ascend_manifest(MANIFESTS / "ascend.yaml").manifest
    cann = load_images_manifest(MANIFESTS / "images.yaml").manifest.base.cann
    assert cann is not None
    row = matrix.cann[cann]
    assert row.runs_on(row.tested_with) and row.runs_on("26.0.RC1") and row.runs_on("25.5.0")
    assert not row.runs_on("25.0.1") and not row.runs_on("24.1.0") and not row.runs_on("26.0.0")
    pinned = yaml.safe_load((CHECKOUT / "ansible/inventory.example/group_vars/trainers.yml").read_text())
    assert row.runs_on(pinned["site_check_driver"])
    assert site.driver_fits("26.0.RC1", list(row.drivers)), "the role judges as the manifest does"


def ports(octet: int, **changes: Any) -> dict[str, Any]:
    cards = [
        {"id": n, "address": f"10.20.{octet}.{n}", "configured": f"10.20.{octet}.{n}",
         "netmask": "255.255.0.0", "link": "UP", "health": "Success", "tls": "0",
         **(changes if n == 1 else {})}
        for n in (0, 1)
    ]  # fmt: skip
    pings = [{"card": n, "address": "x", "lost_percent": 0.0} for n in (0, 1)]
    return {
        "tool": "/t",
        "conf": {},
        "cards": cards,
        "tables": [],
        "pings": pings,
        "names": [f"192.0.2.{octet}"],
    }


@pytest.mark.parametrize(
    ("changes", "id", "words"),
    [
        ({"address": None}, "hccn-address", "card 1 has no address"),
        ({"configured": None}, "hccn-address", "/etc/hccn.conf says nothing of it"),
        ({"link": "DOWN"}, "hccn-link", "card 1: link is DOWN"),
        ({"health": "Fault"}, "hccn-health", "network health is Fault"),
        ({"tls": "1"}, "hccn-tls", "off on a card 0, a card 1, b card 0; on on b card 1"),
        (
            {"address": "10.20.1.0", "configured": "10.20.1.0"},
            "hccn-address-twice",
            "10.20.1.0 is given to 2 cards",
        ),
    ],
)
def test_each_fault_of_the_ports_is_named(changes: dict[str, Any], id: str, words: str) -> None:
    assert hccn.hccn_problems({"a": ports(1), "b": ports(2)}) == []
    found = hccn.hccn_problems({"a": ports(1), "b": ports(2, **changes)})
    assert [entry["id"] for entry in found] == [id] and words in found[0]["what"]


def test_health_that_was_never_configured_is_no_fault_and_a_lost_ping_is() -> None:
    good = ports(1, health="Init")
    assert hccn.hccn_problems({"a": good}) == []
    good["pings"][0]["lost_percent"] = None
    assert "does not reach x: no answer" in hccn.hccn_problems({"a": good})[0]["what"]


def test_every_card_pings_the_next_host_around_the_ring() -> None:
    facts = {name: ports(n) for n, name in enumerate("abc", 1)}
    assert hccn.ring_peers(["a", "b", "c"], "a", facts) == ["0=10.20.2.0", "1=10.20.2.1"]
    assert hccn.ring_peers(["a", "b", "c"], "c", facts) == ["0=10.20.1.0", "1=10.20.1.1"]


def test_a_rank_table_is_stale_when_a_server_or_an_address_is_not_todays(tmp_path: Path) -> None:
    table = {"version": "1.0", "status": "completed", "server_count": "2", "server_list": [
        {"server_id": f"192.0.2.{n}", "device": [{"device_id": "0", "device_ip": f"10.20.{n}.0"}]}
        for n in (1, 2)
    ]}  # fmt: skip
    (tmp_path / "root").mkdir()
    (tmp_path / "root/hccl_2s.json").write_text(json.dumps(table))
    (tmp_path / "root/hccl_other.json").write_text("{}")
    done = subprocess.run(
        [sys.executable, str(CHECKOUT / "ansible/roles/hccn/files/probe.py"), "0,1", "/root/hccl*.json"],
        env={**os.environ, "PROBE_ROOT": str(tmp_path)}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    seen = json.loads(done.stdout)
    assert seen["tool"] is None and [one["path"] for one in seen["tables"]] == ["/root/hccl_2s.json"]
    facts = {"a": {**ports(1), "tables": seen["tables"]}, "b": ports(2)}
    assert hccn.hccn_problems(facts) == []
    facts["b"]["cards"][0].update(address="10.20.2.9", configured="10.20.2.9")
    found = hccn.hccn_problems(facts)
    assert [entry["id"] for entry in found] == ["hccn-rank-table"]
    assert "card 0 of 192.0.2.2 is 10.20.2.9, there 10.20.2.0" in found[0]["what"]
    assert "192.0.2.2 is none of these hosts" in hccn.hccn_problems({"a": facts["a"]})[0]["what"]


def test_the_probe_reads_the_tools_words(tmp_path: Path) -> None:
    tools = tmp_path / "usr/local/Ascend/driver/tools"
    tools.mkdir(parents=True)
    (tools / "hccn_tool").write_text(
        "#!/bin/sh\ncase \"$3 $4\" in\n'-ip -g') echo ipaddr:10.0.0.1; echo netmask:255.255.255.0;;\n"
        "'-link -g') echo 'link status: DOWN';;\n"
        "'-net_health -g') echo 'net health status: Receive timeout';;\n"
        "'-tls -g') echo 'dev_id:0, tls switch[1](0:disable, 1:enable), tls preconfigured[0](..)';;\n"
        "'-ping -g') echo '3 packets transmitted, 2 received, 33.33% packet loss';;\nesac\n"
    )
    (tools / "hccn_tool").chmod(0o755)
    command = [sys.executable, str(CHECKOUT / "ansible/roles/hccn/files/probe.py")]
    environment = {**os.environ, "PROBE_ROOT": str(tmp_path)}
    seen = json.loads(
        subprocess.run([*command, "0"], env=environment, capture_output=True, check=True).stdout
    )
    assert seen["cards"] == [
        {"id": 0, "address": "10.0.0.1", "netmask": "255.255.255.0", "configured": None, "link": "DOWN",
         "health": "Receive timeout", "tls": "1"}
    ]  # fmt: skip
    pinged = subprocess.run(
        [*command, "--ping", "0=10.0.0.2"], env=environment, capture_output=True, check=True
    )
    assert json.loads(pinged.stdout)["pings"] == [{"card": 0, "address": "10.0.0.2", "lost_percent": 33.33}]


def test_a_container_gets_the_drivers_own_folder_and_every_source_is_of_the_right_kind() -> None:
    given = ascend.ascend_container(host())
    assert given["wrong"] == [] and "--device=/dev/davinci1" in given["options"]
    sources = [option.split("source=")[1].split(",")[0] for option in given["options"] if "source=" in option]
    assert "/usr/local/Ascend/driver" in sources and "/usr/local/Ascend" not in sources
    assert all(option.endswith(",readonly") for option in given["options"] if option.startswith("--mount"))
    spoilt = host()
    spoilt["kinds"].update(
        {"/etc/ascend_install.info": "folder", "/dev/hisi_hdc": None, "/etc/hccn.conf": None}
    )
    wrong = ascend.ascend_container(spoilt)["wrong"]
    assert wrong == [
        "/dev/hisi_hdc is not there, a device is needed",
        "/etc/ascend_install.info is folder, a file is needed",
    ]
    assert ascend.ascend_container(host(None, None)) == {"options": [], "wrong": []}


def engine_list() -> tuple[list[dict[str, Any]], list[str]]:
    manifest = load_packages_manifest(MANIFESTS / "packages/debian-12-x86_64.yaml").manifest
    defaults = yaml.safe_load((CHECKOUT / "ansible/roles/container_runtime/defaults/main.yml").read_text())
    return [package.model_dump() for package in manifest.packages], defaults["container_runtime_packages"]


def test_the_engine_comes_with_all_that_a_bare_host_lacks() -> None:
    listed, roots = engine_list()
    assert all(package["depends"] is not None for package in listed)
    # What apt itself resolved for docker.io on a bare Debian 12.
    apt = {
        *("docker.io", "containerd", "runc", "tini", "iptables", "netbase", "dmsetup", "libdevmapper1.02.1"),
        *("libip4tc2", "libip6tc2", "libxtables12", "libmnl0", "libnfnetlink0", "libnetfilter-conntrack3"),
        "libnftnl11",
    }
    assert sorted(packages.package_closure(listed, roots)) == sorted(apt)


def test_a_host_keeps_its_own_updates_and_the_engine_is_exact() -> None:
    listed = [
        {"name": "engine", "version": "2"},
        {"name": "lib", "version": "1"},
        {"name": "new", "version": "1"},
    ]
    there = {"engine": [{"version": "1"}], "lib": [{"version": "9"}]}
    assert [one["name"] for one in packages.packages_due(listed, there, ["engine"])] == ["engine", "new"]
    rpm = {"engine": [{"version": "18.09", "release": "4.oe", "epoch": 1}]}
    assert packages.packages_due([{"name": "engine", "version": "18.09-4.oe"}], rpm, ["engine"]) == []
    assert packages.packages_due([{"name": "engine", "version": "1:18.09-4.oe"}], rpm, ["engine"]) == []
    other = [{"name": "engine", "version": "2:18.09-4.oe"}]
    assert packages.packages_due(other, rpm, ["engine"]) == other


def test_what_the_list_replaces_is_due_and_a_hosts_own_update_is_not() -> None:
    listed = [{"name": "lib", "version": "2-1.oe", "replaces": "1-1.oe"}]
    for there, due in (("1", listed), ("2", []), ("3", [])):
        facts = {"lib": [{"version": there, "release": "1.oe", "epoch": None}]}
        assert packages.packages_due(listed, facts, ["engine"]) == due
    assert packages.packages_due(listed, {}, ["engine"]) == listed


def test_public_pools_of_chronys_settings_are_known_and_a_sites_own_server_is_not() -> None:
    tasks = yaml.safe_load((CHECKOUT / "ansible/roles/host_time/tasks/follow.yml").read_text())
    pattern = next(t for t in tasks if "ansible.builtin.replace" in t)["ansible.builtin.replace"]["regexp"]
    for line, public in (
        ("pool 2.debian.pool.ntp.org iburst", True),
        ("pool pool.ntp.org iburst", True),  # openEuler's
        ("  server 0.pool.ntp.org", True),
        ("pool ntp.site.example iburst", False),
        ("server mypool.ntp.org", False),
        ("#pool pool.ntp.org", False),
    ):
        assert bool(re.search(pattern, line, re.MULTILINE)) == public, line


def test_a_spoilt_or_missing_package_file_is_named_with_both_hashes(tmp_path: Path) -> None:
    (tmp_path / "a_1%3a2_all.deb").write_bytes(b"spoilt")
    pinned = hashlib.sha256(b"right").hexdigest()
    listed = [
        {"name": "a", "file": "a_1:2_all.deb", "sha256": pinned, "size": 5},
        {"name": "b", "file": "b_1_all.deb", "sha256": pinned, "size": 5},
    ]
    wrong = packages.packages_wrong(packages.listed_files(listed, [str(tmp_path / "a_1%3a2_all.deb")]))
    assert hashlib.sha256(b"spoilt").hexdigest() in wrong[0] and pinned in wrong[0] and "6 bytes" in wrong[0]
    assert wrong[1:] == ["b_1_all.deb is not in the bundle"]


def test_every_rooms_role_says_what_its_variables_are() -> None:
    for name in ("ascend_driver", "hccn", "verify", "site_check", "host_base", "container_runtime", "images"):
        role = CHECKOUT / "ansible/roles" / name
        defaults = yaml.safe_load((role / "defaults/main.yml").read_text())
        options = yaml.safe_load((role / "meta/argument_specs.yml").read_text())["argument_specs"]["main"][
            "options"
        ]
        assert set(defaults) <= set(options), name
        assert all(option["description"].strip() for option in options.values()), name


def test_the_sites_bundle_holds_what_its_hosts_need() -> None:
    manifest = load_bundle_manifest(MANIFESTS / "bundles/site-910b.yaml").manifest
    base = load_images_manifest(MANIFESTS / "images.yaml").manifest.base
    assert {image.machine for image in manifest.images} <= set(base.ids), "an image is built over the base's"
    for run in manifest.runs:
        image = yaml.safe_load((MANIFESTS / "bundles" / run).read_text())["device"]["image"]
        assert base.name.split("/", 1)[1] == image, "the run names the image that ours is built over"
    listed = {
        load_packages_manifest(MANIFESTS / "bundles" / file).manifest.host for file in manifest.packages
    }
    systems = yaml.safe_load((CHECKOUT / "ansible/roles/site_check/defaults/main.yml").read_text())
    assert set(systems["site_check_systems"]) <= listed, "site_check lets in what the bundle has packages for"
    kinds = {given.name for given in manifest.site}
    assert {"driver", "firmware"} <= kinds
    for given in manifest.site:
        if given.name in ("driver", "firmware"):
            found = driver.driver_packages([given.file.replace("*", "1.0")], "aarch64")
            assert len(found[given.name]) == 1, "the role finds it under the name that the bundle asks for"


@pytest.fixture(scope="session")
def torch() -> Any:
    return pytest.importorskip("torch")


def test_the_product_is_judged_by_what_bfloat16_allows(torch: Any) -> None:
    smoke = loaded("roles/verify/files/smoke.py")
    generator = torch.Generator().manual_seed(1)
    left, right = (torch.randn(64, 64, generator=generator).bfloat16() for _ in range(2))
    right_product = (left.double() @ right.double()).bfloat16()
    assert smoke.error_share(right_product, left, right) <= 0.5
    off = right_product.clone()
    off[3, 4] *= 1.02
    assert smoke.error_share(off, left, right) > 1
    off[3, 4] = float("nan")
    assert smoke.error_share(off, left, right) == float("inf")
