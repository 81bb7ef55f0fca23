"""Wheels, locks, licences and the container image."""

from __future__ import annotations

from pathlib import Path

import click

from stack.cli.options import FILE, FOLDER, Commands, log
from stack.errors import Exit

WHEELS_MANIFEST = Path("manifests/wheels.yaml")
IMAGES_MANIFEST = Path("manifests/images.yaml")
_wheels_manifest = click.option(
    "--manifest", type=FILE, default=WHEELS_MANIFEST, show_default=True, help="The wheels manifest."
)


@click.command("wheels")
@click.option("--for", "--lock", "target", required=True, metavar="TARGET", help="A target of the manifest.")
@click.option("--to", type=FOLDER, required=True, help="The folder of wheels.")
@click.option("--verify", is_flag=True, help="Fetch nothing; hash everything again, and name what is wrong.")
@_wheels_manifest
def mirror_wheels(target: str, to: Path, verify: bool, manifest: Path) -> None:
    """Fetch the wheels that a TARGET machine installs, whatever this machine is, and prove them.

    Example: stack mirror wheels --for container-aarch64 --to work/wheels/container-aarch64
    """
    from stack.manifests import load_wheels_manifest
    from stack.supply.fetching import fetch
    from stack.supply.wheelhouse import prove, record, want

    loaded = load_wheels_manifest(manifest)
    locks = loaded.file.parent / "locks"
    fetched = 0
    if verify:
        proof = prove(want(loaded.manifest, target, locks), to)
    else:
        proof, fetched = fetch(loaded.manifest, target, locks, to, log=log)
    for fault in proof.faults:
        click.echo(f"{fault.severity}[{fault.code}]: {fault.message}\n  do: {fault.mend}")
    errors = [fault for fault in proof.faults if fault.severity == "error"]
    if not errors and verify:
        record(proof, to)
    click.echo(
        f"{target}: {len(proof.wheels)} wheels, {proof.size_bytes / 1e6:,.1f} MB, in {to}: "
        + (f"{len(errors)} errors" if errors else "every file of the locks is there and right")
    )
    if not verify and not fetched:
        click.echo("nothing to do: the wheelhouse is whole")
    raise click.exceptions.Exit(Exit.NOT_GOOD if errors else Exit.OK)


@click.command("sbom")
@click.option("--for", "target", required=True, metavar="TARGET", help="A target of the manifest.")
@click.option("--wheels", type=FOLDER, required=True, help="Its whole wheelhouse.")
@click.option("--to", type=FILE, required=True, help="Where to write the CycloneDX JSON.")
@_wheels_manifest
def mirror_sbom(target: str, wheels: Path, to: Path, manifest: Path) -> None:
    """List what a TARGET installs and under which licences, as a CycloneDX bill of materials.

    Example: stack mirror sbom --for container-aarch64 --wheels work/wheels/container-aarch64 --to sbom.json
    """
    from stack.files import write_json
    from stack.manifests import load_wheels_manifest
    from stack.supply.sbom import bill, read_components, table

    loaded = load_wheels_manifest(manifest)
    proof, parts = read_components(loaded.manifest, target, loaded.file.parent / "locks", wheels)
    write_json(to, bill(proof, parts))
    click.echo(table(parts))
    click.echo(f"{len(parts)} packages of {target} in {to}")


@click.group(cls=Commands)
def locks() -> None:
    """The hashed pins below manifests/locks."""


@locks.command("make")
@click.option("--only", multiple=True, metavar="NAME", help="Only this lock; repeatable.")
@_wheels_manifest
def locks_make(only: tuple[str, ...], manifest: Path) -> None:
    """Rewrite the locks from pyproject.toml and the wheels manifest; needs an index and uv.

    Example: stack locks make --only container
    """
    from stack.manifests import load_wheels_manifest
    from stack.supply.relock import make

    loaded = load_wheels_manifest(manifest)
    changed = make(loaded.manifest, loaded.root, only=only, log=log)
    click.echo(f"changed: {', '.join(changed)}" if changed else "no lock changed")


@locks.command("check")
@_wheels_manifest
def locks_check(manifest: Path) -> None:
    """Are the locks made from today's pyproject.toml, overrides and manifest? Needs no network.

    Example: stack locks check
    """
    from stack.manifests import load_wheels_manifest
    from stack.supply.relock import drift

    loaded = load_wheels_manifest(manifest)
    faults = drift(loaded.manifest, loaded.root)
    for fault in faults:
        click.echo(f"{fault.severity}[{fault.code}]: {fault.message}\n  do: {fault.mend}")
    click.echo(
        f"{len(faults)} stale" if faults else f"{len(loaded.manifest.locks)} locks belong to their inputs"
    )
    raise click.exceptions.Exit(Exit.NOT_GOOD if faults else Exit.OK)


@click.group(cls=Commands)
def image() -> None:
    """The container image that training runs in."""


@image.command("build")
@click.option("--wheels", type=FOLDER, required=True, help="A wheelhouse for the base's architecture.")
@click.option("--base", metavar="IMAGE", help="A local base image; default: the pinned one of the manifest.")
@click.option("--tag", help="Default: stack:VERSION-COMMIT.")
@click.option(
    "--cann", metavar="VERSION", help="CANN that the base must hold, or 'any'; default: the manifest's."
)
@click.option(
    "--driver-gid", type=click.IntRange(1), help="Number of the hosts' group HwHiAiUser; default: the base's."
)
@click.option(
    "--run-uid", type=click.IntRange(1), default=10001, show_default=True, help="Number of the user inside."
)
@click.option("--no-cache", is_flag=True, help="Build every step again.")
@click.option(
    "--manifest", type=FILE, default=IMAGES_MANIFEST, show_default=True, help="The images manifest."
)
def image_build(
    wheels: Path,
    base: str | None,
    tag: str | None,
    cann: str | None,
    driver_gid: int | None,
    run_uid: int,
    no_cache: bool,
    manifest: Path,
) -> None:
    """Build the training image from the last commit, a wheelhouse and a local base, without network.

    Example: stack image build --wheels work/wheels/container-aarch64
    """
    from stack.manifests import load_images_manifest, load_wheels_manifest
    from stack.supply.image import build

    loaded = load_images_manifest(manifest)
    wheels_manifest = load_wheels_manifest(loaded.file.parent / "wheels.yaml").manifest
    built = build(
        loaded.root,
        loaded.manifest,
        wheels_manifest,
        wheels=wheels.absolute(),
        base=base,
        tag=tag,
        cann=cann,
        driver_gid=driver_gid,
        run_uid=run_uid,
        cache=not no_cache,
        log=log,
    )
    click.echo(f"{built.tag}: {built.id}")
    click.echo(f"our layers: {built.size_bytes / 1e6:,.1f} MB over the base")
    for layer in built.layers:
        click.echo(f"  {layer}")
    click.echo(
        f"built in {built.seconds:.0f} s" if built.did else "nothing to do: it was built from the same inputs"
    )
