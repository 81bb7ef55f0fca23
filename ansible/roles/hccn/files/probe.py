#!/usr/bin/env python3
"""What the cards' own network ports are, as one JSON object on stdout; or pings to pairs CARD=ADDRESS.

Reads only, never fails, needs Python 3.6. Source of the values: hccn_tool's queries, /etc/hccn.conf
(`address_N=`, `netmask_N=`) and rank tables (version 1.0: server_list, device, device_ip). PROBE_ROOT moves
all paths, for tests.
  probe.py CARDS PATTERN...      cards as `0,1,2`; patterns of files that may be rank tables
  probe.py --ping CARD=ADDRESS...
"""

import concurrent.futures
import glob
import json
import os
import re
import subprocess
import sys

ROOT = os.environ.get("PROBE_ROOT", "")
TOOLS = (
    "/usr/local/Ascend/driver/tools/hccn_tool",
    "/usr/local/bin/hccn_tool",
    "/usr/local/sbin/hccn_tool",
    "/usr/bin/hccn_tool",
)


def tool():
    return next((ROOT + place for place in TOOLS if os.path.isfile(ROOT + place)), None)


def ask(card, *query):
    """The tool's answer within twenty seconds, or an empty text."""
    try:
        done = subprocess.run(
            [tool(), "-i", str(card), *query],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=20,
            universal_newlines=True,  # noqa: UP021 (3.6)
        )
        return done.stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""


def first(pattern, text):
    match = re.search(pattern, text, re.IGNORECASE)
    return match.group(1).strip() if match else None


def conf():
    try:
        with open(ROOT + "/etc/hccn.conf", encoding="utf-8", errors="replace") as file:
            pairs = [line.partition("=") for line in file]
    except OSError:
        return None
    return {key.strip(): value.strip() for key, sep, value in pairs if sep}


def card_facts(card, settings):
    address = ask(card, "-ip", "-g")
    return {
        "id": card,
        "address": first(r"ipaddr:\s*([0-9a-f.:]+)", address),
        "netmask": first(r"netmask:\s*([0-9.]+)", address),
        "configured": (settings or {}).get(f"address_{card}"),
        "link": first(r"link status:\s*(\w+)", ask(card, "-link", "-g")),
        "health": first(r"net health status:\s*([^\n]+)", ask(card, "-net_health", "-g")),
        "tls": first(r"tls switch\[(\d)\]", ask(card, "-tls", "-g")),
    }


def rank_table(path):
    """Servers of a rank table with their cards' addresses; None for a file that is none."""
    try:
        with open(path, encoding="utf-8") as file:
            table = json.load(file)
        servers = [
            {
                "server": server["server_id"],
                "cards": {str(device["device_id"]): device["device_ip"] for device in server["device"]},
            }
            for server in table["server_list"]
        ]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return {"path": path[len(ROOT) :], "servers": servers}


def ping(pair):
    card, _, address = pair.partition("=")
    lost = first(r"([0-9.]+)% packet loss", ask(card, "-ping", "-g", "address", address))
    return {"card": int(card), "address": address, "lost_percent": None if lost is None else float(lost)}


def main():
    if sys.argv[1:2] == ["--ping"]:
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            print(json.dumps({"pings": list(pool.map(ping, sys.argv[2:]))}, sort_keys=True))
        return
    settings = conf()
    tables = [rank_table(path) for pattern in sys.argv[2:] for path in sorted(glob.glob(ROOT + pattern))]
    found = tool()
    print(
        json.dumps(
            {
                "tool": found[len(ROOT) :] if found else None,
                "conf": settings,
                "cards": [card_facts(int(card), settings) for card in sys.argv[1].split(",")]
                if found
                else [],
                "tables": [table for table in tables if table],
            },
            sort_keys=True,
        )
    )


if __name__ == "__main__":
    main()
