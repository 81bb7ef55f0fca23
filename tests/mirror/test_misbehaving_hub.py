"""What transfers go through: each is survived with the right bytes, or named with nothing put in place."""

from __future__ import annotations

import http.server
import os
import shutil
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from stack.errors import BadRequest, NotAble, StackError, WorkFailed
from stack.manifests import load_models_manifest
from stack.mirror import get, pin, verify
from stack.mirror.folder import RECORD
from stack.mirror.hosts import AllowedHosts

WEIGHTS = "model.safetensors"
EMPTY_SHA256 = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
Answer = Callable[[Any, bytes, int], None]


def ranged(handler: Any, content: bytes, first: int, **headers: Any) -> None:
    """The right answer, with these headers besides."""
    if first:
        headers["Content-Range"] = f"bytes {first}-{len(content) - 1}/{len(content)}"
    handler.head(206 if first else 200, {"Content-Length": len(content) - first, **headers})
    handler.wfile.write(content[first:])


def flipped(handler: Any, content: bytes, first: int) -> None:
    middle = len(content) // 2
    ranged(handler, content[:middle] + bytes([content[middle] ^ 8]) + content[middle + 1 :], first)


def whole_for_a_range(handler: Any, content: bytes, first: int) -> None:
    ranged(handler, content, 0)


def no_such_range(handler: Any, content: bytes, first: int) -> None:
    handler.head(416, {"Content-Range": f"bytes */{len(content)}", "Content-Length": 0})


def another_range(handler: Any, content: bytes, first: int) -> None:
    ranged(handler, content, first // 2)


def reset(handler: Any, content: bytes, first: int) -> None:
    """The connection is not closed but reset: the client's kernel throws away what it has not read."""
    handler.head(200, {"Content-Length": len(content)})
    handler.wfile.write(content[:150_000])
    handler.wfile.flush()
    handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    handler.connection.close()
    handler.close_connection = True


def too_long_announced(handler: Any, content: bytes, first: int) -> None:
    handler.head(200, {"Content-Length": len(content) + 4096})
    handler.wfile.write(content)
    handler.close_connection = True


def too_short_announced(handler: Any, content: bytes, first: int) -> None:
    handler.head(200, {"Content-Length": len(content) - 4096})
    handler.wfile.write(content)
    handler.close_connection = True


def nothing_announced(handler: Any, content: bytes, first: int) -> None:
    """Neither a length nor chunks: the end is where the connection ends, and it ends early."""
    handler.head(200, {"Connection": "close"})
    handler.wfile.write(content[: len(content) // 3])
    handler.close_connection = True


def html(handler: Any, content: bytes, first: int) -> None:
    page = b"<!DOCTYPE html><html><body>Please log in</body></html>"
    handler.head(200, {"Content-Type": "text/html; charset=utf-8", "Content-Length": len(page)})
    handler.wfile.write(page)


def html_of_the_right_size(handler: Any, content: bytes, first: int) -> None:
    handler.head(200, {"Content-Type": "text/html", "Content-Length": len(content)})
    handler.wfile.write(b"<html>".ljust(len(content)))


def server_error(handler: Any, content: bytes, first: int) -> None:
    handler.head(500, {"Content-Length": 0})


def too_many(handler: Any, content: bytes, first: int) -> None:
    handler.head(429, {"Retry-After": 1, "Content-Length": 0})


def drip(handler: Any, content: bytes, first: int) -> None:
    handler.head(200, {"Content-Length": len(content)})
    for at in range(200):
        try:
            handler.wfile.write(content[at : at + 1])
            handler.wfile.flush()
        except OSError:
            break
        time.sleep(0.05)
    handler.close_connection = True


def silence(handler: Any, content: bytes, first: int) -> None:
    handler.hub.release.wait(20)
    handler.close_connection = True


def hash_of_nothing(handler: Any, content: bytes, first: int) -> None:
    ranged(handler, content, first, **{"X-Linked-ETag": f'"{EMPTY_SHA256}"'})


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client's own limits, in seconds instead of minutes."""
    for name, value in (
        ("_download.DOWNLOAD_LOW_SPEED_WINDOW_SECONDS", 1),
        ("_download.DOWNLOAD_INTEGRITY_RETRY_BACKOFF", 0.0),
        ("_legacy_api.DOWNLOAD_TIMEOUT", 1),
    ):
        monkeypatch.setattr(f"modelscope_hub.{name}", value)


def same(folder: Path, hub: Any) -> bool:
    found = {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    found.pop(RECORD)
    return bool(found == hub.files)


ONCE: dict[str, tuple[list[Answer], int | None]] = {
    # name: what the hub answers before it comes to its senses; bytes that lay there before
    "right size, wrong content": ([flipped], None),
    "partial of no bytes": ([], 0),
    "hash of the empty file sent along": ([hash_of_nothing], None),
    "range answered with the whole": ([whole_for_a_range], 100_000),
    "range answered with another": ([another_range], 100_000),
    "416": ([no_such_range], 100_000),
    "partial longer than the file": ([], 300_001),
    "slow drip": ([drip], None),
    "silence": ([silence], None),
    "reset in the middle": ([reset], None),
    "500, 500, then good": ([server_error, server_error], None),
    "429 with Retry-After": ([too_many], None),
    "more announced than sent": ([too_long_announced], None),
    "less announced than sent": ([too_short_announced], None),
    "nothing announced, cut off": ([nothing_announced], None),
    "html with 200": ([html], None),
    "html of the right size": ([html_of_the_right_size], None),
}


@pytest.mark.parametrize("what", ONCE)
def test_survived(what: str, hub: Any, manifest: Any, tmp_path: Path) -> None:
    loaded = manifest()
    answers, partial_bytes = ONCE[what]
    hub.answers[WEIGHTS] = list(answers)
    if partial_bytes is not None:
        staging = tmp_path / "mirror" / ".toy.fetch"
        staging.mkdir(parents=True)
        right = hub.files[WEIGHTS] + b"more"
        (staging / f"{WEIGHTS}.incomplete").write_bytes(right[:partial_bytes])
    started_s = time.monotonic()

    (model,) = get(loaded, tmp_path / "mirror", endpoint=hub.endpoint)

    assert same(model.folder, hub)
    assert hub.answers[WEIGHTS] == []  # the misbehaviour was met
    assert verify(loaded.manifest, tmp_path / "mirror") == []
    assert time.monotonic() - started_s < 30
    if what.startswith("429"):
        assert time.monotonic() - started_s >= 1


ALWAYS: dict[str, tuple[Answer, type[StackError], str]] = {
    "wrong content": (flipped, WorkFailed, "damaged on the way"),
    "html": (html, WorkFailed, r"of type text/html.*expected 300000 bytes"),
    "html of the right size": (html_of_the_right_size, WorkFailed, "right size but the wrong content"),
    "another length": (too_short_announced, WorkFailed, r"295904.*300000"),
    "500": (server_error, WorkFailed, r"model\.safetensors could not be fetched"),
    "drip": (drip, WorkFailed, r"model\.safetensors could not be fetched"),
}


@pytest.mark.parametrize("what", ALWAYS)
def test_named_and_bounded(
    what: str, hub: Any, manifest: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("modelscope_hub._download.DOWNLOAD_RETRY_TIMES", 1)
    loaded = manifest()
    answer, kind, message = ALWAYS[what]
    hub.answers[WEIGHTS] = [answer] * 50

    with pytest.raises(kind, match=f"(?s){message}") as caught:
        get(loaded, tmp_path / "mirror", endpoint=hub.endpoint)

    assert "1 of 3 files" in caught.value.what
    assert 50 - len(hub.answers[WEIGHTS]) <= 6
    assert not (tmp_path / "mirror" / "toy").exists()
    hub.answers.clear()
    (model,) = get(loaded, tmp_path / "mirror", endpoint=hub.endpoint)
    assert same(model.folder, hub) and model.fetched == (WEIGHTS,)


@dataclass
class Elsewhere:
    """Another server, on another name of loopback; it holds one thing."""

    content: bytes = b""
    address: str = ""
    asked: list[str] = field(default_factory=list)

    def redirect(self, handler: Any, content: bytes, first: int) -> None:
        handler.head(302, {"Location": self.address, "Content-Length": 0})


@pytest.fixture
def elsewhere() -> Iterator[Elsewhere]:
    state = Elsewhere()

    class Handler(http.server.BaseHTTPRequestHandler):
        def log_message(self, *args: Any) -> None:
            pass

        def do_GET(self) -> None:
            state.asked.append(self.path)
            self.send_response(200)
            self.send_header("Content-Length", str(len(state.content)))
            self.end_headers()
            self.wfile.write(state.content)

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    state.address = f"http://localhost:{server.server_address[1]}/storage"
    yield state
    server.shutdown()
    server.server_close()


def test_redirect_to_a_host_that_nobody_allowed(
    hub: Any, manifest: Any, tmp_path: Path, elsewhere: Elsewhere
) -> None:
    loaded = manifest()
    hub.answers[WEIGHTS] = [elsewhere.redirect] * 9
    elsewhere.content = hub.files[WEIGHTS]

    with pytest.raises(WorkFailed, match=r"sent to localhost, which is none of the allowed hosts \(127"):
        get(loaded, tmp_path / "mirror", endpoint=hub.endpoint)

    assert elsewhere.asked == [] and len(hub.answers[WEIGHTS]) == 8
    assert not (tmp_path / "mirror" / "toy").exists()


def test_redirect_to_an_allowed_host(hub: Any, manifest: Any, tmp_path: Path, elsewhere: Elsewhere) -> None:
    loaded = manifest()
    hub.answers[WEIGHTS] = [elsewhere.redirect]
    elsewhere.content = hub.files[WEIGHTS]

    (model,) = get(loaded, tmp_path / "mirror", endpoint=hub.endpoint, hosts=["localhost"])

    assert elsewhere.asked == ["/storage"] and same(model.folder, hub)


@pytest.mark.parametrize(
    ("endpoint", "url", "allowed"),
    [
        ("https://www.modelscope.cn", "https://cdn-lfs-cn-1.modelscope.cn/x", True),
        ("https://modelscope.cn", "https://x.oss-cn-hangzhou.aliyuncs.com/x", True),
        ("https://modelscope.cn", "https://evil-modelscope.cn/x", False),
        ("https://modelscope.cn", "https://modelscope.cn.evil.org/x", False),
        ("http://mirror.site:8080", "http://mirror.site:9090/x", True),
        ("http://mirror.site:8080", "https://www.modelscope.cn/x", False),
    ],
)
def test_hosts_that_are_allowed(endpoint: str, url: str, allowed: bool) -> None:
    assert AllowedHosts(endpoint).allows(url) is allowed


def test_partial_as_long_as_the_file_ends_without_a_request(hub: Any, manifest: Any, tmp_path: Path) -> None:
    loaded = manifest()
    staging = tmp_path / "mirror" / ".toy.fetch"
    staging.mkdir(parents=True)
    (staging / f"{WEIGHTS}.incomplete").write_bytes(hub.files[WEIGHTS])
    (model,) = get(loaded, tmp_path / "mirror", endpoint=hub.endpoint)
    assert same(model.folder, hub) and WEIGHTS not in hub.fetched()


def test_partial_as_long_as_the_file_and_wrong(hub: Any, manifest: Any, tmp_path: Path) -> None:
    loaded = manifest()
    staging = tmp_path / "mirror" / ".toy.fetch"
    staging.mkdir(parents=True)
    (staging / f"{WEIGHTS}.incomplete").write_bytes(hub.files[WEIGHTS][::-1])
    (model,) = get(loaded, tmp_path / "mirror", endpoint=hub.endpoint)
    assert same(model.folder, hub) and hub.fetched().count(WEIGHTS) == 1


def test_empty_hash_is_no_pin(hub: Any, manifest: Any, tmp_path: Path) -> None:
    hub.listed_sha256[WEIGHTS] = EMPTY_SHA256
    get(manifest(), tmp_path / "mirror", endpoint=hub.endpoint)  # the manifest decides

    with pytest.raises(WorkFailed, match=f"lists 300000 bytes and sha256 {EMPTY_SHA256}"):
        pin(manifest(unpinned=(WEIGHTS,)), tmp_path / "pins", endpoint=hub.endpoint)
    file = manifest().file
    text = file.read_text()
    right = next(line for line in text.splitlines() if WEIGHTS in line)
    file.write_text(text.replace(right.split("sha256: ")[1], f"{EMPTY_SHA256}}}"))
    with pytest.raises(BadRequest, match="is that of an empty file, but its size is 300000"):
        load_models_manifest(file)


def test_listing_that_lacks_a_file_does_not_hide_it(hub: Any, manifest: Any, tmp_path: Path) -> None:
    """The listing is not what decides: a file that it lacks is asked for all the same."""
    loaded = manifest()
    hub.listing = []
    (model,) = get(loaded, tmp_path / "mirror", endpoint=hub.endpoint)
    assert same(model.folder, hub)


def test_listing_that_changed_since_pinning(hub: Any, manifest: Any, tmp_path: Path) -> None:
    loaded = manifest()
    hub.files[WEIGHTS] = hub.files[WEIGHTS][:200_000]  # the branch moved: another file, listed as such
    with pytest.raises(WorkFailed, match="300000") as caught:
        get(loaded, tmp_path / "mirror", endpoint=hub.endpoint)
    assert "200000" in caught.value.what and not (tmp_path / "mirror" / "toy").exists()


def test_full_disk_keeps_what_has_arrived(
    hub: Any, manifest: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A real one: a small file system in memory. Room is made, and the same command goes on."""
    small = tmp_path / "small"
    small.mkdir()
    mounted = shutil.which("mount") is not None and os.geteuid() == 0
    command = ["mount", "-t", "tmpfs", "-o", "size=200k", "tmpfs", str(small)]
    if not mounted or subprocess.run(command, capture_output=True).returncode != 0:
        pytest.skip("no file system can be mounted here (needs root)")
    try:
        loaded = manifest()
        real = shutil.disk_usage
        roomy = type("Usage", (), {"free": 10**9})
        monkeypatch.setattr("shutil.disk_usage", lambda _: roomy)  # somebody else fills the disk meanwhile
        with pytest.raises(NotAble, match="No space left") as caught:
            get(loaded, small / "mirror", endpoint=hub.endpoint)
        assert "goes on from what has arrived" in caught.value.do
        kept = (small / "mirror" / ".toy.fetch" / f"{WEIGHTS}.incomplete").stat().st_size
        assert kept > 50_000 and not (small / "mirror" / "toy").exists()

        monkeypatch.setattr("shutil.disk_usage", real)
        subprocess.run(["mount", "-o", "remount,size=2m", str(small)], check=True)
        (model,) = get(loaded, small / "mirror", endpoint=hub.endpoint)
        assert same(model.folder, hub) and (WEIGHTS, kept, 300_000 - kept) in hub.served
    finally:
        subprocess.run(["umount", str(small)], check=True)
