"""What has to be done to a host's driver and firmware: `probe | driver_plan(wanted)`.

Order as the vendor's guide has it: driver, then firmware on a host without either; firmware, then driver
on one that has them.
"""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import Any

Plan = dict[str, Any]
PARTS = ("driver", "firmware")
# Ascend-hdk-910b-npu-driver_25.5.0_linux-aarch64.run, Ascend-hdk-910b-npu-firmware_7.8.0.1.220.run
PACKAGE = re.compile(
    r"-(?P<part>driver|firmware)_(?P<version>[^_]+?)(?:_linux-(?P<machine>[a-z0-9_]+))?\.run$"
)
# What the installer says of its effect; the words differ between versions, these are in all of them.
NEEDS_REBOOT = re.compile(r"reboot (needed|now|the system)", re.IGNORECASE)
IN_EFFECT = re.compile(r"takes effect immediately", re.IGNORECASE)


def version_key(version: str) -> tuple[tuple[int, int], ...]:
    """Orders versions; a release candidate comes before its release: 26.0.rc1 < 26.0.0."""
    key = []
    for word in re.findall(r"\d+|[a-z]+", version.lower()):
        key.append((1, int(word)) if word.isdigit() else (0, 0))
    return tuple(key)


def driver_packages(paths: list[str], machine: str) -> dict[str, list[dict[str, str]]]:
    """Installers of a bundle that are for `machine`: `{part: [{path, version}]}`."""
    found: dict[str, list[dict[str, str]]] = {part: [] for part in PARTS}
    for path in sorted(paths):
        match = PACKAGE.search(PurePosixPath(path).name)
        if match and match["machine"] in (None, machine):
            found[match["part"]].append({"path": path, "version": match["version"]})
    return found


def driver_plan(probe: dict[str, Any], wanted: dict[str, Any]) -> Plan:
    """Steps and problems; with a problem there is no step.

    Args:
        probe: what site_check's probe printed.
        wanted: `driver`, `firmware`: versions, empty for any; `install`: whether the operator asked for it;
            `packages`: from `driver_packages`; `kernels`: kernels that the driver package brings modules for;
            `record`: what the last installation left on the host, or nothing.

    Returns:
        `{problems: [{id, what, do}], steps: [{part, version, path, mode}], reboot: bool}`; `reboot`: what is
        installed takes effect with the next boot only.
    """
    ascend = probe["ascend"]
    due = [part for part in PARTS if wanted[part] and ascend[part] != wanted[part]]
    incomplete = ascend["driver"] is not None and ascend["install_status"] not in ("complete", None)
    fresh = ascend["driver"] is None or incomplete
    if incomplete and "driver" not in due:
        due = ["driver", *due]
    problems = _problems(probe, wanted, due, incomplete)
    order = PARTS if fresh else tuple(reversed(PARTS))
    steps = [
        {
            "part": part,
            **wanted["packages"][part][0],
            "mode": "--full" if fresh or ascend[part] is None else "--upgrade",
        }
        for part in order
        if part in due and not problems
    ]
    return {"problems": problems, "steps": steps, "reboot": reboot_pending(probe, wanted.get("record") or {})}


def reboot_pending(probe: dict[str, Any], record: dict[str, Any]) -> bool:
    """Whether what is installed waits for a boot: the installer said so and none has been since, or the cards
    run another driver than the one on disk."""
    ascend = probe["ascend"]
    loaded = {card["driver"] for card in ascend["cards"]} - {None}
    if ascend["driver"] is not None and loaded - {ascend["driver"]}:
        return True
    return bool(record.get("reboot")) and record.get("boot") == probe["boot"]


def reboot_said(output: str) -> bool:
    """Whether an installer's output asks for a reboot; silence does: a driver must never be half in use."""
    return bool(NEEDS_REBOOT.search(output)) or not IN_EFFECT.search(output)


def _problems(
    probe: dict[str, Any], wanted: dict[str, Any], due: list[str], incomplete: bool
) -> list[dict[str, str]]:
    ascend = probe["ascend"]
    found: list[dict[str, str]] = []

    def say(id: str, what: str, do: str) -> None:
        found.append({"id": id, "what": what, "do": do})

    if not due:
        return found
    if not wanted["install"]:
        for part in due:
            state = (
                "was not installed to its end" if incomplete and part == "driver" else f"is {ascend[part]}"
            )
            say(
                f"driver-{part}",
                f"the {part} {state}; wanted is {wanted[part] or 'a complete one'}",
                "ask for it with -e ascend_driver_install=true, at a time when the host may be rebooted",
            )
        return found
    for part in due:
        found += _package_problems(probe, wanted, part)
    holders = {node: pids for node, pids in ascend.get("holders", {}).items() if pids}
    busy = [f"card {card['id']} by {card['processes']}" for card in ascend["cards"] if card["processes"]]
    busy += [f"{node} by {pids}" for node, pids in holders.items()]
    if busy:
        say(
            "driver-cards-busy",
            f"processes hold cards: {', '.join(busy)}",
            "let them end, or stop them; a driver is never changed under a process",
        )
    if "driver" in due:
        found += _kernel_problems(probe["kernels"], wanted["kernels"])
    return found


def _package_problems(probe: dict[str, Any], wanted: dict[str, Any], part: str) -> list[dict[str, str]]:
    packages, want, got = wanted["packages"][part], wanted[part], probe["ascend"][part]
    if len(packages) != 1:
        what = f"the bundle has {len(packages)} {part} installers for {probe['machine']}; one is needed"
        return [{"id": "driver-package", "what": what, "do": "put exactly one into the bundle's site/hdk"}]
    version = packages[0]["version"]
    if want and version != want:
        what = f"{packages[0]['path']} is version {version}; the inventory wants {want}"
        return [
            {
                "id": "driver-package",
                "what": what,
                "do": "carry the wanted one over, or correct the inventory",
            }
        ]
    if got and version_key(version) < version_key(got):
        what = f"the host has {part} {got}; {version} would be a step back"
        do = "uninstall it by hand as the vendor's guide says (the .run with --uninstall), reboot, run again"
        return [{"id": "driver-downgrade", "what": what, "do": do}]
    return []


def _kernel_problems(kernels: dict[str, Any], listed: list[str]) -> list[dict[str, str]]:
    """The installer makes modules for the running kernel alone, or brings them for kernels that it knows."""
    found = []
    running = kernels["running"]
    builds = kernels["headers"] and {"dkms", "gcc"} <= set(kernels["tools"])
    if running not in listed and not builds:
        missing = [name for name in ("dkms", "gcc") if name not in kernels["tools"]]
        missing += [] if kernels["headers"] else [f"headers of {running}"]
        what = f"no module can be had for the running kernel {running}: not there are {', '.join(missing)}"
        do = "install them, or put the kernel into ascend_driver_kernels if the package brings its modules"
        found.append({"id": "driver-kernel", "what": what, "do": do})
    later = [name for name in kernels["installed"] if version_key(name) > version_key(running)]
    if later and not builds:
        what = f"kernel {', '.join(later)} would boot next, without a driver; running is {running}"
        do = "boot it first, or remove it, and hold kernel updates back"
        found.append({"id": "driver-kernel-next", "what": what, "do": do})
    return found


def plan_text(plan: Plan, host: str) -> str:
    """A plan's problems for people, one paragraph each."""
    lines = ["driver and firmware were not touched."]
    for entry in plan["problems"]:
        lines.append(f"error[{entry['id']}] {host}: {entry['what']}\n  do: {entry['do']}")
    return "\n".join(lines)


class FilterModule:
    def filters(self) -> dict[str, Any]:
        return {
            "driver_packages": driver_packages,
            "driver_plan": driver_plan,
            "plan_text": plan_text,
            "reboot_said": reboot_said,
        }
