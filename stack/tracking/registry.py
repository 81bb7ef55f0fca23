"""Checkpoints as versions of registered models: by reference, with what proves them.

A version's source is a small folder of its run's artifacts, where `checkpoint.json` says path, size and hash;
the bytes stay where the training wrote them. Source of the rule that a source must be an artifact of a run:
MLflow 3.17, `mlflow/server/handlers.py`, `_validate_source_run`.
"""

from __future__ import annotations

from typing import Any

from stack.files import canonical_json
from stack.tracking import names
from stack.tracking.artifacts import is_proxied
from stack.tracking.remote import Remote
from stack.tracking.replay import ModelUse, Replay

REFERENCE = "checkpoint.json"
FROM_RUN = (
    names.OUTCOME, names.VERDICT, names.DATASET, names.DATASET_DIGEST, names.WEIGHTS_DIGEST, names.DEVICE,
    names.GIT, names.IMAGE,
)  # fmt: skip
"""Tags of the run that are part of a version's proof."""


def register(fresh: Replay, run: Any, remote: Remote) -> None:
    """Register what the journal names and the server has not; bring tags and aliases up to date."""
    if fresh.models and not is_proxied(run):
        fresh.note("no model version was made: they need the server's artifact proxy")
        return
    for use in fresh.models:
        _register(use, fresh, run, remote)


def _register(use: ModelUse, fresh: Replay, run: Any, remote: Remote) -> None:
    key = f"{use.sha256} {use.attempt} {fresh.run_id}"
    proof = {f"stack.{name}": value for name, value in use.proof.items()}
    proof |= {name: fresh.tags[name] for name in FROM_RUN if name in fresh.tags}
    facts = {"stack.step": str(use.step), "stack.path": use.path, "stack.bytes": str(use.size_bytes)}
    tags = {names.CHECKPOINT: key, **facts, **proof}
    remote.ensure_model(use.name)
    version = _find(use.name, key, remote)
    if version is None:
        folder = f"checkpoints/{use.step:06d}"
        reference = {
            **{name.removeprefix("stack."): value for name, value in tags.items()},
            "run": fresh.run_id,
        }
        remote.log_text(run.info.run_id, canonical_json(reference), f"{folder}/{REFERENCE}")
        source = f"{run.info.artifact_uri}/{folder}"
        said = f"Step {use.step} of {fresh.name}; the files are at `{use.path}` of its run folder."

        def create() -> Any:
            # A lost answer may have made the version already.
            return _find(use.name, key, remote) or remote.client.create_model_version(
                use.name,
                source=source,
                run_id=run.info.run_id,
                tags=tags,
                description=said,
                await_creation_for=None,
            )

        version = remote.call(create)
    there: dict[str, str] = dict(version.tags)
    for name, value in tags.items():
        if there.get(name) != value:
            remote.call(remote.client.set_model_version_tag, use.name, version.version, name, value)
    for role in use.roles:
        _point(role, use.name, str(version.version), fresh, remote)


def _find(name: str, key: str, remote: Remote) -> Any | None:
    found = remote.call(remote.client.search_model_versions, f"name = '{name}'")
    return next((version for version in found if version.tags.get(names.CHECKPOINT) == key), None)


def _point(role: str, name: str, version: str, fresh: Replay, remote: Remote) -> None:
    """Let an alias name the version, unless it names a newer one, of a run that was shipped before."""
    aliases: dict[str, Any] = remote.call(remote.client.get_registered_model, name).aliases
    if int(aliases.get(role, 0)) < int(version):
        remote.call(remote.client.set_registered_model_alias, name, role, version)
