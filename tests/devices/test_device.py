"""The cpu for real; the accelerators' path against a stand-in with torch.npu's names."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import types
from typing import Any

import pytest

from stack.devices import device_count, open_device, probe
from stack.errors import NotAble

torch = pytest.importorskip("torch")


class StandIn(types.ModuleType):
    """Answers as torch.npu does (names as in torch_npu 2.7.1), and keeps what it was asked."""

    def __init__(self) -> None:
        super().__init__("torch.npu")
        self.asked: list[Any] = []
        self.state = torch.zeros(4, dtype=torch.uint8)

    def is_available(self) -> bool:
        return True

    def device_count(self) -> int:
        return 2

    def get_device_name(self, index: int) -> str:
        return f"Ascend910B3 #{index}"

    def get_device_properties(self, index: int) -> Any:
        return types.SimpleNamespace(total_memory=64 << 30)

    def set_device(self, index: int) -> None:
        self.asked.append(("set_device", index))

    def synchronize(self) -> None:
        self.asked.append("synchronize")

    def memory_allocated(self) -> int:
        return 5

    def max_memory_allocated(self) -> int:
        return 7

    def max_memory_reserved(self) -> int:
        return 9

    def memory_reserved(self) -> int:
        return 8

    def reset_peak_memory_stats(self) -> None:
        self.asked.append("reset_peak_memory_stats")

    def mem_get_info(self) -> tuple[int, int]:
        return 11, 13

    def empty_cache(self) -> None:
        self.asked.append("empty_cache")

    def manual_seed_all(self, seed: int) -> None:
        self.asked.append(("manual_seed_all", seed))

    def get_rng_state(self) -> Any:
        return self.state.clone()

    def set_rng_state(self, state: Any) -> None:
        self.state = state.clone()


@pytest.fixture
def npu(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    module = StandIn()
    monkeypatch.setattr(torch, "npu", module, raising=False)
    return module


def test_cpu_restores_all_generators() -> None:
    import numpy

    device = open_device("cpu")
    device.seed(7)
    state = device.rng_state()

    def draw() -> tuple[Any, ...]:
        return random.random(), float(numpy.random.rand()), torch.rand(3).tolist(), numpy.random.randn()

    first = draw()
    assert draw() != first
    device.set_rng_state(state)
    assert draw() == first
    device.seed(7)
    assert draw() == first
    device.seed(8)
    assert draw() != first


def test_cpu_facts() -> None:
    device = open_device("cpu")
    assert device.collective == "gloo"
    assert device.torch == torch.device("cpu")
    assert device.name
    assert 0 < device.memory_now_bytes() <= device.memory_peak_bytes() < device.memory_total_bytes()
    assert device.memory_reserved_peak_bytes() is None
    assert (
        0
        < device.memory_free_bytes()
        < device.memory_total_bytes()
        <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    )
    assert device_count("cpu") == len(os.sched_getaffinity(0))


def test_cpu_autocast() -> None:
    device = open_device("cpu")
    weight = torch.ones(4, 4)
    with device.autocast("bfloat16"):
        assert (weight @ weight).dtype == torch.bfloat16
    with device.autocast(None):
        assert (weight @ weight).dtype == torch.float32


def test_npu_asks_its_own_module(npu: StandIn) -> None:
    device = open_device("npu", 1)
    assert npu.asked == [("set_device", 1)]
    device.seed(3)
    device.synchronise()
    device.reset_memory_peak()
    device.empty_caches()
    assert npu.asked[1:] == [("manual_seed_all", 3), "synchronize", "reset_peak_memory_stats", "empty_cache"]
    assert (device.memory_now_bytes(), device.memory_peak_bytes(), device.memory_reserved_peak_bytes()) == (
        5,
        7,
        9,
    )
    assert (device.memory_total_bytes(), device.memory_free_bytes()) == (13, 11)
    assert device.memory_reserved_bytes() == 8
    assert (device.collective, device.name) == ("hccl", "Ascend910B3 #1")


def test_npu_generator_is_part_of_the_state(npu: StandIn) -> None:
    device = open_device("npu")
    state = device.rng_state()
    npu.state += 1
    device.set_rng_state(state)
    assert npu.state.tolist() == [0, 0, 0, 0]
    with pytest.raises(KeyError):
        device.set_rng_state(open_device("cpu").rng_state())


def test_more_devices_than_there_are(npu: StandIn) -> None:
    with pytest.raises(NotAble, match=r"npu:2 is asked for, 2 are visible"):
        open_device("npu", 2)
    assert device_count("npu") == 2
    _, facts = probe("npu")
    assert facts.names == ("Ascend910B3 #0", "Ascend910B3 #1")
    assert facts.memory_bytes == (64 << 30, 64 << 30)


def test_no_backend_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch, "npu", raising=False)
    with pytest.raises(NotAble, match="no npu backend"):
        open_device("npu")
    _, facts = probe("npu")
    assert facts.count == 0 and "no npu backend" in str(facts.problem)


def test_a_broken_driver_is_a_fact(npu: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> bool:
        raise RuntimeError("drvGetDevNum failed, ret 87")

    monkeypatch.setattr(npu, "is_available", broken)
    _, facts = probe("npu")
    assert facts.count == 0 and "drvGetDevNum" in str(facts.problem)


def test_host_facts_need_no_torch() -> None:
    code = (
        "import sys; from stack.devices import probe; host, facts = probe('cpu'); "
        "assert 'torch' not in sys.modules; assert facts.problem is None; "
        "print(host.cpu_count, facts.count, host.memory_bytes, host.shm_bytes)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    cores, count, memory, shm = done.stdout.split()
    assert int(cores) == int(count) == len(os.sched_getaffinity(0))
    assert int(memory) == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    stat = os.statvfs("/dev/shm")
    assert int(shm) == stat.f_frsize * stat.f_blocks
