"""lerobot's own training script on a toy pi0.5: `python -m bench.train_rival SPEC.json`.

The script itself runs, from its command line to its last step. What is put under it: the toy dimensions, our
order of the data and our seeds of the noise, so that both trainings see the same, and clocks around its
steps, because its log has three decimals. SPEC.json:

    start      a `pretrained_model` folder: weights, configuration, processors, tokenizer
    dataset    a prepared dataset
    out        a folder that is not there yet
    toy        toy dimensions
    settings   steps, batch, seed, workers, learning_rate, warmup_steps, frames
    report     file for the losses, gradient norms and seconds
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from pathlib import Path
from typing import Any

from stack.files import read_json, write_json
from stack.manifests.run import ToyDims

STARTED = time.time()


def write_start(job_file: Path, folder: Path) -> None:
    """The policy of a job before its first step, saved by lerobot's `save_pretrained`, tokenizer within."""
    from stack.devices import open_device
    from stack.train.job import Job
    from stack.train.ranks import Ranks
    from stack.train.session import open_session

    job = Job.read(job_file)
    session = open_session(job, open_device("cpu"), Ranks(), lambda _kind, **_details: None)
    session.policy.save_pretrained(folder)
    session.processors.tokenizer_step.tokenizer_name = "tokenizer"
    for processor in (session.processors.before, session.processors.after):
        processor.save_pretrained(folder)
    shutil.copytree(job.tokenizer, folder / "tokenizer")


def arguments(spec: dict[str, Any], line: str) -> list[str]:
    """The command line that a user would give."""
    settings = spec["settings"]
    given = {
        "policy.path": spec["start"],
        "policy.device": "cpu",
        "policy.push_to_hub": "false",
        "policy.optimizer_lr": settings["learning_rate"],
        "policy.scheduler_decay_lr": settings["learning_rate"] * 0.1,
        "policy.scheduler_warmup_steps": settings["warmup_steps"],
        "policy.scheduler_decay_steps": settings["steps"],
        "dataset.repo_id": f"local/{Path(spec['dataset']).name}",
        "dataset.root": spec["dataset"],
        "dataset.video_backend": spec.get("video_backend", "pyav"),
        "output_dir": spec["out"],
        "batch_size": settings["batch"],
        "steps": settings["steps"],
        "seed": settings["seed"],
        "num_workers": settings["workers"],
        "log_freq": 10,
        "save_checkpoint": "false",
        "wandb.enable": "false",
        "eval_freq" if line == "production" else "env_eval_freq": 0,
    }
    return [f"--{name}={value}" for name, value in given.items()]


def main(spec_file: Path) -> None:
    import torch

    from stack.train import lines, shim, toy

    torch.set_num_threads(1)
    spec = read_json(spec_file, what="specification")
    modeling = lines.modeling()
    shim.install(modeling)
    toy.install(modeling, ToyDims.model_validate(spec["toy"]))
    from lerobot.scripts import lerobot_train

    report: dict[str, Any] = {"losses": [], "grad_norms": [], "ends": [], "waits": [], "cpus": []}
    _order_and_seed(lerobot_train, spec)
    _listen(lerobot_train, report)
    # The processors name their tokenizer relative to the folder that they lie in.
    os.chdir(spec["start"])
    sys.argv = ["lerobot-train", *arguments(spec, lines.detect_line())]
    lerobot_train.main()
    write_json(Path(spec["report"]), {**report, "started": STARTED})


def _order_and_seed(script: Any, spec: dict[str, Any]) -> None:
    """Our frames in our order, and each batch's noise from our seed of it."""
    import torch

    from stack.train.data import Order

    settings = spec["settings"]
    order = Order(settings["frames"], settings["batch"], settings["seed"])
    original, cycle = torch.utils.data.DataLoader, script.cycle

    class Frames:
        def __iter__(self) -> Any:
            for batch in order.batches(0, settings["steps"]):
                yield from batch

        def __len__(self) -> int:
            return settings["steps"] * settings["batch"]

    class Ordered(original):  # type: ignore[misc, valid-type]
        def __init__(self, dataset: Any, **given: Any) -> None:
            super().__init__(dataset, **{**given, "shuffle": False, "sampler": Frames()})

    def seeded(loader: Any) -> Any:
        for step, batch in enumerate(cycle(loader)):
            torch.manual_seed(order.noise_seed(step, 0))
            yield batch

    torch.utils.data.DataLoader = Ordered
    script.cycle = seeded


def _listen(script: Any, report: dict[str, Any]) -> None:
    update = script.update_policy

    def listening(metrics: Any, *given: Any, **named: Any) -> Any:
        found = update(metrics, *given, **named)
        report["losses"].append(float(metrics.loss.val))
        report["grad_norms"].append(float(metrics.grad_norm.val))
        report["waits"].append(float(metrics.dataloading_s.val))
        report["ends"].append(time.time())
        report["cpus"].append(time.process_time())
        return found

    script.update_policy = listening


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(json.dumps({"usage": "python -m bench.train_rival SPEC.json"}))
    main(Path(sys.argv[1]))
