"""One request to a tracking server as a browser or a program makes it, under the name that people use."""

from __future__ import annotations

import base64
import http.client
import json
import socket
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode, urlsplit

from stack.errors import BadRequest, NotAble
from stack.tracking.address import host_of
from stack.tracking.login import Login, refusal, refuse_login_in_address, trust

TIMEOUT_S = 15


@dataclass(frozen=True)
class Answer:
    """`certificate` is that of the other side, where there was one."""

    status: int
    text: str
    certificate: dict[str, Any] | None

    @property
    def data(self) -> Any:
        return json.loads(self.text)


@dataclass(frozen=True)
class Target:
    """A server by the address that people use.

    Attributes:
        uri: the address; its host is asked for by name, and must be that of the certificate.
        connect: HOST, PORT to connect to instead of what the name resolves to.
    """

    uri: str
    connect: tuple[str, int] | None = None

    @classmethod
    def parse(cls, server: str, connect: str | None = None) -> Target:
        """Raises BadRequest where the address or `connect` (HOST:PORT) is none."""
        refuse_login_in_address(server)
        host_of(server)
        uri = server.rstrip("/")
        if connect is None:
            return cls(uri)
        host, _, port = connect.rpartition(":")
        if not host or not port.isdigit():
            raise BadRequest("track-bad-connect", f"--connect takes HOST:PORT, not {connect!r}")
        return cls(uri, (host.strip("[]"), int(port)))

    @property
    def origin(self) -> str:
        parts = urlsplit(self.uri)
        return f"{parts.scheme}://{parts.netloc}"


def ask(
    target: Target,
    path: str,
    *,
    method: str = "GET",
    query: Mapping[str, str] | None = None,
    body: Mapping[str, Any] | None = None,
    login: Login | None = None,
    host: str | None = None,
    origin: str | None = None,
) -> Answer:
    """Ask once.

    Args:
        host: a Host header other than the address's own.
        origin: what a browser says of the page that the request comes from.

    Raises:
        NotAble: no answer; a certificate that is not trusted.
    """
    parts = urlsplit(target.uri)
    headers = {"Host": host or parts.netloc}
    if login is not None:
        pair = base64.b64encode(f"{login.user}:{login.password}".encode()).decode()
        headers["Authorization"] = f"Basic {pair}"
    if origin is not None:
        headers["Origin"] = origin
    if body is not None:
        headers["Content-Type"] = "application/json"
    connection = _connection(target)
    try:
        where = f"{parts.path}{path}" + (f"?{urlencode(query)}" if query else "")
        connection.request(method, where, json.dumps(body) if body is not None else None, headers)
        certificate = connection.sock.getpeercert() if isinstance(connection.sock, ssl.SSLSocket) else None
        answer = connection.getresponse()
        return Answer(answer.status, answer.read().decode(errors="replace"), certificate)
    except (OSError, http.client.HTTPException) as error:
        raise refusal(target.uri, str(error)) or NotAble(
            "track-server-away",
            f"the tracking server does not answer: {error or type(error).__name__}",
            where=target.uri,
        ) from error
    finally:
        connection.close()


def _connection(target: Target) -> http.client.HTTPConnection:
    parts = urlsplit(target.uri)
    assert parts.hostname is not None
    kind = _NamedHttps if parts.scheme == "https" else _Named
    connection = kind(parts.hostname, parts.port, timeout=TIMEOUT_S)
    default = 443 if parts.scheme == "https" else 80
    connection.goes_to = target.connect or (parts.hostname, parts.port or default)
    return connection


class _Named(http.client.HTTPConnection):
    """Connects to one place and asks for another by name."""

    goes_to: tuple[str, int]

    def connect(self) -> None:
        self.sock = socket.create_connection(self.goes_to, TIMEOUT_S)


class _NamedHttps(_Named):
    def connect(self) -> None:
        super().connect()
        self.sock = trust().wrap_socket(self.sock, server_hostname=self.host)
