"""Checkpoints in lerobot's own layout, with what exact resume and honest loading need beside it.

    checkpoints/000100/pretrained_model/   config.json, model.safetensors, train_config.json, processors
                                           stack.json: line, toy dimensions, proofs; tokenizer/
    checkpoints/000100/training_state/     lerobot's optimiser, scheduler, step; rng-<rank>.pt, losses.json
    checkpoints/last                       a link to the newest

`policy_preprocessor.json` names the tokenizer `tokenizer`, relative to `pretrained_model`, so that the
folder can be moved; `load_processors` resolves it, and lerobot's own loader takes the folder as
`preprocessor_overrides={"tokenizer_processor": {"tokenizer_name": <folder>/tokenizer}}`.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stack.devices import Device
from stack.errors import BadRequest
from stack.files import read_json, sha256_file, tree_files, whole_folder, write_json
from stack.manifests.run import ToyDims
from stack.train import lines
from stack.train.identity import IDENTITY, TOKENIZER, check_identity, check_line_and_dims, data_facts
from stack.train.job import WEIGHTS_FILE, Job
from stack.train.policy import TOKENIZER_STEP, Processors

MODEL, STATE = "pretrained_model", "training_state"
LAST = "last"
LOSSES = "losses.json"


@dataclass(frozen=True)
class Progress:
    """What a resumed run goes on from.

    Attributes:
        step: steps done.
        losses: one a step, from the first.
    """

    step: int
    losses: tuple[float, ...]


def save(
    job: Job,
    step: int,
    policy: Any,
    optimizer: Any,
    scheduler: Any,
    processors: Processors,
    rng_states: Sequence[Mapping[str, Any]],
    losses: Sequence[float],
    stamp: Mapping[str, Any],
) -> dict[str, Any]:
    """Write one checkpoint beside its place and rename it; returns its step, path, bytes and sha256.

    Called on the first rank only; `rng_states` holds every rank's.
    """
    import torch

    digits = max(6, len(str(job.run.train.steps)))
    target = job.checkpoints / f"{step:0{digits}d}"
    with whole_folder(target, replace=True) as folder:
        _save_with_lerobot(folder, job, step, policy, optimizer, scheduler, processors)
        shutil.copytree(job.tokenizer, folder / MODEL / TOKENIZER)
        write_json(folder / MODEL / IDENTITY, {**stamp, "step": step})
        for rank, state in enumerate(rng_states):
            torch.save(dict(state), folder / STATE / f"rng-{rank}.pt")
        write_json(folder / STATE / LOSSES, {"losses": list(losses)})
    _point_last_at(target)
    _prune(job.checkpoints, job.run.train.keep_checkpoints)
    return {
        "step": step,
        "path": target.relative_to(job.out).as_posix(),
        "bytes": sum(file.stat().st_size for file in tree_files(target)),
        "sha256": sha256_file(target / MODEL / WEIGHTS_FILE),
    }


def load(
    folder: Path, job: Job, policy: Any, optimizer: Any, scheduler: Any, device: Device, rank: int
) -> Progress:
    """Restore everything that the next step depends on.

    Raises:
        BadRequest: the checkpoint is of another line, of other dimensions, of another run, or not whole.
    """
    import torch

    from stack.train.weights import load_weights

    check_identity(folder / MODEL, job.run, data_facts(job.dataset))
    load_weights(policy, folder / MODEL)
    # lerobot restores the first rank's generators on the way; the own ones of this rank are set after it.
    step, _, _ = lines.checkpoint_functions().load_training_state(folder, optimizer, scheduler)
    file = folder / STATE / f"rng-{rank}.pt"
    if not file.is_file():
        raise BadRequest(
            "checkpoint-rank-missing", f"there is no random state of rank {rank}", where=str(file)
        )
    device.set_rng_state(torch.load(file, weights_only=True))
    losses = read_json(folder / STATE / LOSSES, what="checkpoint's losses")["losses"]
    if len(losses) != step:
        raise BadRequest(
            "checkpoint-torn",
            f"the checkpoint is of step {step} and has {len(losses)} losses",
            where=str(folder),
        )
    return Progress(step, tuple(losses))


def last(checkpoints: Path) -> Path | None:
    """The newest whole checkpoint, or None. The link is a convenience; the folders are what counts."""
    found = sorted(
        (p for p in checkpoints.glob("[0-9]*") if (p / MODEL / IDENTITY).is_file()), key=lambda p: int(p.name)
    )
    return found[-1] if found else None


def listing(job: Job) -> list[dict[str, Any]]:
    """Step, path, bytes and sha256 of every checkpoint that is there, oldest first."""
    folders = sorted(
        (p for p in job.checkpoints.glob("[0-9]*") if (p / MODEL / IDENTITY).is_file()),
        key=lambda p: int(p.name),
    )
    return [
        {
            "step": int(folder.name),
            "path": folder.relative_to(job.out).as_posix(),
            "bytes": sum(file.stat().st_size for file in tree_files(folder)),
            "sha256": sha256_file(folder / MODEL / WEIGHTS_FILE),
        }
        for folder in folders
    ]


def load_policy(folder: Path) -> tuple[Any, Processors]:
    """A trained policy on the cpu with its processors, from a `pretrained_model` folder, proven loaded.

    Raises:
        BadRequest: the folder is of the other line, or its files do not fill the policy.
    """
    from lerobot.configs.policies import PreTrainedConfig

    from stack.train import shim, toy
    from stack.train.weights import load_weights

    stamp = read_json(folder / IDENTITY, what="checkpoint's identity")
    dims = None if stamp["toy"] is None else ToyDims.model_validate(stamp["toy"])
    check_line_and_dims(stamp, lines.detect_line(), dims, folder / IDENTITY)
    modeling = lines.modeling()
    shim.install(modeling)
    toy.install(modeling, dims)
    config = PreTrainedConfig.from_pretrained(folder)
    policy = modeling.PI05Policy(config)
    load_weights(policy, folder)
    policy.eval()
    return policy, load_processors(config, folder)


def load_processors(config: Any, folder: Path) -> Processors:
    """The processors of a `pretrained_model` folder, with the tokenizer that lies in it."""
    lines.processor()
    from lerobot.policies.factory import make_pre_post_processors

    overrides = {TOKENIZER_STEP: {"tokenizer_name": str(folder / TOKENIZER)}}
    before, after = make_pre_post_processors(
        config, pretrained_path=str(folder), preprocessor_overrides=overrides
    )
    return Processors(before, after)


def _save_with_lerobot(
    folder: Path, job: Job, step: int, policy: Any, optimizer: Any, scheduler: Any, processors: Processors
) -> None:
    from lerobot.configs.default import DatasetConfig
    from lerobot.configs.train import TrainPipelineConfig

    train, config = job.run.train, policy.config
    device, name = config.device, processors.tokenizer_step.tokenizer_name
    # Neither an accelerator that lerobot does not know nor a folder of this machine belongs into the files.
    config.device = "cpu"
    processors.tokenizer_step.tokenizer_name = TOKENIZER
    try:
        settings = TrainPipelineConfig(
            dataset=DatasetConfig(
                repo_id=f"local/{job.dataset.name}", root=str(job.dataset), video_backend="pyav"
            ),
            policy=config,
            output_dir=job.out,
            seed=train.seed,
            num_workers=train.workers,
            batch_size=train.batch_per_device,
            steps=train.steps,
            log_freq=train.log_every,
            save_freq=train.save_every,
            optimizer=config.get_optimizer_preset(),
            scheduler=config.get_scheduler_preset(),
        )
        lines.save_checkpoint(
            folder,
            world_size=job.run.device.count,
            batch_per_device=train.batch_per_device,
            step=step,
            cfg=settings,
            policy=policy,
            optimizer=optimizer,
            scheduler=scheduler,
            preprocessor=processors.before,
            postprocessor=processors.after,
        )
    finally:
        config.device, processors.tokenizer_step.tokenizer_name = device, name


def _point_last_at(target: Path) -> None:
    link = target.parent / f".{LAST}-{os.getpid()}"
    link.unlink(missing_ok=True)
    link.symlink_to(target.name)
    os.replace(link, target.parent / LAST)


def _prune(checkpoints: Path, keep: int) -> None:
    for folder in sorted(checkpoints.glob("[0-9]*"), key=lambda p: int(p.name))[:-keep]:
        shutil.rmtree(folder)
