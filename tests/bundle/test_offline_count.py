"""The counter of attempts counts: lines of strace by its documented form, and a real attempt."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "offline_count.py"
HERE = """\
1 connect(3, {sa_family=AF_INET, sin_port=htons(5000), sin_addr=inet_addr("127.0.0.1")}, 16) = 0
1 connect(4, {sa_family=AF_UNIX, sun_path="/run/nscd/socket"}, 110) = -1 ENOENT (No such file or directory)
1 sendto(5, [{nlmsg_len=20, nlmsg_type=RTM_GETADDR}], 20, 0, {sa_family=AF_NETLINK, nl_pid=0}, 12) = 20
1 connect(6, {sa_family=AF_INET6, sin6_port=htons(80), inet_pton(AF_INET6, "::1", &sin6_addr)}, 28) = 0
"""
AWAY = """\
1 connect(3, {sa_family=AF_INET, sin_port=htons(443), sin_addr=inet_addr("198.51.100.7")}, 16) = -1
1 sendto(3, "x", 1, 0, {sa_family=AF_INET6, inet_pton(AF_INET6, "2001:db8::1", &sin6_addr)}, 28) = -1
1 connect(3, {sa_family=AF_INET, sin_port=htons(53), sin_addr=inet_addr("127.0.0.11")}, 16) = 0
1 connect(3, {sa_family=AF_INET, sin_port=htons(53), sin_addr=inet_addr("10.0.0.2")}, 16) = 0
"""


def test_lines_that_leave(tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location("offline_count", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    (tmp_path / "trace").write_text(HERE + AWAY)
    assert module.attempts(tmp_path / "trace") == AWAY.splitlines()


@pytest.mark.skipif(
    os.geteuid() != 0 or not all(map(shutil.which, ("strace", "unshare"))),
    reason="counting attempts needs root, unshare and strace",
)
@pytest.mark.parametrize(
    ("code", "exit"), [("print(1)", 0), ("socket.socket(2, 2).connect(('192.0.2.9', 5))", 1)]
)
def test_real_command(code: str, exit: int, tmp_path: Path) -> None:
    words = f"import socket\ntry:\n    {code}\nexcept OSError:\n    pass"
    command = [
        sys.executable,
        str(SCRIPT),
        str(tmp_path / "out.json"),
        "it",
        "--",
        sys.executable,
        "-c",
        words,
    ]
    done = subprocess.run(["unshare", "-n", *command], capture_output=True, text=True)
    assert done.returncode == exit, done.stderr
    found = json.loads((tmp_path / "out.json").read_text())["it"]
    assert (found["calls"], found["packets_without_route"], found["exit"]) == (exit, exit, 0)
