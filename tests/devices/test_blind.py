"""Everything outside stack/devices is blind to the device's kind: it names no accelerator's own interface."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

MODULES = {"cuda", "npu", "torch_npu"}
WORDS = {"nccl", "hccl", "npu-smi", "nvidia-smi"}
ALLOWED = {
    # Runs beside a training, without torch and without this room, and asks the vendor's tool for its log.
    "tracking/sampler.py": {"npu-smi", "nvidia-smi"},
}


def named(tree: ast.AST) -> Iterator[str]:
    """Accelerators' interfaces that a module names: attributes of torch, imports, and words of the tools."""
    # Only strings that do something: a docstring may speak of a tool.
    documents = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if node.value.id == "torch" and node.attr in MODULES:
                yield f"torch.{node.attr}"
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names = [alias.name for alias in node.names] + [getattr(node, "module", None) or ""]
            yield from (name for name in names if MODULES & {*name.split(".")})
        elif isinstance(node, ast.Constant) and id(node) not in documents and node.value in [*WORDS]:
            yield str(node.value)


def test_no_other_room_names_an_accelerators_interface(checkout: Path) -> None:
    stack, found = checkout / "stack", []
    for file in sorted(stack.rglob("*.py")):
        name = file.relative_to(stack).as_posix()
        if name.startswith("devices/"):
            continue
        text = file.read_text()
        if not any(word in text for word in MODULES | WORDS):
            continue
        own = set(named(ast.parse(text))) - ALLOWED.get(name, set())
        found += [f"{name}: {word}" for word in sorted(own)]
    assert found == []


@pytest.mark.parametrize(
    "line",
    [
        "import torch\ntorch.cuda.synchronize()",
        "import torch_npu",
        "from torch import npu",
        "import torch.cuda",
        "from torch.cuda import amp",
        "backend = 'hccl'",
        "run(['npu-smi', 'info'])",
    ],
)
def test_what_it_would_find(line: str) -> None:
    assert [*named(ast.parse(line))]
