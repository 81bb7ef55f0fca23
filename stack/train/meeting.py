"""What the launchers of several hosts tell each other: that they are there, and how each one's part ended.

Torch's ranks only see that a connection has closed. The launchers keep one connection of their own, from
each host to the first, with one JSON object a line:

    hello     to the first host: index, name, clock, and the facts that must be equal on all hosts
    welcome   all hosts are there: start.   refused: they do not fit together, and why
    alive     every two seconds, both ways; a host that is silent for a minute is lost
    ended     to the first host: how this host's part ended, see `stack.train.failure.Ending`
    verdict   from the first host: the training's result or error, for every host to end with
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from stack.errors import BadRequest, Exit, NotAble, StackError, WorkFailed
from stack.train.hosts import FIRST, INDEX, MEET_S, Hosts

ALIVE_S = 2.0
SILENT_S = 60.0
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
        ended: its `ended` message; `lost`: why it is no longer there, where it had not ended.
    """

    link: socket.socket
    index: int | None = None
    name: str = ""
    clock_ahead_s: float = 0.0
    heard: float = field(default_factory=time.monotonic)
    said: float = 0.0
    ended: dict[str, Any] | None = None
    lost: str | None = None
    rest: bytes = b""

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
            raise _error(error)
        result: dict[str, Any] = self.verdict["result"]
        return result

    def tell(self, *, result: Mapping[str, Any] | None = None, error: StackError | None = None) -> None:
        """Let every host end with the training's result, or with its error."""
        content = {"result": result} if error is None else {"error": _as_json(error)}
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
                self._trouble = now, LOST_LEAVE_S


def meet(hosts: Hosts, facts: Mapping[str, Any], log: Callable[[str], None]) -> Meeting:
    """Wait until all hosts are there and have equal facts.

    Raises:
        BadRequest: a host differs, or two have the same index.
        NotAble: a host does not come; the first host's address or port cannot be listened at.
    """
    meeting = Meeting(hosts, log)
    facts = json.loads(json.dumps(facts))
    if hosts.count > 1:
        deadline = time.monotonic() + hosts.meet_s
        if hosts.is_first:
            _receive_all(meeting, facts, deadline, log)
        else:
            _call_first(meeting, facts, deadline, log)
        log(f"all {hosts.count} hosts are there")
    return meeting


def _receive_all(
    meeting: Meeting, facts: Mapping[str, Any], deadline: float, log: Callable[[str], None]
) -> None:
    hosts = meeting.hosts
    with _listener(hosts) as listener:
        log(f"waiting for {hosts.count - 1} more hosts at {hosts.first} port {hosts.port}")
        callers: list[Peer] = []
        try:
            while len(meeting.peers) < hosts.count - 1:
                _accept(listener, callers)
                for caller in [*callers]:
                    if _introduce(meeting, caller, facts, log):
                        callers.remove(caller)
                gone = next((peer for peer in meeting.peers if peer.lost), None)
                if gone is not None:
                    raise NotAble("hosts-missing", f"{gone.words} came and left before the start")
                meeting.poll()
                if time.monotonic() > deadline:
                    raise _missing(meeting)
                time.sleep(LOOK_S)
        except StackError as error:
            for peer in (*meeting.peers, *callers):
                peer.send("refused", error=_as_json(error))
            meeting.close()
            raise
    for peer in meeting.peers:
        peer.send("welcome")


def _missing(meeting: Meeting) -> NotAble:
    hosts = meeting.hosts
    come = {peer.index for peer in meeting.peers} | {0}
    missing = ", ".join(str(index) for index in range(hosts.count) if index not in come)
    return NotAble(
        "hosts-missing",
        f"{len(come)} of {hosts.count} hosts came within {hosts.meet_s:g} s; missing: host {missing}",
        do=f"look at those hosts: is 'stack train' started, with {INDEX} set, and does {FIRST} lead here? "
        f"{MEET_S} gives them longer",
    )


def _listener(hosts: Hosts) -> socket.socket:
    try:
        return socket.create_server((hosts.first, hosts.port), backlog=hosts.count)
    except OSError as error:
        raise NotAble(
            "hosts-no-listener",
            f"the first host cannot listen at {hosts.first} port {hosts.port}: {error.strerror}",
            do=f"{FIRST} has to be an address of host 0 with a free port, and {INDEX}=0 is for it alone",
        ) from error


def _accept(listener: socket.socket, callers: list[Peer]) -> None:
    listener.settimeout(0)
    try:
        link, _ = listener.accept()
    except OSError:
        return
    callers.append(Peer(link))


def _introduce(meeting: Meeting, caller: Peer, facts: Mapping[str, Any], log: Callable[[str], None]) -> bool:
    """Take a caller's hello, where it has come; returns whether the caller is done with.

    Raises:
        BadRequest: it does not fit.
    """
    messages = caller.receive()
    hello = next((m for m in messages if m.get("kind") == "hello"), None)
    if hello is None:
        return caller.lost is not None
    caller.index, caller.name = int(hello["index"]), str(hello["name"])
    caller.clock_ahead_s = float(hello["clock"]) - time.time()
    if caller.index in {0, *(peer.index for peer in meeting.peers)}:
        meeting.peers.append(caller)
        raise BadRequest(
            "hosts-same-index",
            f"two hosts have {INDEX}={caller.index}; the second is {caller.name}",
            do=f"give every host its own {INDEX}",
        )
    meeting.peers.append(caller)
    _compare(caller, facts, hello["facts"])
    log(f"{caller.words} has come")
    return True


def _compare(caller: Peer, own: Mapping[str, Any], theirs: Mapping[str, Any]) -> None:
    different = [key for key in sorted({*own, *theirs}) if own.get(key) != theirs.get(key)]
    if different:
        shown = "; ".join(
            f"{key} is {own.get(key)} here and {theirs.get(key)} there" for key in different[:4]
        )
        more = f"; and {len(different) - 4} more" if len(different) > 4 else ""
        raise BadRequest(
            "hosts-differ",
            f"{caller.words} would not train the same: {shown}{more}",
            do="give all hosts the same manifest, image, dataset, mirror and, with --resume, checkpoint",
        )


def _call_first(
    meeting: Meeting, facts: Mapping[str, Any], deadline: float, log: Callable[[str], None]
) -> None:
    hosts = meeting.hosts
    log(f"looking for the first host at {hosts.first} port {hosts.port}")
    first = Peer(_connect(hosts, deadline), 0, hosts.first)
    first.send("hello", index=hosts.index, name=socket.gethostname(), clock=time.time(), facts=dict(facts))
    while True:
        for message in first.receive():
            if message.get("kind") == "welcome":
                meeting.peers.append(first)
                return
            if message.get("kind") == "refused":
                first.link.close()
                raise _error(message["error"])
        # The first host waits until its own deadline, and says so.
        if first.lost or time.monotonic() - first.heard > SILENT_S:
            first.link.close()
            raise NotAble("hosts-missing", f"the first host left before the start: {first.lost or 'silent'}")
        if time.monotonic() - first.said > ALIVE_S:
            first.send("alive")
        time.sleep(LOOK_S)


def _connect(hosts: Hosts, deadline: float) -> socket.socket:
    while True:
        try:
            return socket.create_connection((hosts.first, hosts.port), timeout=5)
        except OSError as error:
            if time.monotonic() > deadline:
                raise NotAble(
                    "hosts-missing",
                    f"the first host did not answer at {hosts.first} port {hosts.port} within "
                    f"{hosts.meet_s:g} s: {error.strerror or error}",
                    do=f"is 'stack train' started there with {INDEX}=0, and is {FIRST} its address?",
                ) from error
            time.sleep(0.5)


def _as_json(error: StackError) -> dict[str, Any]:
    return {
        "id": error.id,
        "what": error.what,
        "where": error.where,
        "do": error.do,
        "exit": int(error.exit),
    }


def _error(raw: Mapping[str, Any]) -> StackError:
    return StackError(raw["id"], raw["what"], where=raw["where"], do=raw["do"], exit=Exit(raw["exit"]))
