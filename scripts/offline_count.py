"""Inside the container of offline_reproduce.sh: install, reproduce, and count attempts to leave.

Two counters, each shown to work first by an attempt of our own: the system calls that name an address outside
loopback (strace, all processes), and the kernel's own count of packets without a route (/proc/net/snmp).

    python3 offline_count.py RESULT.json        exit code: the first command's that failed; 1: attempts were made
"""

import ipaddress
import json
import re
import socket
import subprocess
import sys
import time
from pathlib import Path

STACK = "/opt/stack"
STEPS = {
    "install": ["sh", "/media/bundle/bundle-install.sh", "--to", STACK],
    "reproduce": ["make", "-C", f"{STACK}/checkout", "reproduce"],
    "again": ["make", "-C", f"{STACK}/checkout", "reproduce"],
}
CALLS = "connect,sendto,sendmsg,sendmmsg"
ADDRESS = re.compile(r'(?:inet_addr\("([^"]+)"\)|inet_pton\(AF_INET6, "([^"]+)")')
NOWHERE = ("192.0.2.1", 9)  # RFC 5737: an address for documentation


def without_route() -> int:
    """Packets that had no route: IPv4's OutNoRoutes and IPv6's."""
    names, values = [
        line.split() for line in Path("/proc/net/snmp").read_text().splitlines() if line[:3] == "Ip:"
    ]
    count = int(values[names.index("OutNoRoutes")])
    snmp6 = Path("/proc/net/snmp6")
    for line in snmp6.read_text().splitlines() if snmp6.exists() else ():
        name, value = line.split()
        count += int(value) if name == "Ip6OutNoRoutes" else 0
    return count


def attempts(trace: Path) -> list[str]:
    """Traced calls that name an address outside loopback."""
    found = []
    for line in trace.read_text(errors="replace").splitlines():
        for pair in ADDRESS.findall(line):
            address = ipaddress.ip_address(pair[0] or pair[1])
            if not (address.is_loopback or address.is_unspecified):
                found.append(line)
    return found


def traced(command: list[str], trace: Path) -> int:
    words = ["strace", "--seccomp-bpf", "-f", "-qq", "-e", f"trace={CALLS}", "-o", str(trace)]
    return subprocess.run([*words, *command]).returncode


def reach_out() -> None:
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
        with socket.socket(socket.AF_INET, kind) as try_:
            try_.settimeout(2)
            try:
                try_.connect(NOWHERE)
            except OSError as error:
                print(f"offline: our own attempt: {error}")


def main() -> int:
    scratch = Path(sys.argv[1]).parent
    before, trace = without_route(), scratch / "trace-self.txt"
    traced([sys.executable, __file__, "--reach-out"], trace)
    seen = (len(attempts(trace)), without_route() - before)
    print(f"offline: our own two attempts: {seen[0]} seen by strace, {seen[1]} by the kernel")
    if min(seen) < 2:
        print("offline: the counters do not count here; nothing can be said")
        return 3
    result: dict[str, object] = {"interfaces": sorted(name for _, name in socket.if_nameindex())}
    code, total = 0, 0
    for name, command in STEPS.items():
        before, trace, started_s = without_route(), scratch / f"trace-{name}.txt", time.monotonic()
        code = traced(command, trace)
        found, unrouted = attempts(trace), without_route() - before
        total += len(found) + unrouted
        took_s = round(time.monotonic() - started_s, 1)
        result[name] = {"exit": code, "seconds": took_s, "calls": found[:20], "without_route": unrouted}
        print(
            f"offline: {name}: exit code {code}, {took_s} s, {len(found)} calls and {unrouted} packets to leave"
        )
        if code != 0:
            break
    Path(sys.argv[1]).write_text(json.dumps({**result, "attempts": total}, indent=2, sort_keys=True) + "\n")
    return code or int(total > 0)


if __name__ == "__main__":
    if sys.argv[1:] == ["--reach-out"]:
        reach_out()
    else:
        sys.exit(main())
