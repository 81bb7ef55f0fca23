"""What a lead compares between trainings beyond the manifest: lerobot's settings, counts, versions."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stack.files import read_json, sha256_file
from stack.tracking.sampler import cann_version, driver_version
from stack.train import lines
from stack.train.job import Job

if TYPE_CHECKING:
    from stack.train.session import Session

DIGEST_CHARACTERS = 12
"""Enough to tell two apart in a table; whole digests are tags and artifacts."""
TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model")
PACKAGES = ("torch", "torch_npu", "lerobot", "transformers")  # the others are tags only
OF_OPTIMIZER = ("betas", "eps", "weight_decay", "grad_clip_norm")


def before_start(job: Job, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Known before the child starts: inputs by short digest, code, versions of packages and machine.

    Args:
        facts: see `stack.train.identity.data_facts`.
    """
    kind = job.run.device.kind
    installed = lines.versions()
    params: dict[str, Any] = {f"version.{name}": installed[name] for name in PACKAGES if name in installed}
    params |= _provenance(job.out / "provenance" / "provenance.json")
    if kind != "cpu":
        params["version.driver"] = driver_version(kind) or "unknown"
    if kind == "npu":
        params["version.cann"] = cann_version() or "unknown"
    if facts.get("digest"):
        params["data.content"] = str(facts["digest"])[:DIGEST_CHARACTERS]
    for name in TOKENIZER_FILES:
        if (job.tokenizer / name).is_file():
            params["tokenizer.sha256"] = sha256_file(job.tokenizer / name)[:DIGEST_CHARACTERS]
            break
    return params


def _provenance(file: Path) -> dict[str, Any]:
    if not file.is_file():
        return {}
    found = read_json(file, what="provenance")
    dirty = " dirty" if found.get("dirty") else ""
    revision = str(found.get("revision") or "unknown")[:DIGEST_CHARACTERS]
    return {"version.stack": f"{revision}{dirty}", "version.lock": found.get("lock") or "unknown"}


def of_session(session: Session) -> dict[str, Any]:
    """Known once the child has built everything: what lerobot's presets, weights and dataset decide."""
    config, weights = session.policy.config, session.proofs.weights
    modes = {_text(kind).lower(): _text(mode) for kind, mode in config.normalization_mapping.items()}
    optimizer = {key: getattr(config, f"optimizer_{key}") for key in OF_OPTIMIZER}
    return {
        "optimizer.type": type(session.optimizer).__name__,
        **{f"optimizer.{key}": _text(value) for key, value in optimizer.items()},
        "schedule.type": config.get_scheduler_preset().type,
        "schedule.decay_lr": config.scheduler_decay_lr,
        **{f"normalisation.{kind}": modes[kind] for kind in ("state", "action")},
        "model.parameters": weights.parameters,
        "model.trained": session.trainable.trained,
        "weights.sha256": weights.file_sha256[:DIGEST_CHARACTERS],
        "data.frames_trained": session.order.frames,
    }


def _text(value: Any) -> str:
    """A setting as people write it: an enumeration's value, a pair without brackets."""
    if isinstance(value, (list, tuple)):
        return " ".join(str(entry) for entry in value)
    return str(getattr(value, "value", value))
