"""The few things that are asked of a Docker engine, as processes with list arguments."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

from stack.errors import NotAble

MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}
# BuildKit looks up a base image in a registry even where it is given by its local id.
_ENVIRONMENT = {"DOCKER_BUILDKIT": "0"}


def _docker(*arguments: str) -> subprocess.CompletedProcess[str]:
    if shutil.which("docker") is None:
        raise NotAble("docker-missing", "docker is not installed here", do="sh scripts/engine.sh start")
    environment = {**os.environ, **_ENVIRONMENT}
    return subprocess.run(
        ["docker", *arguments], capture_output=True, text=True, env=environment, stdin=subprocess.DEVNULL
    )


def engine_machine() -> str:
    """The engine's architecture, `x86_64` or `aarch64`.

    Raises:
        NotAble: no engine answers.
    """
    done = _docker("version", "--format", "{{.Server.Arch}}")
    if done.returncode != 0:
        raise NotAble(
            "docker-silent",
            f"no Docker engine answers: {done.stderr.strip().splitlines()[-1:]}",
            do="start it, check DOCKER_HOST and your rights, or: sh scripts/engine.sh start",
        )
    return MACHINES.get(done.stdout.strip(), done.stdout.strip())


def inspect_image(name: str) -> dict[str, Any] | None:
    """What the engine knows of a local image, or None; never asks a registry."""
    done = _docker("image", "inspect", name)
    if done.returncode != 0:
        return None
    found: dict[str, Any] = json.loads(done.stdout)[0]
    return found


def build(context: Path, arguments: dict[str, str], tag: str, *, cache: bool) -> tuple[int, str]:
    """Build without network; returns the exit code and everything that was said."""
    command = ["build", "--network", "none", "--force-rm", "--tag", tag, *([] if cache else ["--no-cache"])]
    for name, value in arguments.items():
        command += ["--build-arg", f"{name}={value}"]
    done = _docker(*command, str(context))
    return done.returncode, done.stdout + done.stderr


def prune_stages(label: str) -> None:
    """Remove untagged images with a label: what a build leaves of its first stage."""
    _docker("image", "prune", "--force", "--filter", f"label={label}")
