"""Memory figures against the kernel's own, and out of memory told from other failures."""

from __future__ import annotations

import resource
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from stack.devices import is_out_of_memory
from stack.devices.memory import host_bytes, process_bytes


class OutOfMemoryError(RuntimeError):
    """Stands for torch's type, which torch_npu raises too; told by its name."""


NPU = (
    "NPU out of memory. Tried to allocate 2.00 GiB (NPU 0; 60.97 GiB total capacity; 58.12 GiB already "
    "allocated; 58.12 GiB current active; 1.20 GiB free; 59.00 GiB reserved in total by PyTorch)"
)
CPU = "[enforce fail at alloc_cpu.cpp:119] err == 0. DefaultCPUAllocator: can't allocate memory: you tried"
CANN = "EL0004: Failed to allocate memory. error code is 207001"


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        OutOfMemoryError("anything"),
        RuntimeError(NPU),
        RuntimeError(CPU),
        RuntimeError(CANN),
        RuntimeError("NPUWorkspaceAllocator tried to allocate 1.5 GiB"),
        RuntimeError("Malloc pin memory failed. Rried to allocate 64 MiB"),
        RuntimeError("call aclrtMalloc failed, ret 207018"),
        OSError(12, "Cannot allocate memory"),
    ],
)
def test_out_of_memory_errors(error: BaseException) -> None:
    assert is_out_of_memory(error)


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("The size of tensor a (32) must match the size of tensor b (36)"),
        RuntimeError("HCCL timeout, error code 107020"),
        RuntimeError("tensor of 1207001 elements"),
        ValueError("out of memory is what this text speaks of, but a ValueError is a wrong argument"),
        OSError(28, "No space left on device"),
        KeyError("EL0004"),
    ],
)
def test_other_errors_are_not(error: BaseException) -> None:
    assert not is_out_of_memory(error)


def test_return_codes() -> None:
    assert is_out_of_memory(-9, kernel_kills=1)
    assert not is_out_of_memory(-9, kernel_kills=0) and not is_out_of_memory(-9)
    assert is_out_of_memory(-6, "terminate called after throwing an instance of 'std::bad_alloc'")
    assert is_out_of_memory(1, NPU)
    assert not is_out_of_memory(-11, "Segmentation fault")
    assert not is_out_of_memory(1, "ValueError: no")
    assert not is_out_of_memory(0, "it said out of memory once, and went on to the end")


def test_process_figures_are_the_kernels() -> None:
    # ru_maxrss is the same high-water mark, in KiB, through another call.
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    assert process_bytes("VmHWM") == pytest.approx(peak, rel=0.05)
    assert process_bytes("VmRSS") <= process_bytes("VmHWM")
    assert host_bytes("MemAvailable") <= host_bytes()
    with pytest.raises(KeyError):
        process_bytes("VmNothing")


def test_the_peak_follows_and_resets(tmp_path: Path) -> None:
    """A block taken and given back stays in the peak until it is reset."""
    out = _child(
        """
        from stack.devices.memory import process_bytes, reset_process_peak
        before = process_bytes("VmHWM")
        block = bytearray(200_000_000); del block
        high = process_bytes("VmHWM")
        assert high - before > 180_000_000, (before, high)
        print("reset" if reset_process_peak() else "fixed", process_bytes("VmHWM") < high - 150_000_000)
        """
    )
    assert out.split() in (["reset", "True"], ["fixed", "False"])


def test_a_limit_makes_memory_run_out_for_real() -> None:
    """Below the limit all is well, above it Python's own allocation fails, and the process lives on."""
    out = _child(
        """
        from stack.devices import is_out_of_memory
        from stack.devices.memory import limit_data_bytes
        limit_data_bytes(100_000_000)
        small = bytearray(50_000_000)
        try:
            bytearray(100_000_000)
        except BaseException as error:
            print(is_out_of_memory(error))
        del small
        print(len(bytearray(60_000_000)))
        """
    )
    assert out.split() == ["True", "60000000"]


def _child(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
