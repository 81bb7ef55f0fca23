"""The guard on sockets, each time in a process of its own: an audit hook cannot be taken away."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from stack.train.offline import is_inside


def guarded(tmp_path: Path, code: str) -> tuple[str, list[str]]:
    record = tmp_path / "outside.txt"
    lead = f"""
    import socket, sys
    from pathlib import Path
    from stack.train.offline import OutsideConnection, install_guard
    install_guard(Path({str(record)!r}), allow=["10.1.2.3"])
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(lead) + textwrap.dedent(code)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip(), record.read_text().splitlines() if record.exists() else []


@pytest.mark.parametrize(
    ("attempt", "said"),
    [
        ("socket.create_connection(('192.0.2.1', 80), timeout=1)", "socket.getaddrinfo 192.0.2.1"),
        ("socket.socket().connect(('192.0.2.1', 80))", "socket.connect 192.0.2.1"),
        ("socket.socket().connect_ex(('192.0.2.1', 80))", "socket.connect 192.0.2.1"),
        ("socket.getaddrinfo('models.example', 443)", "socket.getaddrinfo models.example"),
        ("socket.gethostbyname('models.example')", "socket.gethostbyname models.example"),
        (
            "socket.socket(socket.AF_INET6, socket.SOCK_DGRAM).sendto(b'', ('2001:db8::1', 53))",
            "socket.sendto 2001:db8::1",
        ),
        ("__import__('urllib.request').request.urlopen('http://192.0.2.1/')", "socket.getaddrinfo 192.0.2.1"),
    ],
)
def test_the_way_out_is_closed_and_recorded(tmp_path: Path, attempt: str, said: str) -> None:
    code = f"""
    try:
        {attempt}
    except OSError as error:
        print("refused" if "never leaves this machine" in str(error) else error)
    """
    assert guarded(tmp_path, code) == ("refused", [said])


def test_loopback_stays_open(tmp_path: Path) -> None:
    code = """
    server = socket.create_server(("127.0.0.1", 0))
    client = socket.create_connection(("localhost", server.getsockname()[1]))
    client.sendall(b"hello"); print(server.accept()[0].recv(5).decode())
    one, two = socket.socketpair()
    one.send(b"x")
    """
    assert guarded(tmp_path, code) == ("hello", [])


def test_children_by_fork_are_guarded_too(tmp_path: Path) -> None:
    code = """
    import os
    child = os.fork()
    if child == 0:
        try:
            socket.socket().connect(("192.0.2.7", 80))
        except OutsideConnection:
            os._exit(7)
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    """
    assert guarded(tmp_path, code) == ("7", ["socket.connect 192.0.2.7"])


@pytest.mark.parametrize(
    ("host", "inside"),
    [
        ("127.0.0.1", True),
        ("127.8.8.8", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("0.0.0.0", True),
        ("10.0.0.1", False),
        ("::ffff:10.0.0.1", False),
        ("fe80::1%eth0", False),
        ("models.example", False),
    ],
)
def test_what_is_inside(host: str, inside: bool) -> None:
    assert is_inside(host) is inside
    assert is_inside(host, {host})
