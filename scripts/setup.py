"""Build `.venv` from the line's hashed lock. Standard library only; run by scripts/setup.sh.

Packages go into a folder keyed by the lock's hash, outside the checkout, so that several checkouts share
them and a changed lock never meets an old installation. `.venv` is thin: it points there and at the checkout.

Environment:
    STACK_ENVS   where installed packages are kept (default: ~/.cache/stack/envs)
    STACK_WHEELS a folder of wheels to install from, for machines without an index
    VENV         name of the folder in the checkout (default: .venv)
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import time
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOCKS = ROOT / "manifests" / "locks"
LINES = {(3, 10): "production", (3, 11): "production", (3, 12): "current", (3, 13): "current"}


def main() -> int:
    line = LINES[sys.version_info[:2]]
    lock = LOCKS / f"{line}.txt"
    started = time.monotonic()
    packages = envs_folder() / env_name(line, lock)
    venv_folder = ROOT / os.environ.get("VENV", ".venv")
    if is_current(venv_folder, packages):
        say(f"{line} line, Python {platform.python_version()}: {venv_folder.name} is up to date")
        return 0
    if not packages.exists():
        install(lock, packages)
    link(venv_folder, packages, line)
    took_s = time.monotonic() - started
    say(f"{line} line, Python {platform.python_version()}: {venv_folder.name} is ready ({took_s:.0f} s)")
    return 0


def envs_folder() -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(os.environ.get("STACK_ENVS") or cache / "stack" / "envs").absolute()


def env_name(line: str, lock: Path) -> str:
    """The folder's name says what decides its content: line, Python, machine and lock."""
    digest = hashlib.sha256(lock.read_bytes()).hexdigest()[:16]
    return f"{line}-cp{sys.version_info[0]}{sys.version_info[1]}-{platform.machine()}-{digest}"


def is_current(venv_folder: Path, packages: Path) -> bool:
    stamp = venv_folder / "stack-env"
    return (
        packages.exists()
        and (venv_folder / "bin" / "stack").exists()
        and stamp.exists()
        and stamp.read_text() == f"{packages}\n{ROOT}\n"
    )


def install(lock: Path, packages: Path) -> None:
    """Install into a sibling folder and rename it, so that a kill leaves no half environment."""
    packages.parent.mkdir(parents=True, exist_ok=True)
    need_bytes = 9 * 1024**3
    free = shutil.disk_usage(packages.parent).free
    if free < need_bytes:
        fail(
            "setup-disk",
            f"{packages.parent} has {free / 1e9:.1f} GB free; up to {need_bytes / 1e9:.0f} GB are needed",
            "free some space, or set STACK_ENVS to a folder on a larger disk",
        )
    with (packages.parent / ".lock").open("w") as guard:
        fcntl.flock(guard, fcntl.LOCK_EX)
        if packages.exists():
            return
        uv = find_uv(packages.parent)
        partial = packages.parent / f".{packages.name}.partial"
        shutil.rmtree(partial, ignore_errors=True)
        say(f"installing {count_pins(lock)} pinned packages into {packages} (1 to 5 minutes, about 5 GB)")
        run_uv(uv, lock, partial)
        partial.rename(packages)


def run_uv(uv: Path, lock: Path, target: Path) -> None:
    command = [str(uv), "pip", "sync", "--quiet", "--require-hashes", "--compile-bytecode"]
    command += ["--python", sys.executable, "--target", str(target)]
    if wheels := os.environ.get("STACK_WHEELS"):
        command += ["--no-index", "--find-links", wheels]
    environment = {**os.environ, "UV_NO_PROGRESS": "1"}
    if "UV_DEFAULT_INDEX" not in environment and (index := pip_index()):
        environment["UV_DEFAULT_INDEX"] = index
    if subprocess.run([*command, str(lock)], env=environment).returncode != 0:
        shutil.rmtree(target, ignore_errors=True)
        fail(
            "setup-install",
            "the packages of the lock could not be installed (the reason stands above)",
            "check the network or the index; without one, set STACK_WHEELS to a folder of wheels",
        )


def find_uv(envs: Path) -> Path:
    """The pinned installer, fetched once with its hash checked."""
    bootstrap = LOCKS / "bootstrap.txt"
    home = envs / f"uv-{env_name('bootstrap', bootstrap)}"
    uv = home / "bin" / "uv"
    if uv.exists():
        return uv
    try:
        import ensurepip  # noqa: F401  (Debian leaves it out of python3)
    except ImportError:
        version = f"{sys.version_info[0]}.{sys.version_info[1]}"
        fail(
            "setup-no-venv",
            f"this Python {version} cannot make virtual environments (ensurepip is missing)",
            f"apt-get install python{version}-venv (Debian, Ubuntu) or dnf install python3-pip (openEuler)",
        )
    shutil.rmtree(home, ignore_errors=True)
    venv.create(home, with_pip=True)
    command = [str(home / "bin" / "python"), "-m", "pip", "install", "--quiet", "--require-hashes"]
    if wheels := os.environ.get("STACK_WHEELS"):
        command += ["--no-index", "--find-links", wheels]
    command += ["--disable-pip-version-check", "-r", str(bootstrap)]
    if subprocess.run(command).returncode != 0 or not uv.exists():
        shutil.rmtree(home, ignore_errors=True)
        fail("setup-uv", "the installer (uv) could not be fetched", "check the network or pip's index")
    return uv


def pip_index() -> str | None:
    """A site's pip index, so that one configured mirror serves both installers."""
    command = [sys.executable, "-m", "pip", "config", "get", "global.index-url"]
    found = subprocess.run(command, capture_output=True, text=True)
    return (
        os.environ.get("PIP_INDEX_URL") or (found.stdout.strip() if found.returncode == 0 else None) or None
    )


def link(venv_folder: Path, packages: Path, line: str) -> None:
    """Make the thin `.venv`: this Python, the installed packages, the checkout, and the `stack` command."""
    partial = venv_folder.with_name(venv_folder.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    if venv_folder.is_symlink():
        venv_folder.unlink()
    venv.create(partial, with_pip=False, symlinks=True)
    site = next((partial / "lib").glob("python3*/site-packages"))
    (site / "stack-env.pth").write_text(f"{ROOT}\nimport site; site.addsitedir({str(packages)!r})\n")
    final_python = venv_folder / "bin" / "python"
    launcher = partial / "bin" / "stack"
    # Worker processes import the launcher again; only the first one may start the program.
    launcher.write_text(
        f"#!{final_python}\nfrom stack.cli import main\n\nif __name__ == '__main__':\n    main()\n"
    )
    launcher.chmod(0o755)
    (partial / "stack-line").write_text(f"{line}\n")
    (partial / "stack-env").write_text(f"{packages}\n{ROOT}\n")
    shutil.rmtree(venv_folder, ignore_errors=True)
    partial.rename(venv_folder)


def count_pins(lock: Path) -> int:
    return sum(1 for text in lock.read_text().splitlines() if "==" in text and "'never'" not in text)


def say(text: str) -> None:
    print(f"setup: {text}", file=sys.stderr, flush=True)


def fail(id: str, what: str, do: str) -> None:
    print(f"error[{id}]: {what}\n  do: {do}", file=sys.stderr)
    raise SystemExit(3)


if __name__ == "__main__":
    raise SystemExit(main())
