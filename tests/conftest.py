"""What all tests share: no network beyond loopback, one thread, where the real recordings lie."""

from __future__ import annotations

import ipaddress
import os
import signal
import socket
from pathlib import Path
from typing import Any

import pytest

from stack.dataset.realtime import refuse_realtime

CHECKOUT = Path(__file__).resolve().parent.parent

# Before anything imports torch or a hub client: one thread (two spin against each other on two cores),
# and no way out.
for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(name, "1")
for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE", "MLFLOW_DISABLE_TELEMETRY"):
    os.environ[name] = "1"
# A shell starts background jobs with SIGINT ignored, and children inherit that: no interrupt could be tested.
signal.signal(signal.SIGINT, signal.default_int_handler)
# Tests that encode AV1 by other ways than ours would leave this process, and all that it starts, real-time.
refuse_realtime()
# Children of the tests find the checkout's package, whatever folder they start in.
os.environ["PYTHONPATH"] = os.pathsep.join([str(CHECKOUT), *filter(None, [os.environ.get("PYTHONPATH")])])


@pytest.fixture(autouse=True)
def _loopback_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test that reaches out is a test of somebody else's server."""
    connect = socket.socket.connect

    def guarded(self: socket.socket, address: Any) -> Any:
        if self.family in (socket.AF_INET, socket.AF_INET6):
            host = str(address[0])
            if host != "localhost" and not ipaddress.ip_address(host).is_loopback:
                raise AssertionError(f"a test tried to connect to {address}")
        return connect(self, address)

    monkeypatch.setattr(socket.socket, "connect", guarded)


@pytest.fixture(scope="session")
def checkout() -> Path:
    return CHECKOUT


@pytest.fixture(scope="session")
def real_datasets() -> Path:
    """Small real recordings, beside the checkout or where STACK_REAL_DATASETS says."""
    folder = Path(os.environ.get("STACK_REAL_DATASETS", CHECKOUT.parent / "shared" / "datasets"))
    if not folder.is_dir():
        pytest.skip(f"the real recordings are not at {folder}; set STACK_REAL_DATASETS")
    return folder
