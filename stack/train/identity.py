"""What a checkpoint says of itself (`stack.json`), and who may go on from it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stack.errors import BadRequest
from stack.files import read_json
from stack.manifests.run import RunManifest, ToyDims
from stack.train import lines
from stack.train.job import Job

IDENTITY = "stack.json"
TOKENIZER = "tokenizer"


def identity(job: Job, proofs: Mapping[str, Any]) -> dict[str, Any]:
    """What a checkpoint must agree on with the run that loads it."""
    run = job.run
    return {
        "schema": "stack/checkpoint/1",
        "line": lines.detect_line(),
        "toy": run.policy.toy.model_dump() if run.policy.toy else None,
        "versions": lines.versions(),
        "policy": run.policy.model_dump(mode="json"),
        "train": {
            "seed": run.train.seed,
            "global_batch": run.train.global_batch,
            "batch_per_device": run.train.batch_per_device,
            "accumulation": run.train.accumulation,
            "learning_rate": run.train.learning_rate,
            "warmup_steps": run.train.warmup_steps,
            "steps": run.train.steps,
            "padded_actions": run.train.padded_actions,
            "trains": run.train.trains,
            "freeze_vision": run.train.freeze_vision,
            "lora": run.train.lora.model_dump(mode="json") if run.train.lora else None,
            "master_weights": run.train.master_weights,
            "ema_decay": run.train.ema_decay,
            "holdout": run.train.holdout.model_dump(mode="json") if run.train.holdout else None,
            "devices": run.device.count,
        },
        "data": data_facts(job.dataset),
        "tokenizer": TOKENIZER,
        **proofs,
    }


def data_facts(root: Path) -> dict[str, Any]:
    """Counts of a dataset, and its content digest where `stack prepare` made it."""
    info = read_json(root / "meta" / "info.json", what="dataset's info")
    provenance = root / "meta" / "provenance.json"
    digest = read_json(provenance, what="provenance").get("content_digest") if provenance.is_file() else None
    return {
        "episodes": info["total_episodes"],
        "frames": info["total_frames"],
        "fps": info["fps"],
        "digest": digest,
    }


def check_identity(folder: Path, run: RunManifest, data: Mapping[str, Any]) -> dict[str, Any]:
    """Refuse a checkpoint (its `pretrained_model` folder) that this run would not continue as it was.

    Returns what the checkpoint says of itself.

    Raises:
        BadRequest: line, toy dimensions, policy, training settings or data differ; both values are named.
    """
    file = folder / IDENTITY
    stamp: dict[str, Any] = read_json(file, what="checkpoint's identity")
    check_line_and_dims(stamp, lines.detect_line(), run.policy.toy, file)
    # Random tensors matter only before the first step; where the mirror stands does not matter at all.
    ours = {**run.policy.model_dump(mode="json"), **_train_settings(run), **_prefixed(data)}
    theirs = {**stamp["policy"], **stamp["train"], **_prefixed(stamp["data"])}
    for key in sorted(theirs.keys() - {"random_tensors"}):
        if ours.get(key) != theirs[key]:
            raise BadRequest(
                "checkpoint-differs",
                f"the checkpoint was made with {key} {theirs[key]}, the run asks for {ours.get(key)}",
                where=str(file),
                do="resume with the manifest it was started with, or start anew in another folder",
            )
    return stamp


def check_line_and_dims(stamp: Mapping[str, Any], line: str, toy: ToyDims | None, file: Path) -> None:
    """The two things without which a policy would load and be wrong.

    Raises:
        BadRequest: the line is another, whose prompts differ; or the dimensions are others.
    """
    if stamp["line"] != line:
        raise BadRequest(
            "checkpoint-line",
            f"the checkpoint is of the {stamp['line']} line, and this environment has the {line} one: "
            "the two write the state into the prompt differently",
            where=str(file),
            do=f"use the environment of the {stamp['line']} line",
        )
    dims = toy.model_dump() if toy else None
    if stamp["toy"] != dims:
        raise BadRequest(
            "checkpoint-dims",
            f"the checkpoint has {_shown(stamp['toy'])}, and {_shown(dims)} was asked for",
            where=str(file),
            do="give policy.toy as the checkpoint has it",
        )


def _train_settings(run: RunManifest) -> dict[str, Any]:
    return {**run.train.model_dump(mode="json"), "devices": run.device.count}


def _prefixed(data: Mapping[str, Any]) -> dict[str, Any]:
    return {f"data.{key}": value for key, value in data.items()}


def _shown(dims: Mapping[str, Any] | None) -> str:
    return "full size" if dims is None else f"toy dimensions {dict(dims)}"
