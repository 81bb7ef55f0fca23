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


@mirror.command("local")
@click.argument("manifest", type=FILE)
@click.option("--to", type=FOLDER, required=True, help="The mirror's folder.")
@click.option("--model", required=True, help="Whose processors name a tokenizer on a hub.")
@click.option("--tokenizer", required=True, help="The tokenizer of MANIFEST that they are to name instead.")
@click.option("--out", type=FOLDER, required=True, help="The folder to make.")
def mirror_local(manifest: Path, to: Path, model: str, tokenizer: str, out: Path) -> None:
    """Make a folder of a model that lerobot's own commands load without a hub; the mirror stays as it is.

    Example: stack mirror local models.yaml --to mirror --model pi05_base --tokenizer paligemma --out pi05
    """
    from stack.manifests import load_models_manifest
    from stack.mirror import localise

    made = localise(load_models_manifest(manifest), to, model, tokenizer, out, log=log)
    for file, name in made.replaced:
        click.echo(f"{made.folder / file}: {name} -> {made.folder / 'tokenizer'}")


@mirror.command("bundle")
@click.argument("manifest", type=FILE)
@click.option("--to", type=FOLDER, required=True, help="The bundle's folder.")
@click.option("--mirror", "models", type=FOLDER, help="Where `get` put the models; default: each run's own.")
@click.option("--wheels", type=FOLDER, help="Wheelhouse, or a folder with one wheelhouse a target.")
@click.option("--site", type=FOLDER, help="Files that the site provides: images, packages, installers.")
@click.option(
    "--diff", "base", type=FOLDER, help="An older bundle that the site has; carry only what changed."
)
@click.option("--verify", "verify_only", is_flag=True, help="Make nothing; verify and compare what is there.")
def mirror_bundle(
    manifest: Path,
    to: Path,
    models: Path | None,
    wheels: Path | None,
    site: Path | None,
    base: Path | None,
    verify_only: bool,
) -> None:
    """Pack everything that MANIFEST's site needs into one folder of hashed objects, to be carried there.

    Example: stack mirror bundle manifests/bundles/demo.yaml --to work/bundle --wheels work/wheels
    """
    from stack.bundle import bundle, verify_bundle
    from stack.bundle.parts import Places
    from stack.bundle.verifying import compare
    from stack.manifests import load_bundle_manifest

    loaded = load_bundle_manifest(manifest)
    places = Places(models, wheels, site)
    if not verify_only:
        made = bundle(loaded, to, places=places, base=base, log=log)
        click.echo(
            f"{made.folder}: {made.items} items, {made.size_bytes:,} bytes, {made.copied} objects copied"
        )
        click.echo(f"sha256 of bundle.json: {made.sha256}")
        return
    code, text = verify_bundle(to, bases=[base] if base else [])
    click.echo(text, nl=False)
    lines = compare(loaded, to, places=places, base=base) if code == Exit.OK else []
    for line in lines:
        click.echo(line)
    if code == Exit.OK:
        click.echo(f"{len(lines)} differences" if lines else f"it is what {manifest} asks for")
    raise click.exceptions.Exit(Exit.NOT_GOOD if lines else code)
