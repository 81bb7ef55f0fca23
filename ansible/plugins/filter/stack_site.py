"""Judges what hosts are against what the inventory wants: `probes | site_problems(wanted)`.

Everything is judged before anything is changed, and all problems are told at once.
"""

from __future__ import annotations

import fnmatch
from typing import Any

Problem = dict[str, str]
GB = 1e9
# What the modules of ansible-core 2.19 run on (its module_utils/basic.py); the probe itself runs on less.
MODULES_PYTHON = (3, 8)


def problem(id: str, where: str, what: str, do: str) -> Problem:
    return {"id": id, "where": where, "what": what, "do": do}


def skew_s(time_s: float, before_s: float, after_s: float) -> float:
    """Seconds that a host's clock is off at least; it was read between two looks at the controller's."""
    return time_s - before_s if time_s < before_s else max(0.0, time_s - after_s)


def host_problems(host: str, facts: dict[str, Any]) -> list[Problem]:
    """All that is wrong with one host.

    Args:
        facts: `probe`: what roles/site_check/files/probe.py printed; `wanted`: the role's variables without
            their prefix; `before_s`, `after_s`: the controller's clock around the probe, seconds since 1970.
    """
    probe, wanted = facts["probe"], facts["wanted"]
    found: list[Problem] = []

    def say(id: str, what: str, do: str) -> None:
        found.append(problem(id, host, what, do))

    system = f"{probe['os']}-{probe['os_version']}"
    if wanted["systems"] and system not in wanted["systems"]:
        say(
            "site-system",
            f"the system is {system}; the bundle has packages for {', '.join(wanted['systems'])}",
            "add a packages manifest for this system to the bundle, or take the host out of the inventory",
        )
    if probe["machine"] not in wanted["machines"]:
        say(
            "site-machine",
            f"the machine is {probe['machine']}; the bundle is for {', '.join(wanted['machines'])}",
            "make a bundle for this machine",
        )
    if tuple(int(part) for part in probe["python"].split(".")[:2]) < MODULES_PYTHON:
        say(
            "site-python",
            f"its Python is {probe['python']}; Ansible's modules need {'.'.join(map(str, MODULES_PYTHON))}",
            "take a newer release of the system; another interpreter (ansible_python_interpreter) must have "
            "the system's own rpm or apt module, too",
        )
    for path, free in sorted(probe["free_bytes"].items()):
        need = wanted["free_gb"].get(path, 0) * GB
        if free < need:
            say(
                "site-disk",
                f"{path} has {free / GB:.1f} GB free; {need / GB:.1f} GB are needed",
                "free some space, or point the variable to a larger disk",
            )
    for path, can in sorted(probe["writable"].items()):
        if can is False:
            say(
                "site-read-only",
                f"{path} is mounted read-only: nothing could be configured",
                "mount it writable",
            )
    if taken := sorted(set(wanted["free_ports"]) & set(probe["ports"])):
        say(
            "site-ports",
            f"ports in use that the training needs: {', '.join(map(str, taken))}",
            "stop what listens there (ss -ltnp), or choose other ports",
        )
    off_s = skew_s(probe["time_s"], float(facts["before_s"]), float(facts["after_s"]))
    if abs(off_s) > wanted["clock_skew_s"]:
        say(
            "site-clock",
            f"the clock is {off_s:+.0f} s off the controller's; {wanted['clock_skew_s']} s are allowed",
            "start time synchronisation on the host, against the same server as the controller",
        )
    if wanted["cards"]:
        found += card_problems(host, probe["ascend"], wanted)
    return found


def version_problems(host: str, ascend: dict[str, Any], wanted: dict[str, Any]) -> list[Problem]:
    """The inventory's pins, and what the image's CANN runs on."""
    found: list[Problem] = []
    for part in ("driver", "firmware"):
        want, got = wanted.get(part), ascend[part]
        if want and got != want:
            found.append(
                problem(
                    f"site-{part}-version",
                    host,
                    f"the {part} is {got or 'not installed'}; the inventory wants {want}",
                    f"install it (-e ascend_driver_install=true), or correct site_check_{part}",
                )
            )
    fits = wanted.get("driver_fits") or []
    if ascend["driver"] and fits and not driver_fits(ascend["driver"], fits):
        found.append(
            problem(
                "site-driver-unfit",
                host,
                f"the driver is {ascend['driver']}; the image's CANN runs on {', '.join(fits)}",
                "install one of these (-e ascend_driver_install=true), or use an image with another CANN",
            )
        )
    return found


def driver_fits(version: str, patterns: list[str]) -> bool:
    return any(fnmatch.fnmatchcase(version.lower(), pattern.lower()) for pattern in patterns)


def pin_problems(host: str, wanted: dict[str, Any]) -> list[Problem]:
    """The inventory's own pin against the matrix: it is wrong on every host alike."""
    fits, want = wanted.get("driver_fits") or [], wanted.get("driver")
    if not want or not fits or driver_fits(want, fits):
        return []
    return [
        problem(
            "site-driver-pin",
            host,
            f"the inventory wants driver {want}; the image's CANN runs on {', '.join(fits)}",
            "correct site_check_driver, or add the version to manifests/ascend.yaml if the vendor lists it",
        )
    ]


def card_problems(host: str, ascend: dict[str, Any], wanted: dict[str, Any]) -> list[Problem]:
    """Driver, firmware and cards of one trainer.

    With `driver_later` whatever a new driver puts right is no problem; sick and busy cards still are.
    """
    found = pin_problems(host, wanted)
    later = bool(wanted.get("driver_later"))

    def say(id: str, what: str, do: str) -> None:
        found.append(problem(id, host, what, do))

    if ascend["npu_smi"] is None:
        if not later:
            say(
                "site-no-driver",
                "npu-smi is not there: no driver is installed",
                "install driver and firmware (-e ascend_driver_install=true)",
            )
        return found + busy_problems(host, ascend)
    if not later:
        found += version_problems(host, ascend, wanted)
    if ascend["npu_smi_code"] != 0:
        if not later:
            say(
                "site-driver-silent",
                f"{ascend['npu_smi']} ends with exit code {ascend['npu_smi_code']}",
                "187 means that a container holds the cards or the driver is not loaded; see dmesg",
            )
        return found + busy_problems(host, ascend)
    if len(ascend["cards"]) != wanted["cards"] and not later:
        say(
            "site-cards",
            f"npu-smi lists {len(ascend['cards'])} cards; the inventory wants {wanted['cards']}",
            "look for a dropped card (lspci -d 19e5:), or correct site_check_cards",
        )
    if len(ascend["devices"]) != len(ascend["cards"]) and not later:
        say(
            "site-device-nodes",
            f"{len(ascend['cards'])} cards and {len(ascend['devices'])} device nodes /dev/davinci*",
            "load the driver again or reboot the host",
        )
    found += busy_problems(host, ascend)
    for card in ascend["cards"]:
        name = f"card {card['id']}"
        if card["health"] not in ("OK", None):
            say(
                "site-card-health",
                f"{name} says {card['health']}",
                f"npu-smi info -t health -i {card['id']} -c 0",
            )
        if card["compatibility"] in ("NOK",) and not later:
            say(
                "site-firmware-fit",
                f"{name}: firmware {card['firmware']} does not fit driver {card['driver']}",
                "install the firmware that was released with this driver (firmware first, then driver)",
            )
        used = card["hbm_used_percent"]
        if (
            used is not None
            and str(used).isdigit()
            and int(used) > wanted["hbm_idle_percent"]
            and not card["processes"]
            and not later
        ):
            say(
                "site-card-memory",
                f"{name} has {used} % of its memory in use and shows no process; up to "
                f"{wanted['hbm_idle_percent']} % is idle",
                "a container may hold it: docker ps, then npu-smi info -t proc-mem",
            )
    return found


def busy_problems(host: str, ascend: dict[str, Any]) -> list[Problem]:
    """Cards that somebody uses: the driver's word, and open device nodes, which hold a card just as well."""
    holders = {f"card {card['id']}": list(card["processes"]) for card in ascend["cards"]}
    for node, pids in ascend.get("holders", {}).items():
        name = f"card {node.rpartition('davinci')[2]}"
        holders[name] = sorted({*holders.get(name, []), *pids})
    return [
        problem(
            "site-card-busy",
            host,
            f"{name} is held by process {', '.join(map(str, pids))}",
            "let that job end, or stop it (ps -fp PID); a driver is never changed under it",
        )
        for name, pids in sorted(holders.items())
        if pids
    ]


def site_problems(hosts: dict[str, dict[str, Any]]) -> list[Problem]:
    """Problems of all hosts.

    Args:
        hosts: by name, what `host_problems` takes.
    """
    return [found for host, facts in sorted(hosts.items()) for found in host_problems(host, facts)]


def problems_text(problems: list[Problem], state: str = "nothing was changed") -> str:
    """For people, one paragraph a problem."""
    lines = [f"{len(problems)} problem{'s' if len(problems) > 1 else ''}; {state}."]
    for entry in problems:
        lines.append(f"error[{entry['id']}] {entry['where']}: {entry['what']}\n  do: {entry['do']}")
    return "\n".join(lines)


class FilterModule:
    def filters(self) -> dict[str, Any]:
        return {
            "site_problems": site_problems,
            "problems_text": problems_text,
            "card_problems": lambda ascend, host, wanted: card_problems(host, ascend, wanted),
        }
