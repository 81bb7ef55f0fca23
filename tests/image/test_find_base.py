"""The finder of the base's Python and CANN, over trees made for it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

VERSION = f"{sys.version_info[0]}.{sys.version_info[1]}"
WANTED = {
    "PYTHON": VERSION,
    "PACKAGES": "torch=2.7.1 torchvision=0.22.1 torch_npu=2.7.1.post6",
    "ENVIRONMENT": "torch2.7.1",
    "CANN": "9.1.0",
}


class Tree:
    """A root folder like the vendor's image: environments and CANNs are added to it."""

    def __init__(self, root: Path, checkout: Path) -> None:
        self.root, self.script = root, checkout / "scripts" / "image" / "find_base.sh"

    def environment(self, prefix: str, **packages: str) -> Path:
        """An interpreter (this one) that sees packages by their metadata."""
        home = self.root / prefix
        site = home / "lib" / f"python{VERSION}" / "site-packages"
        for name, version in packages.items():
            info = site / f"{name}-{version}.dist-info"
            info.mkdir(parents=True)
            (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        # A virtual environment is the smallest thing whose Python finds its own site-packages with -I.
        (home / "bin").mkdir(parents=True)
        real = getattr(sys, "_base_executable", sys.executable)
        (home / "bin" / f"python{VERSION}").symlink_to(real)
        (home / "pyvenv.cfg").write_text(
            f"home = {Path(real).parent}\ninclude-system-site-packages = false\n"
        )
        return home / "bin" / f"python{VERSION}"

    def cann(
        self, folder: str = "ascend-toolkit", version: str | None = "9.1.0", library: bool = True
    ) -> Path:
        home = self.root / "usr" / "local" / "Ascend" / folder
        (home / "latest" / "lib64").mkdir(parents=True)
        if library:
            (home / "latest" / "lib64" / "libascendcl.so").touch()
        if version is not None:
            (home / "latest" / "ascend_toolkit_install.info").write_text(
                f"package_name=x\nversion={version}\n"
            )
        for part in ("opp", "runtime", "compiler"):
            (home / "latest" / part).mkdir()
        (home / "set_env.sh").write_text(
            f"export ASCEND_HOME_PATH='{home}/latest'\nexport ASCEND_OPP_PATH='{home}/latest/opp'\n"
        )
        return home / "set_env.sh"

    def find(self, **changed: str) -> subprocess.CompletedProcess[str]:
        environment = {"PATH": os.environ["PATH"], **WANTED, **changed}
        return subprocess.run(
            ["sh", str(self.script), str(self.root)], capture_output=True, text=True, env=environment
        )

    def found(self, **changed: str) -> dict[str, str]:
        done = self.find(**changed)
        assert done.returncode == 0, done.stderr
        return dict(line.split("=", 1) for line in done.stdout.splitlines())


RIGHT = {"torch": "2.7.1", "torchvision": "0.22.1", "torch_npu": "2.7.1.post6"}


@pytest.fixture
def tree(tmp_path: Path, checkout: Path) -> Tree:
    return Tree(tmp_path / "root", checkout)


def test_the_environment_is_found_wherever_it_lies(tree: Tree) -> None:
    python = tree.environment("srv/odd place".replace(" ", "-"), **RIGHT)
    set_env = tree.cann()
    found = tree.found()
    assert found["BASE_PYTHON"] == str(python)
    assert found["CANN_SET_ENV"] == str(set_env)
    assert found["CANN_VERSION"] == "9.1.0"


def test_an_older_environment_beside_it_is_not_taken(tree: Tree) -> None:
    tree.environment("opt/conda/envs/torch2.1", torch="2.1.0", torchvision="0.16.0", torch_npu="2.1.0.post17")
    python = tree.environment("opt/conda/envs/torch2.7.1", **RIGHT)
    tree.cann()
    assert tree.found()["BASE_PYTHON"] == str(python)


def test_a_local_part_of_a_version_is_the_same_version(tree: Tree) -> None:
    tree.environment("opt/x", torch="2.7.1+cpu", torchvision="0.22.1+cpu", torch_npu="2.7.1.post6")
    tree.cann()
    assert tree.found()["BASE_PYTHON"].endswith(f"opt/x/bin/python{VERSION}")


def test_of_several_that_fit_the_named_one_is_taken(tree: Tree) -> None:
    for name in ("bevformer", "torch2.7.1", "sparse4d"):
        tree.environment(f"opt/conda/envs/{name}", **RIGHT)
    tree.cann()
    assert tree.found()["BASE_PREFIX"].endswith("/envs/torch2.7.1")
    assert tree.found(ENVIRONMENT="sparse4d")["BASE_PREFIX"].endswith("/envs/sparse4d")


def test_several_that_fit_and_none_of_the_name_is_refused_with_all_names(tree: Tree) -> None:
    tree.environment("opt/conda/envs/bevformer", **RIGHT)
    tree.environment("opt/conda/envs/sparse4d", **RIGHT)
    tree.cann()
    done = tree.find()
    assert done.returncode == 3
    assert "error[image-environment]" in done.stderr
    assert "bevformer" in done.stderr and "sparse4d" in done.stderr


@pytest.mark.parametrize(
    "changed",
    [
        {"torch": "2.7.0"},
        {"torch_npu": "2.7.1.post4"},
        {"torch_npu": "2.7.1.post60"},
        {"torchvision": "0.22.0"},
    ],
)
def test_other_versions_are_refused_with_both_numbers(tree: Tree, changed: dict[str, str]) -> None:
    tree.environment("opt/conda/envs/torch2.7.1", **{**RIGHT, **changed})
    tree.cann()
    done = tree.find()
    assert done.returncode == 3
    assert "error[image-versions]" in done.stderr
    for name, version in changed.items():
        assert f"{name}={version}" in done.stderr and f"{name}={RIGHT[name]}" in done.stderr


def test_a_missing_torchvision_is_refused(tree: Tree) -> None:
    tree.environment("opt/conda/envs/torch2.7.1", torch="2.7.1", torch_npu="2.7.1.post6")
    tree.cann()
    done = tree.find()
    assert done.returncode == 3 and "torchvision=none" in done.stderr


def test_another_python_is_refused(tree: Tree) -> None:
    tree.environment("opt/x", **RIGHT)
    tree.cann()
    done = tree.find(PYTHON="3.8")
    assert done.returncode == 3 and f"python={VERSION}" in done.stderr and "python=3.8" in done.stderr


def test_no_torch_npu_at_all_is_refused(tree: Tree) -> None:
    tree.environment("opt/x", torch="2.7.1")
    done = tree.find()
    assert done.returncode == 3 and "error[image-no-torch-npu]" in done.stderr


def test_an_environment_below_root_is_refused(tree: Tree) -> None:
    tree.environment("root/miniconda3/envs/torch2.7.1", **RIGHT)
    tree.cann()
    done = tree.find()
    assert done.returncode == 3 and "error[image-private]" in done.stderr


def test_a_set_env_of_another_package_is_not_taken(tree: Tree) -> None:
    tree.environment("opt/x", **RIGHT)
    atb = tree.root / "usr" / "local" / "Ascend" / "a"  # shorter than CANN's, so that it is looked at first
    atb.mkdir(parents=True)
    (atb / "set_env.sh").write_text("export ATB_HOME_PATH=/usr/local/Ascend/nnal/atb\n")
    set_env = tree.cann()
    assert tree.found()["CANN_SET_ENV"] == str(set_env)


def test_two_scripts_for_one_cann_are_one(tree: Tree) -> None:
    tree.environment("opt/x", **RIGHT)
    first = tree.cann()
    inner = first.parent / "latest" / "set_env.sh"
    inner.write_text(first.read_text())
    assert tree.found()["CANN_SET_ENV"] == str(first)


@pytest.mark.parametrize(
    ("make", "id"),
    [
        (lambda tree: None, "image-no-cann"),
        (lambda tree: tree.cann(library=False), "image-no-cann"),
        (lambda tree: (tree.cann(), tree.cann("cann-9")), "image-several-cann"),
        (lambda tree: tree.cann(version="8.5.0"), "image-cann"),
    ],
    ids=["none", "without libascendcl", "two", "other version"],
)
def test_what_is_wrong_with_cann_is_refused(tree: Tree, make: object, id: str) -> None:
    tree.environment("opt/x", **RIGHT)
    make(tree)  # type: ignore[operator]
    done = tree.find()
    assert done.returncode == 3
    assert f"error[{id}]" in done.stderr


@pytest.mark.parametrize("part", ["opp", "runtime", "compiler"])
def test_a_cann_that_torch_npu_would_refuse_is_refused(tree: Tree, part: str) -> None:
    tree.environment("opt/x", **RIGHT)
    (tree.cann().parent / "latest" / part).rmdir()
    done = tree.find()
    assert done.returncode == 3
    assert "error[image-cann-incomplete]" in done.stderr and f"latest/{part};" in done.stderr


def test_a_set_env_without_operators_is_refused(tree: Tree) -> None:
    tree.environment("opt/x", **RIGHT)
    script = tree.cann()
    script.write_text(script.read_text().splitlines()[0] + "\n")
    done = tree.find()
    assert done.returncode == 3 and "ASCEND_OPP_PATH (not set)" in done.stderr


def test_a_version_of_cann_that_cannot_be_told_is_said_and_not_claimed(tree: Tree) -> None:
    tree.environment("opt/x", **RIGHT)
    tree.cann(version=None)
    done = tree.find()
    assert done.returncode == 0
    assert "CANN_VERSION=unknown" in done.stdout and "could NOT be told" in done.stderr


def test_any_takes_every_cann(tree: Tree) -> None:
    tree.environment("opt/x", **RIGHT)
    tree.cann(version="8.5.0")
    assert tree.found(CANN="any")["CANN_VERSION"] == "8.5.0"
