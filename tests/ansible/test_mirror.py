"""Fetching by hash from an inside server, against a server of real files that can misbehave."""

from __future__ import annotations

import hashlib
import http.server
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from stack.files import tree_digest

CHECKOUT = Path(__file__).parents[2]
ITEMS = CHECKOUT / "ansible/roles/mirror/files/items.py"


def module(file: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None and spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


words = module(CHECKOUT / "ansible/plugins/filter/stack_items.py")


class Server(http.server.ThreadingHTTPServer):
    """Serves a folder with ranges; `cut_at` ends a connection early, `slow_s` waits between blocks."""

    root: Path
    cut_at: int | None = None
    slow_s = 0.0
    asked: list[tuple[str, int]]
    sent_bytes = 0


class Handler(http.server.BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        file = self.server.root / self.path.lstrip("/")
        if not file.is_file():
            self.send_error(404)
            return
        data, start = file.read_bytes(), 0
        if given := self.headers.get("Range"):
            start = int(given.removeprefix("bytes=").removesuffix("-"))
        self.server.asked.append((self.path.lstrip("/"), start))
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(data) - start))
        self.end_headers()
        end, self.server.cut_at = self.server.cut_at or len(data), None
        for at in range(start, min(end, len(data)), 65536):
            block = data[at : min(at + 65536, end)]
            self.wfile.write(block)
            self.server.sent_bytes += len(block)
            time.sleep(self.server.slow_s)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    serving = Server(("127.0.0.1", 0), Handler)
    serving.root, serving.asked = tmp_path / "served", []
    (serving.root / "set/deep").mkdir(parents=True)
    (serving.root / "set/a.bin").write_bytes(os.urandom(400_000))
    (serving.root / "set/deep/b.txt").write_bytes(b"b")
    (serving.root / "set/empty").touch()
    thread = threading.Thread(target=serving.serve_forever, daemon=True)
    thread.start()
    yield serving
    serving.shutdown()
    serving.server_close()


def listed(folder: Path, to: Path) -> Path:
    """The list of a folder, worked out here."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    items = [
        {
            "path": file.relative_to(folder).as_posix(),
            "from": file.relative_to(folder.parent).as_posix(),
            "size": file.stat().st_size,
            "sha256": hashlib.sha256(file.read_bytes()).hexdigest(),
        }
        for file in files
    ]
    to.write_text(json.dumps({"items": items}))
    return to


class Host:
    """A host that fetches the set."""

    def __init__(self, folder: Path, server: Server) -> None:
        self.to, self.record = folder / "host/set", folder / "host/record.json"
        self.list = listed(server.root / "set", folder / "list.json")
        self.url = f"http://127.0.0.1:{server.server_port}"

    def command(self, *more: str) -> list[str]:
        to = ["--to", str(self.to), "--record", str(self.record), "--from", self.url]
        return [sys.executable, str(ITEMS), "hold", str(self.list), *to, *more]

    def hold(self, *more: str) -> tuple[int, dict[str, Any]]:
        environment = {**os.environ, "http_proxy": "http://127.0.0.1:9"}
        done = subprocess.run(self.command(*more), capture_output=True, text=True, env=environment)
        assert done.returncode in (0, 1, 3), done.stderr
        return done.returncode, dict(json.loads(done.stdout))


@pytest.fixture
def host(tmp_path: Path, server: Server) -> Host:
    return Host(tmp_path, server)


def test_files_come_once_and_are_what_was_served(server: Server, host: Host) -> None:
    code, said = host.hold("--check")
    assert (code, said["due"]) == (0, ["a.bin", "deep/b.txt", "empty"]) and not host.to.exists()

    code, said = host.hold()

    assert code == 0 and said["fetched"] == ["a.bin", "deep/b.txt", "empty"]
    assert said["fetched_bytes"] == 400_001 == server.sent_bytes
    assert tree_digest(host.to) == tree_digest(server.root / "set") == said["digest"]
    code, said = host.hold()
    assert (code, said["fetched"], said["hashed_bytes"]) == (0, [], 0)
    code, said = host.hold("--every-byte")
    assert (code, said["fetched"], said["hashed_bytes"]) == (0, [], 400_001)
    assert server.sent_bytes == 400_001


def test_one_changed_byte_is_found_and_only_that_file_comes_again(server: Server, host: Host) -> None:
    host.hold()
    file, stat = host.to / "deep/b.txt", (host.to / "deep/b.txt").stat()
    file.write_bytes(b"c")
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    server.asked.clear()

    code, said = host.hold()

    assert (code, said["fetched"]) == (0, ["deep/b.txt"]) and file.read_bytes() == b"b"
    assert server.asked == [("set/deep/b.txt", 0)]


def test_corrupt_item_is_named_and_nothing_half_made_stays(server: Server, host: Host) -> None:
    data = bytearray((server.root / "set/a.bin").read_bytes())
    data[200_000] ^= 1
    (server.root / "set/a.bin").write_bytes(data)

    code, said = host.hold()

    assert code == 1 and [entry["path"] for entry in said["wrong"]] == ["a.bin"]
    assert hashlib.sha256(data).hexdigest() in said["wrong"][0]["what"]
    assert sorted(p.name for p in host.to.rglob("*") if p.is_file()) == ["b.txt", "empty"]
    text = words.items_text(said, "models", str(host.to))
    assert text.startswith("error[mirror-items] models: 1 files") and "a.bin" in text and "do: bring" in text
    data[200_000] ^= 1
    (server.root / "set/a.bin").write_bytes(data)
    assert host.hold()[1]["fetched"] == ["a.bin"]


def test_dropped_connection_goes_on_where_it_ended(server: Server, host: Host) -> None:
    server.cut_at = 200_000
    os.remove(server.root / "set/empty")
    os.remove(server.root / "set/deep/b.txt")
    listed(server.root / "set", host.list)

    code, said = host.hold()

    assert code == 0 and server.asked == [("set/a.bin", 0), ("set/a.bin", 200_000)]
    assert said["kept_bytes"] == 200_000 and server.sent_bytes == 400_000


def test_killed_fetch_goes_on_where_it_ended(server: Server, host: Host) -> None:
    size = 4_000_000
    (server.root / "set/a.bin").write_bytes(os.urandom(size))
    listed(server.root / "set", host.list)
    server.slow_s = 0.05
    child = subprocess.Popen(host.command(), stdout=subprocess.DEVNULL)
    partial = next(iter(wait_for(host.to, ".a.bin.*.partial")))
    while partial.stat().st_size == 0:
        time.sleep(0.01)
    child.send_signal(signal.SIGKILL)
    child.wait()
    there = partial.stat().st_size
    assert 0 < there < size and not (host.to / "a.bin").exists()
    server.slow_s = 0.0
    server.asked.clear()

    code, _ = host.hold()

    assert code == 0 and ("set/a.bin", there) in server.asked
    assert tree_digest(host.to) == tree_digest(server.root / "set")


def wait_for(folder: Path, pattern: str) -> list[Path]:
    end = time.monotonic() + 30
    while time.monotonic() < end:
        if found := list(folder.glob(pattern)):
            return found
        time.sleep(0.01)
    raise AssertionError(f"no {pattern} in {folder}")


def test_what_an_earlier_call_left_wrong_is_not_kept(server: Server, host: Host) -> None:
    sha256 = hashlib.sha256((server.root / "set/a.bin").read_bytes()).hexdigest()
    host.to.mkdir(parents=True)
    (host.to / f".a.bin.{sha256[:16]}.partial").write_bytes(b"x" * 1000)
    (host.to / f".a.bin.{'0' * 16}.partial").write_bytes(b"of an older version")

    code, said = host.hold("--exclusive")

    assert code == 0 and "a.bin" in said["fetched"]
    assert tree_digest(host.to) == tree_digest(server.root / "set")


def test_foreign_file_is_named_and_stays(server: Server, host: Host) -> None:
    host.hold()
    (host.to / "mine.txt").write_text("mine")
    assert host.hold()[0] == 0
    code, said = host.hold("--exclusive")
    assert code == 1 and said["wrong"] == [{"path": "mine.txt", "what": "it is not in the list"}]
    assert (host.to / "mine.txt").read_text() == "mine"
    assert "move away" in words.items_text(said, "data", "/x")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "small"
    place.mkdir()
    mounted = shutil.which("mount") and subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=300k", "none", str(place)], capture_output=True
    )
    if not mounted or mounted.returncode != 0:
        pytest.skip("no file system can be mounted here")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_no_byte_is_asked_for_when_the_disk_is_too_small(
    server: Server, host: Host, small_disk: Path
) -> None:
    host.to = small_disk / "set"
    code, said = host.hold()
    assert code == 3 and server.asked == [] and not host.to.exists()
    text = words.items_text(said, "models", str(host.to))
    assert text.startswith("error[mirror-disk]") and "404,001" in text and "307,200" in text


def test_disk_that_fills_meanwhile_is_freed_again(
    server: Server, host: Host, small_disk: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """The look at the room is left out, as when somebody else fills the disk after it."""
    items, host.to = module(ITEMS), small_disk / "set"
    monkeypatch.setattr(items, "require_room", lambda *_: None)
    monkeypatch.setattr(sys, "argv", host.command()[1:])

    assert items.main() == 3

    said = json.loads(capsys.readouterr().out)
    assert "No space left on device while a.bin of 400,000 bytes" in said["unable"]
    left = {path.name for path in host.to.rglob("*") if path.is_file()}
    assert not any("a.bin" in name for name in left), "its part would keep the disk full"
    monkeypatch.undo()
    subprocess.run(["mount", "-o", "remount,size=2m", str(small_disk)], check=True)
    assert host.hold()[0] == 0
    assert tree_digest(host.to) == tree_digest(server.root / "set")


def test_server_that_is_away_and_one_that_lacks_a_file(server: Server, host: Host) -> None:
    os.remove(server.root / "set/a.bin")
    code, said = host.hold()
    assert code == 1 and said["wrong"][0]["what"] == "the server does not have it (set/a.bin)"
    assert said["fetched"] == ["deep/b.txt", "empty"]


def test_list_of_a_folder(server: Server, tmp_path: Path) -> None:
    folder, to = server.root / "set", tmp_path / "made.json"
    command = [sys.executable, str(ITEMS), "make", str(folder), "--list", str(to)]
    command += ["--record", str(tmp_path / "record.json")]
    first = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    again = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    assert (first["changed"], again["changed"]) == (True, False)
    expected = json.loads(listed(folder, tmp_path / "expected.json").read_text())["items"]
    assert json.loads(to.read_text()) == {"items": expected, "digest": tree_digest(folder)}


def test_list_that_leads_out_of_the_folder_is_refused(host: Host) -> None:
    host.list.write_text(
        json.dumps({"items": [{"path": "../x", "from": "x", "size": 1, "sha256": "0" * 64}]})
    )
    code, said = host.hold()
    assert code == 3 and "../x leads out" in said["unable"]


def test_items_of_a_bundle_by_pattern() -> None:
    paths = ["checkout.tar", "checkout/m/a/x", "checkout/m/b", "images/i.tar"]
    content = {"name": "n", "items": [{"path": p, "size": 1, "sha256": "0" * 64} for p in paths]}
    found = words.items_wanted(content, ["checkout/m/*"], "checkout/m/")
    assert [(item["path"], item["from"]) for item in found] == [("a/x", paths[1]), ("b", paths[2])]
    with pytest.raises(ValueError, match="nothing in the bundle 'n' fits 'weights/"):
        words.items_wanted(content, ["images/*", "weights/*"])
    with pytest.raises(ValueError, match="does not begin with 'images/'"):
        words.items_wanted(content, ["*"], "images/")
