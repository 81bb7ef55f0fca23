"""How long a step stands still for a checkpoint: `python -m bench.train_checkpoint`.

Against the time that the checkpoint's writing takes, in the same run. The policy is a wider toy, so that
tensors, and not their names, are what is copied and written.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from pathlib import Path

import click

from bench.train_overhead import CHECKOUT, make_inputs, run_manifest
from stack.demo.models import write_models
from stack.files import write_json
from stack.manifests import load_models_manifest
from stack.manifests.run import ToyDims
from stack.train.child import environment, python_module
from stack.train.job import make_job

WIDE = ToyDims(width=512, depth=4, mlp_dim=2048, expert_width=512, expert_mlp_dim=1024, vision_hidden=128)


@click.command()
@click.option("--scratch", type=click.Path(path_type=Path), default=Path("work/bench-train"))
@click.option("--steps", default=12)
def main(scratch: Path, steps: int) -> None:
    scratch = scratch.absolute()
    dataset = make_inputs(scratch)
    write_models(scratch / "wide", dims=WIDE)
    run = run_manifest(steps, 0, 1)
    policy = run.policy.model_copy(update={"toy": WIDE})
    train = run.train.model_copy(update={"save_every": 4, "keep_checkpoints": 1})
    run = run.model_copy(update={"policy": policy, "train": train})
    models = load_models_manifest(CHECKOUT / "manifests" / "models.yaml").manifest
    out = scratch / "checkpoint-runs"
    subprocess.run(["rm", "-rf", str(out)], check=True)
    out.mkdir()
    job = make_job(run, dataset=dataset, mirror=scratch / "wide", models=models, out=out)
    job.write(out / "job.json")
    env = environment(out / "home", is_cpu=True, ranks=1)
    command = python_module("stack.train.worker", [str(out / "job.json")], 1)
    subprocess.run(command, env=env, check=True, stdout=subprocess.DEVNULL, stderr=sys.stderr)
    events = [json.loads(line) for line in (out / "events.jsonl").read_text().splitlines()]
    saves = [event for event in events if event["kind"] == "checkpoint"]
    # The first one also takes the memory for the copies.
    shares = [save["stopped_s"] / save["write_s"] for save in saves]
    click.echo(
        f"{saves[-1]['bytes'] / 1e6:.0f} MB a checkpoint: the step stood still for "
        f"{statistics.median(s['stopped_s'] for s in saves[1:]) * 1000:.0f} ms, the writing took "
        f"{statistics.median(s['write_s'] for s in saves[1:]):.2f} s; shares "
        + ", ".join(f"{share:.1%}" for share in shares)
    )
    write_json(out / "saves.json", saves)


if __name__ == "__main__":
    main()
