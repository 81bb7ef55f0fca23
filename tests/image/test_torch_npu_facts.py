"""What stack/devices expects of torch_npu, against the sources of the very wheel that the container holds.

The wheel cannot be imported without CANN; its Python sources and the texts in its libraries can be read.
"""

from __future__ import annotations

import ast
import re
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from stack.devices import is_out_of_memory
from stack.supply.locks import read_lock


@pytest.fixture(scope="session")
def wheel(torch_npu_wheel: Callable[[str, str], Path]) -> zipfile.ZipFile:
    return zipfile.ZipFile(torch_npu_wheel("310", "aarch64"))


def names_used_of_the_backend(checkout: Path) -> set[str]:
    """Attributes that stack/devices takes from torch.npu: of `self._module` and of a local `module`."""
    used = set()
    for file in sorted((checkout / "stack" / "devices").glob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if not isinstance(node, ast.Attribute):
                continue
            owner = node.value
            if isinstance(owner, ast.Name) and owner.id == "module":
                used.add(node.attr)
            if isinstance(owner, ast.Attribute) and owner.attr == "_module":
                used.add(node.attr)
    return used


def names_of(wheel: zipfile.ZipFile, module: str) -> set[str]:
    """What a module of the wheel defines or imports at its top level, star imports followed."""
    found = set()
    for node in ast.parse(source(wheel, module)).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.ImportFrom) and node.names[0].name == "*" and node.level == 1:
            found |= exported(wheel, f"{module.rpartition('/')[0]}/{node.module}.py")
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.Assign):
            found |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return found


def exported(wheel: zipfile.ZipFile, module: str) -> set[str]:
    """What `import *` brings: the names of __all__ that the module really has."""
    if module not in wheel.namelist():
        module = module.removesuffix(".py") + "/__init__.py"
    defined = names_of(wheel, module)
    for node in ast.parse(source(wheel, module)).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__":
            return set(ast.literal_eval(node.value)) & defined
    return {name for name in defined if not name.startswith("_")}


def source(wheel: zipfile.ZipFile, name: str) -> str:
    return wheel.read(name).decode()


def test_every_name_that_devices_uses_is_in_the_wheel(wheel: zipfile.ZipFile, checkout: Path) -> None:
    used = names_used_of_the_backend(checkout)
    assert len(used) > 10, "the names are no longer found in stack/devices; this test checks nothing"
    missing = used - names_of(wheel, "torch_npu/npu/__init__.py")
    assert missing == set()


def test_a_name_that_is_not_there_would_be_found(wheel: zipfile.ZipFile) -> None:
    there = names_of(wheel, "torch_npu/npu/__init__.py")
    assert "is_available" in there and "memory_of_the_moon" not in there


def test_the_backend_is_registered_as_torch_npu(wheel: zipfile.ZipFile) -> None:
    text = source(wheel, "torch_npu/__init__.py")
    assert re.search(r"rename_privateuse1_backend\(['\"]npu['\"]\)", text)
    assert re.search(r"_register_device_module\(['\"]npu['\"], *torch_npu\.npu\)", text)
    entries = source(wheel, "torch_npu-2.7.1.post6.dist-info/entry_points.txt")
    assert "[torch.backends]" in entries  # so that `import torch` alone brings it


def test_the_collective_backend_is_hccl(wheel: zipfile.ZipFile) -> None:
    from stack.devices.device import COLLECTIVES

    text = source(wheel, "torch_npu/__init__.py")
    assert re.search(r"register_backend\(\s*['\"]" + COLLECTIVES["npu"] + r"['\"]", text)


def test_its_out_of_memory_messages_are_known(wheel: zipfile.ZipFile) -> None:
    """The texts as they stand in the wheel's library, not as somebody remembers them."""
    library = wheel.read("torch_npu/lib/libtorch_npu.so")
    # Printable runs first: one pattern over 100 MB would look at every start of every run.
    runs = re.findall(rb"[\x20-\x7e]{12,200}", library)
    sign = re.compile(rb"out of memory|pin memory failed|allocator tried to", re.IGNORECASE)
    texts = {run.decode() for run in runs if sign.search(run)}
    spoken = {text for text in texts if " " in text.strip() and "%" not in text}
    assert any("NPU out of memory" in text for text in spoken)
    unknown = {text for text in spoken if not is_out_of_memory(RuntimeError(text))}
    assert unknown == set()


def test_what_it_wants_of_cann_is_what_the_image_build_proves(wheel: zipfile.ZipFile, checkout: Path) -> None:
    """It refuses to be imported where one of these is missing; see scripts/image/find_base.sh."""
    text = source(wheel, "torch_npu/utils/npu_intercept.py")
    check = text[text.index("def _cann_package_check") : text.index("get_cann_version()")]
    wanted = set(re.findall(r"os\.environ\[\"(\w+)\"\]", check)) | set(
        re.findall(r"_path, \"(\w+)\"\)", check)
    )
    assert wanted == {"ASCEND_HOME_PATH", "ASCEND_OPP_PATH", "runtime", "compiler"}
    finder = (checkout / "scripts" / "image" / "find_base.sh").read_text()
    assert all(name in finder for name in wanted)


def test_the_wheel_asks_for_the_torch_that_the_base_lock_names(
    wheel: zipfile.ZipFile, checkout: Path
) -> None:
    metadata = source(wheel, "torch_npu-2.7.1.post6.dist-info/METADATA")
    versions = {pin.name: pin.version for pin in read_lock(checkout / "manifests" / "locks" / "base.txt")}
    assert f"Requires-Dist: torch=={versions['torch']}\n" in metadata
