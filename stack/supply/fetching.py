"""Bring a target's wheels into a folder, on a machine of any architecture.

pip fetches (it knows every index that a site may have); what arrives is believed only after our own proof.
Files come in small batches into a hidden folder below the wheelhouse and are renamed into it one by one when
they are right, so that a kill costs one batch at most.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import venv
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from stack.errors import NotAble, WorkFailed
from stack.faults import has_errors
from stack.files import hold_target
from stack.manifests import WheelsManifest
from stack.manifests.wheels import Target
from stack.supply.locks import Pin
from stack.supply.target import find_target, platforms
from stack.supply.wheelhouse import RECORD_END, Proof, Wanted, prove, record, want

Log = Callable[[str], None]
BATCH = 12  # packages a call of pip; each call costs it half a second to start
FETCH_FOLDER = ".fetch"
_LAST_LINES = 6


def fetch(
    manifest: WheelsManifest, name: str, locks_folder: Path, to: Path, *, log: Log = print
) -> tuple[Proof, int]:
    """Make `to` a whole wheelhouse for a target; what is there and right is not fetched again.

    Returns:
        the proof, without errors; and how many files were fetched.

    Raises:
        BadRequest: no such target, a bad lock.
        NotAble: no pip here, another process works at the folder, the folder cannot be written.
        WorkFailed: files could not be fetched, or are wrong; all are named, the right ones stay.
    """
    target = find_target(manifest, name)
    wanted = want(manifest, name, locks_folder)
    with hold_target(to):
        try:
            to.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise NotAble("wheels-not-writable", f"cannot write here: {error}", where=str(to)) from error
        proof = prove(wanted, to, trust_record=True)
        missing = proof.missing
        if any(fault.severity == "error" and fault.code != "wheels-missing" for fault in proof.faults):
            _finish(proof, to, touched=False)  # a wrong file may be somebody's; it is not written over
        if missing:
            log(f"{name}: {len(proof.wheels)} of {len(wanted.pins)} wheels are here; fetching {len(missing)}")
            _fetch_missing(wanted, target, missing, to, log)
            proof = prove(wanted, to, trust_record=True)
        _finish(proof, to, touched=bool(missing))
    return proof, len(missing)


def _finish(proof: Proof, to: Path, *, touched: bool) -> None:
    if has_errors(proof.faults):
        wrong = "".join(f"\n  - {fault.message}" for fault in proof.faults if fault.severity == "error")
        raise WorkFailed(
            "wheels-not-whole",
            f"the wheelhouse for {proof.target} is not whole:{wrong}",
            where=str(to),
            do="mend what is named, then run the same command again; it goes on from there",
        )
    if touched or not (to / f"{proof.target}{RECORD_END}").exists():
        record(proof, to)


def _fetch_missing(wanted: Wanted, target: Target, missing: Sequence[Pin], to: Path, log: Log) -> None:
    staging = to / FETCH_FOLDER
    with _pip(log) as pip:
        done = 0
        for batch in _batches(missing):
            staging.mkdir(exist_ok=True)
            failed = _call_pip(pip, target, batch, staging)
            arrived = prove(wanted, staging)
            for wheel in arrived.wheels:
                os.replace(staging / wheel.file, to / wheel.file)
            done += len(arrived.wheels)
            log(f"{wanted.target}: {done} of {len(missing)} fetched")
            if failed is not None:
                got = {wheel.pin.name for wheel in arrived.wheels}
                _refuse([pin for pin in batch if pin.name not in got], failed, to)
            shutil.rmtree(staging)


def _batches(pins: Sequence[Pin]) -> Iterator[Sequence[Pin]]:
    for start in range(0, len(pins), BATCH):
        yield pins[start : start + BATCH]


def _refuse(pins: Sequence[Pin], reason: str, to: Path) -> None:
    raise WorkFailed(
        "wheels-not-fetched",
        f"could not be fetched: {', '.join(str(pin) for pin in pins)}\n{reason}",
        where=str(to),
        do="check pip's index and network, and that each has a wheel for this target; then run it again",
    )


def _call_pip(pip: Sequence[str], target: Target, batch: Sequence[Pin], into: Path) -> str | None:
    """Let pip fetch a batch; returns its last words where it failed.

    Markers are not passed on: pip would judge them by the Python that it runs in.
    """
    lines = [f"{pin} {' '.join(f'--hash=sha256:{h}' for h in sorted(pin.hashes))}\n" for pin in batch]
    interpreter = "cp" + target.python.replace(".", "")
    with tempfile.NamedTemporaryFile("w", prefix="stack-wheels-", suffix=".txt") as requirements:
        requirements.write("".join(lines))
        requirements.flush()
        command = [*pip, "download", "--quiet", "--no-deps", "--require-hashes", "--only-binary=:all:"]
        command += ["--disable-pip-version-check", "--no-input", "--dest", str(into)]
        command += ["--implementation", "cp", "--python-version", target.python]
        command += [word for abi in (interpreter, "abi3", "none") for word in ("--abi", abi)]
        command += [word for name in platforms(target) for word in ("--platform", name)]
        done = subprocess.run(
            [*command, "-r", requirements.name], capture_output=True, text=True, stdin=subprocess.DEVNULL
        )
    if done.returncode == 0:
        return None
    said = [line for line in done.stderr.splitlines() if not line.startswith("WARNING")]
    return "\n".join(f"  pip: {line}" for line in said[-_LAST_LINES:])


@contextmanager
def _pip(log: Log) -> Iterator[list[str]]:
    """The words that start pip: of this Python, of the one it was made from, or of one made for this."""
    for python in dict.fromkeys((sys.executable, getattr(sys, "_base_executable", sys.executable))):
        words = [python, "-m", "pip"]
        if subprocess.run([*words, "--version"], capture_output=True).returncode == 0:
            yield words
            return
    log("no pip here; making one in a temporary environment")
    with tempfile.TemporaryDirectory(prefix="stack-pip-") as made:
        try:
            venv.create(made, with_pip=True)
        except (subprocess.CalledProcessError, OSError) as error:
            raise NotAble(
                "wheels-no-pip",
                f"pip is not installed here and cannot be made: {error}",
                do="install pip for this Python (Debian, Ubuntu and openEuler: python3-pip)",
            ) from error
        yield [str(Path(made) / "bin" / "python"), "-m", "pip"]
