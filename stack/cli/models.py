"""The mirror of models and tokenizers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from stack.cli.options import FILE, FOLDER, Commands, log
from stack.errors import Exit


@click.group(cls=Commands)
def mirror() -> None:
    """Models and tokenizers on this machine, every file hashed."""


def _mirror_options(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in (
        click.argument("manifest", type=FILE),
        click.option("--to", type=FOLDER, required=True, help="The mirror's folder."),
        click.option("--only", "names", multiple=True, metavar="NAME", help="Only this model; repeatable."),
    ):
        command = option(command)
    return command


@mirror.command("get")
@_mirror_options
@click.option("--demo", type=FOLDER, help="Folder of `stack demo`, for models that it makes.")
@click.option("--endpoint", help="ModelScope address; default: MODELSCOPE_ENDPOINT or the public site.")
@click.option("--allow-host", "hosts", multiple=True, help="The hub may redirect to this host; repeatable.")
def mirror_get(
    manifest: Path,
    to: Path,
    names: tuple[str, ...],
    demo: Path | None,
    endpoint: str | None,
    hosts: tuple[str, ...],
) -> None:
    """Fetch the models of MANIFEST and verify every file by size and sha256.

    Example: stack mirror get manifests/models.yaml --to mirror --only pi05_base
    """
    from stack.manifests import load_models_manifest
    from stack.mirror import get

    loaded = load_models_manifest(manifest)
    for model in get(loaded, to, names=names or None, demo=demo, endpoint=endpoint, hosts=hosts, log=log):
        click.echo(f"{model.name}: verified, in {model.folder}")


@mirror.command("verify")
@_mirror_options
@click.option("--fast", is_flag=True, help="Big files by size, time and samples where `get` hashed them.")
def mirror_verify(manifest: Path, to: Path, names: tuple[str, ...], fast: bool) -> None:
    """Hash a mirror again and name every file that is wrong, missing or left over.

    Example: stack mirror verify manifests/models.yaml --to mirror
    """
    from stack.faults import has_errors
    from stack.manifests import load_models_manifest
    from stack.mirror import verify

    faults = verify(load_models_manifest(manifest).manifest, to, names=names or None, fast=fast)
    for fault in faults:
        click.echo(
            f"{fault.severity}[{fault.code}]: {fault.message}\n  at: {fault.where}\n  do: {fault.mend}"
        )
    wrong = [fault for fault in faults if fault.severity != "note"]
    click.echo("every file is right" if not wrong else f"{len(wrong)} faults")
    raise click.exceptions.Exit(Exit.NOT_GOOD if has_errors(faults) else Exit.OK)


@mirror.command("pin")
@_mirror_options
@click.option("--endpoint", help="ModelScope address; default: MODELSCOPE_ENDPOINT or the public site.")
@click.option("--allow-host", "hosts", multiple=True, help="The hub may redirect to this host; repeatable.")
def mirror_pin(
    manifest: Path, to: Path, names: tuple[str, ...], endpoint: str | None, hosts: tuple[str, ...]
) -> None:
    """Print the sizes and hashes of files that MANIFEST does not pin yet, as YAML to paste.

    Example: stack mirror pin manifests/models.yaml --to mirror --only pi05_base
    """
    from stack.manifests import load_models_manifest
    from stack.mirror import pin

    loaded = load_models_manifest(manifest)
    click.echo(pin(loaded, to, names=names or None, endpoint=endpoint, hosts=hosts, log=log))
