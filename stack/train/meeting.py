"""What the launchers of several hosts tell each other: that they are there, and how each one's part ended.

Torch's ranks only see that a connection has closed. The launchers keep one connection of their own, from
each host to the first, with one JSON object a line:

    hello     to the first host: index, name, clock, and the facts that must be equal on all hosts
    welcome   all hosts are there: start.   refused: they do not fit together, and why
    alive     every two seconds, both ways; a host that is silent for a minute is lost, and one whose
              kernel does not answer for 25 s (tcp(7), TCP_USER_TIMEOUT): it has no power or no network
    ended     to the first host: how this host's part ended, see `stack.train.failure.Ending`
    verdict   from the first host: the training's result or error, for every host to end with
"""

from __future__ import annotations

import errno
import json
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from stack.errors import Exit, StackError, WorkFailed
from stack.train.hosts import Hosts

ALIVE_S = 2.0
SILENT_S = 60.0
UNANSWERED_S = 25.0  # a host that is only busy answers: its kernel does
UNANSWERED_LEAVE_S = 5.0  # its ranks are gone, too; with the time before and a child's grace, below a minute
LEAVE_S = 20.0  # for a part to end by itself, once another has failed
LOST_LEAVE_S = 60.0  # for a part to save and end, once another host's launcher is gone
ENDINGS_S = 15.0
LOOK_S = 0.05
LINE_BYTES = 1 << 20


@dataclass
class Peer:
    """The other end of one connection.

    Attributes:
        clock_ahead_s: its clock less this host's; the message's own way is neglected.
        ended: its `ended` message; `lost`: why it is no longer there, where it had not ended;
            `is_unanswered`: not even its kernel answers.
    """

    link: socket.socket
    index: int | None = None
    name: str = ""
    clock_ahead_s: float = 0.0
    heard: float = field(default_factory=time.monotonic)
    said: float = 0.0
    ended: dict[str, Any] | None = None
    lost: str | None = None
    is_unanswered: bool = False
    rest: bytes = b""

    def __post_init__(self) -> None:
        if self.link.family != socket.AF_UNIX:
            self.link.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(UNANSWERED_S * 1000))

    @property
    def words(self) -> str:
        return f"host {self.index} ({self.name})"

    def send(self, kind: str, **details: Any) -> None:
        """A host that is gone is found by reading."""
        try:
            self.link.settimeout(10)
            self.link.sendall(json.dumps({"kind": kind, **details}).encode() + b"\n")
        except OSError:
            pass
        finally:
            self.said = time.monotonic()

    def receive(self) -> list[dict[str, Any]]:
        """Whole messages that have come; notes that the host is lost."""
        self.link.settimeout(0)
        try:
            while True:
                chunk = self.link.recv(65536)
                if not chunk:
                    self.lost = self.lost or "its launcher has gone without a word"
                    break
                self.heard, self.rest = time.monotonic(), self.rest + chunk
        except (BlockingIOError, InterruptedError):
            pass
        except OSError as error:
            self.lost = self.lost or f"the connection broke: {error.strerror}"
            self.is_unanswered = error.errno in (errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH)
        *whole, self.rest = self.rest.split(b"\n")
        try:
            found = [json.loads(line) for line in whole]
        except ValueError:
            found, self.lost = [], "it speaks another language"
        if len(self.rest) > LINE_BYTES:
            self.lost = "it speaks another language"
        return [message for message in found if isinstance(message, dict)]


class Meeting:
    """The other hosts of a training; with one host there are none, and nothing waits or is sent."""

    def __init__(self, hosts: Hosts, log: Callable[[str], None]) -> None:
        self.hosts, self.peers = hosts, list[Peer]()
        self.verdict: dict[str, Any] | None = None
        self._log = log
        self._trouble: tuple[float, float] | None = None

    def poll(self) -> None:
        """Hear what has come, and say that this host is there."""
        now = time.monotonic()
        for peer in self.peers:
            was_lost = peer.lost
            for message in peer.receive():
                if message.get("kind") == "ended":
                    peer.ended = message
                elif message.get("kind") == "verdict":
                    self.verdict = message
            if peer.lost is None and now - peer.heard > SILENT_S:
                peer.lost = f"it has been silent for {SILENT_S:g} s"
            if peer.lost is None and now - peer.said > ALIVE_S:
                peer.send("alive")
            if peer.lost and not was_lost and peer.ended is None and self.verdict is None:
                self._log(f"warning: {peer.words} is lost: {peer.lost}")
        self._see_trouble(now)

    def should_end(self) -> bool:
        """Whether this host's part should have ended by itself by now: another one has, or is gone."""
        return self._trouble is not None and time.monotonic() > sum(self._trouble)

    @property
    def lost(self) -> Peer | None:
        """A host that went without saying how its part ended."""
        return next((peer for peer in self.peers if peer.lost and peer.ended is None), None)

    def refuse_lost(self) -> None:
        """Raises WorkFailed where a host was lost."""
        if (peer := self.lost) is not None and self.verdict is None:
            raise WorkFailed(
                "host-lost",
                f"{peer.words} is lost: {peer.lost}; the ranks of the other hosts cannot go on without it",
                do="look at that host, then go on with --resume on all of them",
            )

    def endings(self) -> list[tuple[Peer, dict[str, Any]]]:
        """How the other hosts' parts ended, once they have said so or some seconds have passed."""
        self._wait(lambda: all(peer.ended or peer.lost for peer in self.peers), ENDINGS_S)
        return [(peer, peer.ended) for peer in self.peers if peer.ended is not None]

    def report(self, ending: Mapping[str, Any]) -> dict[str, Any]:
        """Tell the first host how this one's part ended; returns the training's result.

        Raises:
            StackError: what the first host ends with; `WorkFailed` where it is lost.
        """
        (first,) = self.peers
        first.send("ended", **ending)
        self._wait(lambda: self.verdict is not None or first.lost is not None, None)
        if self.verdict is None:
            self.refuse_lost()
        assert self.verdict is not None
        if (error := self.verdict.get("error")) is not None:
            raise from_json(error)
        result: dict[str, Any] = self.verdict["result"]
        return result

    def tell(self, *, result: Mapping[str, Any] | None = None, error: StackError | None = None) -> None:
        """Let every host end with the training's result, or with its error."""
        content = {"result": result} if error is None else {"error": as_json(error)}
        for peer in self.peers:
            peer.send("verdict", **content)

    def close(self) -> None:
        """Part; what was sent last still arrives, as the other side is read until it closes."""
        for peer in self.peers:
            try:
                peer.link.shutdown(socket.SHUT_WR)
            except OSError:
                peer.lost = peer.lost or "closed"
        self._wait(lambda: all(peer.lost for peer in self.peers), 5.0)
        for peer in self.peers:
            peer.link.close()
        self.peers = []

    def _wait(self, is_done: Callable[[], bool], seconds: float | None) -> None:
        until = None if seconds is None else time.monotonic() + seconds
        self.poll()
        while not is_done() and (until is None or time.monotonic() < until):
            time.sleep(LOOK_S)
            self.poll()

    def _see_trouble(self, now: float) -> None:
        if self._trouble is not None:
            return
        if self.verdict is not None:
            self._trouble = now, LEAVE_S
        for peer in self.peers:
            if peer.ended is not None and not peer.ended.get("is_good"):
                self._trouble = now, LEAVE_S
            elif peer.ended is None and peer.lost:
                self._trouble = now, UNANSWERED_LEAVE_S if peer.is_unanswered else LOST_LEAVE_S


def as_json(error: StackError) -> dict[str, Any]:
    """An error as a message carries it."""
    return {
        "id": error.id,
        "what": error.what,
        "where": error.where,
        "do": error.do,
        "exit": int(error.exit),
    }


def from_json(raw: Mapping[str, Any]) -> StackError:
    """An error as `as_json` gave it."""
    return StackError(raw["id"], raw["what"], where=raw["where"], do=raw["do"], exit=Exit(raw["exit"]))
