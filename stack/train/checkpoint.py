"""Checkpoints in lerobot's own layout, with what exact resume and honest loading need beside it.

    checkpoints/000100/pretrained_model/   config.json, model.safetensors, train_config.json, processors
                                           stack.json: line, toy dimensions, proofs; tokenizer/
    checkpoints/000100/training_state/     lerobot's optimiser, scheduler, step; rng-<rank>.pt, losses.json
                                           trained.safetensors, average.safetensors: with adapters or a
                                           moving average, the trained tensors and the average as they are
    checkpoints/000100/adapter/            peft's files, with adapters
    checkpoints/last, best                 links to the newest, and to the one of the lowest hold-out loss

`pretrained_model` is what one uses: the moving average where there is one, adapters merged into the weights.
`policy_preprocessor.json` names the tokenizer `tokenizer`, relative to `pretrained_model`, so that the
folder can be moved; `load_processors` resolves it, and lerobot's own loader takes the folder as
`preprocessor_overrides={"tokenizer_processor": {"tokenizer_name": <folder>/tokenizer}}`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stack.devices import Device
from stack.errors import BadRequest
from stack.files import read_json, sha256_file, tree_files
from stack.manifests.run import ToyDims
from stack.train import lines
from stack.train.average import Average
from stack.train.identity import IDENTITY, TOKENIZER, check_identity, check_line_and_dims, data_facts
from stack.train.job import WEIGHTS_FILE, Job
from stack.train.policy import TOKENIZER_STEP, Processors
from stack.train.trainable import Trainable
from stack.train.weights import load_weights

MODEL, STATE = "pretrained_model", "training_state"
LAST = "last"
LOSSES, TRAINED, AVERAGE = "losses.json", "trained.safetensors", "average.safetensors"


@dataclass(frozen=True)
class Progress:
    """What a resumed run goes on from.

    Attributes:
        step: steps done.
        losses: one a step, from the first; None for a step that was skipped.
    """

    step: int
    losses: tuple[float | None, ...]


def load(
    folder: Path,
    job: Job,
    trainable: Trainable,
    average: Average | None,
    optimizer: Any,
    scheduler: Any,
    device: Device,
    rank: int,
) -> Progress:
    """Restore everything that the next step depends on.

    Raises:
        BadRequest: the checkpoint is of another line, of other dimensions, of another run, or not whole.
    """
    import torch
    from safetensors.torch import load_file

    stamp = check_identity(folder / MODEL, job.run, data_facts(job.dataset))
    _check_whole(folder, stamp, trainable)
    if (folder / STATE / TRAINED).is_file():
        trainable.load_raw(load_file(folder / STATE / TRAINED), folder / STATE / TRAINED)
    else:
        load_weights(trainable.policy, folder / MODEL)
    if average is not None:
        average.load(load_file(folder / STATE / AVERAGE))
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


def _check_whole(folder: Path, stamp: Mapping[str, Any], trainable: Trainable) -> None:
    """Every file is the one that was written, and what is frozen is what was frozen then."""
    file = folder / MODEL / WEIGHTS_FILE
    if "trainable" not in stamp or "weights_sha256" not in stamp:
        raise BadRequest(
            "checkpoint-older",
            "the checkpoint is of an older release, which did not record what it trained",
            where=str(folder),
            do="finish that training with the release it was started with, or start anew",
        )
    if not file.is_file() or sha256_file(file) != stamp["weights_sha256"]:
        raise BadRequest(
            "checkpoint-weights-changed",
            "the checkpoint's weights are not the ones that were written with it",
            where=str(file),
            do="remove this checkpoint's folder; the resume takes the one before it",
        )
    changed = next(
        (name for name in sorted(stamp.get("files", {})) if not _is_file_of(stamp, folder, name)), None
    )
    if changed is not None:
        raise BadRequest(
            "checkpoint-file-changed",
            "a file of the checkpoint is not the one that was written with it, or is gone",
            where=str(folder / changed),
            do="remove this checkpoint's folder; the resume takes the one before it",
        )
    was, now = stamp["trainable"]["frozen_sha256"], trainable.frozen_sha256
    if was != now:
        raise BadRequest(
            "checkpoint-frozen-differ",
            f"the tensors that are not trained are not those of the start: {now[:12]} against {was[:12]}",
            where=str(folder),
            do="resume with the weights that the training was started with",
        )


def _is_file_of(stamp: Mapping[str, Any], folder: Path, name: str) -> bool:
    file = folder / name
    # The weights have been compared already, and at full size that takes a while.
    if name == f"{MODEL}/{WEIGHTS_FILE}":
        return True
    return file.is_file() and sha256_file(file) == stamp["files"][name]


def folders(checkpoints: Path) -> list[Path]:
    """The whole checkpoints that are there, oldest first. The links are a convenience; these count."""
    return sorted(
        (p for p in checkpoints.glob("[0-9]*") if (p / MODEL / IDENTITY).is_file()), key=lambda p: int(p.name)
    )


def last(checkpoints: Path) -> Path | None:
    """The newest whole checkpoint, or None."""
    return next(reversed(folders(checkpoints)), None)


def listing(job: Job) -> list[dict[str, Any]]:
    """Step, path, bytes and sha256 of every checkpoint that is there, oldest first."""
    return [
        {
            "step": int(folder.name),
            "path": folder.relative_to(job.out).as_posix(),
            "bytes": sum(file.stat().st_size for file in tree_files(folder)),
            "sha256": sha256_file(folder / MODEL / WEIGHTS_FILE),
        }
        for folder in folders(job.checkpoints)
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
