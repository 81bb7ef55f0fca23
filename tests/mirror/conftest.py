"""A loopback hub that speaks ModelScope's REST contract, with the faults that real transfers have."""

from __future__ import annotations

import hashlib
import json
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from stack.manifests import Loaded, ModelsManifest, load_models_manifest

REPOSITORY = "lab/toy"
REVISION = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class Hub:
    """What the hub holds and how it misbehaves.

    Attributes:
        files: content by path, of `REPOSITORY` at `REVISION`.
        drop_after: bytes after which the next answer for a path breaks off; used up by one answer each.
        flip: how many of the next answers for a path have one bit flipped.
        listed_sha256: what the listing says instead of the truth.
        listed_size: likewise.
        gone: paths that are listed but answer 404.
        stall_after: bytes after which an answer waits for `release`.
        answers: what the next requests for a path meet instead of the file, one each: gets the handler, the
            content and the first byte that is asked for.
        served: (path, first byte, bytes sent) of each file answer, in order.
    """

    files: dict[str, bytes] = field(default_factory=dict)
    drop_after: dict[str, list[int]] = field(default_factory=dict)
    flip: dict[str, int] = field(default_factory=dict)
    listed_sha256: dict[str, str] = field(default_factory=dict)
    listed_size: dict[str, int] = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)
    stall_after: dict[str, int] = field(default_factory=dict)
    answers: dict[str, list[Callable[[Any, bytes, int], None]]] = field(default_factory=dict)
    listing: list[dict[str, Any]] | None = None
    stalled: threading.Event = field(default_factory=threading.Event)
    release: threading.Event = field(default_factory=threading.Event)
    served: list[tuple[str, int, int]] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    endpoint: str = ""

    def fetched(self) -> list[str]:
        return [path for path, _, _ in self.served]


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def log_message(self, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        query = {key: values[0] for key, values in parse_qs(url.query).items()}
        self.hub.requests.append(self.path)
        self.hub.headers.append(dict(self.headers))
        base = f"/api/v1/models/{REPOSITORY}/repo"
        if url.path not in (base, f"{base}/files") or query.get("Revision") != REVISION:
            self._json(404, {"Code": 10010205001, "Success": False, "Message": "not there"})
        elif url.path == base:
            self._file(query["FilePath"])
        else:
            self._json(200, {"Code": 200, "Success": True, "Data": {"Files": self.listing()}})

    def listing(self) -> list[dict[str, Any]]:
        if self.hub.listing is not None:
            return self.hub.listing
        return [
            {
                "Path": path,
                "Name": path.rsplit("/")[-1],
                "Type": "blob",
                "Size": self.hub.listed_size.get(path, len(content)),
                "Sha256": self.hub.listed_sha256.get(path, sha256(content)),
            }
            for path, content in self.hub.files.items()
        ]

    def head(self, status: int, headers: dict[str, Any]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, str(value))
        self.end_headers()

    def _json(self, status: int, value: Any) -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _file(self, path: str) -> None:
        hub = self.hub
        if path not in hub.files or path in hub.gone:
            self._json(404, {"Code": 10010204001, "Success": False, "Message": f"no file {path}"})
            return
        content = hub.files[path]
        if hub.flip.get(path, 0) > 0:
            hub.flip[path] -= 1
            middle = len(content) // 2
            content = content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
        first = int(self.headers.get("Range", "bytes=0-").removeprefix("bytes=").split("-")[0])
        if hub.answers.get(path):
            hub.answers[path].pop(0)(self, content, first)
            return
        body = content[first:]
        self.send_response(206 if "Range" in self.headers else 200)
        if "Range" in self.headers:
            self.send_header("Content-Range", f"bytes {first}-{len(content) - 1}/{len(content)}")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        sent = len(body)
        if hub.drop_after.get(path):
            sent = min(sent, hub.drop_after[path].pop(0))
        elif path in hub.stall_after:
            sent = min(sent, hub.stall_after[path])
        self.wfile.write(body[:sent])
        self.wfile.flush()
        hub.served.append((path, first, sent))
        if path in hub.stall_after and not hub.release.is_set():
            hub.stalled.set()
            hub.release.wait(60)
        if sent < len(body):
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)


class _Server(ThreadingHTTPServer):
    def handle_error(self, *args: Any) -> None:
        pass  # clients that were killed or that hung up are what some tests are about


@pytest.fixture
def hub() -> Iterator[Hub]:
    state = Hub(
        files={
            "config.json": b'{"a": 1}\n',
            "model.safetensors": bytes(hashlib.shake_256(b"weights").digest(300_000)),
            "sub/notes.txt": "字 and more\n".encode(),
        }
    )
    handler = type("Handler", (_Handler,), {"hub": state})
    server = _Server(("127.0.0.1", 0), handler)
    state.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    yield state
    state.release.set()
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture(autouse=True)
def _loopback_only(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Any connection that is not to loopback fails its test; the client may not use the home directory."""
    real_connect = socket.socket.connect

    def connect(self: socket.socket, address: Any) -> None:
        outside = self.family in (socket.AF_INET, socket.AF_INET6) and address[0] not in ("127.0.0.1", "::1")
        assert not outside, f"connection to {address}"
        real_connect(self, address)

    def getaddrinfo(host: str, *args: Any, **kwargs: Any) -> Any:
        assert host in ("127.0.0.1", "localhost"), f"name {host} was looked up"
        return real_getaddrinfo(host, *args, **kwargs)

    real_getaddrinfo = socket.getaddrinfo
    monkeypatch.setattr(socket.socket, "connect", connect)
    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    for name in ("MODELSCOPE_ENDPOINT", "MODELSCOPE_DOMAIN", "MODELSCOPE_API_TOKEN", "MODELSCOPE_CACHE"):
        monkeypatch.delenv(name, raising=False)


WriteManifest = Callable[..., Loaded[ModelsManifest]]


@pytest.fixture
def manifest(tmp_path: Path, hub: Hub) -> WriteManifest:
    """Writes a models manifest with one entry, `toy`, whose files are pinned to what the hub holds now."""

    def write(
        *, unpinned: tuple[str, ...] = (), revision: str = REVISION, more: str = ""
    ) -> Loaded[ModelsManifest]:
        lines = [
            "schema: stack/models/1",
            "models:",
            "  toy:",
            "    kind: weights",
            f"    origin: {{modelscope: {REPOSITORY}, revision: {revision}}}",
            "    licence: none",
            "    files:",
        ]
        for path, content in hub.files.items():
            pins = "" if path in unpinned else f", size: {len(content)}, sha256: {sha256(content)}"
            lines.append(f"      - {{path: {path}{pins}}}")
        file = tmp_path / "manifests" / "models.yaml"
        file.parent.mkdir(exist_ok=True)
        file.write_text("\n".join(lines) + "\n" + more, encoding="utf-8")
        return load_models_manifest(file)

    return write
