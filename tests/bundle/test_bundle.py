"""A bundle holds what its manifests need, byte for byte; everything else is named with who needs it."""

from __future__ import annotations

import hashlib
import io
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from typing import Any

import pytest

from stack.bundle import bundle
from stack.bundle.verifying import compare
from stack.errors import BadRequest, Exit, NotAble, StackError
from stack.files import read_json

OLD_PYTHONS = sorted(
    Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser().glob("versions/3.6.*/bin/python")
)


def unpacked(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_bundle_unpacks_to_what_the_manifests_need(site: Any, tmp_path: Path, verify: Any) -> None:
    made = bundle(site.manifest, tmp_path / "out", places=site.places)

    done = verify(tmp_path / "out", "--unpack", tmp_path / "there", "--expect", made.sha256)

    assert done.returncode == 0, done.stdout + done.stderr
    there = unpacked(tmp_path / "there")
    tar = there.pop("checkout.tar")
    assert there.pop("bundle.json") == (tmp_path / "out" / "bundle.json").read_bytes()
    assert there == site.files
    assert made.items == len(site.files) + 1 == made.copied
    with tarfile.open(fileobj=io.BytesIO(tar)) as archive:
        playbook = archive.extractfile("playbook.yml")
        assert playbook is not None and playbook.read() == b"- hosts: all\n"
    head = subprocess.run(
        ["git", "-C", str(site.root), "rev-parse", "HEAD"], capture_output=True, text=True, check=True
    )
    assert read_json(tmp_path / "out" / "bundle.json")["revision"] == head.stdout.strip()
    assert compare(site.manifest, tmp_path / "out", places=site.places) == []
    plain = subprocess.run(["sha256sum", "--quiet", "-c", "SHA256SUMS"], cwd=tmp_path / "out")
    assert plain.returncode == 0


def test_a_list_of_rpm_packages_is_packed_like_any_other(site: Any, tmp_path: Path, verify: Any) -> None:
    """As scripts/rpm_packages.sh prints it: an epoch, a caret in a version, an older one to replace."""
    name = "runc-1.1~rc1^git2-1.oe2203.x86_64.rpm"
    file = site.places.site / "packages/openEuler-22.03-x86_64" / name
    file.parent.mkdir(parents=True)
    file.write_bytes(b"rpm" * 700)
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    (site.root / "manifests/packages/openEuler-22.03-x86_64.yaml").write_text(
        "# Made by hand\nschema: stack/packages/1\nhost: openEuler-22.03\nmachine: x86_64\nkind: rpm\n"
        'needed_by: "roles"\npackages:\n  - name: runc\n    version: "2:1.1~rc1^git2-1.oe2203"\n'
        f'    file: "{name}"\n    size: 2100\n    sha256: {digest}\n    depends: []\n'
        '    replaces: "2:1.0-1.oe2203"\n'
    )
    site.edit("bundles/site.yaml", "packages: [", "packages: [../packages/openEuler-22.03-x86_64.yaml, ")
    bundle(site.manifest, tmp_path / "out", places=site.places)
    assert verify(tmp_path / "out", "--unpack", tmp_path / "there").returncode == 0
    there = unpacked(tmp_path / "there")
    assert there[f"packages/openEuler-22.03-x86_64/{name}"] == file.read_bytes()
    file.unlink()
    with pytest.raises(StackError) as missing:
        bundle(site.manifest, tmp_path / "other", places=site.places)
    assert name in missing.value.what and "roles on openEuler-22.03 x86_64" in missing.value.what


def test_runs_look_for_models_and_data_where_the_bundle_puts_them(
    site: Any, tmp_path: Path, verify: Any
) -> None:
    """The paths of the run's manifest, followed in the unpacked checkout."""
    bundle(site.manifest, tmp_path / "out", places=site.places)
    verify(tmp_path / "out", "--unpack", tmp_path / "there")
    with tarfile.open(tmp_path / "there" / "checkout.tar") as archive:
        archive.extractall(tmp_path / "there" / "checkout", filter="data")
    from stack.manifests import load_dataset_manifest, load_run_manifest

    run = load_run_manifest(tmp_path / "there" / "checkout" / "manifests" / "runs" / "small.yaml")
    assert (run.path(run.manifest.mirror) / "weights" / "model.safetensors").is_file()
    dataset = load_dataset_manifest(run.path(run.manifest.dataset))
    assert (dataset.path(dataset.manifest.sources[0].path) / "a.parquet").is_file()


def test_two_bundles_are_equal_bytes_and_a_second_call_does_nothing(site: Any, tmp_path: Path) -> None:
    first = bundle(site.manifest, tmp_path / "one", places=site.places)
    bundle(site.manifest, tmp_path / "two", places=site.places)
    assert unpacked(tmp_path / "one") == unpacked(tmp_path / "two")

    lines: list[str] = []
    stamps = {p: p.stat().st_mtime_ns for p in (tmp_path / "one").rglob("*")}
    again = bundle(site.manifest, tmp_path / "one", places=site.places, log=lines.append)
    assert again.copied == 0 and again.sha256 == first.sha256
    assert any("nothing to do" in line for line in lines)
    assert {p: p.stat().st_mtime_ns for p in (tmp_path / "one").rglob("*")} == stamps


def test_flipped_byte_anywhere_is_named_before_anything_is_unpacked(
    site: Any, tmp_path: Path, verify: Any
) -> None:
    bundle(site.manifest, tmp_path / "out", places=site.places)
    content = read_json(tmp_path / "out" / "bundle.json")
    by_object = {f"objects/{i['sha256'][:2]}/{i['sha256']}": i for i in content["items"]}
    random.seed(7)
    files = sorted(p for p in (tmp_path / "out").rglob("*") if p.is_file())
    assert len(files) == len(by_object) + 5
    for file in files:
        name = file.relative_to(tmp_path / "out").as_posix()
        right = file.read_bytes()
        at = random.randrange(len(right))
        file.write_bytes(right[:at] + bytes([right[at] ^ (1 << random.randrange(7))]) + right[at + 1 :])

        done = verify(tmp_path / "out", "--unpack", tmp_path / "there")

        item = by_object.get(name)
        said = done.stdout + done.stderr
        assert done.returncode == 1, (name, at, said)
        assert (item["path"] if item else name) in said, (name, at, said)
        if item:
            assert all(owner in said for owner in item["needed_by"])
        assert not (tmp_path / "there").exists()
        file.write_bytes(right)
    assert verify(tmp_path / "out").returncode == 0


def test_missing_cut_and_extra_files_are_all_named(site: Any, tmp_path: Path, verify: Any) -> None:
    out = tmp_path / "out"
    bundle(site.manifest, out, places=site.places)
    items = {i["path"]: i["sha256"] for i in read_json(out / "bundle.json")["items"]}

    def place(path: str) -> Path:
        return out / "objects" / items[path][:2] / items[path]

    place("site/npu-driver_26.1_linux.run").unlink()
    image = place("images/stack-arm.tar")
    image.write_bytes(image.read_bytes()[:-1000])
    (out / "objects" / "thesis.doc").write_text("years of work")

    done = verify(out)

    assert done.returncode == 1
    lines = done.stdout.splitlines()
    assert "missing: site/npu-driver_26.1_linux.run; needed by: role driver" in lines
    assert any(line.startswith("wrong: images/stack-arm.tar") and "training hosts" in line for line in lines)
    assert any(line.startswith("extra: objects/thesis.doc") for line in lines)
    assert lines[-1].startswith("NOT whole: 3 ")


def test_bundle_of_another_day_is_not_the_expected_one(site: Any, tmp_path: Path, verify: Any) -> None:
    made = bundle(site.manifest, tmp_path / "out", places=site.places)
    (site.root / "playbook.yml").write_text("- hosts: none\n")
    site.commit()
    bundle(site.manifest, tmp_path / "out", places=site.places)
    done = verify(tmp_path / "out", "--expect", made.sha256)
    assert done.returncode == 1 and "another bundle" in done.stdout


def test_difference_carries_only_what_changed(site: Any, tmp_path: Path, verify: Any) -> None:
    old = bundle(site.manifest, tmp_path / "old", places=site.places)
    (site.root / "playbook.yml").write_text("- hosts: some\n")
    site.commit()
    more = site.root / "data" / "task_1" / "c.mp4"
    more.write_bytes(b"new" * 700)

    new = bundle(site.manifest, tmp_path / "new", places=site.places, base=tmp_path / "old")

    content = read_json(tmp_path / "new" / "bundle.json")
    assert content["base"] == old.sha256
    carried = {i["path"] for i in content["items"] if i["carried"]}
    assert carried == {"checkout.tar", "checkout/data/task_1/c.mp4"} and new.copied == 2
    alone = verify(tmp_path / "new")
    assert alone.returncode == 1 and "it is in the bundle that this one builds on, --base" in alone.stdout
    done = verify(tmp_path / "new", "--base", tmp_path / "old", "--unpack", tmp_path / "there")
    assert done.returncode == 0, done.stdout
    there = unpacked(tmp_path / "there")
    assert there.pop("bundle.json") == (tmp_path / "new" / "bundle.json").read_bytes()
    del there["checkout.tar"]
    assert there == {**site.files, "checkout/data/task_1/c.mp4": b"new" * 700}
    # A damaged base is found as well.
    item = next(i for i in content["items"] if i["path"].startswith("images/"))
    image = tmp_path / "old" / "objects" / item["sha256"][:2] / item["sha256"]
    image.write_bytes(b"x" * item["size"])
    done = verify(tmp_path / "new", "--base", tmp_path / "old")
    assert done.returncode == 1 and "wrong: images/stack-arm.tar" in done.stdout
    third = bundle(site.manifest, tmp_path / "third", places=site.places, base=tmp_path / "new")
    assert third.copied == 0  # what the base's own base holds is not carried either


def test_everything_missing_is_named_and_nothing_is_made(site: Any, tmp_path: Path) -> None:
    assert site.places.mirror and site.places.wheels and site.places.site
    (site.places.mirror / "weights" / "model.safetensors").unlink()
    (site.places.wheels / "beta-1.0-py3-none-any.whl").write_bytes(b"another")
    (site.places.site / "hdk" / "npu-driver_26.1_linux.run").unlink()
    (site.places.site / "packages" / "debian-12-x86_64" / "make_4.3_amd64.deb").unlink()
    shutil.rmtree(site.root / "data")

    with pytest.raises(StackError) as caught:
        bundle(site.manifest, tmp_path / "out", places=site.places)

    assert caught.value.id == "bundle-incomplete" and caught.value.exit == Exit.NOT_GOOD
    for place, owner in (
        ("checkout/work/mirror/weights/model.safetensors", "run small"),
        ("no right wheel of beta==1.0", "machine laptop-x86_64"),
        ("site/driver", "role driver"),
        ("make_4.3_amd64.deb", "role packages on debian-12 x86_64"),
        ("checkout/data/task_1", "run small"),
    ):
        line = next(line for line in caught.value.what.splitlines() if place in line)
        assert f"needed by: {owner}" in line
    assert not (tmp_path / "out").exists()


def test_source_that_is_not_what_is_pinned(site: Any, tmp_path: Path, verify: Any) -> None:
    assert site.places.mirror
    weights = site.places.mirror / "weights" / "model.safetensors"
    right = weights.read_bytes()
    weights.write_bytes(right[:-1] + b"?")
    with pytest.raises(StackError, match="needed by: run small") as caught:
        bundle(site.manifest, tmp_path / "out", places=site.places)
    assert caught.value.id == "bundle-source-wrong" and caught.value.exit == Exit.NOT_GOOD
    assert not (tmp_path / "out" / "bundle.json").exists()
    assert verify(Path(__file__).parents[2] / "scripts" / "bundle", tmp_path / "out").returncode == 2
    weights.write_bytes(right)
    bundle(site.manifest, tmp_path / "out", places=site.places)
    assert verify(tmp_path / "out").returncode == 0


def test_uncommitted_changes_are_not_left_behind_in_silence(site: Any, tmp_path: Path) -> None:
    (site.root / "playbook.yml").write_text("- hosts: mine\n")
    with pytest.raises(BadRequest, match=r"1 files of the checkout are not committed.*playbook\.yml"):
        bundle(site.manifest, tmp_path / "out", places=site.places)


def test_unpinned_model_cannot_be_carried(site: Any, tmp_path: Path) -> None:
    site.edit("models.yaml", "size: 63000, ", "")
    with pytest.raises(StackError, match=r"weights/model\.safetensors: its size or sha256 is not pinned"):
        bundle(site.manifest, tmp_path / "out", places=site.places)


@pytest.mark.parametrize("after", [0, 4, 11, 15])
def test_killed_at_any_moment_it_resumes(after: int, site: Any, tmp_path: Path, verify: Any) -> None:
    """SIGKILL after so many renames and writes; the next call makes the same bundle as an undisturbed one."""
    bundle(site.manifest, tmp_path / "undisturbed", places=site.places)
    code = (
        "import os, signal, sys; from pathlib import Path\n"
        "from stack.bundle import bundle; from stack.bundle.parts import Places\n"
        "from stack.manifests import load_bundle_manifest as load\n"
        "left = [int(sys.argv[2])]\n"
        "def killing(real):\n"
        "    def call(*a, **k):\n"
        "        left[0] -= 1\n"
        "        if left[0] < 0: os.kill(os.getpid(), signal.SIGKILL)\n"
        "        return real(*a, **k)\n"
        "    return call\n"
        "Path.rename = killing(Path.rename); os.replace = killing(os.replace)\n"
        "places = Places(*map(Path, sys.argv[3:6]))\n"
        "bundle(load(Path(sys.argv[1])), Path(sys.argv[6]), places=places)\n"
    )
    places = [str(p) for p in (site.places.mirror, site.places.wheels, site.places.site)]
    arguments = [str(site.manifest.file), str(after), *places, str(tmp_path / "out")]
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True)
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()
    if (tmp_path / "out").exists():
        assert verify(Path(__file__).parents[2] / "scripts" / "bundle", tmp_path / "out").returncode != 0

    made = bundle(site.manifest, tmp_path / "out", places=site.places)

    # The first rename is the record of hashes, the last five are the files beside the ten objects.
    assert made.items == 10 and made.copied <= max(0, 10 - max(0, after - 1))
    assert unpacked(tmp_path / "out") == unpacked(tmp_path / "undisturbed")


def test_object_that_was_touched_is_looked_at_again(site: Any, tmp_path: Path, verify: Any) -> None:
    bundle(site.manifest, tmp_path / "out", places=site.places)
    path = next(p for p in (tmp_path / "out" / "objects").rglob("*") if p.is_file())
    path.write_bytes(bytes(len(path.read_bytes())))
    assert bundle(site.manifest, tmp_path / "out", places=site.places).copied == 1
    assert verify(tmp_path / "out").returncode == 0


def test_what_no_manifest_needs_any_more_goes(site: Any, tmp_path: Path, verify: Any) -> None:
    bundle(site.manifest, tmp_path / "out", places=site.places)
    site.edit("bundles/site.yaml", "packages: [../packages/debian.yaml]\n", "")
    lines = compare(site.manifest, tmp_path / "out", places=site.places)
    assert any(
        line.startswith("extra: packages/debian-12-x86_64/make_4.3_amd64.deb") and "role packages" in line
        for line in lines
    )
    assert any(line.startswith("changed: checkout.tar") for line in lines)
    bundle(site.manifest, tmp_path / "out", places=site.places)
    assert verify(tmp_path / "out").returncode == 0
    assert compare(site.manifest, tmp_path / "out", places=site.places) == []


def test_other_folders_are_not_taken_for_a_bundle(site: Any, tmp_path: Path) -> None:
    for name in ("thesis.doc", ".bashrc", "objects/thesis.doc"):
        home = tmp_path / name.replace("/", "-")
        (home / name).parent.mkdir(parents=True)
        (home / name).write_text("years of work")
        with pytest.raises(BadRequest, match=re.escape(name)):
            bundle(site.manifest, home, places=site.places)
        assert (home / name).read_text() == "years of work"


def test_full_disk_is_told_before_anything_is_copied(
    site: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = type("Usage", (), {"free": 1000})
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage)
    with pytest.raises(NotAble, match=r"needs [\d,]+ bytes more, 1,000 are free"):
        bundle(site.manifest, tmp_path / "out", places=site.places)
    assert not (tmp_path / "out" / "bundle.json").exists()


@pytest.mark.skipif(not OLD_PYTHONS, reason="no Python 3.6 here (pyenv)")
def test_verifier_runs_on_python_3_6(site: Any, tmp_path: Path, verify: Any) -> None:
    bundle(site.manifest, tmp_path / "out", places=site.places)
    done = verify(tmp_path / "out", "--unpack", tmp_path / "there", python=str(OLD_PYTHONS[0]))
    assert done.returncode == 0, done.stderr
    there = unpacked(tmp_path / "there")
    del there["checkout.tar"], there["bundle.json"]
    assert there == site.files


def test_verifier_trusts_no_path_of_a_forged_bundle(site: Any, tmp_path: Path, verify: Any) -> None:
    bundle(site.manifest, tmp_path / "out", places=site.places)
    file = tmp_path / "out" / "bundle.json"
    file.write_text(file.read_text().replace("site/npu-driver", "../../npu-driver"))
    done = verify(tmp_path / "out", "--unpack", tmp_path / "there")
    assert done.returncode == 1 and "leaves the bundle" in done.stdout
    assert not (tmp_path / "there").exists()


def test_installer_installs_nothing_from_a_damaged_bundle(site: Any, tmp_path: Path) -> None:
    bundle(site.manifest, tmp_path / "out", places=site.places)
    path = max((p for p in (tmp_path / "out" / "objects").rglob("*") if p.is_file()), key=os.path.getsize)
    path.write_bytes(bytes(path.stat().st_size))
    command = ["sh", str(tmp_path / "out" / "bundle-install.sh"), "--to", str(tmp_path / "opt")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1 and "install-not-whole" in done.stderr
    assert list((tmp_path / "opt").iterdir()) == []


def test_a_bundle_whose_wheels_no_machine_works_on_says_so(site: Any, tmp_path: Path) -> None:
    bundle(site.manifest, tmp_path / "out", places=site.places)
    page = " ".join((tmp_path / "out" / "README.txt").read_text().split())
    assert "The wheels of this one (laptop-x86_64) are for hosts that Ansible installs." in page
    command = ["sh", str(tmp_path / "out" / "bundle-install.sh"), "--to", str(tmp_path / "opt")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2 and "error[install-target]" in done.stderr
    assert f"tar -xf {tmp_path}/opt/checkout.tar" in done.stderr and "docs/operations.md" in done.stderr

    site.edit("wheels.yaml", "only", "production")
    (site.root / "manifests/locks/only.txt").rename(site.root / "manifests/locks/production.txt")
    site.commit()
    bundle(site.manifest, tmp_path / "again", places=site.places)
    assert "sh bundle-install.sh --to DIR" in (tmp_path / "again" / "README.txt").read_text()


def test_command_line(site: Any, tmp_path: Path) -> None:
    def stack(*more: str, wheels: Path | None = site.places.wheels) -> subprocess.CompletedProcess[str]:
        places = ("--mirror", site.places.mirror, "--wheels", wheels, "--site", site.places.site)
        command = [sys.executable, "-m", "stack", "mirror", "bundle", str(site.manifest.file)]
        command += ["--to", str(tmp_path / "out"), *map(str, places), *more]
        return subprocess.run(command, capture_output=True, text=True)

    gone = stack(wheels=tmp_path / "nowhere")
    assert gone.returncode == 1 and "error[bundle-incomplete]" in gone.stderr
    assert "needed by: machine laptop-x86_64" in gone.stderr and "Traceback" not in gone.stderr
    assert "sha256 of bundle.json: " in stack().stdout
    good = stack("--verify")
    assert good.returncode == 0 and "it is what" in good.stdout
    site.edit("bundles/site.yaml", "packages: [../packages/debian.yaml]\n", "")
    other = stack("--verify")
    assert other.returncode == 1 and "extra: packages/debian-12-x86_64/make_4.3_amd64.deb" in other.stdout
    next((tmp_path / "out" / "objects").glob("*/*")).write_bytes(b"x")
    assert stack("--verify").returncode == 1


def test_second_bundle_of_many_files_takes_seconds(site: Any, tmp_path: Path) -> None:
    for number in range(500):
        (site.root / "data" / "task_1" / f"{number}.bin").write_bytes(b"%d" % number * 50)
    bundle(site.manifest, tmp_path / "out", places=site.places)
    started_s = time.monotonic()
    assert bundle(site.manifest, tmp_path / "out", places=site.places).copied == 0
    assert time.monotonic() - started_s < 10
