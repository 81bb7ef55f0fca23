"""Judges the cards' network of several hosts together: `facts | hccn_problems`."""

from __future__ import annotations

import ipaddress
from collections import defaultdict
from typing import Any

Problem = dict[str, str]
Facts = dict[str, dict[str, Any]]


def problem(id: str, where: str, what: str, do: str) -> Problem:
    return {"id": id, "where": where, "what": what, "do": do}


def ring_peers(hosts: list[str], host: str, facts: Facts) -> list[str]:
    """`CARD=ADDRESS` of the next host's cards, card by card: every port sends and receives once.

    Args:
        hosts: in one order on all hosts.
    """
    peer = hosts[(hosts.index(host) + 1) % len(hosts)]
    mine = {card["id"] for card in facts[host]["cards"]}
    return [
        f"{card['id']}={card['address']}"
        for card in facts[peer]["cards"]
        if peer != host and card["id"] in mine and card["address"]
    ]


def hccn_problems(facts: Facts) -> list[Problem]:
    """Problems of all hosts.

    Args:
        facts: by host, what roles/hccn/files/probe.py printed, with `pings` and `names`, its addresses.
    """
    found = []
    for host, seen in sorted(facts.items()):
        found += _host_problems(host, seen)
    return found + _doubled(facts) + _mixed_tls(facts) + _stale_tables(facts)


def _host_problems(host: str, seen: dict[str, Any]) -> list[Problem]:
    if seen["tool"] is None:
        return [
            problem(
                "hccn-no-tool",
                host,
                "hccn_tool is not there",
                "install the driver (-e ascend_driver_install=true)",
            )
        ]
    found = []
    for card in seen["cards"]:
        found += _card_problems(host, card)
    for ping in seen.get("pings", []):
        if ping["lost_percent"] != 0:
            lost = "no answer" if ping["lost_percent"] is None else f"{ping['lost_percent']:g} % lost"
            found.append(
                problem(
                    "hccn-ping",
                    host,
                    f"card {ping['card']} does not reach {ping['address']}: {lost}",
                    "look at both ports (hccn_tool -i N -link -g), their VLAN and their netmask",
                )
            )
    return found


def _card_problems(host: str, card: dict[str, Any]) -> list[Problem]:
    name, found = f"card {card['id']}", []
    if card["address"] is None:
        what = f"{name} has no address; /etc/hccn.conf says {card['configured'] or 'nothing of it'}"
        do = f"hccn_tool -i {card['id']} -ip -s address ADDRESS netmask MASK, as the site's plan has it"
        found.append(problem("hccn-address", host, what, do))
    elif card["configured"] != card["address"]:
        what = f"{name} has {card['address']}; /etc/hccn.conf says {card['configured'] or 'nothing of it'}"
        do = "set it again with hccn_tool, which writes the file too: after the next boot the file counts"
        found.append(problem("hccn-address", host, what, do))
    if card["link"] != "UP":
        do = f"look at cable, transceiver and switch (hccn_tool -i {card['id']} -optical -g)"
        found.append(problem("hccn-link", host, f"{name}: link is {card['link'] or 'unknown'}", do))
    # Init: detection was never configured, which says nothing about the link.
    if card["health"] not in ("Success", "Init"):
        do = f"look at the address that it detects (hccn_tool -i {card['id']} -netdetect -g) and the gateway"
        found.append(
            problem("hccn-health", host, f"{name}: network health is {card['health'] or 'unknown'}", do)
        )
    return found


def _doubled(facts: Facts) -> list[Problem]:
    owners = defaultdict(list)
    for host, seen in sorted(facts.items()):
        for card in seen["cards"]:
            if card["address"]:
                owners[str(ipaddress.ip_address(card["address"]))].append(f"{host} card {card['id']}")
    return [
        problem(
            "hccn-address-twice",
            ", ".join(names),
            f"{address} is given to {len(names)} cards",
            "give each its own",
        )
        for address, names in owners.items()
        if len(names) > 1
    ]


def _mixed_tls(facts: Facts) -> list[Problem]:
    """Ranks with different switches refuse each other, with a message that does not name the cause."""
    states: dict[str, list[str]] = defaultdict(list)
    for host, seen in sorted(facts.items()):
        for card in seen["cards"]:
            states[{"0": "off", "1": "on"}.get(card["tls"], "unknown")].append(f"{host} card {card['id']}")
    if len(states) < 2:
        return []
    what = "; ".join(f"{state} on {', '.join(names)}" for state, names in sorted(states.items()))
    do = "make it equal on all cards: for each, hccn_tool -i N -tls -s enable 0"
    return [problem("hccn-tls", "all hosts", f"the TLS switch differs: {what}", do)]


def _stale_tables(facts: Facts) -> list[Problem]:
    """Rank tables on hosts whose servers or addresses are not those of today."""
    now = {
        name: {str(card["id"]): card["address"] for card in seen["cards"]}
        for seen in facts.values()
        for name in seen["names"]
    }
    found = []
    for host, seen in sorted(facts.items()):
        for table in seen["tables"]:
            wrong = []
            for server in table["servers"]:
                if server["server"] not in now:
                    wrong.append(f"server {server['server']} is none of these hosts")
                    continue
                for card, address in sorted(server["cards"].items()):
                    real = now[server["server"]].get(card)
                    if real != address:
                        wrong.append(
                            f"card {card} of {server['server']} is {real or 'not there'}, there {address}"
                        )
            if wrong:
                do = "remove it, or make it anew; trainings here need none (leave RANK_TABLE_FILE unset)"
                found.append(
                    problem("hccn-rank-table", host, f"{table['path']} is stale: {'; '.join(wrong)}", do)
                )
    return found


class FilterModule:
    def filters(self) -> dict[str, Any]:
        return {
            "hccn_problems": hccn_problems,
            "ring_peers": lambda hosts, host, facts: ring_peers(hosts, host, facts),
        }
