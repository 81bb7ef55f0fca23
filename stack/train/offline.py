"""Nothing leaves this machine: offline switches for libraries, and a guard that stops what they miss."""

from __future__ import annotations

import ipaddress
import os
import socket
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

# The switches are read when the libraries are imported, hence by the launcher, before the child starts.
OFFLINE_ENV: Mapping[str, str] = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "DO_NOT_TRACK": "1",
    "WANDB_MODE": "disabled",
    "TOKENIZERS_PARALLELISM": "false",
}
_CONNECTING = ("socket.connect", "socket.sendto", "socket.sendmsg")
_RESOLVING = ("socket.getaddrinfo", "socket.gethostbyname", "socket.gethostbyaddr")


class OutsideConnection(OSError):
    """Something tried to leave this machine during training."""


def install_guard(record: Path, allow: Iterable[str] = ()) -> None:
    """Refuse, for the rest of this process, every connection and name look-up beyond loopback.

    It is an audit hook of the interpreter, so that no library and no later patch goes around it; children
    made by fork inherit it. Code that opens sockets without Python (collective backends) is not seen.

    Args:
        record: a file that gets one line for each attempt.
        allow: further hosts or addresses, such as the rendezvous host of a training on several machines.
    """
    allowed = {"", "localhost", socket.gethostname(), *allow}

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event in _CONNECTING:
            address = arguments[1]
            host = address[0] if isinstance(address, tuple) else None
        elif event in _RESOLVING:
            host = arguments[0]
        else:
            return
        if host is None or is_inside(_text(host), allowed):
            return
        _append(record, f"{event} {_text(host)}\n")
        raise OutsideConnection(f"{event} to {_text(host)} refused: training never leaves this machine")

    sys.addaudithook(hook)


def is_inside(host: str, allowed: Iterable[str] = ()) -> bool:
    """Whether a host is this machine itself, or allowed."""
    if host in allowed:
        return True
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback or address.is_unspecified)


def attempts(record: Path) -> list[str]:
    """What the guard refused so far."""
    return record.read_text().splitlines() if record.exists() else []


def _text(host: Any) -> str:
    return host.decode(errors="replace") if isinstance(host, (bytes, bytearray)) else str(host)


def _append(record: Path, line: str) -> None:
    file = os.open(record, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        os.write(file, line.encode())
    finally:
        os.close(file)
