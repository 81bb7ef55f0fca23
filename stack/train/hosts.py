"""The hosts of one training, as environment variables name them; docs/training.md, "Several hosts"."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass

from stack.errors import BadRequest, NotAble

HOSTS, INDEX, FIRST = "STACK_HOSTS", "STACK_HOST_INDEX", "STACK_FIRST_HOST"
NET, MEET_S = "STACK_NET", "STACK_MEET_S"
FIRST_PORT = 29400  # the launchers' own; the next one is where torch's ranks meet
INTERFACE_VARIABLES = ("GLOO_SOCKET_IFNAME", "HCCL_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
_SIOCGIFADDR = 0x8915  # netdevice(7): an interface's IPv4 address


@dataclass(frozen=True)
class Hosts:
    """Attributes:
    index: this host's number, 0 the first.
    first, port: where the first host's launcher listens; torch's ranks meet at the port after it.
    net: the interface to the other hosts; None: the one that reaches the first.
    meet_s: seconds that all hosts may take to come.
    """

    count: int = 1
    index: int = 0
    first: str = "127.0.0.1"
    port: int = FIRST_PORT
    net: str | None = None
    meet_s: float = 600.0

    @property
    def is_first(self) -> bool:
        return self.index == 0

    def ranks_here(self, world: int) -> int:
        """How many of `world` ranks each host starts.

        Raises:
            BadRequest: they cannot be shared out evenly.
        """
        if world % self.count:
            raise BadRequest(
                "hosts-uneven",
                f"device.count is {world}, which {self.count} hosts ({HOSTS}) cannot share out evenly",
                do=f"set device.count to the devices of all hosts, or {HOSTS} to the hosts that there are",
            )
        return world // self.count

    def launcher_options(self) -> list[str]:
        """What torch's launcher is told of the hosts."""
        return [
            f"--nnodes={self.count}",
            f"--node-rank={self.index}",
            f"--master-addr={self.first}",
            f"--master-port={self.port + 1}",
        ]


def refuse_foreign_ranks(environment: Mapping[str, str], hosts: Hosts) -> None:
    """A launcher that starts this command several times would have each start all ranks.

    Kubernetes' and Slurm's set the same variables for a single process, and on several hosts, where ours say
    what is meant.

    Raises:
        BadRequest: the environment is that of one rank of several, and no hosts are named.
    """
    world = environment.get("WORLD_SIZE", "1")
    if hosts.count == 1 and world not in ("", "1"):
        raise BadRequest(
            "launched-as-a-rank",
            f"this is started as rank {environment.get('RANK', '?')} of {world} by another launcher (RANK, "
            f"WORLD_SIZE), and starts its ranks itself",
            do=f"start it once a host, without that launcher, and on several hosts set {HOSTS}, {INDEX} and "
            f"{FIRST}; or unset WORLD_SIZE",
        )


def hosts_from(environment: Mapping[str, str]) -> Hosts:
    """The hosts that the variables name; one where they name none.

    Raises:
        BadRequest: a variable is missing, or is no such number.
    """
    count = _number(environment, HOSTS, 1, least=1)
    if count == 1:
        return Hosts()
    for name in (INDEX, FIRST):
        if not environment.get(name):
            raise BadRequest(
                "hosts-incomplete",
                f"{HOSTS} is {count}, and {name} is not given",
                do=f"set {INDEX} to this host's number from 0, and {FIRST} to the address of host 0",
            )
    index = _number(environment, INDEX, 0, least=0)
    if index >= count:
        raise BadRequest("hosts-incomplete", f"{INDEX} is {index}, and {count} hosts count from 0")
    first, port = _address(environment[FIRST])
    return Hosts(
        count, index, first, port, environment.get(NET) or None, _number(environment, MEET_S, 600, 1)
    )


def interface_to(hosts: Hosts) -> str | None:
    """The interface that reaches the first host, or that has its address; None where none is found.

    Collective backends look up their own host's name instead, which on many systems is 127.0.1.1.
    """
    if hosts.net is not None:
        return hosts.net
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((hosts.first, hosts.port))  # a datagram socket sends nothing by that
            own = probe.getsockname()[0]
    except OSError:
        return None
    for _, name in socket.if_nameindex():
        if _address_of(name) == own:
            return name
    return "lo" if own.startswith("127.") else None


def check_interface(hosts: Hosts) -> None:
    """Raises NotAble where the interface that was named is not there."""
    known = [name for _, name in socket.if_nameindex()]
    if hosts.net is not None and hosts.net not in known:
        raise NotAble(
            "interface-missing",
            f"{NET} is '{hosts.net}', and this host has {', '.join(known)}",
            do=f"set {NET} (train_job_interface in an inventory) to one of them, or leave it out",
        )


def _address_of(interface: str) -> str | None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, contextlib.suppress(OSError):
        request = struct.pack("256s", os.fsencode(interface)[:15])
        return socket.inet_ntoa(fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)[20:24])
    return None


def _address(text: str) -> tuple[str, int]:
    host, colon, port = text.partition(":")
    if not host or (colon and not (port.isdigit() and 0 < int(port) < 65535)):
        raise BadRequest("hosts-incomplete", f"{FIRST} is '{text}', which is no ADDRESS or ADDRESS:PORT")
    return host, int(port) if colon else FIRST_PORT


def _number(environment: Mapping[str, str], name: str, default: int, least: int) -> int:
    text = environment.get(name, "").strip()
    if not text:
        return default
    if not text.isdigit() or int(text) < least:
        raise BadRequest("hosts-incomplete", f"{name} is '{text}', and must be a whole number from {least}")
    return int(text)
