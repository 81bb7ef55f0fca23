"""Several hosts: here two launchers on one machine, each with its own folder.

`STACK_LONG=1` runs the failures too, and where this user may make them, two network namespaces.
"""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from stack.errors import BadRequest, NotAble, StackError, WorkFailed
from stack.files import read_json, sha256_file, write_json
from stack.train import meeting as meeting_module
from stack.train.gathering import meet
from stack.train.hosts import Hosts, hosts_from, interface_to
from stack.train.meeting import Meeting

long = pytest.mark.skipif(not os.environ.get("STACK_LONG"), reason="takes minutes: STACK_LONG=1 runs it")

DRIVER = """
import json, sys
from pathlib import Path
from stack.errors import StackError
from stack.manifests import Loaded, RunManifest
from stack.manifests.models import ModelsManifest
from stack.train import train
out = Path(sys.argv[1])
spec = json.loads((out / "spec.json").read_text())
run = RunManifest.model_validate(spec["run"])
try:
    result = train(Loaded(run, out / "run.yaml"), dataset=Path(spec["dataset"]), mirror=Path(spec["mirror"]),
        models=ModelsManifest.model_validate(spec["models"]), out=out / "train", resume=spec["resume"],
        log=lambda line: print(line, flush=True))
except StackError as error:
    print("END", error.id, error.what, flush=True)
    sys.exit(int(error.exit))
print("END", result.outcome, result.message, flush=True)
sys.exit(int(result.exit))
"""


def free_port() -> int:
    """Two free ports, one after the other: the first of them."""
    while True:
        port = random.randrange(20000, 30000)
        try:
            for number in (port, port + 1):
                with socket.create_server(("127.0.0.1", number)):
                    pass
            return port
        except OSError:
            continue


@dataclass
class Launched:
    """One host's launcher."""

    process: subprocess.Popen[bytes]
    out: Path

    @property
    def said(self) -> str:
        return (self.out / "said.txt").read_text()

    @property
    def end(self) -> str:
        ends = [line for line in self.said.splitlines() if line.startswith("END ")]
        return ends[-1].removeprefix("END ") if ends else ""

    def wait(self, seconds: float = 240) -> int:
        return self.process.wait(seconds)


@dataclass
class Site:
    """Launches the hosts of one training; `prefix` is put before a host's command."""

    toys: Any
    world: Any
    folder: Path
    first: str
    prefix: Callable[[int], list[str]] = lambda _index: []
    count: int = 2

    def launch(
        self, index: int, *, resume: bool = False, env: dict[str, str] | None = None, **changes: Any
    ) -> Launched:
        out, world = self.folder / f"host-{index}", self.world
        out.mkdir(parents=True, exist_ok=True)
        settings = {"steps": 6, "batch_per_device": 2, "log_every": 1, **changes}
        run = self.toys.run_manifest(device={"count": 2}, train=settings).manifest
        write_json(
            out / "spec.json",
            {
                "run": run.model_dump(mode="json", by_alias=True),
                "models": world.models.model_dump(mode="json", by_alias=True),
                "dataset": str(world.dataset),
                "mirror": str(world.mirror),
                "resume": resume,
            },
        )
        own = {"STACK_HOSTS": str(self.count), "STACK_HOST_INDEX": str(index), "STACK_FIRST_HOST": self.first}
        with (out / "said.txt").open("ab") as sink:
            command = [*self.prefix(index), sys.executable, "-c", DRIVER, str(out)]
            process = subprocess.Popen(
                command, env={**os.environ, **own, **(env or {})}, stdout=sink, stderr=sink
            )
        return Launched(process, out)


@pytest.fixture
def site(toys: Any, world: Any, tmp_path: Path) -> Iterator[Site]:
    made = Site(toys, world, tmp_path, f"127.0.0.1:{free_port()}")
    launched: list[Launched] = []
    launch = made.launch

    def noted(*given: Any, **named: Any) -> Launched:
        launched.append(launch(*given, **named))
        return launched[-1]

    made.launch = noted  # type: ignore[method-assign]
    yield made
    for one in launched:
        if one.process.poll() is None:
            one.process.terminate()
            one.process.wait(60)


def reached(host: Launched, words: str, seconds: float = 240) -> None:
    until = time.monotonic() + seconds
    while words not in host.said:
        assert host.process.poll() is None and time.monotonic() < until, host.said[-3000:]
        time.sleep(0.05)


def rank_of(host: Launched) -> int:
    """The process of a host's only rank."""
    job = str(host.out / "train")
    for entry in Path("/proc").iterdir():
        try:
            words = (entry / "cmdline").read_bytes().decode(errors="replace") if entry.name.isdigit() else ""
        except OSError:
            continue
        if "stack.train.worker" in words and "distributed.run" not in words and job in words:
            return int(entry.name)
    raise AssertionError("no rank is there")


LONG_RUN = {"steps": 100_000, "save_every": 100_000}


# What the environment says.


def test_the_environment_names_the_hosts() -> None:
    assert hosts_from({}) == Hosts() and hosts_from({"STACK_HOSTS": "1", "STACK_HOST_INDEX": "7"}) == Hosts()
    given = {
        "STACK_HOSTS": "4",
        "STACK_HOST_INDEX": "2",
        "STACK_FIRST_HOST": "node-a:500",
        "STACK_MEET_S": "9",
    }
    assert hosts_from(given) == Hosts(4, 2, "node-a", 500, None, 9)
    assert hosts_from(given).ranks_here(32) == 8


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"STACK_HOSTS": "two"}, "STACK_HOSTS is 'two'"),
        ({"STACK_HOST_INDEX": ""}, "STACK_HOST_INDEX is not given"),
        ({"STACK_HOST_INDEX": "2"}, "STACK_HOST_INDEX is 2, and 2 hosts count from 0"),
        ({"STACK_FIRST_HOST": ""}, "STACK_FIRST_HOST is not given"),
        ({"STACK_FIRST_HOST": "a:b"}, "'a:b', which is no ADDRESS"),
    ],
)
def test_an_environment_that_does_not_fit(change: dict[str, str], words: str) -> None:
    given = {"STACK_HOSTS": "2", "STACK_HOST_INDEX": "1", "STACK_FIRST_HOST": "127.0.0.1", **change}
    with pytest.raises(BadRequest, match=words):
        hosts_from(given)


def test_devices_that_hosts_cannot_share() -> None:
    with pytest.raises(BadRequest, match=r"device.count is 9, which 2 hosts"):
        Hosts(2, 0, "127.0.0.1").ranks_here(9)


def test_the_interface_is_the_one_with_the_way_to_the_first_host() -> None:
    assert interface_to(Hosts(2, 1, "127.0.0.1")) == "lo"
    assert interface_to(Hosts(2, 1, "127.0.0.1", net="eth7")) == "eth7"


# What launchers tell each other.


@dataclass
class Both:
    """A first host's meeting, and another's, or the errors that they raised."""

    first: Any
    other: Any


def come_together(facts: list[dict[str, Any]], indices: tuple[int, ...] = (0, 1), meet_s: float = 10) -> Both:
    port, found = free_port(), list[Any]([None, None])

    def one(place: int) -> None:
        hosts = Hosts(2, indices[place], "127.0.0.1", port, None, meet_s)
        try:
            found[place] = meet(hosts, facts[place], lambda _: None)
        except StackError as error:
            found[place] = error

    threads = [threading.Thread(target=one, args=(place,)) for place in range(len(indices))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return Both(*found)


def test_one_host_is_a_meeting_of_its_own() -> None:
    alone = meet(Hosts(), {}, lambda _: None)
    alone.poll()
    alone.tell(result={})
    alone.close()
    assert not alone.should_end() and alone.endings() == []


def test_hosts_that_differ_are_refused_on_both() -> None:
    both = come_together([{"seed": 1, "steps": 5}, {"seed": 2, "steps": 5}])
    for error in (both.first, both.other):
        assert isinstance(error, StackError) and error.id == "hosts-differ"
        assert "seed is 1 here and 2 there" in error.what and "host 1 (" in error.what
        assert "steps" not in error.what


def test_two_hosts_with_one_index() -> None:
    port, hosts = free_port(), 3
    found: dict[str, Any] = {}

    def one(name: str, index: int) -> None:
        try:
            meet(Hosts(hosts, index, "127.0.0.1", port, None, 10), {}, lambda _: None)
        except StackError as error:
            found[name] = error

    threads = [threading.Thread(target=one, args=pair) for pair in (("a", 0), ("b", 1), ("c", 1))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {error.id for error in found.values()} == {"hosts-same-index"} and len(found) == 3


def test_a_host_that_does_not_come_is_named() -> None:
    with pytest.raises(NotAble, match=r"1 of 3 hosts came within 0.3 s; missing: host 1, 2"):
        meet(Hosts(3, 0, "127.0.0.1", free_port(), None, 0.3), {}, lambda _: None)
    with pytest.raises(NotAble, match="the first host did not answer"):
        meet(Hosts(3, 1, "127.0.0.1", free_port(), None, 0.3), {}, lambda _: None)


def test_an_address_that_is_another_hosts() -> None:
    with pytest.raises(NotAble, match=r"cannot listen at 192.0.2.1 port"):
        meet(Hosts(2, 0, "192.0.2.1", free_port(), None, 1), {}, lambda _: None)


def test_a_stranger_at_the_port_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    stranger: list[socket.socket] = []

    def knock() -> None:
        until = time.monotonic() + 5
        while not stranger and time.monotonic() < until:
            try:
                stranger.append(socket.create_connection(("127.0.0.1", port)))
                stranger[0].sendall(b"GET / HTTP/1.1\r\n\r\n")
            except OSError:
                time.sleep(0.01)

    thread = threading.Thread(target=knock)
    thread.start()
    with pytest.raises(NotAble, match="missing: host 1"):
        meet(Hosts(2, 0, "127.0.0.1", port, None, 0.7), {}, lambda _: None)
    thread.join()
    stranger[0].close()


def test_the_verdict_reaches_every_host() -> None:
    both = come_together([{}, {}])
    told: list[Any] = []
    thread = threading.Thread(target=lambda: told.append(both.other.report({"is_good": True, "words": "x"})))
    thread.start()
    ((peer, said),) = both.first.endings()
    assert said["words"] == "x" and abs(peer.clock_ahead_s) < 2 and not both.first.should_end()
    both.first.tell(result={"outcome": "finished", "pad": "x" * 500_000})
    both.first.close()
    thread.join(10)
    assert told[0]["outcome"] == "finished"
    both.other.close()


def test_an_error_of_the_first_host_is_every_hosts() -> None:
    both = come_together([{}, {}])
    both.first.tell(error=WorkFailed("a-b", "what", where="there", do="this"))
    with pytest.raises(StackError, match="what") as caught:
        both.other.report({"is_good": False})
    assert (caught.value.id, caught.value.where, int(caught.value.exit)) == ("a-b", "there", 4)
    for one in (both.first, both.other):
        one.close()


@pytest.mark.parametrize("is_silent", [True, False])
def test_a_host_that_is_lost(monkeypatch: pytest.MonkeyPatch, is_silent: bool) -> None:
    """Silent, as one without power; or gone, as one whose launcher was killed."""
    monkeypatch.setattr(meeting_module, "SILENT_S", 0.2)
    monkeypatch.setattr(meeting_module, "LOST_LEAVE_S", 0.1)
    both = come_together([{}, {}])
    first: Meeting = both.first
    if not is_silent:
        both.other.peers[0].link.close()
    until = time.monotonic() + 5
    while not first.should_end():
        assert time.monotonic() < until
        first.poll()
        time.sleep(0.01)
    with pytest.raises(WorkFailed, match="silent for" if is_silent else "gone without a word"):
        first.refuse_lost()
    both.other.close() if is_silent else None
    first.close()


def test_a_host_whose_kernel_does_not_answer_is_lost_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """As tcp(7) tells it, ETIMEDOUT after TCP_USER_TIMEOUT; one that is only busy is given longer."""
    both = come_together([{}, {}])
    first: Meeting = both.first
    peer, link = first.peers[0], first.peers[0].link
    assert link.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 25_000

    class Unanswered:
        def settimeout(self, _: float) -> None: ...

        def recv(self, _: int) -> bytes:
            raise OSError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))

    monkeypatch.setattr(meeting_module, "UNANSWERED_LEAVE_S", 0.0)
    monkeypatch.setattr(peer, "link", Unanswered())
    first.poll()
    time.sleep(0.01)
    assert first.should_end()
    with pytest.raises(WorkFailed, match="Connection timed out"):
        first.refuse_lost()
    monkeypatch.setattr(peer, "link", link)
    both.other.close()
    first.close()


# Whole trainings.


@pytest.mark.lerobot
def test_two_hosts_train_as_one(site: Site, toys: Any, world: Any) -> None:
    """The losses of one process with accumulation, to rounding; one journal, one result."""
    hosts = [site.launch(index) for index in (1, 0)]
    assert [host.wait() for host in hosts] == [0, 0], hosts[0].said + hosts[1].said
    other, first = hosts
    assert first.end == other.end == "finished "
    result = read_json(first.out / "train" / "result.json")
    assert result["world"] == 2 and len(result["first_losses"]) == 6
    assert not (other.out / "train" / "result.json").exists()
    train = {"steps": 6, "batch_per_device": 2, "accumulation": 2}
    _, alone = toys.run_here(toys.make_job(world, site.folder / "alone", train=train))
    assert result["first_losses"] == pytest.approx(alone.losses, abs=1e-5)


@long
@pytest.mark.lerobot
def test_two_hosts_train_what_one_does_bit_by_bit(site: Site, toys: Any, world: Any) -> None:
    """As one host with as many ranks."""
    from stack.train import train

    hosts = [site.launch(index) for index in (1, 0)]
    assert [host.wait() for host in hosts] == [0, 0], hosts[0].said + hosts[1].said
    result = read_json(hosts[1].out / "train" / "result.json")
    alone = train(
        toys.run_manifest(device={"count": 2}, train={"steps": 6, "batch_per_device": 2, "log_every": 1}),
        dataset=world.dataset,
        mirror=world.mirror,
        models=world.models,
        out=site.folder / "alone",
        log=lambda _: None,
    )
    assert alone.first_losses == tuple(result["first_losses"])
    assert [c["sha256"] for c in alone.checkpoints] == [c["sha256"] for c in result["checkpoints"]]


@long
@pytest.mark.lerobot
def test_a_killed_rank_of_the_other_host_is_named_on_both(site: Site) -> None:
    first, other = (site.launch(index, **LONG_RUN) for index in (0, 1))
    reached(first, "step 3/")
    pid = rank_of(other)
    started = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    assert [first.wait(60), other.wait(60)] == [4, 4]
    assert first.end == other.end and time.monotonic() - started < 30
    assert first.end.startswith(f"killed rank 1 (process {pid} on host 1 (")


@long
@pytest.mark.lerobot
def test_a_frame_that_only_the_other_host_cannot_read(site: Site) -> None:
    """The first host's rank fails next, of a closed connection; shown is what came first."""
    planted = site.folder / "site"
    planted.mkdir()
    (planted / "sitecustomize.py").write_text(
        "import sys\n"
        "if any('stack.train.worker' in word for word in sys.orig_argv):\n"
        "    from stack.train import batches\n"
        "    read, calls = batches.Samples.__getitem__, []\n"
        "    def planted(self, index):\n"
        "        calls.append(index)\n"
        "        if len(calls) == 8:\n"
        "            return batches.Unreadable(index, 'the disk says no')\n"
        "        return read(self, index)\n"
        "    batches.Samples.__getitem__ = planted\n"
    )
    path = f"{planted}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    first, other = site.launch(0, **LONG_RUN), site.launch(1, env={"PYTHONPATH": path}, **LONG_RUN)
    assert [first.wait(), other.wait(60)] == [4, 4]
    assert first.end == other.end
    assert first.end.startswith("sample-unreadable rank 1 on host 1 (") and "the disk says no" in first.end


@long
@pytest.mark.lerobot
def test_a_slow_rank_of_the_other_host_is_named_and_its_steps_are_kept(site: Site) -> None:
    """Host 1's disk takes a second a frame from its third step on; both end with that."""
    planted = site.folder / "site"
    planted.mkdir()
    (planted / "sitecustomize.py").write_text(
        "import sys, time\n"
        "if any('stack.train.worker' in word for word in sys.orig_argv):\n"
        "    from stack.train import batches\n"
        "    read, calls = batches.Samples.__getitem__, []\n"
        "    def slow(self, index):\n"
        "        calls.append(index)\n"
        "        time.sleep(1.0 if len(calls) > 4 else 0.0)\n"
        "        return read(self, index)\n"
        "    batches.Samples.__getitem__ = slow\n"
    )
    path = f"{planted}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    settings = {**LONG_RUN, "lag_factor": 4, "lag_steps": 3}
    first, other = site.launch(0, **settings), site.launch(1, env={"PYTHONPATH": path}, **settings)
    assert [first.wait(), other.wait(60)] == [4, 4]
    assert first.end == other.end and first.end.startswith("lagging rank 1 needed ")
    result = read_json(first.out / "train" / "result.json")
    assert f"for its part of step {result['steps'] + 1}" in first.end
    assert f"step {result['steps']} is saved; go on with --resume" in result["message"]
    assert [c["step"] for c in result["checkpoints"]] == [result["steps"]]


@long
@pytest.mark.lerobot
@pytest.mark.parametrize("asked", [0, 1])
def test_sigterm_to_one_host_saves_and_stops_both(site: Site, asked: int) -> None:
    hosts = [site.launch(index, **LONG_RUN) for index in (0, 1)]
    reached(hosts[0], "step 3/")
    hosts[asked].process.send_signal(signal.SIGTERM)
    assert [host.wait(90) for host in hosts] == [130, 130]
    assert "saved; go on with --resume" in hosts[0].end and hosts[0].end == hosts[1].end
    done = read_json(hosts[0].out / "train" / "result.json")["steps"]
    # The other host has no checkpoint: they differ, and that is said before anything is trained.
    again = [site.launch(index, resume=True, **LONG_RUN) for index in (0, 1)]
    assert [host.wait(90) for host in again] == [2, 2]
    assert "checkpoint to resume from is" in again[0].end and "there is none there" in again[0].end
    shutil.copytree(
        hosts[0].out / "train" / "checkpoints" / f"{done:06d}",
        hosts[1].out / "train" / "checkpoints" / f"{done:06d}",
    )
    again = [site.launch(index, resume=True, **LONG_RUN) for index in (0, 1)]
    reached(again[0], f"step {done + 2}/")
    again[0].process.send_signal(signal.SIGTERM)
    assert [host.wait(90) for host in again] == [130, 130]


@long
@pytest.mark.lerobot
def test_a_host_whose_launcher_is_killed_saves_with_the_others(site: Site) -> None:
    first, other = (site.launch(index, **LONG_RUN) for index in (0, 1))
    reached(first, "step 3/")
    other.process.kill()
    assert first.wait(90) == 130
    assert "warning: host 1 (" in first.said and "is lost" in first.said
    assert "saved; go on with --resume" in first.end


@long
@pytest.mark.lerobot
def test_a_host_that_loses_its_power_is_named(site: Site) -> None:
    """Stopped processes say as little as a host without power, and keep their connections as open."""
    first, other = (site.launch(index, **LONG_RUN) for index in (0, 1))
    reached(first, "step 3/")
    frozen = [rank_of(other), other.process.pid]
    for pid in frozen:
        os.kill(pid, signal.SIGSTOP)
    try:
        assert first.wait(240) == 4
    finally:
        for pid in reversed(frozen):
            os.kill(pid, signal.SIGCONT)
    assert first.end.startswith("host-lost host 1 (") and "silent for 60 s" in first.end
    assert other.wait(120) != 0


def namespaces(name: str) -> list[list[str]]:
    """Commands that make two namespaces, with a link between them and no other."""
    a, b = f"{name}a", f"{name}b"
    return [
        ["ip", "netns", "add", a],
        ["ip", "netns", "add", b],
        ["ip", "link", "add", f"v{a}", "netns", a, "type", "veth", "peer", "name", f"v{b}", "netns", b],
        *(
            command
            for space, address in ((a, "10.213.7.1/24"), (b, "10.213.7.2/24"))
            for command in (
                ["ip", "-n", space, "addr", "add", address, "dev", f"v{space}"],
                ["ip", "-n", space, "link", "set", f"v{space}", "up"],
                ["ip", "-n", space, "link", "set", "lo", "up"],
            )
        ),
    ]


@long
@pytest.mark.lerobot
def test_two_networks_of_their_own(site: Site) -> None:
    """Two network namespaces, as two hosts have them: the interface is found, and nothing goes elsewhere."""
    name = f"st{os.getpid() % 100000}"
    try:
        for command in namespaces(name):
            if subprocess.run(command, capture_output=True, check=False).returncode != 0:
                pytest.skip("this user cannot make network namespaces")
        site.first = "10.213.7.1"
        site.prefix = lambda index: ["ip", "netns", "exec", f"{name}{'ab'[index]}"]
        hosts = [site.launch(index) for index in (0, 1)]
        assert [host.wait() for host in hosts] == [0, 0], hosts[0].said + hosts[1].said
        result = json.loads((hosts[0].out / "train" / "result.json").read_text())
        assert result["outcome"] == "finished" and result["outside_connections"] == []
        assert (
            sha256_file(
                hosts[0].out
                / "train"
                / result["checkpoints"][-1]["path"]
                / "pretrained_model"
                / "model.safetensors"
            )
            == result["checkpoints"][-1]["sha256"]
        )
    finally:
        for space in "ab":
            subprocess.run(["ip", "netns", "del", f"{name}{space}"], capture_output=True, check=False)
