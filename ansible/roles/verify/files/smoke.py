"""Do a host's cards compute, and do they reach each other? One JSON line a host on stdout.

Started by torch's launcher, one process a card:
  python -m torch.distributed.run --nnodes N ... smoke.py --device npu|cpu
Every rank multiplies two bfloat16 matrices on its card, and compares with the same product in float64 on the
CPU; then all ranks of all hosts sum a tensor whose sum is known exactly. Exit code 1: a result is wrong.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import sys
from datetime import timedelta
from typing import Any

SIZE = 512
PACKAGES = ("torch", "torch_npu", "lerobot", "transformers", "stack")


def error_share(got: Any, left: Any, right: Any) -> float:
    """The largest error of a product as a share of what is allowed; above 1 it is wrong.

    Allowed is one step of bfloat16 (2^-7 of the value; correct rounding costs half of it), plus the error
    bound of a sum of K products in float32: K 2^-24 sum |a||b| (Higham, Accuracy and Stability, section 3.1).
    Anything that is not a number counts as infinite.

    Args:
        got: the device's product on the CPU, bfloat16 (n, m).
        left, right: the factors, bfloat16 (n, k) and (k, m).
    """
    a, b = left.double(), right.double()
    want = a @ b
    allowed = want.abs() * 2.0**-7 + (a.abs() @ b.abs()) * (left.shape[1] * 2.0**-24)
    share = ((got.double() - want).abs() / allowed).max().item()
    return share if share == share else float("inf")


def versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def cann_version(torch: Any) -> str | None:
    try:
        return str(torch.npu.get_cann_version())
    except Exception:  # an older torch_npu has no such call; its absence is no fault of the card
        return None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=("npu", "cpu"), required=True)
    kind = parser.parse_args().device
    import torch
    import torch.distributed

    rank, local, world = (int(os.environ[name]) for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"))
    device = torch.device("cpu") if kind == "cpu" else torch.device("npu", local)
    if kind == "npu":
        torch.npu.set_device(local)
    # Every rank multiplies other numbers, which are the same on every run.
    generator = torch.Generator().manual_seed(1000 + rank)
    left, right = (torch.randn(SIZE, SIZE, generator=generator).bfloat16() for _ in range(2))
    share = error_share((left.to(device) @ right.to(device)).cpu(), left, right)

    torch.distributed.init_process_group({"cpu": "gloo", "npu": "hccl"}[kind], timeout=timedelta(seconds=120))
    ramp = torch.arange(SIZE, dtype=torch.float32)
    total = (ramp * (rank + 1)).to(device)
    torch.distributed.all_reduce(total)
    reduced = bool(torch.equal(total.cpu(), ramp * (world * (world + 1) / 2)))
    # The worst of all ranks, so that every host tells the same of the whole.
    worst = torch.tensor([min(share, 1e9), 0.0 if reduced else 1.0], dtype=torch.float32, device=device)
    torch.distributed.all_reduce(worst, torch.distributed.ReduceOp.MAX)
    product_ok, reduce_ok = bool(worst[0] <= 1), bool(worst[1] == 0)
    if not (share <= 1 and reduced):
        print(
            f"rank {rank}: product at {share:.3g} of the allowed error, sum right: {reduced}", file=sys.stderr
        )
    if local == 0:
        facts = {
            "schema": "stack/verify/1",
            "device": kind,
            "name": torch.npu.get_device_name(0) if kind == "npu" else platform.machine(),
            "cards": int(os.environ["LOCAL_WORLD_SIZE"]),
            "world": world,
            "product_bf16": product_ok,
            "all_reduce": reduce_ok,
            "backend": torch.distributed.get_backend(),
            "versions": versions(),
            "cann": cann_version(torch) if kind == "npu" else None,
        }
        print(json.dumps(facts, sort_keys=True), flush=True)
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
    return 0 if product_ok and reduce_ok else 1


if __name__ == "__main__":
    sys.exit(main())
