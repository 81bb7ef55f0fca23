"""Before a training on several hosts: all come to the first one, and are compared.

The messages are those of `stack.train.meeting`.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Mapping
from typing import Any

from stack.errors import BadRequest, NotAble, StackError
from stack.train.hosts import FIRST, INDEX, MEET_S, Hosts
from stack.train.meeting import ALIVE_S, LOOK_S, SILENT_S, Meeting, Peer, as_json, from_json


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
                peer.send("refused", error=as_json(error))
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
                raise from_json(message["error"])
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
