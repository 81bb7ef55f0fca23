"""scripts/rpm_packages.sh without a host: what it refuses, and what rpm's own packages need of each other.

Where dnf is needed, a script stands for it and fetches what it is told. Resolving is drilled with the real
one (test_rpm_drills.py).
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from stack.manifests.load import load_packages_manifest

CHECKOUT = Path(__file__).parents[2]
SCRIPT = CHECKOUT / "scripts/rpm_packages.sh"


def call(*arguments: str, path: str | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["/bin/sh", str(SCRIPT), *arguments],
        env={**os.environ, "PATH": path or os.environ["PATH"]},
        capture_output=True,
        text=True,
    )


@pytest.fixture
def without_dnf(tmp_path: Path) -> str:
    """A PATH with what the script needs to say so, and no dnf."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("sed", "id", "rpm"):
        found = shutil.which(name)
        if found:
            (folder / name).symlink_to(found)
    return str(folder)


def test_too_few_arguments_get_the_usage(without_dnf: str) -> None:
    for arguments in ((), ("who",), ("who", "out")):
        done = call(*arguments, path=without_dnf)
        assert done.returncode == 2 and done.stdout == ""
        assert 'scripts/rpm_packages.sh "WHO NEEDS THEM" OUT PACKAGE...' in done.stderr


def test_a_machine_without_dnf_says_where_to_go(without_dnf: str, tmp_path: Path) -> None:
    done = call("who", str(tmp_path / "out"), "docker-engine", path=without_dnf)
    assert done.returncode == 3 and done.stdout == ""
    assert "error[rpm-no-dnf] dnf is not on this machine" in done.stderr
    assert "scripts/os_packages.sh" in done.stderr
    assert not (tmp_path / "out").exists()


# What each package gives and needs, in rpm's words; the names of the needed ones are in NEEDED.
SPECS = {
    "engine": ["Epoch: 1", "Requires: libc++.so.1(V_2)(64bit)", "Requires: /usr/sbin/runner",
               "Requires: ((dot.name >= 2 or nobody) and (rich(x86-64) if engine))", "Requires: not-listed",
               "Recommends: weak", "Requires: two"],
    "libc++": ["Epoch: 0", "Provides: libc++.so.1(V_2)(64bit)"],
    "runner": ["Provides: /usr/sbin/runner", "Requires: engine"],
    "dot.name": [],
    "dotXname": ["Requires: runner"],
    "rich": ["Provides: rich(x86-64) = 7"],
    "one": ["Provides: two"],
    "another": ["Provides: two = 2"],
}  # fmt: skip
NEEDED = {
    "engine": {"libc++", "runner", "dot.name", "rich", "one", "another"},
    "runner": {"engine"},
    "dotXname": {"runner"},
}


@pytest.fixture(scope="session")
def rpms(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("rpmbuild") is None or os.getuid() != 0:
        pytest.skip("rpmbuild is not installed, or this is not root: packages cannot be made")
    work = tmp_path_factory.mktemp("rpms")
    for name, lines in SPECS.items():
        head = f"Name: {name}\nVersion: 1.0~rc1^2\nRelease: 3.oe\nSummary: x\nLicense: x\nBuildArch: noarch\n"
        body = "\n".join(lines) + "\n%description\nx\n%files\n"
        (work / f"{name}.spec").write_text(head + body)
        subprocess.run(
            ["rpmbuild", "--quiet", "-bb", "--define", f"_topdir {work / 'build'}", "--define",
             f"_rpmdir {work}", "--define", "_build_name_fmt %%{NAME}-%%{VERSION}-%%{RELEASE}.%%{ARCH}.rpm",
             work / f"{name}.spec"],
            check=True, capture_output=True,
        )  # fmt: skip
    return work


def test_requirements_become_names_of_listed_packages(rpms: Path, tmp_path: Path) -> None:
    fetches = tmp_path / "bin/dnf"
    fetches.parent.mkdir()
    fetches.write_text(
        "#!/bin/sh\nfor word; do case $word in --destdir=*) cp "
        f"{rpms}/*.rpm ${{word#--destdir=}}/ ;; esac; done\n"
    )
    fetches.chmod(0o755)
    out = tmp_path / "out"
    done = call('roles: "all"', str(out), "engine", path=f"{fetches.parent}{os.pathsep}{os.environ['PATH']}")
    assert done.returncode == 0, done.stderr
    (tmp_path / "list.yaml").write_text(done.stdout)
    manifest = load_packages_manifest(tmp_path / "list.yaml").manifest
    assert (manifest.kind, manifest.machine) == ("rpm", platform.machine())
    assert manifest.needed_by == 'roles: "all"'
    assert {one.name: set(one.depends or ()) for one in manifest.packages} == {
        name: NEEDED.get(name, set()) for name in SPECS
    }
    versions = {one["name"]: one["version"] for one in yaml.safe_load(done.stdout)["packages"]}
    assert versions["engine"] == "1:1.0~rc1^2-3.oe"
    # An epoch of 0 is none: Ansible's facts show it as none, too.
    assert versions["libc++"] == versions["one"] == "1.0~rc1^2-3.oe"
    for package in manifest.packages:
        content = (out / package.file).read_bytes()
        assert (package.size, package.sha256) == (len(content), hashlib.sha256(content).hexdigest())
