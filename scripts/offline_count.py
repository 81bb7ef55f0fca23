"""Run a command and count its attempts to leave this machine, where there is no network to leave by.

    python3 offline_count.py RESULT.json NAME -- COMMAND...

Two counters, each shown to work first by an attempt of our own: the system calls that name an address outside
loopback (strace over all processes), and the kernel's own count of packets without a route (/proc/net/snmp).
The second counts this network namespace alone, so that the command must have one of its own:
`unshare -n`, or a container with `--network none`. What was counted is added to RESULT.json under NAME.

Exit code: the command's; 1 where it succeeded and attempts were made; 3 where nothing can be counted.
"""

import ipaddress
import json
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

CALLS = "connect,sendto,sendmsg,sendmmsg"
ADDRESS = re.compile(r'(?:inet_addr\("([^"]+)"\)|inet_pton\(AF_INET6, "([^"]+)")')
NAME_SERVER = re.compile(r"sin6?_port=htons\(53\)")
NOWHERE = ("192.0.2.1", 9)  # RFC 5737: an address for documentation
SHOWN = 20


def without_route() -> int:
    """Packets that had no route: IPv4's OutNoRoutes and IPv6's."""
    rows = [row.split() for row in Path("/proc/net/snmp").read_text().splitlines() if row.startswith("Ip:")]
    count = int(rows[1][rows[0].index("OutNoRoutes")])
    snmp6 = Path("/proc/net/snmp6")
    for row in snmp6.read_text().splitlines() if snmp6.exists() else ():
        name, value = row.split()
        count += int(value) if name == "Ip6OutNoRoutes" else 0
    return count


def attempts(trace: Path) -> list[str]:
    """Traced calls that name an address outside loopback, or ask a name server wherever it is."""
    found = []
    for line in trace.read_text(errors="replace").splitlines():
        for pair in ADDRESS.findall(line):
            address = ipaddress.ip_address(pair[0] or pair[1])
            is_here = address.is_loopback or address.is_unspecified
            if not is_here or NAME_SERVER.search(line):
                found.append(line)
    return found


def counted(command: list[str]) -> tuple[int, list[str], int]:
    """Exit code, calls that name an address elsewhere, packets without a route."""
    before = without_route()
    with tempfile.NamedTemporaryFile(prefix="offline-", suffix=".trace") as trace:
        words = ["strace", "--seccomp-bpf", "-f", "-qq", "-e", f"trace={CALLS}", "-o", trace.name]
        code = subprocess.run([*words, *command]).returncode
        return code, attempts(Path(trace.name)), without_route() - before


def reach_out() -> None:
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
        with socket.socket(socket.AF_INET, kind) as one:
            one.settimeout(2)
            try:
                one.connect(NOWHERE)
            except OSError as error:
                say(f"our own attempt: {error}")


def say(text: str) -> None:
    print(f"offline: {text}", file=sys.stderr, flush=True)


def main(result: Path, name: str, command: list[str]) -> int:
    if shutil.which("strace") is None:
        say("strace is not installed; nothing can be counted")
        return 3
    _, calls, packets = counted([sys.executable, __file__, "--reach-out"])
    say(f"our own two attempts: {len(calls)} seen by strace, {packets} by the kernel")
    if min(len(calls), packets) < 2:
        say("the counters do not count here; nothing can be said")
        return 3
    started_s = time.monotonic()
    code, calls, packets = counted(command)
    took_s = round(time.monotonic() - started_s, 1)
    say(f"{name}: exit code {code}, {took_s} s, {len(calls)} calls and {packets} packets to leave")
    all_found = json.loads(result.read_text()) if result.exists() else {}
    all_found[name] = {
        "exit": code,
        "seconds": took_s,
        "interfaces": sorted(interface for _, interface in socket.if_nameindex()),
        "calls": len(calls),
        "first_calls": calls[:SHOWN],
        "packets_without_route": packets,
    }
    result.write_text(json.dumps(all_found, indent=2, sort_keys=True) + "\n")
    return code or int(bool(calls or packets))


if __name__ == "__main__":
    if sys.argv[1:] == ["--reach-out"]:
        reach_out()
    elif len(sys.argv) > 4 and sys.argv[3] == "--":
        sys.exit(main(Path(sys.argv[1]), sys.argv[2], sys.argv[4:]))
    else:
        print(__doc__, file=sys.stderr)
        sys.exit(2)
