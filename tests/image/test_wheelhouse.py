"""A wheelhouse is proven from the locks: every file there, right, loadable; nothing else."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from stack.errors import NotAble, WorkFailed
from stack.files import hold_target
from stack.supply import fetching
from stack.supply.fetching import fetch
from stack.supply.wheelhouse import Proof, prove, record, want

from .conftest import Site, sha256, write_wheel

ARM = "cp310-cp310-manylinux_2_17_aarch64.manylinux2014_aarch64"


@pytest.fixture
def whole(site: Site) -> Site:
    """Three right wheels for an aarch64 machine, and one pin that is not for it."""
    site.pin("pure", "1.0", write_wheel(site.wheels, "pure", "1.0"))
    site.pin("native_part", "2.1", write_wheel(site.wheels, "native_part", "2.1", ARM))
    site.pin("stable", "3", write_wheel(site.wheels, "stable", "3", "cp38-abi3-manylinux_2_28_aarch64"))
    site.pin("windows_only", "1", marker="sys_platform == 'win32'", hashes=("1" * 64,))
    return site


def proof(site: Site, **trust: bool) -> Proof:
    return prove(want(site.manifest(), "site", site.locks), site.wheels, **trust)


def codes(site: Site, **trust: bool) -> list[str]:
    return sorted(fault.code for fault in proof(site, **trust).faults)


def test_a_whole_wheelhouse_has_no_fault(whole: Site) -> None:
    found = proof(whole)
    assert found.faults == () and {str(wheel.pin) for wheel in found.wheels} == {
        "pure==1.0",
        "native-part==2.1",
        "stable==3",
    }
    assert found.size_bytes == sum(path.stat().st_size for path in whole.wheels.iterdir())


def test_one_flipped_byte_is_named(whole: Site) -> None:
    path = next(whole.wheels.glob("stable-*"))
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    (fault,) = [fault for fault in proof(whole).faults if fault.code == "wheels-hash"]
    assert path.name in fault.message and sha256(path) in fault.message
    assert codes(whole) == ["wheels-hash", "wheels-missing"]


@pytest.mark.parametrize(
    "tag",
    ["cp310-cp310-manylinux_2_17_x86_64", "cp311-cp311-manylinux_2_17_aarch64",
     "cp310-cp310-manylinux_2_29_aarch64", "cp310-cp310-musllinux_1_2_aarch64",
     "cp311-abi3-manylinux_2_17_aarch64", "cp310-cp310-macosx_11_0_arm64"],
)  # fmt: skip
def test_a_right_file_for_another_machine_is_wrong_here(whole: Site, tag: str) -> None:
    next(whole.wheels.glob("native_part-*")).unlink()
    path = write_wheel(whole.wheels, "native_part", "2.1", tag)
    # The lock knows it: only the tags are wrong.
    (whole.locks / "app.txt").write_text(
        (whole.locks / "app.txt").read_text() + f"native-part==2.1 \\\n    --hash=sha256:{sha256(path)}\n"
    )
    found = [fault for fault in proof(whole).faults if fault.code == "wheels-tag"]
    assert len(found) == 1 and tag in found[0].message


@pytest.mark.parametrize(
    ("make", "code"),
    [
        (lambda folder: write_wheel(folder, "stranger", "1.0"), "wheels-extra"),
        (lambda folder: write_wheel(folder, "pure", "0.9"), "wheels-extra"),
        (lambda folder: (folder / "notes.txt").write_text("x"), "wheels-extra"),
        (lambda folder: (folder / "more").mkdir(), "wheels-extra"),
        (lambda folder: (folder / "pure-1.0.tar.gz").write_bytes(b"x"), "wheels-sdist"),
    ],
)
def test_what_does_not_belong_is_named(whole: Site, make: Callable[[Path], object], code: str) -> None:
    make(whole.wheels)
    assert codes(whole) == [code]


def test_a_missing_file_is_named_with_the_command_that_brings_it(whole: Site) -> None:
    next(whole.wheels.glob("pure-*")).unlink()
    (fault,) = proof(whole).faults
    assert fault.code == "wheels-missing" and "pure==1.0" in fault.message
    assert fault.mend == f"stack mirror wheels --for site --to {whole.wheels}"


def test_the_record_spares_hashing_only_what_nobody_touched(
    whole: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    record(proof(whole), whole.wheels)
    hashed: list[str] = []

    def counted(path: Path) -> str:
        hashed.append(path.name)
        return sha256(path)

    monkeypatch.setattr("stack.supply.wheelhouse.sha256_file", counted)
    assert codes(whole, trust_record=True) == [] and hashed == []
    touched = next(whole.wheels.glob("pure-*"))
    content = bytearray(touched.read_bytes())
    content[40] ^= 1
    time.sleep(0.02)
    touched.write_bytes(content)
    assert codes(whole, trust_record=True) == ["wheels-hash", "wheels-missing"]
    assert hashed == [touched.name]


def test_the_record_is_a_function_of_the_files(whole: Site, tmp_path: Path) -> None:
    record(proof(whole), whole.wheels)
    first = (whole.wheels / "site.wheels.json").read_bytes()
    copy = tmp_path / "copy"
    shutil.copytree(whole.wheels, copy)
    record(prove(want(whole.manifest(), "site", whole.locks), copy), copy)
    assert (copy / "site.wheels.json").read_bytes() == first


# --- fetching: real pip, from a folder in place of an index ---


@pytest.fixture
def shop(whole: Site, monkeypatch: pytest.MonkeyPatch) -> Site:
    """pip finds what `whole` pins in a folder, and nothing in any index."""
    stock = whole.root / "stock"
    whole.wheels.rename(stock)
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(stock))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    return whole


def quiet(_: str) -> None:
    pass


def test_wheels_for_another_machine_are_fetched_once(shop: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    found, fetched = fetch(shop.manifest(), "site", shop.locks, shop.wheels, log=quiet)
    assert fetched == 3 and found.faults == ()
    assert sorted(p.name for p in shop.wheels.iterdir()) == sorted(
        [*(p.name for p in (shop.root / "stock").iterdir()), "site.wheels.json"]
    )

    def never(*_: object) -> None:
        raise AssertionError("pip was called for a whole wheelhouse")

    monkeypatch.setattr(fetching, "_call_pip", never)
    assert fetch(shop.manifest(), "site", shop.locks, shop.wheels, log=quiet)[1] == 0


def test_what_a_killed_call_left_is_taken_over_or_cleared(shop: Site) -> None:
    left = shop.wheels / ".fetch"
    left.mkdir(parents=True)
    right = next((shop.root / "stock").glob("pure-*"))
    shutil.copyfile(right, left / right.name)
    (left / "half-of-something.whl").write_bytes(b"PK")
    (shop.wheels.parent / f".{shop.wheels.name}.partial-lock").write_text("process 1 on another day")
    assert fetch(shop.manifest(), "site", shop.locks, shop.wheels, log=quiet)[0].faults == ()
    assert not left.exists()


def test_what_cannot_be_had_is_named_and_the_rest_stays(shop: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetching, "BATCH", 2)  # native-part and pure, then stable
    gone = next((shop.root / "stock").glob("stable-*"))
    kept = gone.read_bytes()
    gone.unlink()
    with pytest.raises(WorkFailed, match="stable==3") as failed:
        fetch(shop.manifest(), "site", shop.locks, shop.wheels, log=quiet)
    assert "pip:" in failed.value.what and "native-part" not in failed.value.what.split("\n")[0]
    assert len(list(shop.wheels.glob("*.whl"))) == 2
    gone.write_bytes(kept)
    assert fetch(shop.manifest(), "site", shop.locks, shop.wheels, log=quiet)[1] == 1  # it went on from there


def test_a_wrong_file_that_lies_there_is_not_replaced_behind_anybodys_back(shop: Site) -> None:
    shop.wheels.mkdir()
    (shop.wheels / "pure-1.0-py3-none-any.whl").write_bytes(b"not what is pinned")
    with pytest.raises(WorkFailed, match="has other content"):
        fetch(shop.manifest(), "site", shop.locks, shop.wheels, log=quiet)


def test_only_one_process_fetches_into_a_folder(shop: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    import threading

    results: list[BaseException | None] = []

    def other() -> None:
        try:
            fetch(shop.manifest(), "site", shop.locks, shop.wheels, log=quiet)
            results.append(None)
        except NotAble as error:
            results.append(error)

    with hold_target(shop.wheels):
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    assert isinstance(results[0], NotAble) and results[0].id == "target-busy"
